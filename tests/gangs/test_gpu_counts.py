"""Members whose claims leave the number of their GPUs open: by subrequest, or all that match on a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from muster.domain.allocation import ALLOCATION
from muster.domain.node import DeviceClaim, Node, Usage
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.topology import mask_of
from muster.gangs.messages.calls import InTreeAnswer
from muster.gangs.messages.inputs import DeviceClaimSeen
from muster.gangs.pending.answers import MAX_NUMBERS
from muster.gangs.reporting.places import AskAlternatives
from muster.placement.alternatives import alternatives
from tests.gangs.test_device_claims import DRIVER, choices_of, devices, matching, may_have, served
from tests.gangs.world import World, pod


def asking(uid: str, *counts: int, **more: Any) -> Pod:
    """A pod whose subrequests are for these numbers of GPUs; 0 is for all that match on its node."""
    return pod(uid, gpus=min(count or 1 for count in counts), gpu_counts=counts, device_claims=True, **more)


def on_nodes(*by_node: dict[str, tuple[int, ...]]) -> InTreeAnswer:
    """An answer with a list of matching GPUs by node, for each subrequest."""
    lists = [
        {
            node: frozenset(f"{DRIVER}/gpu-{number}" for number in numbers)
            for node, numbers in numbers_by_node.items()
        }
        for numbers_by_node in by_node
    ]
    return InTreeAnswer(devices=tuple(lists))


def given(world: World, gang: str = "g") -> tuple[list[tuple[str, ...]], tuple[int, ...]]:
    """The devices that the shim is told for each member, and their subrequests."""
    answer = world.filter(gang)
    return [tuple(name.rpartition("/")[2] for name in of) for of in answer.devices], answer.subrequests


def free_of(world: World, node: str = "n") -> int:
    return world.coordinator.state.ledger.snapshot().nodes[node].free_gpus


@pytest.mark.parametrize(
    ("big", "claimed_numbers", "expected", "number"),
    [
        ((3,), (), ("gpu-3",), 1),
        ((3,), (3,), ("gpu-0", "gpu-1"), 2),
        ((), (), ("gpu-0", "gpu-1"), 2),
    ],
)
def test_a_member_gets_as_many_gpus_as_its_subrequest_asks_for(
    big: tuple[int, ...], claimed_numbers: tuple[int, ...], expected: tuple[str, ...], number: int
) -> None:
    """One big GPU, else two small ones. From the plan to the Binding each counts with what it has."""
    world = World(answers_in_tree=True).start(served())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(*claimed_numbers), ())))
    world.see(asking("p0", 1, 2, of=1))
    world.report(choices_of(big, (0, 1, 2)))
    assert given(world) == ([expected], (number,))
    answer = world.run()
    mask = mask_of([int(name[-1]) for name in expected])
    assert json.loads(answer.annotations[0][ALLOCATION])["gpus"] == [int(name[-1]) for name in expected]
    assert world.pods["p0"].gpus == len(expected)
    assert free_of(world) == 0b1111 & ~mask & ~mask_of(claimed_numbers)
    (view,) = world.coordinator.summary()
    assert (view.gpus_bound, view.gpus_waiting) == (len(expected), 0)


def test_all_members_take_one_subrequest() -> None:
    """One big GPU is there for two members, so both get two small ones."""
    world = World(answers_in_tree=True).start(served(gpus=5))
    world.see(*(asking(f"p{rank}", 1, 2) for rank in range(2)))
    world.report(choices_of((0,), (1, 2, 3, 4)))
    members, numbers = given(world)
    assert sorted(members) == [("gpu-1", "gpu-2"), ("gpu-3", "gpu-4")]
    assert numbers == (2, 2)


def test_the_subrequest_that_tolerates_a_taint_is_the_one_that_is_told() -> None:
    """The first subrequest does not name the node: it allows those without a taint, and one is left."""
    world = World(answers_in_tree=True).start(replace(served(), unhealthy=0b1000, tainted=0b1000))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0, 1), ())))
    world.see(pod("p0", gpus=2, device_claims=True, of=1))
    world.report(on_nodes({}, {"n": (0, 1, 2, 3)}))
    assert given(world) == ([("gpu-2", "gpu-3")], (2,))


def test_members_by_several_subrequests_are_told_their_own() -> None:
    """On node m two GPUs without a taint are left; on n one is, so a member there tolerates the other's."""
    tainted = [replace(served(name), unhealthy=0b1000, tainted=0b1000) for name in ("m", "n")]
    world = World(answers_in_tree=True).start(*tainted)
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0, 1), ())))
    world.see(*(pod(f"p{rank}", gpus=2, device_claims=True, of=2) for rank in range(2)))
    world.report(on_nodes({"m": (0, 1)}, {"m": (), "n": (0, 1, 2, 3)}))
    members, numbers = given(world)
    assert sorted(zip(members, numbers, strict=True)) == [(("gpu-0", "gpu-1"), 1), (("gpu-2", "gpu-3"), 2)]


def test_members_that_come_later_are_of_the_role_of_those_that_run() -> None:
    world = World(answers_in_tree=True).start(served())
    world.see(asking("p0", 1, 2, of=1))
    world.report(choices_of((), (0, 1)))
    world.run()
    world.gone("p0")
    world.see(asking("p0", 1, 2, of=1))
    world.report(choices_of((3,), (0, 1)))
    assert given(world) == ([("gpu-3",)], (1,))


def test_members_with_other_counts_disagree() -> None:
    world = World(answers_in_tree=True).start(served())
    claim = GangClaim("annotations", "g", 2, topology_request=TopologyRequest(role="w", role_scope="rack"))
    world.see(asking("p0", 1, 2, claim=claim), asking("p1", 1, 3, claim=claim))
    (view,) = world.coordinator.summary()
    assert "1 or 2 nvidia.com/gpu" in view.reason
    assert "1 or 3 nvidia.com/gpu" in view.reason


def test_all_that_match_on_a_node_go_to_one_member() -> None:
    """The most GPUs first. A node where one that matches is taken is none for it."""
    nodes = [served("n"), served("o"), served("p", 2)]
    answer = on_nodes({"n": (0, 1, 2), "o": (1, 2, 3), "p": (0, 1)})
    world = World(answers_in_tree=True).start(*nodes)
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(0), ())))
    world.see(asking("p0", 0, of=1))
    world.report(answer)
    assert given(world) == ([("gpu-1", "gpu-2", "gpu-3")], (1,))
    world.run()
    assert world.pods["p0"].gpus == 3
    world.see(asking("q0", 0, of=1, gang="h"))
    world.report(answer)
    assert given(world, "h") == ([("gpu-0", "gpu-1")], (1,))
    world.see(*(asking(f"r{rank}", 0, gang="i") for rank in range(2)))
    world.report(answer)
    assert "all GPUs that match: 2 GPUs on 1 node" in world.verdict("i").reason


def test_a_gang_that_wants_all_waits_for_a_gpu_that_comes_free() -> None:
    world = World(answers_in_tree=True).start(served())
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(2), ())))
    world.see(asking("p0", 0, of=1))
    world.report(may_have(1, 2, 3))
    assert not world.planned()
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c")))
    world.wait(1)
    assert given(world) == ([("gpu-1", "gpu-2", "gpu-3")], (1,))


def test_where_nothing_is_known_of_the_gpus_that_match_none_are_taken() -> None:
    """A shim that gave no answer in time, and a device that is no GPU of the node."""
    nodes: dict[str, Node] = {"n": served(), "o": served("o")}
    assert matching((InTreeAnswer(),), nodes, 0) == [{"n": 0, "o": 0}]
    assert matching((on_nodes({"n": (0, 1, 9)}),), nodes, 0) == [{"n": 0, "o": 0}]
    assert matching((on_nodes({"n": (0, 1)}), on_nodes({"n": (1, 0)})), nodes, 0) == [{"n": 0b0011, "o": 0}]
    assert matching((on_nodes({"n": (0, 1)}), on_nodes({"n": (0,)})), nodes, 0) == [{"n": 0, "o": 0}]
    answer = on_nodes({"n": (0, 1)}, {"n": (0,), "o": (1, 2)})
    assert matching((answer,), nodes, 1, 0) == [{"n": 0b0011}, {"n": 0, "o": 0b0110}, {"n": 0b0001, "o": 0}]


@pytest.mark.parametrize("more", [0, 1])
def test_too_many_numbers_of_matching_gpus_refuse_the_gang(more: int) -> None:
    numbers = MAX_NUMBERS + more
    names = [f"n{at}" for at in range(numbers)]
    world = World(answers_in_tree=True).start(*(served(name, numbers) for name in names))
    world.see(asking("p0", 0, of=1))
    world.report(on_nodes({name: tuple(range(at + 1)) for at, name in enumerate(names)}))
    assert world.planned() is not bool(more)
    if more:
        assert "nodes have 9 different numbers of matching GPUs" in world.verdict().reason


def test_three_kinds_of_members_that_want_all_have_too_many_lists() -> None:
    names = [f"n{at}" for at in range(MAX_NUMBERS)]
    world = World(answers_in_tree=True).start(*(served(name, MAX_NUMBERS) for name in names))
    world.see(*(asking(f"p{rank}", 0, of=3) for rank in range(3)))
    lists = [{name: tuple(range(at + 1)) for at, name in enumerate(names)} for _ in range(3)]
    for kind in (1, 2):
        lists[kind]["n0"] = (kind,)
    world.report(*map(on_nodes, lists), of=((0,), (1,), (2,)))
    assert "16 lists of matching GPUs in the gang" in world.verdict().reason


def test_claims_tell_how_many_gpus_a_bound_pod_has_whose_annotations_are_gone() -> None:
    world = World(answers_in_tree=True).start(served())
    bound = asking("p0", 0, of=1, node="n")
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", devices(1, 2), ("p0",))))
    world.see(replace(bound, running=True))
    assert free_of(world) == 0b1001


@pytest.mark.parametrize(("counts", "first"), [((2, 3), True), ((3, 4), False), ((0,), True), ((1, 0), True)])
def test_a_retained_place_is_for_a_member_that_may_take_as_many_gpus(
    counts: tuple[int, ...], first: bool
) -> None:
    world = World().start(served())
    retained = Usage("p0", "n", pod("p0").resources, gpus=0b0011)
    world.see(asking("p0", *counts, of=1))
    state = world.coordinator.state
    (gang,) = state.gangs.values()
    state.ledger.hold([retained])
    state.retained.keep(gang, ["p0"])
    assert state.retained.covers(gang) is first


def test_other_places_are_asked_about_for_as_many_gpus_as_members_have() -> None:
    """The choice was made: another subrequest does not count."""
    world = World(answers_in_tree=True).start(served(), served("o"))
    answer = on_nodes({"n": (), "o": ()}, {"n": (0, 1), "o": (2, 3)}, {"n": (0,), "o": (1,)})
    world.see(asking("p0", 4, 2, 1, of=1))
    world.report(answer)
    for _ in range(2):
        (key,) = world.coordinator.keys()
        question = world.coordinator.alternatives(key)
        assert isinstance(question, AskAlternatives)
        (role,) = question.request.request.roles
        assert (role.gpus, role.subrequests, role.matching) == (2, (), {"n": 0b0011, "o": 0b1100})
        (alternative,) = alternatives(question.snapshot, question.request).tried
        assert (alternative.domain, alternative.says) == ("node o", "as good at each level")
        if world.phase() != "running":
            world.run()


def test_a_plan_is_made_again_if_a_member_could_no_longer_have_all_that_match() -> None:
    world = World(answers_in_tree=True, auto=False).start(served())
    world.see(asking("p0", 0, of=1))
    world.report(may_have(0, 1))
    first = world.solves[0]
    world.report(may_have(0, 1, 2))
    world.solve()
    assert world.solves[0].generation != first.generation
    world.solve()
    assert given(world) == ([("gpu-0", "gpu-1", "gpu-2")], (1,))
