"""What metrics show of all gangs: counts, the oldest that waits, and members with a place."""

from __future__ import annotations

from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import Settings
from tests.gangs.world import World, node, pod


def test_gangs_are_counted_through_their_life() -> None:
    world = World(Settings(settle_s=0)).start(node("a"))
    world.see(pod("p0", of=2, gpus=2, created=5.0))
    found = world.coordinator.tally()
    assert (dict(found.phases), found.oldest) == ({"collecting": 1}, {"collecting": 5.0})
    world.see(pod("p1", of=2, gpus=2, created=7.0))
    assert (world.reserve().claimed, +world.coordinator.tally().reserved) == (True, {"plan": 2})

    answer = world.permit()
    assert +world.coordinator.tally().reserved == {"binding": 2}
    world.unreserve(1, BindingFate.REFUSED)
    world.bind(answer, [0])
    found = world.coordinator.tally()
    assert (found.partially_bound, +found.reserved) == (1, {"retained": 1})

    world.wait(2)
    world.run()
    found = world.coordinator.tally()
    assert (dict(found.phases), found.partially_bound, +found.reserved) == ({"running": 1}, 0, {})
    assert not found.oldest
