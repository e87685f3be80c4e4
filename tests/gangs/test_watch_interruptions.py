"""While the API server is away, nothing is planned on old facts, and no gang is given up because of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.gangs.lifecycle.recovery import MAX_TIMERS_PER_TICK
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, bound, node, pod, stand, with_topology

PAIR = (pod("p0"), pod("p1"))


def silent(world: World, resource: str = "pods") -> None:
    world.send(inputs.WatchInterrupted(world.now, resource))


def heard(world: World, resource: str = "pods") -> None:
    world.send(inputs.WatchResumed(world.now, resource))


def test_nothing_is_planned_before_all_watches_are_heard_again() -> None:
    world = World().start(node("a"))
    silent(world, "pods")
    world.wait(5)
    silent(world, "nodes")
    world.see(*PAIR)
    assert world.verdicts == []
    heard(world, "nodes")
    assert world.verdicts == []
    heard(world, "pods")
    assert world.planned()


def test_permitted_places_are_held_while_the_watch_is_interrupted() -> None:
    world = stand("permitted")
    answer = world.permit()
    homes = [world.home(0), world.home(1)]
    world.wait(10)
    silent(world)
    assert world.coordinator.next_deadline() is None
    world.wait(600)
    world.send(inputs.Tick(world.now))
    assert (world.phase(), world.held()) == ("permitted", {"p0", "p1"})
    heard(world)
    world.wait(9)
    assert world.phase() == "permitted"
    world.see(bound(PAIR[0], homes[0], answer.annotations[0]))
    world.wait(1.5)
    assert world.phase() == "withdrawn"  # 20 s in which it could be seen


def test_a_partially_bound_gang_is_not_evicted_for_what_was_not_seen() -> None:
    world = stand("permitted")
    world.bind(world.permit(), [0])
    silent(world)
    world.wait(600)
    heard(world)
    assert world.evictions == []


def test_an_interruption_reported_twice_counts_once_and_from_its_beginning() -> None:
    world = stand("permitted")
    silent(world, "pods")
    world.wait(30)
    silent(world, "nodes")
    silent(world, "pods")
    world.wait(30)
    heard(world, "pods")
    heard(world, "pods")
    world.wait(30)
    heard(world, "nodes")
    world.wait(19)
    assert world.phase() == "permitted"
    world.wait(1)
    assert world.phase() == "withdrawn"


def test_a_plan_that_is_out_is_still_answered() -> None:
    world = World(auto=False).start(node("a"))
    world.see(*PAIR)
    silent(world)
    world.solve()
    assert world.planned()
    assert world.reserve().claimed


def test_a_service_that_stood_still_looks_before_it_gives_up() -> None:
    """What happened meanwhile is still in its sockets when the first Tick comes."""
    world = stand("permitted")
    answer, homes = world.permit(), [world.home(0), world.home(1)]
    world.bind(answer, [0])
    world.now += 60
    world.send(inputs.Tick(world.now))
    world.see(bound(PAIR[1], homes[1], answer.annotations[1]))
    assert world.phase() == "running"
    world.wait(60)
    assert world.evictions == []


def test_a_service_that_stood_still_gives_up_in_the_end() -> None:
    world = stand("permitted")
    world.now += 60
    world.send(inputs.Tick(world.now))
    assert world.phase() == "permitted"
    world.wait(2)
    assert world.phase() == "withdrawn"


def test_one_tick_handles_a_bounded_number_of_timers_and_the_next_goes_on() -> None:
    """The rest of them is late, by more than 2 s here, and that is no standstill."""
    world = World().start(node("a", 8))
    world.see(
        *(replace(pod(f"p{i}", gang=f"g{i}"), owner=f"job{i}") for i in range(2 * MAX_TIMERS_PER_TICK + 1))
    )
    world.wait(world.settings.waiting_s - 0.1)
    shown_counts = []
    for _ in range(3):
        world.now += 1.5
        world.send(inputs.Tick(world.now))
        shown_counts.append(len(world.shown))
    assert shown_counts == [MAX_TIMERS_PER_TICK, 2 * MAX_TIMERS_PER_TICK, 2 * MAX_TIMERS_PER_TICK + 1]


def test_a_standstill_is_noticed_also_while_a_tick_left_timers_to_the_next() -> None:
    world = World().start(node("a", 8))
    world.see(*(replace(pod(f"p{i}", gang=f"g{i}"), owner=f"job{i}") for i in range(MAX_TIMERS_PER_TICK + 1)))
    world.wait(world.settings.waiting_s - 0.1)
    for pause_s in (1.5, 60.0):
        world.now += pause_s
        world.send(inputs.Tick(world.now))
    assert len(world.shown) == MAX_TIMERS_PER_TICK
    world.wait(2)
    assert len(world.shown) == MAX_TIMERS_PER_TICK + 1


def joins_an_ill_formed_gang(world: World) -> None:
    world.see(with_topology("p0", of=None))
    world.wait(600)
    world.see(with_topology("p1", of=None))


def leaves_a_gang_that_waits_for_the_planner(world: World) -> None:
    world.auto = False  # it is busy with x
    world.see(with_topology("x", gang="x"))
    world.wait(1)
    world.see(*(with_topology(f"p{i}", of=2) for i in range(3)))
    world.wait(600)
    world.gone("p2")


def joins_a_gang_that_was_counted_when_the_watch_broke_off(world: World) -> None:
    world.see(with_topology("p0"))
    silent(world)
    world.wait(600)
    heard(world)
    world.see(with_topology("p1"))


def is_refused_for_an_exclusion_that_has_ended(world: World) -> None:
    world.see(*PAIR)
    world.auto = False
    world.unreserve(0, BindingFate.NEVER_SENT, "VolumeBinding", "no disk")
    world.wait(600)
    world.solve()


@pytest.mark.parametrize(
    "happens",
    [
        joins_an_ill_formed_gang,
        leaves_a_gang_that_waits_for_the_planner,
        joins_a_gang_that_was_counted_when_the_watch_broke_off,
        is_refused_for_an_exclusion_that_has_ended,
    ],
)
def test_what_began_long_ago_in_one_gang_moves_nothing_of_others(happens: Callable[[World], None]) -> None:
    world = World(GangSettings()).start(node("a"))
    happens(world)
    world.see(pod("q0", gang="q"))
    world.wait(3)
    assert "Waiting" in world.reasons()
    assert world.phase() in ("invalid", "planning", "planned")


@pytest.mark.parametrize("came", [0.0, 250.0, 400.0])
def test_timers_are_postponed_by_the_interruption_since_they_were_set(came: float) -> None:
    """Pods that come during the interruption, or at its end, wait for other members as long as always."""
    world = World(GangSettings()).start(node("a"))
    silent(world, "nodes")
    world.wait(came)
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    world.wait(400 - came)
    heard(world, "nodes")
    world.wait(0.4)
    assert world.verdicts == []
    world.wait(0.1)
    assert world.planned()


def loses_one_of_two_that_are_awaited(world: World) -> None:
    """The timer of the other one is set again during the interruption."""
    world.see(*PAIR)
    assert world.reserve().claimed
    assert world.permit().allowed
    silent(world)
    world.wait(600)
    world.gone("p0")


def goes_on_under_other_owners_while_it_is_half(world: World) -> None:
    """The end of its grace is handed on during the interruption."""
    world.see(*(replace(member, owner="one") for member in PAIR))
    assert world.reserve().claimed
    world.bind(world.permit(), [0])
    world.gone("p1")
    silent(world)
    world.wait(600)
    world.see(replace(pod("p2"), owner="two", created=1.0))


@pytest.mark.parametrize(
    "happens", [loses_one_of_two_that_are_awaited, goes_on_under_other_owners_while_it_is_half]
)
def test_an_interruption_is_counted_once(happens: Callable[[World], None]) -> None:
    """The timers of a gang that came later are not postponed by the same interruption again."""
    world = World(GangSettings()).start(node("a"))
    happens(world)
    heard(world)
    world.see(pod("q0", gang="q"))
    world.wait(3)
    assert "Waiting" in world.reasons()


def test_a_late_pod_of_an_incomplete_gang_postpones_nothing_a_second_time() -> None:
    world = World().start(node("a"))
    world.see(pod("p0", of=3))
    silent(world)
    world.wait(30)
    world.see(pod("p1", of=3))
    heard(world)
    due = world.coordinator.next_deadline()
    assert due is not None
    assert world.now < due <= world.now + world.settings.waiting_s
    world.send(inputs.Tick(world.now))
    assert world.coordinator.next_deadline() == due
