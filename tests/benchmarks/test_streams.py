"""Streams of gangs: what arrives is what the mix says, and what is placed leaves again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.streams import stream
from benchmarks.streams.__main__ import STREAMS, TREES, main
from benchmarks.streams.arrivals import MIXES, Arrival, Gang, arrivals
from benchmarks.streams.stream import Task, Tree, run
from muster.command_line import run_command
from muster.domain.request import Scope
from tests.command import invoke

NODE = Tree(1, 1, 1)
ONE = Gang(1, 8, 1.0)


def outcome_of(monkeypatch: pytest.MonkeyPatch, tree: Tree, *coming: Arrival) -> stream.Outcome:
    monkeypatch.setattr(stream, "arrivals", lambda *_: list(coming))
    return run(Task("whole", 1.0, tree, len(coming), 0))


@pytest.mark.parametrize("mix", MIXES)
def test_gangs_ask_for_so_much_on_average_and_fit_an_empty_cluster(mix: str) -> None:
    tree = TREES[dict(STREAMS)[mix]]
    coming = arrivals(mix, 0.5, tree.capacity, 4000, 0)
    load = sum(arrival.gang.size * arrival.gang.stay for arrival in coming) / coming[-1].at
    assert load == pytest.approx(0.5 * tree.capacity, rel=0.1)
    assert all(0 < arrival.gang.gpus <= tree.gpus for arrival in coming if arrival.gang.members)
    assert all(arrival.gang.members or arrival.gang.idle for arrival in coming)
    racks = [arrival.gang for arrival in coming if arrival.gang.scope in (Scope.RACK, Scope.NVLINK_DOMAIN)]
    assert all(gang.size <= tree.nodes * tree.gpus for gang in racks)


def test_equal_seeds_give_equal_streams() -> None:
    assert arrivals("mixed", 1.0, 512, 50, 7) == arrivals("mixed", 1.0, 512, 50, 7)
    assert arrivals("mixed", 1.0, 512, 50, 7) != arrivals("mixed", 1.0, 512, 50, 8)


def test_a_gang_that_finds_no_place_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of(monkeypatch, NODE, Arrival(0.0, ONE), Arrival(0.5, ONE))
    assert (outcome.turned_away, outcome.nodes, outcome.work) == (1, 1, 0.5)


def test_a_gang_leaves_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = outcome_of(monkeypatch, NODE, Arrival(0.0, ONE), Arrival(1.0, ONE))
    assert (outcome.turned_away, outcome.nodes, outcome.work) == (0, 2, 1.0)


def test_a_gang_keeps_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    racks, pair = Tree(1, 2, 1), Gang(2, 8, 1.0, Scope.RACK)
    outcome = outcome_of(monkeypatch, racks, Arrival(0.0, pair))
    assert (outcome.turned_away, outcome.large) == (1, 1)


def test_the_command_writes_a_line_for_each_stream(tmp_path: Path) -> None:
    out = tmp_path / "streams.jsonl"
    options = ["--mixes", "whole", "--loads", "0.9", "--seeds", "2", "--gangs", "20", "--processes", "1"]
    result = invoke(partial(run_command, main, "streams"), *options, "--out", str(out))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["seed"] for line in sorted(lines, key=lambda line: line["seed"])] == [0, 1]
    assert all(line["unproven"] == 0 and line["nodes"] for line in lines)
