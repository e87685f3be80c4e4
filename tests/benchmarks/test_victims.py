"""The cheapest victims on a full cluster, on a small one."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers.victims import PEERS
from benchmarks.victims import World, main
from muster.domain.clearing import Clearing
from muster.placement.clearing import clear


def test_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(nodes=32, seeds=1, cases="rack 8x8, rack 16x4") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    times, losses = lines[:3], lines[3:]
    assert [(line["case"], line["n"], line["proven"]) for line in times] == [
        ("rack 8x8 cold", 1, 1),
        ("rack 8x8", 1, 1),
        ("rack 16x4", 1, 1),
    ]
    assert {line["method"] for line in losses} == {"clear", *PEERS}
    assert all(line["ratio"] >= 1 or line["higher_priority"] for line in losses)


def test_a_full_cluster_is_cleared() -> None:
    world = World(64, 0.95, seed=1, elastic=0.2)
    gpus_taken = sum(pod.usage.gpus.bit_count() for pod in world.occupancy.occupants)
    assert 0.9 < gpus_taken / (64 * 8) <= 1
    answer = clear(world.snapshot, world.question("rack 8x8"))
    assert isinstance(answer, Clearing)
    assert answer.victims
