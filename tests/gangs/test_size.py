"""A gang whose full size is known is planned as soon as it is complete; any other waits for more pods."""

from __future__ import annotations

import pytest

from muster.domain.pod import GangClaim, Pod
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, node, pod


def sized(uid: str, least: int, size: int | None) -> Pod:
    return pod(uid, claim=GangClaim("annotations", "g", least, size=size))


@pytest.mark.parametrize(("least", "size", "at_once"), [(4, 4, True), (2, 4, True), (4, None, False)])
def test_a_complete_gang_is_planned_at_once(least: int, size: int | None, at_once: bool) -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(sized(f"p{i}", least, size) for i in range(4)))
    assert world.phase() == ("planned" if at_once else "collecting")
    world.wait(world.settings.settle_s)
    assert world.phase() == "planned"


def test_one_that_could_start_waits_for_those_that_are_expected() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(sized(f"p{i}", 2, 4) for i in range(3)))
    assert world.phase() == "collecting"
    world.see(sized("p3", 2, 4))
    assert world.phase() == "planned"
    assert len(world.verdict().members) == 4


def test_it_does_not_wait_for_ever_for_pods_that_never_come() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(sized(f"p{i}", 2, 4) for i in range(3)))
    world.wait(world.settings.settle_s)
    assert world.phase() == "planned"
    assert len(world.verdict().members) == 3


def test_more_pods_than_expected_are_counted_as_those_of_an_open_gang() -> None:
    world = World(GangSettings()).start(node("a", 8))
    world.see(*(sized(f"p{i}", 2, 4) for i in range(4)))
    assert world.phase() == "planned"
    world.run()
    world.see(*(sized(f"q{i}", 2, 4) for i in range(3)))
    assert world.phase() == "running"
    world.wait(world.settings.settle_most_s)
    assert world.phase() == "planned"


def test_members_that_name_different_sizes_are_refused() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(sized("p0", 2, 4), sized("p1", 2, 3))
    world.wait(world.settings.settle_s)
    assert world.phase() == "invalid"
    assert "disagree on size" in next(iter(world.coordinator.state.gangs.values())).reason
