"""Partially bound gangs: completed in place if possible, else given up; and which gangs are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.instructions import EventReason
from muster.gangs.messages.settings import GangSettings, Partial
from tests.gangs.invariants import check
from tests.gangs.world import World, bound, foreign, node, pod, with_topology

PAIR = (pod("p0", gpus=2), pod("p1", gpus=2))


def split(settings: GangSettings | None = None) -> World:
    """Node a of four GPUs is full with gang g; p0 is bound, p1's Binding was refused."""
    world = World(settings or GangSettings(settle_s=0)).start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    world.unreserve(1, BindingFate.REFUSED)
    world.bind(answer, [0])
    return world


def test_the_place_that_was_given_back_is_retained() -> None:
    world = split()
    world.see(pod("q", gang="", gpus=2, priority=1000, created=-1.0))
    assert world.phase("q") == "unplaceable"
    world.wait(2)
    assert world.planned()
    assert world.home(0) == "a"
    world.run()
    assert world.phase() == "running"


def test_a_partially_bound_gang_is_planned_before_all_others() -> None:
    world = split()
    world.auto = False
    world.see(*(pod(f"q{i}", gang="", priority=9) for i in range(3)))
    world.wait(1)
    planned_names = []
    while world.solves:
        planned_names.append(world.solves[0].request.gang.name)
        world.solve()
    assert planned_names == ["q0", "g", "q1", "q2"]  # q0 was out already


@pytest.mark.parametrize(
    ("gpus", "priority", "order"),
    [
        (2, -9, ["g", "urgent", "low"]),
        (3, -9, ["urgent", "low", "g"]),
        (3, 0, ["urgent", "g", "low"]),
        (3, 9, ["g", "urgent", "low"]),
    ],
    ids=["as much as it holds", "more", "more, at equal priority", "more, at a higher priority"],
)
def test_a_member_deleted_on_its_way_gives_no_precedence_over_higher_priorities(
    gpus: int, priority: int, order: list[str]
) -> None:
    """The user makes the gang partially bound at will, and sends another pod for the one deleted."""
    world = World().start(node("a", 8))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    world.bind(answer, [0])
    world.gone("p1")
    world.auto = False
    world.see(pod("busy", gang="", gpus=1))
    world.see(pod("low", gang="", created=1.0), pod("urgent", gang="", priority=5, created=2.0))
    world.see(pod("p9", gpus=gpus, priority=priority, created=99.0))
    assert world.solves[0].request.gang.name == "busy"
    planned_names = []
    while world.solves:
        planned_names.append(world.solves[0].request.gang.name)
        world.solve()
    assert planned_names[1:] == order


def test_it_may_be_completed_elsewhere_and_the_retained_place_is_free_then() -> None:
    world = split()
    world.send(inputs.NodeSeen(world.now, node("b")))
    world.see(foreign("f", "a", gpus=2))
    assert world.held() == set()  # others have taken the retained places
    world.wait(2)
    assert world.home(0) == "b"
    world.run()
    assert (world.phase(), world.held(), world.evictions) == ("running", set(), [])


def test_a_gang_that_finds_no_place_in_time_is_given_up() -> None:
    world = split()
    world.see(foreign("f", "a", gpus=2))
    world.wait(29)
    assert world.evictions == []
    world.wait(2)
    (evict,) = world.evictions
    assert (evict.namespace, evict.pods) == ("ns", (("p0", "p0"),))
    assert evict.why == "only 1 of 2 members could be bound in time"
    assert world.phase() == "given up"
    last = world.events[-1]
    assert (last.reason, last.objects) == (EventReason.WITHDRAWN, (("p0", "p0"),))
    assert last.message == (
        "gang given up: only 1 of 2 members could be bound in time; what is bound is evicted"
    )


def test_an_eviction_is_asked_again_while_the_pod_is_there_and_the_gang_begins_anew_after_it() -> None:
    world = split()
    world.see(foreign("f", "a", gpus=2))
    world.wait(31)
    world.wait(30)
    assert len(world.evictions) == 2
    world.see(replace(world.pods["p0"], terminating=True))
    assert world.phase() == "collecting"
    world.gone("p0", "f")
    world.see(pod("p9", gpus=2))
    assert world.planned()
    world.run()
    world.wait(300)
    assert (world.phase(), len(world.evictions)) == ("running", 2)


def test_a_binding_that_lands_after_all_is_evicted_too() -> None:
    world = World(GangSettings(settle_s=0, bind_s=100)).start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    world.bind(answer, [0])
    world.wait(30)
    assert world.phase() == "given up"
    assert world.held() == {"p1"}  # its Binding may be under way
    world.see(bound(PAIR[1], "a", answer.annotations[1]))
    assert [evict.pods for evict in world.evictions] == [(("p0", "p0"),), (("p1", "p1"),)]


def test_with_partial_keep_the_rest_waits_like_any_gang() -> None:
    world = split(GangSettings(settle_s=0, partial=Partial.KEEP))
    world.see(foreign("f", "a", gpus=2))
    world.wait(100)
    assert (world.evictions, world.phase()) == ([], "unplaceable")
    world.gone("f")
    assert world.planned()


def test_a_replacement_waits_and_nobody_is_evicted() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    world.run()
    world.gone("p1")
    world.see(foreign("f", "a", gpus=2), pod("p9", gpus=2))
    world.wait(300)
    assert (world.phase(), world.evictions) == ("unplaceable", [])


def test_members_that_die_while_others_are_on_their_way_do_not_make_it_partially_bound() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    world.bind(answer, [0])
    world.see(replace(world.pods["p0"], finished=True))
    world.bind(answer, [1])
    world.wait(100)
    assert world.evictions == []


def test_an_elastic_gang_with_enough_bound_is_not_partially_bound() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(3)))
    world.wait(1)
    assert world.reserve().claimed
    answer = world.permit()
    assert len(answer.annotations) == 3
    world.unreserve(2, BindingFate.REFUSED)
    world.bind(answer, [0, 1])
    world.see(foreign("f", "a", gpus=2))
    world.wait(100)
    assert world.evictions == []
    assert "p2" not in world.held()


def test_a_gang_with_enough_bound_stays_complete_when_one_dies_while_others_are_on_their_way() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(4)))
    world.wait(1)
    assert world.reserve().claimed
    world.bind(world.permit(), [0, 1])
    world.see(replace(world.pods["p0"], finished=True))
    world.unreserve(2, BindingFate.REFUSED)
    world.unreserve(3, BindingFate.REFUSED)
    world.see(foreign("f", "a", gpus=3))
    world.wait(100)
    assert world.evictions == []


def test_a_member_deleted_between_permit_and_its_binding_leaves_a_partially_bound_gang() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    answer = world.permit()
    world.gone("p1")
    world.bind(answer, [0])
    world.see(pod("q", gang="", gpus=2))
    assert world.phase("q") == "unplaceable"  # the place waits for its replacement
    world.wait(31)
    assert [evict.pods for evict in world.evictions] == [(("p0", "p0"),)]
    assert world.planned("q")


def test_a_standby_evicts_nobody_and_gives_a_grace_when_it_leads() -> None:
    world = split()
    world.see(foreign("f", "a", gpus=2))
    world.send(inputs.SessionClosed(world.now, world.epoch))
    world.wait(300)
    assert world.evictions == []
    world.connect()
    world.wait(29)
    assert world.evictions == []
    world.wait(1)
    assert len(world.evictions) == 1


def test_what_we_have_not_bound_is_not_ours_to_evict() -> None:
    world = World()
    world.see(replace(PAIR[0], node="a"), PAIR[1], foreign("f", "a", 2))
    world.start(node("a"))
    world.wait(100)
    assert world.evictions == []


def test_a_retained_place_goes_with_its_node() -> None:
    world = split()
    world.send(inputs.NodeGone(world.now, "a"))
    assert world.held() == set()
    world.send(inputs.NodeSeen(world.now, node("a", gpus=2)))
    world.wait(3)
    assert world.phase() == "unplaceable"


def test_a_gang_that_changes_owners_takes_its_bindings_under_way_along() -> None:
    """Else they are planned a second time, while they land."""
    world = World().start(node("a"), node("b"))
    world.see(pod("p0", owner="m"), pod("p1", owner="w"))
    first = world.verdict().gang
    assert world.reserve().claimed
    answer = world.permit()
    homes = [world.home(member) for member in (0, 1)]
    world.see(pod("p2", owner="x", created=-1.0, of=2), pod("p3", owner="x", created=-1.0, of=2))
    world.gone("p0")
    world.see(pod("p4", owner="n"))
    later = {view.key: str(view.phase) for view in world.coordinator.summary()}
    assert first not in later
    (key,) = [key for key in later if "w" in key.split("/")]
    assert later[key] == "permitted"
    assert ("p1", "p1") not in [
        member for verdict in world.verdicts if verdict.gang == key for member in verdict.members
    ]
    world.see(bound(pod("p1", owner="w"), homes[1], answer.annotations[1]))
    assert world.coordinator.state.orphans == {}


def test_a_gang_stays_partially_bound_when_one_of_its_owners_goes() -> None:
    world = World().start(node("a"))
    world.see(*(pod(f"p{i}", of=3, owner="mww"[i]) for i in range(3)))
    assert world.reserve().claimed
    world.bind(world.permit(), [0])
    world.wait(15)
    world.gone("p1", "p2")
    assert world.coordinator.summary()[0].key == "ns/ack/g/m"
    world.wait(14)
    assert world.evictions == []
    world.wait(1)
    assert [evict.pods for evict in world.evictions] == [(("p0", "p0"),)]


def test_a_gang_stays_partially_bound_when_others_of_its_name_are_another_incarnation() -> None:
    """The first of them looks like a replacement, and the gang goes on under their owner."""
    world = split()
    world.gone("p1")
    world.see(replace(world.pods["p0"], started=2.0, running=True))
    world.see(pod("q0", gpus=2, owner="other", created=3.0))
    world.see(pod("q1", gpus=2, owner="other", created=3.0))
    assert [view.bound for view in world.coordinator.summary()] == [1, 0]
    world.wait(31)
    assert [eviction.pods for eviction in world.evictions] == [(("p0", "p0"),)]


@pytest.mark.parametrize("lands", [True, False], ids=["it was bound before", "it was not"])
def test_what_an_owner_leaves_behind_is_complete_if_all_were_bound(lands: bool) -> None:
    """One of two owners goes while Bindings are under way; the other goes on as another gang."""
    world = World().start(node("a"))
    world.see(pod("m", of=3, owner="m"), *(pod(f"w{i}", of=3, owner="w") for i in (0, 1)))
    assert world.reserve().claimed
    answer, order = world.permit(), [uid for _, uid in world.verdict().members]
    homes = [world.home(member) for member in range(3)]
    if lands:
        world.see(bound(world.pods["m"], homes[order.index("m")], answer.annotations[order.index("m")]))
    world.gone("m")
    for uid in ("w0", "w1"):
        at = order.index(uid)
        world.see(bound(world.pods[uid], homes[at], answer.annotations[at]))
    world.wait(100)
    assert bool(world.evictions) != lands


def test_members_that_are_two_gangs_by_the_time_that_all_are_bound_are_not_evicted() -> None:
    """One of two owners sends another pod while Bindings are under way: its pods are a gang of their own."""
    world = World().start(node("a"))
    world.see(pod("m", of=3, owner="m", created=5.0), *(pod(f"w{i}", of=3, owner="w") for i in (0, 1)))
    assert world.reserve().claimed
    answer, order = world.permit(), [uid for _, uid in world.verdict().members]
    homes = [world.home(member) for member in range(3)]
    world.see(pod("w2", of=3, owner="w", gpus=9, created=9.0))
    assert len(world.coordinator.summary()) == 2
    for at, uid in enumerate(order):
        world.see(bound(world.pods[uid], homes[at], answer.annotations[at]))
    world.wait(100)
    assert not world.evictions


def test_a_member_that_was_bound_just_before_its_gang_became_another_one_is_evicted_in_time() -> None:
    """The other member is deleted while its Binding is under way; the bound one joins a gang that waits."""
    world = World().start(node("a", 2))
    world.see(*(pod(f"p{i}", of=2) for i in (0, 1)))
    assert world.reserve().claimed
    first = bound(world.pods["p0"], world.home(0), world.permit().annotations[0])
    world.see(*(pod(f"r{i}", of=2, owner="run", created=3.0) for i in (0, 1)))
    world.see(first)
    world.gone("p1")
    (gang,) = world.coordinator.summary()
    assert gang.bound == 1
    world.wait(31)
    assert [eviction.pods for eviction in world.evictions] == [(("p0", "p0"),)]


def test_a_binding_under_way_goes_with_a_pod_whose_gang_is_named_anew() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    world.permit()
    world.see(replace(PAIR[1], claim=pod("x", gang="h", of=1).claim))
    assert "p1" in world.held()
    assert world.phase("h") == "permitted"


def test_a_place_is_not_retained_for_a_member_that_is_another_gangs_now() -> None:
    """The plan of the gang that it leaves is withdrawn at the same moment."""
    world = split()
    world.wait(2)
    assert world.planned()
    world.send(inputs.NodeSeen(world.now, node("b")))
    world.see(pod("p1", "h", gpus=2), pod("x", "h", gpus=2))
    assert world.verdict("h").members == (("p1", "p1"), ("x", "x"))
    assert world.coordinator.state.gangs["ns/ack/g"].retained_uids == set()
    assert check(world.coordinator) == []


def test_a_new_session_knows_a_partially_bound_gang_by_what_is_under_way() -> None:
    world = World()
    world.see(*PAIR)
    world.start(node("a"), in_flight=(Usage("p0", "a", PAIR[0].resources, gpus=0b0011),))
    world.see(replace(PAIR[0], node="a", allocation=0b0011))
    world.see(foreign("f", "a", 2))
    world.wait(40)
    assert [evict.pods for evict in world.evictions] == [(("p0", "p0"),)]


def test_a_plan_that_ends_lets_go_of_no_place_that_is_another_gangs_now() -> None:
    world = World().start(node("a"))
    world.see(*PAIR)
    assert world.reserve().claimed
    world.permit()
    world.see(replace(PAIR[1], claim=pod("x", gang="h", of=2).claim))
    world.unreserve(0, BindingFate.REFUSED)
    assert world.held() == {"p1"}
    world.gone("p0")
    assert world.held() == {"p1"}


# --- gangs that are not partially bound, and never evicted ----------------------------------------------


def test_a_gang_whose_binding_began_under_another_leader_is_partially_bound_too() -> None:
    """A standby has seen its pods wait, and then some of them bound."""
    world = World()
    world.send(inputs.NodeSeen(world.now, node("a")))
    world.send(inputs.Synced(world.now))
    world.see(*PAIR)
    first = replace(PAIR[0], node="a", allocation=0b0011, batch=Batch(needed=2, left_out=0, newest=0.0))
    world.see(first, foreign("f", "a", 2))
    world.connect()
    world.wait(29)
    assert world.evictions == []
    world.wait(1)
    assert [evict.pods for evict in world.evictions] == [(("p0", "p0"),)]


def test_what_another_leader_has_completed_is_not_evicted_by_the_one_that_gave_it_up() -> None:
    world = split()
    world.see(foreign("f", "a", 2))
    world.wait(31)
    assert world.phase() == "given up"
    assert world.coordinator.evicts("p0")
    world.send(inputs.SessionClosed(world.now, world.epoch))
    assert not world.coordinator.evicts("p0")
    world.gone("f")
    world.see(replace(PAIR[1], node="a", allocation=0b1100))
    evictions_before = len(world.evictions)
    world.connect()
    world.wait(100)
    assert (world.phase(), len(world.evictions)) == ("running", evictions_before)
    assert not world.coordinator.evicts("p0")


def test_a_new_session_gives_a_grace_anew_also_where_one_has_begun() -> None:
    world = split()
    world.see(foreign("f", "a", 2))
    world.wait(25)
    world.connect()
    world.wait(29)
    assert world.evictions == []
    world.wait(1)
    assert len(world.evictions) == 1


def elastic(uid: str, owner: str = "", **more: Any) -> Pod:
    return with_topology(uid, of=3, owner=owner, created=1.0, **more)


def test_a_gang_that_was_complete_is_not_partially_bound_when_one_of_its_owners_has_gone() -> None:
    """Though one that never fitted waits since before the others ran."""
    world = World().start(node("a", gpus=3))
    world.see(elastic("m0", "m"), *(elastic(f"w{i}", "w") for i in range(3)))
    world.run()
    for uid in ("m0", "w0", "w1"):
        world.see(replace(world.pods[uid], started=50.0))
    world.gone("m0")
    world.see(foreign("f", "a", 1))
    assert world.coordinator.summary()[0].bound == 2
    world.wait(200)
    assert world.evictions == []


def test_a_member_that_was_never_bound_counts_as_missed_after_each_change_of_owners() -> None:
    """The first member is terminating while the others are on their way, and its replacement joins them."""
    world = World().start(node("a"))
    first = pod("m0", of=3, owner="m")
    world.see(first, *(pod(f"w{i}", of=3, owner="w") for i in (0, 1)))
    assert world.reserve().claimed
    answer, order = world.permit(), [uid for _, uid in world.verdict().members]
    homes = [world.home(member) for member in range(3)]
    landed = {
        uid: bound(world.pods[uid], homes[at], answer.annotations[at])
        for at, uid in enumerate(order)
        if uid != "m0"
    }
    world.see(replace(first, terminating=True))
    world.see(landed["w0"])
    world.gone("m0")
    world.see(
        pod("m1", of=3, owner="m", gpus=9, created=1.0), pod("m2", of=3, owner="m", gpus=9, created=1.0)
    )
    world.see(landed["w1"])
    world.wait(100)
    assert world.evictions


def bind_two_of_four(world: World) -> list[str]:
    """Bind two members of four. Others have taken the fourth's node; the third's place is still held."""
    world.start(*(node(name, 8) for name in "abcd"))
    world.see(*(pod(f"p{number}", of=4, gpus=8) for number in range(4)))
    assert world.reserve().claimed
    answer = world.permit()
    homes = [world.home(member) for member in range(4)]
    world.unreserve(2, BindingFate.REFUSED)
    world.unreserve(3, BindingFate.REFUSED)
    world.see(foreign("f", homes[3], gpus=8))
    world.bind(answer, [0, 1])
    return homes


def test_a_partially_bound_gang_wakes_up_when_something_frees_beside_the_places_that_it_holds() -> None:
    world = World()
    homes = bind_two_of_four(world)
    world.wait(2)
    assert world.phase() == "unplaceable"
    assert {usage.node for usage in world.coordinator.state.ledger.reservations.values()} == {homes[2]}
    world.gone("f")
    assert world.planned()
    world.run()
    world.wait(35)
    assert (world.phase(), world.evictions) == ("running", [])


def test_what_frees_while_the_planner_is_asked_about_a_partially_bound_gang_is_not_lost() -> None:
    world = World()
    bind_two_of_four(world)
    world.auto = False
    world.wait(2)
    (solve,) = world.solves
    assert solve.request.gang.name == "g"
    world.gone("f")
    world.solve()
    assert len(world.solves) == 1
    world.solve()
    assert world.planned()
