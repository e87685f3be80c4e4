"""GPUs whose memory claims share: what claims hold of them counts, and members are planned with the rest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from muster.domain.allocation import ALLOCATION, MEM_GPUS
from muster.domain.node import DeviceClaim, HandsOut, Node, Resources, Usage
from muster.domain.pod import Pod
from muster.domain.request import Slice
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.messages.calls import InTreeAnswer
from muster.gangs.messages.inputs import DeviceClaimSeen
from tests.gangs.test_device_claims import device, devices
from tests.gangs.world import GPU, World, node, pod

GI = 1 << 30
MEMORY = f"memory of {GPU}"


def shared(name: str = "n", memory: tuple[int, ...] = (80, 80), whole: bool = True) -> Node:
    """A node whose GPUs claims share."""
    node_devices = tuple(device(number, name) for number in range(len(memory)))
    served = frozenset({GPU}) if whole else frozenset[str]()
    new_node = node(name, len(memory), devices=node_devices, gpu_memory=memory, gpu_resources=served)
    return replace(new_node, memory_resources=frozenset({MEMORY}), hands_out=HandsOut.DRA)


def sharing(uid: str, units: int, of: int = 1, gang: str = "g", gpus: int = 1) -> Pod:
    """A member with a claim for this many GiB of each of some GPUs."""
    return pod(uid, gang, of, 0, slice=Slice(units, gpus, MEMORY), device_claims=True)


def usage(uid: str, gpus: int = 0, units: int = 0, unindexed: int = 0) -> Usage:
    return Usage(uid, "n", Resources(100, 1 << 20, 1), gpus, unindexed, units)


P = ("p",)
Claim = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]
CASES: dict[str, tuple[list[Usage], list[Usage], list[Claim], int, tuple[int, int]]] = {
    # bound, held, claims (devices, bytes, consumers) → free GPUs (mask), memory that is left
    "nothing": ([], [], [], 0b11, (80, 80)),
    "a share of nobody": ([], [], [((1,), (30 * GI,), ())], 0b01, (80, 50)),
    "a part of a GiB counts as one": ([], [], [((1,), (1,), ())], 0b01, (80, 79)),
    "shares add up in bytes": ([], [], [((1,), (GI // 2,), ())] * 4, 0b01, (80, 78)),
    "two shares in one claim": ([], [], [((1, 1), (GI, 2 * GI), ())], 0b01, (80, 77)),
    "shares of two GPUs": ([], [], [((0, 1), (GI, 2 * GI), ())], 0, (79, 78)),
    "a whole GPU": ([], [], [((1,), (), ())], 0b01, (80, 0)),
    "what leaves less than a GiB": ([], [], [((1,), (80 * GI,), ())], 0b01, (80, 0)),
    "more than the GPU has": ([], [], [((1,), (50 * GI,), ()), ((1,), (50 * GI,), ())], 0b01, (80, 0)),
    "whole, and a share": ([], [], [((1,), (), ()), ((1,), (GI,), ())], 0b01, (80, 0)),
    "a device that the node does not have": ([], [], [((9,), (GI,), ())], 0b11, (80, 80)),
    "a bound member and its claim count once": (
        [usage("p", 0b10, 30)],
        [],
        [((1,), (30 * GI - 5,), P)],
        0b01,
        (80, 50),
    ),
    "the claim outdoes the annotation": (
        [usage("p", 0b10, 30)],
        [],
        [((0,), (40 * GI,), P)],
        2,
        (40, 80),
    ),
    "a bound member without annotations": (
        [usage("p", 0, 30, 1)],
        [],
        [((0,), (30 * GI,), P)],
        2,
        (50, 80),
    ),
    "a bound member whose claim is whole": (
        [usage("p", 0b10, 80)],
        [],
        [((1,), (80 * GI,), P)],
        1,
        (80, 0),
    ),
    "a bound member without a claim": ([usage("p", 0b10, 30)], [], [], 0b01, (80, 50)),
    "a plan and the claim that it writes": (
        [],
        [usage("p", 0b10, 30)],
        [((1,), (30 * GI,), P)],
        1,
        (80, 50),
    ),
    "a plan beside a claim for more": ([], [usage("p", 0b10, 30)], [((1,), (40 * GI,), P)], 1, (80, 10)),
    "a plan beside the claim of an earlier one": (
        [],
        [usage("p", 0b10, 30)],
        [((0,), (30 * GI,), P)],
        0,
        (50, 50),
    ),
    "a plan of a whole GPU beside a share": ([], [usage("p", 0b10)], [((0,), (GI,), P)], 0, (79, 0)),
    "a foreign pod that got the default": (
        [usage("p", 0, 0, 1)],
        [],
        [((1,), (10 * GI,), P)],
        1,
        (80, 70),
    ),
    "a foreign pod with a whole GPU": ([usage("p", 0, 0, 1)], [], [((1,), (80 * GI,), P)], 1, (80, 0)),
    "a pod without GPUs of its own": ([usage("p")], [], [((1,), (10 * GI,), P)], 0b01, (80, 70)),
    "bound members fill a GPU to the byte": (
        [usage("p", 0b1, 40), usage("q", 0b1, 41)],
        [],
        [((0,), (39 * GI + GI // 2,), P), ((0,), (40 * GI + GI // 2,), ("q",))],
        0b10,
        (0, 80),
    ),
    "shares of bound members and of others add up in bytes": (
        [usage("p", 0b1, 40)],
        [],
        [((0,), (39 * GI + GI // 2,), P), ((0,), (GI // 2,), ())],
        0b10,
        (40, 80),
    ),
    "a bound member with less than a GiB": (
        [usage("p", 0b1, 1)],
        [],
        [((0,), (GI // 2,), P), ((0,), (GI // 2,), ())],
        0b10,
        (79, 80),
    ),
    "a bound member with different shares": (
        [usage("p", 0b11, 9)],
        [],
        [((0, 1), (9 * GI, 5 * GI + 1), P)],
        0,
        (71, 74),
    ),
    "a plan of a GPU that others fill": ([], [usage("p", 0b1, 40)], [((0,), (60 * GI,), ())], 2, (0, 80)),
    "a claim that pods share": (
        [usage("p", 0b1, 30), usage("q", 0b1, 30)],
        [],
        [((1,), (9 * GI,), ("p", "q"))],
        0,
        (20, 71),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_left(case: str) -> None:
    bound, plan_usages, claims, mask, memory = CASES[case]
    ledger = Ledger()
    ledger.set_node(shared())
    for usage in bound:
        ledger.bind(usage.pod_uid, usage)
    ledger.hold(plan_usages)
    for at, (numbers, amounts, consumers) in enumerate(claims):
        ledger.see_claim(DeviceClaim(f"c{at}", devices(*numbers), consumers, amounts))
    state = ledger.snapshot().nodes["n"]
    assert (state.free_gpus, state.unindexed_gpus, state.free_memory) == (mask, 0, memory)
    for at in range(len(claims)):
        ledger.see_claim(DeviceClaim(f"c{at}", (), ()))
    for usage in (*bound, *plan_usages):
        ledger.bind(usage.pod_uid, None)
        ledger.release([usage.pod_uid])
    assert ledger.snapshot().nodes["n"].free_memory == (80, 80)


def test_a_gpu_with_a_share_is_taken_where_gpus_are_not_shared() -> None:
    """Its driver has published it in another way since then."""
    ledger = Ledger()
    ledger.set_node(node("n", 2, devices=devices(0, 1)))
    ledger.see_claim(DeviceClaim("c", devices(1), (), (GI,)))
    ledger.bind("p", usage("p", 0b1, 30))
    ledger.see_claim(DeviceClaim("d", devices(0), ("p",), (30 * GI,)))
    assert ledger.snapshot().nodes["n"].free_gpus == 0


def test_a_thousand_tiny_shares_take_a_thousand_times_as_much_and_no_more() -> None:
    ledger = Ledger()
    ledger.set_node(shared())
    for number in range(1000):
        ledger.see_claim(DeviceClaim(f"c{number}", devices(1), (f"p{number}",), (GI // 100,)))
    assert ledger.snapshot().nodes["n"].free_memory == (80, 70)


def started(*nodes: Node) -> World:
    return World().start(*nodes)


def test_four_members_share_two_gpus_and_a_fifth_does_not_fit() -> None:
    world = started(shared())
    world.see(*(sharing(f"p{rank}", 30, 4) for rank in range(4)))
    answer = world.filter()
    names_given = sorted(name for member_devices in answer.devices for name in member_devices)
    assert names_given == sorted(2 * [str(device(0)), str(device(1))])
    assert answer.memory == (30,) * 4
    world.run()
    world.see(sharing("q", 30, gang="h"))
    assert not world.planned("h")
    assert "30 GiB" in world.verdict("h").reason
    world.see(sharing("r", 20, gang="i"))
    assert world.planned("i")


def test_a_member_takes_as_much_of_several_gpus() -> None:
    world = started(shared())
    world.see(*(sharing(f"p{rank}", 40, 2, gpus=2) for rank in range(2)))
    assert world.filter().devices == ((str(device(0)), str(device(1))),) * 2
    world.run()
    world.see(sharing("q", 1, gang="h"))
    assert not world.planned("h")


def test_what_a_binding_says() -> None:
    """The device plugin's annotations say nothing to a DRA driver."""
    world = started(shared())
    world.see(sharing("p0", 30))
    (carried,) = world.run().annotations
    binding = json.loads(carried[ALLOCATION])
    assert (binding["gpu_mem"], binding["indices"]) == ({str(binding["gpus"][0]): 30}, "planned")
    assert MEM_GPUS not in carried
    assert world.pods["p0"].allocation == 1 << binding["gpus"][0]


def test_a_whole_gpu_and_shares_are_apart() -> None:
    world = started(shared())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0), (), (GI,))))
    world.see(pod("p0", of=1, gpus=1))
    answer = world.filter()
    assert (answer.devices, answer.memory) == (((str(device(1)),),), ())
    world.see(sharing("q", 79, gang="h"), sharing("r", 1, gang="i"))
    assert world.filter("h").devices == ((str(device(0)),),)
    assert not world.planned("i")


def test_members_with_capacity_and_with_gpu_mem_get_nodes_of_their_kind() -> None:
    plugin = node("m", 2, gpu_memory=(80, 80))
    world = started(shared(), plugin)
    world.see(sharing("p", 30), pod("q", "h", 1, 0, slice=Slice(30)))
    assert (world.home(0), world.home(0, "h")) == ("n", "m")
    world = started(plugin)
    world.see(sharing("p", 30))
    assert f"No node offers {MEMORY}" in world.verdict().reason
    world = started(shared())
    world.see(pod("q", "h", 1, 0, slice=Slice(30)))
    assert "No node offers aliyun.com/gpu-mem" in world.verdict("h").reason


def test_where_the_default_is_a_part_no_whole_gpu_is_planned() -> None:
    world = started(shared(whole=False))
    world.see(pod("p", of=1))
    assert f"No node offers {GPU}" in world.verdict().reason
    world.see(sharing("q", 80, gang="h"))
    assert world.planned("h")


def test_members_get_shares_of_gpus_that_match() -> None:
    """The planner's other view of the cluster has no memory on GPUs that do not match."""
    world = World(answers_in_tree=True).start(shared())
    world.see(*(sharing(f"p{rank}", 30, 2) for rank in range(2)))
    world.report(InTreeAnswer(devices=({"n": frozenset({"gpu.example.com/gpu-1"})},)))
    answer = world.filter()
    assert answer.devices == ((str(device(1)),),) * 2
    world.see(sharing("q", 60, gang="h"))
    world.report(InTreeAnswer(devices=({"n": frozenset({"gpu.example.com/gpu-1"})},)))
    assert not world.planned("h")


def test_a_share_that_comes_free_is_planned_again() -> None:
    world = started(shared(memory=(80,)))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0), (), (60 * GI,))))
    world.see(sharing("p", 30))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0), (), (50 * GI,))))
    world.wait(1)
    assert world.planned()


def test_a_member_that_shares_keeps_its_place_after_a_restart() -> None:
    world = started(shared())
    world.see(sharing("p", 30))
    world.run()
    member = world.pods["p"]
    ledger = Ledger()
    ledger.set_node(shared())
    ledger.see(member)
    free_memory = ledger.snapshot().nodes["n"].free_memory
    assert sorted(free_memory) == [50, 80]
    gpu = free_memory.index(50)
    ledger.see_claim(DeviceClaim("c", devices(gpu), ("p",), (30 * GI,)))
    assert ledger.snapshot().nodes["n"].free_memory == free_memory
