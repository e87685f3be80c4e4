"""Nodes that go, are drained or lose GPUs under gangs in every phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from muster.domain.allocation import ALLOCATION
from muster.domain.node import Node, Taint
from muster.domain.pod import TopologyRequest
from muster.domain.request import NodeRules, Toleration
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate, Permit, StaleError
from tests.gangs.world import World, foreign, node, pod, stand, with_topology

UNHEALTHY = 0b0111
"""Whatever the pair took of node a or b is among these; one GPU is left."""

Turns = Callable[[Node], Node | None]


@dataclass(frozen=True)
class Case:
    """The node of a gang's first member becomes `turns`, None for gone. The gang, which stands at `at`, is at
    `phase` then, and not on that node any more where it is planned again (`elsewhere`)."""

    at: str
    turns: Turns
    phase: str
    elsewhere: bool = True


TURNS: dict[str, Turns] = {
    "gone": lambda _: None,
    "cordoned": lambda before: replace(before, unschedulable=True),
    "not ready": lambda before: replace(before, ready=False),
    "three of four GPUs unhealthy": lambda before: replace(before, unhealthy=UNHEALTHY),
    "without GPUs, its device plugin restarts": lambda before: node(before.name, gpus=0),
}
CASES = {
    f"{at}, {case}": Case(at, turns, "planned")
    for at in ("planned", "reserving")
    for case, turns in TURNS.items()
} | {
    f"{at}, {case}": Case(at, turns, at, elsewhere=False)
    for at in ("permitted", "running")
    for case, turns in TURNS.items()
}


def where(world: World, uid: str) -> str:
    usage = world.coordinator.state.ledger.usage(uid)
    assert usage is not None
    return usage.node


def turn(world: World, name: str, turns: Turns) -> None:
    after = turns(world.coordinator.state.ledger.nodes[name])
    now = world.now
    world.send(inputs.NodeGone(now, name) if after is None else inputs.NodeSeen(now, after))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_node_turns_under_a_gang(case: Case) -> None:
    world = stand(case.at)
    home = where(world, "p0")
    turn(world, home, case.turns)
    assert world.phase() == case.phase
    assert (where(world, "p0") != home) == case.elsewhere
    assert world.evictions == []


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS.keys())
def test_where_there_is_no_other_node_it_waits_until_this_one_is_well(
    turns: Callable[[Node], Node | None],
) -> None:
    world = World().start(node("a"))
    world.see(pod("p0", gpus=2), pod("p1", gpus=2))
    assert world.reserve().claimed
    turn(world, "a", turns)
    assert (world.phase(), world.held()) == ("unplaceable", set())
    world.send(inputs.NodeSeen(world.now, node("a")))
    assert world.planned()
    world.run()
    assert world.phase() == "running"


def test_unhealthy_gpus_of_its_node_are_not_bound_though_others_of_it_are() -> None:
    world = World().start(node("a"))
    world.see(pod("p0"), pod("p1"))
    assert world.reserve().claimed
    turn(world, "a", lambda before: replace(before, unhealthy=0b0011))
    answer = world.run()
    gpu_lists = [json.loads(carried[ALLOCATION])["gpus"] for carried in answer.annotations]
    assert sorted(gpu_lists) == [[2], [3]]


def test_gpus_that_turn_unhealthy_after_permit_are_bound_and_said_on_the_node() -> None:
    world = stand("permitted")
    answer, home = world.permit(), where(world, "p0")
    turn(world, home, lambda before: replace(before, unhealthy=UNHEALTHY))
    world.bind(answer)
    assert world.phase() == "running"
    node_events = [event for event in world.events if event.kind == "Node"]
    assert [(event.objects, event.message) for event in node_events] == [
        (((home, home),), "GPUs 0,1,2 are unhealthy, and on them run ns/p0, ns/p1")
    ]


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS.keys())
def test_a_place_retained_for_a_partially_bound_gang_goes_with_its_node(
    turns: Callable[[Node], Node | None],
) -> None:
    world = World().start(node("a"), node("b"))
    world.see(pod("p0", gpus=2), pod("p1", gpus=2))
    assert world.reserve().claimed
    answer, home = world.permit(), where(world, "p0")
    world.unreserve(1, BindingFate.REFUSED)
    world.bind(answer, [0])
    turn(world, home, turns)
    world.wait(2)
    assert world.planned()
    assert where(world, "p1") != home
    world.run()
    assert (world.phase(), world.held(), world.evictions) == ("running", set(), [])


@pytest.mark.parametrize("scope", [None, "node"])
def test_of_members_on_a_vanished_node_one_is_replaced_where_there_is_room(scope: str | None) -> None:
    """The others are bound to it until the pods' garbage collector comes; they are near to nothing."""
    world = World().start(node("a"))
    world.see(*(with_topology(f"p{i}", TopologyRequest(required_scope=scope), of=2) for i in range(2)))
    world.run()
    world.send(inputs.NodeSeen(world.now, node("b")))
    world.send(inputs.NodeGone(world.now, "a"))
    assert world.phase() == "running"
    world.gone("p0")
    world.see(with_topology("p2", TopologyRequest(required_scope=scope), of=2))
    assert world.home(0) == "b"
    world.run()
    world.gone("p1")
    world.see(with_topology("p3", TopologyRequest(required_scope=scope), of=2))
    assert world.home(0) == "b"
    world.run()
    assert (world.phase(), world.evictions) == ("running", [])


def test_a_running_gang_whose_node_is_drained_is_replaced_pod_by_pod() -> None:
    world = World().start(node("a"))
    world.see(pod("p0"), pod("p1"))
    world.run()
    world.send(inputs.NodeSeen(world.now, node("b")))
    turn(world, "a", lambda before: replace(before, unschedulable=True))
    for old, new in (("p0", "p2"), ("p1", "p3")):
        world.see(replace(world.pods[old], terminating=True), pod(new))
        assert where(world, new) == "b"
        world.run()
        world.gone(old)
    world.wait(100)
    assert (world.phase(), world.evictions) == ("running", [])


def test_a_node_that_comes_back_under_another_gangs_plan_is_counted_with_what_runs_there() -> None:
    world = World().start(node("a"))
    world.see(foreign("f", "a", 3))
    world.send(inputs.NodeGone(world.now, "a"))
    world.see(pod("q", gang="", gpus=2))
    world.send(inputs.NodeSeen(world.now, node("a")))
    assert world.phase("q") == "unplaceable"


SHUT = {
    "gone": (None, "node a is gone"),
    "not ready": (node("a", ready=False), "node a can't take pods now: not ready"),
    "cordoned": (node("a", unschedulable=True), "node a can't take pods now: cordoned"),
    "tainted": (
        node("a", taints=(Taint("out-of-service", "", "NoExecute"),)),
        "node a can't take pods now: taint out-of-service:NoExecute",
    ),
}


@pytest.mark.parametrize(("after", "why"), SHUT.values(), ids=SHUT.keys())
@pytest.mark.parametrize("withdrawn", [True, False], ids=["its plan is withdrawn", "nobody noticed"])
def test_a_gang_is_not_let_go_to_a_node_that_is_shut_at_that_moment(
    after: Node | None, why: str, withdrawn: bool
) -> None:
    world = World().start(node("a"))
    world.see(pod("p0"), pod("p1"))
    assert world.reserve().claimed
    ref, ledger = world.ref(), world.coordinator.state.ledger
    if withdrawn:
        world.send(inputs.NodeGone(world.now, "a") if after is None else inputs.NodeSeen(world.now, after))
        with pytest.raises(StaleError):
            world.ask(Permit(world.now, ref, 1))
    else:
        ledger.drop_node("a") if after is None else ledger.set_node(after)
        answer = world.ask(Permit(world.now, ref, 1))
        assert (answer.allowed, answer.reason, answer.annotations) == (False, why, ())
    assert (world.phase(), world.held()) == ("unplaceable", set())


def test_a_gang_that_tolerates_a_cordon_is_let_go_to_a_cordoned_node() -> None:
    rules = NodeRules(tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),))
    world = World().start(node("a", unschedulable=True))
    world.see(pod("p0", rules=rules), pod("p1", rules=rules))
    world.run()
    assert world.phase() == "running"


ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"


def racked(rack: str) -> Node:
    return node("x", 1, {RACK: rack, ZONE: "z2"})


@pytest.mark.parametrize("split_by", ["an empty node", "a node with a pod"])
@pytest.mark.parametrize("change", ["it goes", "it is in another rack", "it changes twice"])
def test_two_nodes_become_one_rack_as_another_node_goes(split_by: str, change: str) -> None:
    """Node a says no zone: it lies in the zone of its rack, unless the rack has nodes in several zones."""
    world = World().start(node("a", 4, {RACK: "r1"}), node("b", 4, {RACK: "r1", ZONE: "z1"}), racked("r8"))
    if split_by == "a node with a pod":
        world.see(foreign("f", "x", 1))
    world.send(inputs.NodeSeen(world.now, racked("r1")))
    world.wait(1 if change == "it changes twice" else 100)
    world.see(
        *(with_topology(uid, TopologyRequest(required_scope="rack"), of=2, gpus=4) for uid in ("p0", "p1"))
    )
    assert world.phase() == "unplaceable"
    world.send(
        inputs.NodeGone(world.now, "x") if change == "it goes" else inputs.NodeSeen(world.now, racked("r9"))
    )
    world.wait(world.coordinator.state.settings.numbers_s - 1 if change == "it changes twice" else 1)
    assert world.planned()
