"""Containers with other GPUs than planned: an event, a count, a note; and what they have counts as taken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.pods.pods import read
from muster.domain.allocation import ALLOCATION, DEVICES
from muster.domain.node import Device, DeviceClaim
from muster.domain.pod import Pod
from muster.domain.topology import mask_of
from muster.gangs.messages.inputs import DeviceClaimSeen, NodeSeen
from muster.gangs.messages.instructions import EventReason
from muster.gangs.reporting.differences import LASTS_S
from tests.dialects.objects import pod_object
from tests.gangs.world import World, node, pod


def bound(planned: list[int], devices: Any) -> Pod:
    """A pod of two GPUs on a node, as the API server has it."""
    annotations = {ALLOCATION: json.dumps({"version": 1, "gpus": planned})}
    if devices is not None:
        annotations[DEVICES] = json.dumps(devices) if not isinstance(devices, str) else devices
    return read(pod_object(limits={"aliyun.com/gpu": "2"}, annotations=annotations, node="a"))


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
    bound_pod = bound([0, 1], devices)
    assert bound_pod.allocation == mask_of(counts)
    assert bound_pod.planned == (None if planned is None else mask_of(planned))


def test_it_is_told_once_and_counted() -> None:
    world = World().start(node("a", 8))
    pending = replace(
        pod("p", gang="", gpus=2, node="a"), allocation=mask_of([2, 3]), planned=mask_of([0, 1])
    )
    world.see(pending)
    world.see(replace(pending, running=True))
    (event,) = [event for event in world.events if event.reason is EventReason.DEVICES_DIFFER]
    assert event.message == (
        "the containers have GPUs 2,3 of their node, with 0,1 planned: Muster counts what they have"
    )
    differences = world.coordinator.differences()
    assert (len(differences), len(differences.notes())) == (1, 1)
    world.see(replace(pending, finished=True))
    assert (len(differences), differences.notes()) == (0, [])


def test_many_are_listed_in_part() -> None:
    world = World().start(node("a", 64))
    for number in range(25):
        bound_pod = replace(
            pod(f"p{number}", of=1, gang="", node="a"), allocation=1 << number, planned=1 << number + 1
        )
        world.see(bound_pod)
    notes = world.coordinator.differences().notes()
    assert len(notes) == 21
    assert notes[-1] == "5 more pods have other GPUs than planned"


# --- devices of a DRA driver: what claims hold, and what the plan names -----------------------------------


def gpu(number: int, driver: str = "gpu.example.com", pool: str = "racks/a") -> Device:
    return Device(driver, pool, f"gpu-{number}")


NIC = gpu(0, "net.example.com")
ELSEWHERE = gpu(0, pool="b")
SERVED = node("a", 8, devices=tuple(map(gpu, range(8))))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["gpu.example.com/racks/a/gpu-2", "gpu.example.com/racks/a/gpu-1"], (gpu(2), gpu(1))),
        (["gpu.example.com/gpu-2"], ()),
        (["gpu.example.com//gpu-2"], ()),
        ([7], ()),
        (["a/b/c"] * 300, ()),
        ("a/b/c", ()),
        (None, ()),
    ],
)
def test_the_devices_of_a_plan_are_read_from_the_pod(devices: Any, expected: tuple[Device, ...]) -> None:
    annotations = {ALLOCATION: json.dumps({"version": 1, "gpus": [0, 1], "devices": devices})}
    assert (
        read(pod_object(limits={"nvidia.com/gpu": "2"}, annotations=annotations, node="a")).devices
        == expected
    )


def by_plan(*numbers: int, uid: str = "p") -> Pod:
    """A bound pod whose plan names these GPUs of SERVED."""
    planned = pod(uid, gang="", gpus=len(numbers), node="a", allocation=mask_of(list(numbers)))
    return replace(planned, devices=tuple(map(gpu, numbers)))


def told(world: World) -> list[str]:
    return [event.message for event in world.events if event.reason is EventReason.DEVICES_DIFFER]


def hold(world: World, *claims: tuple[Device, ...], pods: tuple[str, ...] = ("p",)) -> None:
    """Each claim of the pod holds these devices, and is seen."""
    for at, devices in enumerate(claims):
        world.send(DeviceClaimSeen(world.now, DeviceClaim(f"c{at}", devices, pods)))


DIFFER: dict[str, tuple[list[tuple[Device, ...]], str]] = {
    "another device": (
        [(gpu(0), gpu(3))],
        "gpu.example.com/racks/a/gpu-3 in place of gpu.example.com/racks/a/gpu-1",
    ),
    "by two claims": (
        [(gpu(0),), (gpu(3),)],
        "gpu.example.com/racks/a/gpu-3 in place of gpu.example.com/racks/a/gpu-1",
    ),
    "one of another node": (
        [(gpu(0), ELSEWHERE)],
        "gpu.example.com/b/gpu-0 in place of gpu.example.com/racks/a/gpu-1",
    ),
    "one more": ([(gpu(0), gpu(1), gpu(4))], "gpu.example.com/racks/a/gpu-4 besides the planned devices"),
}


@pytest.mark.parametrize("case", DIFFER)
def test_claims_that_hold_other_devices_are_told_when_that_lasts(case: str) -> None:
    claims, difference = DIFFER[case]
    world = World().start(SERVED)
    world.see(by_plan(0, 1))
    hold(world, *claims)
    differences = world.coordinator.differences()
    assert (len(differences), told(world)) == (0, [])
    world.wait(LASTS_S)
    sentence = f"its claims hold {difference}: Muster counts what they hold"
    assert (len(differences), told(world)) == (1, [sentence])
    assert differences.notes() == [f"pod ns/p: {sentence}"]
    hold(world, *(() for _ in claims))
    assert len(differences) == 0


AGREE: dict[str, list[tuple[Device, ...]]] = {
    "the planned ones": [(gpu(1), gpu(0))],
    "by two claims": [(gpu(1),), (gpu(0),)],
    "beside a network card": [(gpu(0), gpu(1), NIC)],
    "beside a device of the driver that is no GPU": [(gpu(0), gpu(1), gpu(99))],
    "none that was seen": [],
    "one of two claims": [(gpu(0),)],
}


@pytest.mark.parametrize("case", AGREE)
def test_claims_that_do_not_differ(case: str) -> None:
    world = World().start(SERVED)
    hold(world, *AGREE[case])
    world.see(by_plan(0, 1))
    world.wait(LASTS_S)
    assert (len(world.coordinator.differences()), told(world)) == (0, [])


def test_claims_of_an_earlier_plan_are_no_difference_while_the_later_ones_are_on_their_way() -> None:
    world = World().start(SERVED)
    hold(world, (gpu(6), gpu(7)))
    world.see(by_plan(0, 1))
    world.wait(LASTS_S - 1)
    hold(world, (gpu(0), gpu(1)))
    world.wait(LASTS_S)
    assert told(world) == []


def test_claims_that_several_pods_share_are_nobodys_difference() -> None:
    world = World().start(SERVED)
    world.see(by_plan(0, 1))
    hold(world, (gpu(2), gpu(3)), pods=("p", "q"))
    world.wait(LASTS_S)
    assert told(world) == []


def test_a_node_that_comes_later_shows_which_devices_are_gpus() -> None:
    world = World().start()
    world.see(by_plan(0, 1))
    hold(world, (gpu(0), gpu(1), gpu(2)))
    world.send(NodeSeen(world.now, SERVED))
    world.wait(LASTS_S)
    assert len(told(world)) == 1


def test_a_pod_that_ended_differs_no_more_and_a_new_leader_tells_what_stands() -> None:
    world = World().start(SERVED)
    first, second = by_plan(0, 1), by_plan(4, uid="q")
    world.see(first, second)
    hold(world, (gpu(2), gpu(3)))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("d", (gpu(5),), ("q",))))
    world.wait(LASTS_S)
    assert len(told(world)) == 2
    world.see(replace(first, finished=True))
    world.connect()
    assert (len(world.coordinator.differences()), len(told(world))) == (1, 2)


def test_what_claims_hold_is_shown_and_counts() -> None:
    world = World().start(SERVED)
    world.see(by_plan(0, 1))
    hold(world, (gpu(2), gpu(3)))
    ((shown,),) = world.coordinator.gpus_of_pods(["a"])
    assert shown.gpus == mask_of([2, 3])
    assert world.coordinator.snapshot().nodes["a"].free_gpus == mask_of([0, 1, 4, 5, 6, 7])
    world.send(NodeSeen(world.now, replace(SERVED, unhealthy=mask_of([0]))))
    assert EventReason.INVALID not in [event.reason for event in world.events]
    world.send(NodeSeen(world.now, replace(SERVED, unhealthy=mask_of([3]))))
    assert EventReason.INVALID in [event.reason for event in world.events]
