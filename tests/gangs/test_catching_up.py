"""What concerns all gangs is done for some of them with each input, and what changes meanwhile counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.pod import TopologyRequest
from muster.domain.policies import DEFAULT_POLICIES
from muster.gangs.lifecycle import arrivals, recovery
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Outcome
from tests.gangs.world import World, foreign, node, pod, with_topology

GANGS = 6


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "REGROUPED_AT_ONCE", 1)
    monkeypatch.setattr(recovery, "TOLD_AT_ONCE", 1)


def phases(world: World) -> dict[str, int]:
    return dict(world.coordinator.tally().phases)


def seen() -> World:
    """Gangs of one pod that fit nowhere. The service has seen them, and is not synced."""
    world = World(auto=False)
    world.send(inputs.NodeSeen(world.now, node("a")))
    for number in range(GANGS):
        world.see(pod(f"p{number}", gang="", gpus=8))
    return world


def refused() -> World:
    """The same, each of them refused."""
    world = seen().start()
    world.auto = True
    world.wait(0)
    assert phases(world) == {"unplaceable": GANGS}
    return world


def test_changes_before_a_name_is_grouped_count() -> None:
    world = seen()
    world.send(inputs.Synced(world.now))
    assert len(world.coordinator.keys()) < GANGS
    world.gone("p0", "p3")  # one that is known, and perhaps one that is not yet
    world.see(pod("new", gang="", gpus=8))
    world.wait(0)
    assert {gang.split("/")[2] for gang in world.coordinator.keys()} == {"p1", "p2", "p4", "p5", "new"}  # noqa: SIM118
    assert not world.coordinator.catches_up


def test_nothing_is_planned_before_all_are_known() -> None:
    world = seen()
    world.send(inputs.Synced(world.now))
    world.connect()
    while world.coordinator.catches_up:
        assert not world.solves
        assert world.coordinator.next_deadline() == world.now
        world.send(inputs.Tick(world.now))
    assert len(world.solves) == 1


def test_a_new_shim_is_told_of_each_refusal_once() -> None:
    world = refused()
    verdicts_before = len(world.verdicts)
    world.connect()
    assert verdicts_before < len(world.verdicts) < verdicts_before + GANGS
    world.wait(0)
    again = world.verdicts[verdicts_before:]
    assert sorted(verdict.gang for verdict in again) == world.coordinator.keys()
    assert {verdict.outcome for verdict in again} == {Outcome.REFUSED}


def test_a_gang_that_goes_or_is_planned_before_its_turn_is_told_as_it_is() -> None:
    world = refused()
    world.connect()
    verdicts_before = len(world.verdicts)
    world.send(inputs.PodGone(world.now, "p4"))
    world.send(inputs.NodeSeen(world.now, node("b", 8)))
    world.wait(0)
    last = {verdict.gang.split("/")[2]: verdict.outcome for verdict in world.verdicts[verdicts_before:]}
    assert last.pop("p4", None) is None
    planned = [gang for gang, outcome in last.items() if outcome is Outcome.PLANNED]
    assert (len(planned), phases(world)) == (1, {"planned": 1, "unplaceable": GANGS - 2})


def test_a_session_that_ends_early_leaves_the_rest_to_the_next() -> None:
    world = refused()
    world.connect()
    world.send(inputs.SessionClosed(world.now, world.epoch))
    world.wait(0)
    verdicts_before = len(world.verdicts)
    world.connect()
    world.wait(0)
    assert sorted(verdict.gang for verdict in world.verdicts[verdicts_before:]) == world.coordinator.keys()


def test_policies_hold_for_each_gang_before_anything_is_planned() -> None:
    """The level that gangs ask for is gone: none is planned by the old one."""
    without = replace(DEFAULT_POLICIES, levels=())
    world = World().start(node("a"))
    world.see(foreign("f", "a", gpus=4))
    for number in range(GANGS):
        world.see(with_topology(f"p{number}", TopologyRequest(required_scope="rack"), gang=f"g{number}"))
    world.wait(10)
    solves_before = world.asked
    world.send(inputs.PoliciesSeen(world.now, without))
    world.send(inputs.PodGone(world.now, "f"))
    assert world.asked == solves_before
    world.wait(10)
    assert not world.coordinator.catches_up
    assert world.coordinator.state.roster.policies.levels == ()
    fresh = World()
    fresh.send(inputs.PoliciesSeen(fresh.now, without))
    fresh.start(node("a"))
    for number in range(GANGS):
        fresh.see(with_topology(f"p{number}", TopologyRequest(required_scope="rack"), gang=f"g{number}"))
    fresh.wait(10)
    assert phases(world) == phases(fresh)
