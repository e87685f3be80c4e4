"""A partition that is allocated takes its GPU, in the ledger and from plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.node import Device, DeviceClaim, Node, PoolCounters, Usage
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.messages.inputs import DeviceClaimSeen
from tests.gangs.test_device_claims import (
    DRIVER,
    device,
    devices,
    free_beside,
    planned_devices,
    served,
    usage,
)
from tests.gangs.world import World, pod

POOL = (DRIVER, "n")


def part(number: int, at: int = 0) -> Device:
    return Device(DRIVER, "n", f"gpu-{number}-{at}")


def divided(gpus: int = 4) -> Node:
    """A node with one counter for each GPU: a GPU consumes all of it, and each of two partitions one half."""
    needs = [(f"gpu-{number}", ((number, 2),)) for number in range(gpus)]
    needs += [(f"gpu-{number}-{at}", ((number, 1),)) for number in range(gpus) for at in range(2)]
    return replace(served(gpus=gpus), counters={POOL: PoolCounters((2,) * gpus, tuple(needs))})


def sharing() -> Node:
    """A node whose four GPUs consume one counter. There is enough for all four."""
    needs = [(f"gpu-{number}", ((0, 1),)) for number in range(4)]
    needs += [("gpu-0-0", ((0, 1),)), ("gpu-1-0", ((0, 5),))]
    return replace(served(), counters={POOL: PoolCounters((4,), tuple(needs))})


Claimed = list[tuple[tuple[Device, ...], tuple[str, ...]]]

CASES: dict[str, tuple[Node, list[Usage], list[Usage], Claimed, int, int]] = {
    # node, bound, held, claims (devices, consumers) → free GPUs (mask), free GPUs (number)
    "nothing": (divided(), [], [], [], 0b1111, 4),
    "a partition": (divided(), [], [], [((part(1),), ("p",))], 0b1101, 3),
    "a partition of nobody": (divided(), [], [], [((part(1),), ())], 0b1101, 3),
    "both partitions of a GPU": (divided(), [], [], [((part(1), part(1, 1)), ())], 0b1101, 3),
    "partitions of two claims": (divided(), [], [], [((part(1),), ()), ((part(3),), ())], 0b0101, 2),
    "a whole GPU takes itself alone": (divided(), [], [], [((device(2),), ())], 0b1011, 3),
    "a pod with a GPU and a partition": (
        divided(),
        [usage("p", 0b0001)],
        [],
        [((device(0), part(1)), ("p",))],
        0b1100,
        2,
    ),
    "the pod of a partition takes no GPU of its own": (
        divided(),
        [usage("p")],
        [],
        [((part(1),), ("p",))],
        0b1101,
        3,
    ),
    "a plan on another GPU": (divided(), [], [usage("q", 0b1000)], [((part(1),), ())], 0b0101, 2),
    "a plan on a GPU of which a partition is taken": (
        divided(),
        [],
        [usage("q", 0b0010)],
        [((part(1),), ())],
        0b1101,
        2,  # the plan has a GPU somewhere
    ),
    "a device that is not published": (divided(), [], [], [((part(9),), ())], 0b1111, 4),
    "a shared counter leaves as many GPUs": (sharing(), [], [], [((part(0),), ())], 0b0111, 3),
    "a shared counter, planned GPUs first": (
        sharing(),
        [],
        [usage("q", 0b1000)],
        [((part(0),), ())],
        0b0011,
        2,
    ),
    "an exceeded counter leaves none": (sharing(), [], [], [((part(1),), ())], 0, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_free(case: str) -> None:
    free_node, bound, plan_usages, claims, mask, number = CASES[case]
    assert free_beside(free_node, bound, plan_usages, claims) == (mask, number)


def test_what_is_free_stays_free_when_some_of_it_is_reserved() -> None:
    """A plan takes any of the free GPUs, and the rest of them can be planned next."""
    for gpus in range(0b1000):
        ledger = Ledger()
        ledger.set_node(sharing())
        ledger.see_claim(DeviceClaim("c", (part(0),), ()))
        assert ledger.snapshot().nodes["n"].free_gpus == 0b0111
        ledger.hold([usage("q", gpus)])
        assert ledger.snapshot().nodes["n"].free_gpus == 0b0111 & ~gpus


def test_a_partition_of_the_pods_own_earlier_claim_is_free_for_them() -> None:
    ledger = Ledger()
    ledger.set_node(divided())
    ledger.see_claim(DeviceClaim("c", (part(1),), ("p",)))
    assert ledger.snapshot_without(["p"]).nodes["n"].free_gpus == 0b1111
    assert ledger.snapshot_without(["q"]).nodes["n"].free_gpus == 0b1101


def test_a_gang_gets_the_gpus_without_partitions_and_the_other_one_when_it_is_whole() -> None:
    world = World().start(divided())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", (part(1),), ("x",))))
    world.see(*(pod(f"p{rank}", of=3, gpus=1) for rank in range(3)))
    assert planned_devices(world) == [("gpu-0",), ("gpu-2",), ("gpu-3",)]
    world.see(pod("q0", gang="h", of=1))
    assert not world.planned("h")
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))
    world.wait(1)
    assert world.planned("h")
    assert world.filter("h").devices == ((str(device(1)),),)


def test_a_partition_that_others_get_withdraws_the_plan_that_was_to_have_its_gpu() -> None:
    world = World().start(divided())
    world.see(pod("p0", of=1, gpus=4))
    assert world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", (part(2),), ("x",))))
    assert not world.planned()
    assert devices(2)[0] in world.coordinator.state.ledger.nodes["n"].devices


def test_a_member_keeps_its_plan_when_its_own_claims_are_written() -> None:
    """It has a GPU and a partition of another one. The partition is not among its GPUs."""
    world = World().start(divided())
    world.see(pod("p0", of=1, gpus=1))
    ((name,),) = planned_devices(world)
    number = int(name[-1])
    assert world.reserve().claimed
    answer = world.permit()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", (device(number),), ("p0",))))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("d", (part((number + 1) % 4),), ("p0",))))
    world.bind(answer)
    assert world.phase() == "running"
    state = world.coordinator.state.ledger.snapshot().nodes["n"]
    assert (state.free_gpus, state.free_gpu_count) == (0b1111 & ~(1 << number | 1 << (number + 1) % 4), 2)


def test_gpus_of_several_claims_are_no_partition_of_nvidias_fabric_manager() -> None:
    """All GPUs of the node are one, and each claim would get some of them. Then the pods have one claim."""
    world = World().start(replace(served(), partitions=((2, "p2"), (4, ""))))
    world.see(pod("p0", of=1, gpus=4, several_claims=True))
    assert not world.planned()
    (view,) = world.coordinator.summary()
    assert "each of several claims has only some of them" in view.reason
    world.see(pod("p0", of=1, gpus=4))
    world.wait(1)
    assert world.planned()


def test_roles_differ_in_whether_their_gpus_are_in_several_claims() -> None:
    world = World(auto=False).start(served())
    world.see(pod("p0", gpus=2, several_claims=True), pod("p1", gpus=2))
    assert [role.several_claims for role in world.solves[-1].request.roles] == [False, True]
