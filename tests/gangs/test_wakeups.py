"""A refused gang is asked about again as soon as it may fit: what passes it over must be a proof."""

from __future__ import annotations

from muster.gangs.messages.calls import BindingFate
from tests.gangs.world import World, foreign, node, pod

FOUR = [pod(f"p{number}", of=4, gpus=8) for number in range(4)]


def partially_bound(world: World) -> list[str]:
    """Bind two members of four. Others have taken the fourth's node; the third's place is still held."""
    world.start(*(node(name, 8) for name in "abcd")).see(*FOUR)
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
    homes = partially_bound(world)
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
    partially_bound(world)
    world.auto = False
    world.wait(2)
    (solve,) = world.solves
    assert solve.request.gang.name == "g"
    world.gone("f")
    world.solve()
    assert len(world.solves) == 1
    world.solve()
    assert world.planned()
