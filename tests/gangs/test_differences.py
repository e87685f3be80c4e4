"""Containers with other GPUs than planned: an event, a count, a note; and what they have counts as taken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.pods import read
from muster.domain.allocation import ALLOCATION, DEVICES
from muster.domain.pod import Pod
from muster.domain.topology import mask_of
from muster.gangs.messages.instructions import EventReason
from tests.dialects.objects import pod_object
from tests.gangs.world import World, node, pod


def bound(planned: list[int], devices: Any) -> Pod:
    """A pod of two GPUs on a node, as the API server has it."""
    said = {ALLOCATION: json.dumps({"version": 1, "gpus": planned})}
    if devices is not None:
        said[DEVICES] = json.dumps(devices) if not isinstance(devices, str) else devices
    return read(pod_object(limits={"aliyun.com/gpu": "2"}, annotations=said, node="a"))


@pytest.mark.parametrize(
    ("devices", "counts", "planned"),
    [
        (None, [0, 1], None),
        ({"version": 1, "gpus": [2, 3]}, [2, 3], [0, 1]),
        ({"version": 1, "gpus": [1, 0]}, [0, 1], None),
        ({"version": 1, "gpus": [2]}, [0, 1], None),
        ({"version": 1, "gpus": [2, 2]}, [0, 1], None),
        ({"version": 1, "gpus": [2, 999]}, [0, 1], None),
        ({"version": 2, "gpus": [2, 3]}, [0, 1], None),
        ({"version": 1, "gpus": "2,3"}, [0, 1], None),
        ("no JSON", [0, 1], None),
        ("[" * 20000, [0, 1], None),
    ],
)
def test_what_a_node_agent_found_is_the_truth(
    devices: Any, counts: list[int], planned: list[int] | None
) -> None:
    found = bound([0, 1], devices)
    assert found.allocation == mask_of(counts)
    assert found.planned == (None if planned is None else mask_of(planned))


def test_it_is_told_once_and_counted() -> None:
    world = World().start(node("a", 8))
    other = replace(pod("p", gang="", gpus=2, node="a"), allocation=mask_of([2, 3]), planned=mask_of([0, 1]))
    world.see(other)
    world.see(replace(other, running=True))
    (event,) = [event for event in world.events if event.reason is EventReason.DEVICES_DIFFER]
    assert event.message == (
        "the containers have GPUs 2,3 of their node, with 0,1 planned: Muster counts what they have"
    )
    found = world.coordinator.differences()
    assert (len(found), len(found.notes())) == (1, 1)
    world.see(replace(other, finished=True))
    assert (len(found), found.notes()) == (0, [])


def test_many_are_listed_in_part() -> None:
    world = World().start(node("a", 64))
    for number in range(25):
        seen = replace(
            pod(f"p{number}", of=1, gang="", node="a"), allocation=1 << number, planned=1 << number + 1
        )
        world.see(seen)
    notes = world.coordinator.differences().notes()
    assert len(notes) == 21
    assert notes[-1] == "5 more pods have other GPUs than planned"
