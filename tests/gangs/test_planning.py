"""When a gang is planned, planned again, refused, and what is thrown away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.domain import allocation
from muster.domain.causes.ill_formed import BadValue
from muster.domain.decision import Placed
from muster.domain.request import Slice
from muster.domain.sentences import MAX_CHARACTERS
from muster.gangs.lifecycle import decisions
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate, FilterAnswer, PermitAnswer
from muster.gangs.messages.inputs import NodeSeen
from muster.gangs.messages.instructions import EventReason, Outcome
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.phases import Phase
from muster.placement import order
from muster.placement.limits import Limits
from muster.placement.place import place
from tests.gangs.world import World, foreign, node, pod, stand, with_topology

PAIR = (pod("p0"), pod("p1"))


def test_the_planner_is_asked_once_at_a_time_and_highest_priority_first() -> None:
    world = World(auto=False).start(node("a"))
    world.see(pod("low", gang=""), pod("old", gang="", created=1.0, priority=5))
    world.see(pod("new", gang="", created=2.0, priority=5))
    planned_names = []
    while world.solves:
        assert len(world.solves) == 1
        planned_names.append(world.solves[0].request.gang.name)
        world.solve()
    assert planned_names == ["low", "old", "new"]  # low was out when the others came


def test_a_plan_on_an_outdated_snapshot_is_made_again() -> None:
    world = World(auto=False).start(node("a"), node("b"))
    world.see(*PAIR)
    first = world.solves[0]
    world.see(foreign("fa", "a", 3), foreign("fb", "b", 3))
    world.solve()
    assert world.verdicts == []
    assert world.solves[0].generation > first.generation
    world.solve()
    assert {world.home(0), world.home(1)} == {"a", "b"}


def test_a_plan_that_events_overtake_again_and_again_gives_way() -> None:
    world = World(auto=False).start(node("a"), node("b"))
    world.see(*PAIR)
    for count in (1, 2):
        world.send(inputs.NodeSeen(world.now, node("a", labels={"topology.kubernetes.io/rack": str(count)})))
        world.send(inputs.NodeSeen(world.now, node("b", labels={"topology.kubernetes.io/rack": str(count)})))
        world.solve()
    assert world.solves == []
    assert world.phase() == "withdrawn"
    world.wait(1)
    world.solve()
    assert world.planned()


def test_a_refusal_that_something_freed_overtook_is_asked_again() -> None:
    world = World(auto=False).start(node("a"))
    world.see(foreign("f", "a", 3), *PAIR)
    world.gone("f")
    world.solve()
    assert world.verdicts == []
    world.solve()
    assert world.planned()


def test_a_planner_that_fails_is_shown_and_the_next_change_tries_again() -> None:
    world = World(auto=False).start(node("a"))
    world.see(*PAIR)
    solve = world.solves.pop()
    world.send(inputs.SolveFailed(world.now, solve.gang, solve.generation, "KeyError: 3"))
    assert world.verdict().reason == "the planner failed, which is a defect: KeyError: 3"
    world.send(inputs.NodeSeen(world.now, node("b")))
    world.solve()
    assert world.planned()


def test_a_planner_that_places_other_pods_is_asked_again_after_a_pause() -> None:
    world = World(auto=False).start(node("a"))
    world.see(*PAIR)
    solve = world.solves[0]
    plan = place(solve.snapshot, solve.request, Limits())
    assert isinstance(plan, Placed)
    members = tuple(replace(member, uid=f"{member.uid}-other") for member in plan.members)
    world.solve(replace(plan, members=members))
    assert world.phase() == "unplaceable"
    assert "which is a defect" in world.verdict().reason
    world.auto = True
    world.wait(world.settings.backoff_s)
    assert world.planned()


def test_nothing_is_planned_before_all_is_known_and_a_shim_listens() -> None:
    world = World()
    world.send(inputs.NodeSeen(world.now, node("a")))
    world.see(*PAIR)
    world.send(inputs.Synced(world.now))
    assert world.verdicts == []
    world.connect()
    assert world.planned()


def test_a_plugins_refusal_leaves_the_node_out_until_it_changes() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*PAIR)
    refused = world.home(0)
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk")
    assert refused not in {world.home(0), world.home(1)}
    assert "VolumeBinding: no disk" in world.events[-1].message
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk")
    assert world.phase() == "unplaceable"
    assert "VolumeBinding" in world.verdict().reason
    world.send(inputs.NodeSeen(world.now, node(refused, labels={"new": "disk"})))
    assert {world.home(0), world.home(1)} == {refused}


def test_a_node_stays_left_out_when_the_role_gets_another_name() -> None:
    world = World().start(node("a"), node("b"))
    world.see(with_topology("p0"))
    refused = world.home(0)
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk")
    world.auto = False
    world.see(with_topology("p1", gpus=2))
    world.see(with_topology("p0", priority=1))
    solve = world.solves[-1]
    assert [role.name for role in solve.request.roles] == ["role-1", "role-2"]
    assert solve.excluded == {"role-2": {refused: "VolumeBinding"}}
    world.solve()
    small = world.verdict().members.index(("p0", "p0"))
    assert not world.reserve(small, on=refused).claimed
    assert refused not in world.filter().candidates[small]


def test_what_a_plugin_says_is_cut() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk " * 400)
    (reason,) = (verdict.reason for verdict in world.verdicts if verdict.outcome is Outcome.WITHDRAWN)
    assert len(reason) == MAX_CHARACTERS
    assert reason.endswith("…")


def test_a_defect_of_any_length_is_cut_and_said_once() -> None:
    world = World(auto=False).start(node("a"))
    world.see(*PAIR)
    for _ in range(2):
        solve = world.solves.pop()
        world.send(inputs.SolveFailed(world.now, solve.gang, solve.generation, "boom " * 400))
        world.wait(1)
    assert world.outcomes() == ["refused"]
    assert len(world.verdict().reason) == MAX_CHARACTERS


def test_an_exclusion_ends_with_time_and_is_longer_with_each_refusal() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    left_out = []
    for _ in range(7):
        refused_at = world.now
        world.unreserve(0, BindingFate.NEVER_SENT, "NodePorts", "taken")
        while not world.planned():
            due = world.coordinator.next_deadline()
            assert due is not None
            world.wait(due - world.now)
        left_out.append(world.now - refused_at)
    assert left_out == [1, 4, 16, 64, 256, 300, 300]


@pytest.mark.parametrize(("plugin", "after_s"), [("NodeResourcesFit", 5), ("NodePorts", 16)])
def test_full_nodes_are_tried_again_when_an_unbound_pod_is_gone(plugin: str, after_s: float) -> None:
    """The scheduler alone knew the pod's place. A client that deletes pods all the time gains nothing."""
    world = World().start(node("a"))
    world.see(*PAIR)
    for pause in (1, 4, 0):
        world.unreserve(0, BindingFate.NEVER_SENT, plugin, "Insufficient cpu")
        world.wait(pause)
    refused_at = world.now
    while not world.planned():
        world.see(replace(pod("volumes", gpus=0), claim=None))
        world.gone("volumes")
        world.wait(0.5)
    assert world.now - refused_at == after_s


def test_a_gang_in_its_back_off_tries_full_nodes_when_an_unbound_pod_is_gone() -> None:
    world = World().start(node("a"), node("b"))
    world.see(*PAIR)
    pause_s = 0.0
    while pause_s < 20:
        if world.planned():
            refused_at = world.now
            world.unreserve(0, BindingFate.NEVER_SENT, "NodeResourcesFit", "Insufficient cpu")
        due = world.coordinator.next_deadline()
        assert due is not None
        pause_s = due - world.now if world.phase() == "withdrawn" else 0.0
        if pause_s < 20 and not world.planned():
            world.wait(due - world.now)
    assert world.phase() == "withdrawn"
    world.wait(10)
    world.see(replace(pod("volumes", gpus=0), claim=None))
    world.gone("volumes")
    world.wait(1)
    assert world.planned()
    assert world.now - refused_at == 11


@pytest.mark.parametrize("every_s", [1, 4.5, 30])
def test_deletions_of_unbound_pods_keep_no_gang_from_the_node_with_room(every_s: float) -> None:
    """Each deletion opens the full nodes again: not the first one before the others had their turn."""
    world = World().start(*(node(f"n{number}") for number in range(8)))
    world.see(pod("p0", of=1))
    began, deleted_at = world.now, world.now
    tried_late: set[str] = set()
    while len(tried_late) < 8:
        assert world.now < began + 700, f"tried in 400 s: {tried_late}"
        if world.planned():
            if world.now > began + 300:
                tried_late.add(world.home(0))
            world.unreserve(0, BindingFate.NEVER_SENT, "NodeResourcesFit", "Insufficient cpu")
        if world.now >= deleted_at + every_s:
            world.see(replace(pod("other", gpus=0), claim=None))
            world.gone("other")
            deleted_at = world.now
        world.wait(0.25)


def test_an_exclusion_that_has_ended_sets_no_timer_in_the_past() -> None:
    """A deadline in the past looks as if the service had stood still: all deadlines would move."""
    world = World().start(node("a"), node("b"))
    world.see(*PAIR)
    for plugin in ("NodePorts", "NodeResourcesFit"):
        world.unreserve(0, BindingFate.NEVER_SENT, plugin, "taken")
    (gang,) = world.coordinator.state.gangs.values()
    for pair, exclusion in gang.exclusions.by_pair.items():
        if exclusion.plugin == "NodePorts":
            gang.exclusions.by_pair[pair] = replace(exclusion, until=world.now - 5)
    world.see(replace(pod("volumes", gpus=0), claim=None))
    world.pods.pop("volumes")
    world.coordinator.handle(inputs.PodGone(world.now, "volumes"))
    due = world.coordinator.next_deadline()
    assert due is not None
    assert due >= world.now


def test_withdrawals_in_a_row_wait_longer_each_time() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    pauses = []
    for _ in range(7):
        world.unreserve(0, BindingFate.NEVER_SENT)
        due = world.coordinator.next_deadline()
        assert due is not None
        pauses.append(due - world.now)
        world.wait(due - world.now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_an_ill_formed_pod_says_why() -> None:
    world = World().start(node("a"))
    cause = BadValue("pod/ns/p0", "gpu-topology-replica", "two", "a number")
    world.see(pod("p0", causes=(cause,)), pod("p1"))
    assert world.verdict().reason == 'pod/ns/p0: gpu-topology-replica is "two", expected a number'
    outcomes = world.outcomes()
    world.see(pod("p0", causes=(cause,), created=9.0))
    assert world.outcomes() == outcomes
    assert world.reasons() == ["Invalid"]


def test_the_shim_gets_the_reason_and_not_the_old_plan_of_a_gang_that_ran() -> None:
    world = stand("running")
    world.see(pod("p2", causes=(BadValue("pod/ns/p2", "gpu-topology-replica", "two", "a number"),)))
    assert world.phase() == "invalid"
    reason = 'pod/ns/p2: gpu-topology-replica is "two", expected a number'
    assert world.filter() == FilterAnswer(reason=reason)
    assert world.permit() == PermitAnswer(allowed=False, reason=reason)


def test_what_a_node_says_that_cannot_be_read_is_said_on_it_once() -> None:
    world = World().start(node("a"))
    broken = replace(node("b"), problems=("annotation GPU_TOPOLOGY is no JSON",))
    for _ in range(2):
        world.send(NodeSeen(world.now, broken))
    world.send(NodeSeen(world.now, replace(broken, unschedulable=True)))
    (event,) = world.events
    assert (event.kind, event.objects, event.reason) == ("Node", (("b", "b"),), EventReason.INVALID)
    assert "GPU_TOPOLOGY is no JSON" in event.message


def test_what_runs_on_unhealthy_gpus_is_said_on_the_node_once() -> None:
    pods_on_node = [
        replace(pod("p0", gang=""), node="a", allocation=0b1),
        replace(foreign("f", on="a"), allocation=0b10),
        replace(pod("p1", gang=""), node="a", allocation=0b1000),
    ]
    world = World().start(node("a"))
    world.see(*pods_on_node)
    world.events.clear()
    for broken in (0b100, 0b111, 0b111):
        world.send(NodeSeen(world.now, replace(node("a"), unhealthy=broken)))
    (event,) = world.events
    assert (event.kind, event.objects, event.reason) == ("Node", (("a", "a"),), EventReason.INVALID)
    assert event.message == "GPUs 0,1,2 are unhealthy, and on them run a pod that is not ours, ns/p0"
    world.send(NodeSeen(world.now, node("a")))
    assert world.events == [event]


def test_a_gpu_that_one_pod_has_alone_and_another_shares_is_given_to_no_pod() -> None:
    shares = replace(foreign("a-shares", on="a", gpus=0), slice=Slice(4), allocation=0b10)
    whole = replace(foreign("b-whole", on="a"), allocation=0b10)
    world = World().start(node("a", gpu_memory=(16,) * 4))
    world.see(shares, whole)
    state = world.coordinator.state.ledger.state("a")
    assert state is not None
    assert state.free_memory[1] == 0


def test_a_planner_that_fails_is_asked_again_with_longer_pauses() -> None:
    world = World(auto=False).start(node("a"))
    world.see(*PAIR)
    pauses = []
    for _ in range(4):
        solve = world.solves.pop()
        world.send(inputs.SolveFailed(world.now, solve.gang, solve.generation, "boom"))
        assert world.phase() == "unplaceable"
        due = world.coordinator.next_deadline()
        assert due is not None
        pauses.append(due - world.now)
        world.wait(due - world.now)
    assert pauses == [1, 2, 4, 8]
    world.solve()
    assert world.planned()


def test_nodes_that_a_plugin_refuses_are_learnt_one_after_another_without_a_pause() -> None:
    nodes = [node(f"n{number}") for number in range(12)]
    world = World().start(*nodes)
    world.see(*PAIR)
    began = world.now
    for _ in nodes[1:]:
        world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no volume here")
    assert world.now == began
    assert world.planned()


def test_a_refusal_that_nothing_of_use_overtook_stands() -> None:
    world = World(auto=False).start(node("a"), node("b", gpus=2))
    world.see(foreign("fa", "a", 3), foreign("fb", "b", 2), pod("p0", gang="", gpus=4))
    world.gone("fb")
    world.solve()
    assert (world.outcomes(), world.solves) == (["refused"], [])


def test_what_a_moved_member_leaves_is_looked_at() -> None:
    world = World().start(node("a"), node("b"))
    world.see(pod("p", gang="", gpus=3))
    home = world.home(0, "p")
    second_node = {"a": "b", "b": "a"}[home]
    world.see(foreign("f", second_node), pod("q", gang="", gpus=4))
    assert world.phase("q") == "unplaceable"
    assert world.reserve(0, on=second_node, gang="p").claimed
    assert world.home(0, "q") == home


def throttled() -> World:
    """Room for two members of a namespace that are planned and not permitted: g has taken it, h waits."""
    world = World(GangSettings(settle_s=0, ahead=4)).start(node("a"), node("b"))
    world.see(*PAIR, *(pod(f"h{number}", "h") for number in (0, 1)))
    assert (world.phase(), world.phase("h")) == ("planned", "planning")
    return world


MAKES_ROOM: dict[str, Callable[[World], object]] = {
    "permitted": lambda w: (w.reserve(), w.permit()),
    "its deadline passes": lambda w: w.wait(60),
    "a member goes": lambda w: w.gone("p1"),
    "all go": lambda w: w.gone("p0", "p1"),
    "given back": lambda w: w.unreserve(0, BindingFate.NEVER_SENT),
    "bound by others": lambda w: w.see(replace(PAIR[0], node="b")),
}


@pytest.mark.parametrize("happens", MAKES_ROOM.values(), ids=MAKES_ROOM.keys())
def test_planning_waits_for_the_shim_and_goes_on_with_it(happens: Callable[[World], object]) -> None:
    world = throttled()
    happens(world)
    assert world.phase("h") == "planned"


def test_what_is_more_urgent_and_comes_while_the_shim_is_busy_goes_first() -> None:
    world = throttled()
    world.see(*(pod(f"i{number}", "i", priority=9) for number in (0, 1)))
    world.run()
    assert (world.phase("i"), world.phase("h")) == ("planned", "planning")
    world.connect()  # the plans of the session before make room too
    assert (world.phase("i"), world.phase("h")) == ("planned", "planning")


def test_the_plans_of_one_namespace_do_not_hold_up_another() -> None:
    world = World(GangSettings(settle_s=0, ahead=4)).start(node("a", 16), node("b", 16))
    gangs = [(namespace, name) for name in "ghij" for namespace in ("crowd", "other", "third")]
    for namespace, name in gangs:
        uids = [f"{namespace}-{name}{number}" for number in (0, 1)]
        world.see(*(pod(uid, name, namespace=namespace, created=1.0) for uid in uids))
    planned = [key for key, gang in world.coordinator.state.gangs.items() if gang.phase is Phase.PLANNED]
    assert [key.split("/")[0] for key in planned] == ["crowd", "other"]


def test_a_partially_bound_gang_does_not_wait_for_the_shim() -> None:
    """Members may wait in the shim for longer than the grace of a partially bound gang."""
    world = World(GangSettings(settle_s=0, ahead=4)).start(node("a"), node("b"))
    world.see(*PAIR)
    world.reserve()
    answer = world.permit()
    world.see(*(pod(f"{name}{number}", name) for name in "hi" for number in (0, 1)))
    world.bind(answer, members=(0,))
    world.unreserve(1, BindingFate.REFUSED)
    world.wait(1)
    assert (world.planned(), world.phase("h"), world.phase("i")) == (True, "planned", "planning")
    world.run()
    world.wait(30)
    assert (world.phase(), world.evictions) == ("running", [])


def test_a_gang_larger_than_the_shims_door_is_planned_alone() -> None:
    world = World(GangSettings(settle_s=0, ahead=2)).start(node("a"))
    world.see(*PAIR)
    world.run()
    assert world.phase() == "running"


def test_planning_ahead_leaves_the_backfill_reservation_as_it_is() -> None:
    world = World(GangSettings(settle_s=0, ahead=2)).start(node("a"), node("b"), node("c"))
    world.see(foreign("fa", "a", 1), foreign("fb", "b", 2), foreign("fc", "c", 2))
    world.see(pod("p0", gpus=4), pod("p1", gpus=4))
    world.wait(600)
    world.see(pod("q", gang="", gpus=2), pod("r", gang="", gpus=1))
    assert (world.home(0, "q"), world.phase("r")) == ("c", "planning")
    world.run("q")
    assert world.phase("r") == "unplaceable"
    world.gone("fa")
    world.gone("fb")
    assert world.planned()


def test_verdict_answers_and_bindings_follow_one_order_of_the_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = order.scheduling_order
    monkeypatch.setattr(decisions, "scheduling_order", lambda *arguments: real(*arguments)[::-1])
    world = World().start(node("a", 1), node("b", 2))
    world.see(pod("p0", gpus=1), pod("p1", gpus=2))
    assert world.verdict().members == (("p0", "p0"), ("p1", "p1"))  # the large role is first in the request
    assert (world.home(0), world.home(1)) == ("a", "b")
    answer = world.run()
    masks = [
        allocation.read(values, world.pods[uid])
        for values, uid in zip(answer.annotations, ("p0", "p1"), strict=True)
    ]
    assert masks == [0b1, 0b11]


def test_a_pod_that_came_while_the_planner_was_asked_is_counted_after_a_defect() -> None:
    """With p3, the pods without an owner are enough for a gang of their own."""
    world = World(auto=False).start(node("a"))
    world.see(*(with_topology(f"p{i}", of=3, owner=owner) for i, owner in enumerate(("", "", "run", ""))))
    [solve] = world.solves
    world.send(inputs.SolveFailed(world.now, solve.gang, solve.generation, "boom"))
    world.wait(0)
    phases = {key: gang.phase for key, gang in world.coordinator.state.gangs.items()}
    assert phases == {"ns/annotations/g": "planning", "ns/annotations/g/run": "collecting"}
