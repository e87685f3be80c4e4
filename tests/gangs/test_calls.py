"""The shim's calls: claims, moves, what a Binding carries, and what is stale."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from muster.domain.allocation import ALLOCATION, ASSIGNED, ASSUME_TIME, DECISION, GROUP, write_decision
from muster.domain.node import HandsOut
from muster.domain.request import Slice
from muster.gangs.messages.calls import (
    BindingFate,
    Call,
    Filter,
    Permit,
    PlanRef,
    Reserve,
    Score,
    StaleError,
    Unreserve,
)
from muster.gangs.messages.inputs import NodeSeen
from muster.gangs.messages.instructions import EventReason, Outcome
from tests.gangs.world import TRACE_ID, WALL_NS, World, foreign, node, pod, stand, with_topology

PAIR = (pod("p0"), pod("p1"))


def test_a_member_that_landed_elsewhere_is_moved_in_place() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*PAIR)
    second_node = next(name for name in world.filter().candidates[1] if name != world.home(1))
    assert world.reserve(1, on=second_node).claimed
    answer = world.permit()
    assert json.loads(answer.annotations[1][ALLOCATION])["gpus"] == [0]
    assert world.coordinator.state.ledger.reservations["p1"].node == second_node
    assert not world.reserve(1, on="nowhere").claimed


def test_a_member_that_landed_where_it_does_not_fit_is_refused() -> None:
    world = World().start(node("a"), node("b"))
    world.see(foreign("f", "b", 4), *PAIR)
    answer = world.reserve(1, on="b")
    assert (answer.claimed, answer.reason) == (
        False,
        "node b would not keep the gang's plan whole for pod p1",
    )


def test_permit_says_what_each_binding_carries_and_says_it_again() -> None:
    world = World().start(node("a"))
    ours = [
        pod(f"p{i}", gpu_resource="aliyun.com/gpu", gpus=2, container_gpus=(("x", 1), ("y", 1)))
        for i in (0, 1)
    ]
    world.see(*ours)
    assert not world.permit().allowed
    world.reserve()
    answer = world.permit()
    assert answer.bind_within_s == world.coordinator.state.settings.bind_s
    world.now += 10
    assert world.permit(wall_ns=WALL_NS + 5) == replace(answer, bind_within_s=answer.bind_within_s - 10)
    first = answer.annotations[0]
    assert json.loads(first[ALLOCATION]) == {
        "version": 1,
        "generation": world.verdict().generation,
        "containers": {"x": [0], "y": [1]},
        "gpus": [0, 1],
        "indices": "advisory",
    }
    assert (first[GROUP], first[ASSIGNED], first[ASSUME_TIME]) == ("0,1", "false", str(WALL_NS))
    assert json.loads(first[DECISION])["domain"]
    assert json.loads(first[DECISION])["trace_id"] == TRACE_ID
    assert world.events[-1].message.startswith("2 of 2 members on node a")


@pytest.mark.parametrize(
    ("resource", "hands_out", "exact"),
    [
        ("nvidia.com/gpu", HandsOut.DRA, True),
        ("nvidia.com/gpu", HandsOut.SECOND_ENDPOINT, True),
        ("nvidia.com/gpu", HandsOut.AGENT_AWAY, False),
        ("nvidia.com/gpu", HandsOut.OWN_CHOICE, False),
        ("nvidia.com/gpu", HandsOut.AGENT, False),
        ("amd.com/gpu", HandsOut.SECOND_ENDPOINT, False),
        ("amd.com/gpu", HandsOut.OWN_CHOICE, False),
        ("aliyun.com/gpu", HandsOut.AGENT, True),
        ("aliyun.com/gpu", HandsOut.AGENT_AWAY, False),
        ("aliyun.com/gpu", HandsOut.READS_ANNOTATIONS, False),
        ("aliyun.com/gpu", HandsOut.SECOND_ENDPOINT, False),
    ],
)
def test_a_binding_says_whether_its_gpus_are_exact(resource: str, hands_out: HandsOut, exact: bool) -> None:
    world = World().start(node("a", gpu_resources=frozenset({resource}), hands_out=hands_out))
    world.see(*(pod(f"p{i}", gpu_resource=resource) for i in (0, 1)))
    world.reserve()
    carried = world.permit().annotations[0]
    assert json.loads(carried[ALLOCATION])["indices"] == ("planned" if exact else "advisory")
    inexact = {"exact": False, "not_exact_nodes": 1, "not_exact": ["a"]}
    assert (inexact.items() <= json.loads(carried[DECISION]).items()) is not exact
    assert ("exact" in json.loads(carried[DECISION])) is not exact
    assert world.events[-1].message.endswith("; containers on a may get other GPUs") is not exact


@pytest.mark.parametrize(
    ("containers", "unhealthy", "exact"),
    [
        ((("main", 4),), 0, True),
        ((("main", 2), ("other", 2)), 0, False),
        ((("main", 3),), 0, False),
        ((("main", 4),), 1 << 4, False),
    ],
    ids=["one container", "two containers", "an init container asks for more", "a GPU is unhealthy"],
)
def test_a_container_that_takes_all_gpus_of_a_node_gets_the_planned_ones(
    containers: tuple[tuple[str, int], ...], unhealthy: int, exact: bool
) -> None:
    world = World().start(node("a", 5 if unhealthy else 4, unhealthy=unhealthy))
    world.see(pod("p", of=1, gpus=4, container_gpus=containers))
    world.reserve()
    carried = world.permit().annotations[0]
    assert json.loads(carried[ALLOCATION])["indices"] == ("planned" if exact else "advisory")
    assert ("exact" in json.loads(carried[DECISION])) is not exact


def test_pods_that_share_the_only_gpu_of_a_node_get_it() -> None:
    world = World().start(node("a", 1, gpu_memory=(16,), hands_out=HandsOut.READS_ANNOTATIONS))
    containers = (("main", 2), ("other", 1))
    world.see(pod("p", of=1, gpus=0, gpu_resource="", slice=Slice(3), container_gpus=containers))
    world.reserve()
    assert json.loads(world.permit().annotations[0][ALLOCATION])["indices"] == "planned"


def test_a_decision_names_a_few_nodes_and_counts_all() -> None:
    plan = next(iter(stand("reserving").coordinator.state.gangs.values())).plan
    assert plan is not None
    names = tuple(f"n{number:02}" for number in range(20))
    decision = json.loads(write_decision(plan.placed, plan.batch, "", names))
    assert (decision["exact"], decision["not_exact_nodes"]) == (False, 20)
    assert decision["not_exact"] == list(names[:16])


def test_an_agent_that_goes_before_permit_is_not_counted_on() -> None:
    world = World().start(node("a", hands_out=HandsOut.SECOND_ENDPOINT))
    world.see(*PAIR)
    world.reserve()
    world.send(NodeSeen(world.now, node("a", hands_out=HandsOut.AGENT_AWAY)))
    assert json.loads(world.permit().annotations[0][ALLOCATION])["indices"] == "advisory"


def test_those_that_are_not_placed_are_not_told_that_they_are() -> None:
    world = World().start(node("a", 2))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(8)))
    world.run()
    placed_events = [event for event in world.events if event.reason is EventReason.PLACED]
    assert [event.objects for event in placed_events] == [(("p0", "p0"),)]
    assert world.reasons() == ["Placed", "Unplaceable"]
    assert world.events[-1].objects == (("p2", "p2"),), "the first of those that wait"


def test_scores_fall_from_the_planned_node() -> None:
    world = World().start(node("a"), node("b"), node("c"))
    world.see(*PAIR)
    candidates = world.filter().candidates
    scores = world.ask(Score(world.now, world.ref())).scores
    assert [len(nodes) for nodes in candidates] == [3, 3]
    assert scores == ((100, 90, 80), (100, 90, 80))


@pytest.mark.parametrize("ask", [Filter, Score])
def test_filter_and_score_change_nothing(ask: type[Filter | Score]) -> None:
    """Timers that are due meanwhile wait for their Tick."""
    world = stand("planned")
    deadline, now = world.coordinator.next_deadline(), world.coordinator.state.now
    assert deadline is not None
    call: Call[Any] = ask(deadline + 1, world.ref())
    _, instructions = world.coordinator.answer(call)
    assert (instructions, world.coordinator.next_deadline()) == ([], deadline)
    assert world.coordinator.state.now == now


STALE = {
    "another epoch": lambda ref: replace(ref, epoch=ref.epoch + 1),
    "another generation": lambda ref: replace(ref, generation=ref.generation - 1),
    "another gang": lambda ref: replace(ref, gang="ns/ack/other"),
}


@pytest.mark.parametrize("change", STALE.values(), ids=STALE.keys())
def test_stale_calls_change_nothing(change: Callable[[PlanRef], PlanRef]) -> None:
    world = stand("reserving")
    ref = change(world.ref())
    calls: tuple[Call[Any], ...] = (
        Filter(world.now, ref),
        Score(world.now, ref),
        Reserve(world.now, ref, 0, "a"),
        Permit(world.now, ref, WALL_NS),
        Unreserve(world.now, ref, 0, "a", BindingFate.NEVER_SENT),
    )
    for call in calls:
        with pytest.raises(StaleError):
            world.ask(call)
    assert world.phase() == "reserving"
    assert world.permit().allowed


def test_a_withdrawn_plan_is_stale() -> None:
    world = stand("planned")
    ref = world.ref()
    world.gone("p1")
    with pytest.raises(StaleError):
        world.ask(Filter(world.now, ref))


def test_a_refused_gangs_filter_gives_the_reason() -> None:
    world = stand("invalid")
    answer = world.filter()
    assert answer.candidates == ()
    assert answer.reason.startswith("Pods of one gang disagree on number of replicas")
    assert world.verdict().outcome is Outcome.REFUSED


def test_a_member_that_is_gone_may_be_given_back() -> None:
    world = stand("permitted")
    world.permit()
    world.gone("p1")
    world.unreserve(1, BindingFate.REFUSED, "NodePorts", "taken")
    assert world.phase() == "permitted"
    assert "p0" in world.held()
