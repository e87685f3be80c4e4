"""A refused gang is asked about again as soon as it may fit: what passes it over must be a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.constraints import AntiAffinity
from muster.domain.decision import Unplaceable
from muster.domain.reasons import NodesExcluded
from muster.domain.request import Request
from muster.gangs import requests
from muster.gangs.calls import BindingFate
from muster.gangs.settings import Settings
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
    assert {usage.node for usage in world.coordinator.lives.ledger.held.values()} == {homes[2]}
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
    (asked,) = world.solves
    assert asked.request.gang.name == "g"
    world.gone("f")
    world.solve()
    assert len(world.solves) == 1
    world.solve()
    assert world.planned()


def test_a_gang_with_rules_between_pods_is_asked_about_again_when_its_rules_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pod that repels its members ends on a full node: that node can take none of them."""
    real = requests.request
    repelling = {"x": "b"}

    def constrained(*arguments: object) -> Request:
        made = real(*arguments)  # type: ignore[arg-type]
        names = frozenset(role.name for role in made.roles)
        rule = AntiAffinity("no x", "rack", names, existing=frozenset(repelling.values()))
        return replace(made, constraints=(rule,) if made.gang.name == "g" else ())

    monkeypatch.setattr(requests, "request", constrained)
    world = World(auto=False).start(node("a"), node("b"))
    world.see(foreign("x", "b", gpus=0), foreign("f", "b", gpus=4), pod("p0", of=1))
    asked = world.solves[0].request
    world.solve(Unplaceable(asked.gang, (NodesExcluded("", "no x", 2),)))
    assert world.phase() == "unplaceable"
    world.see(foreign("y", "b", gpus=0))
    world.wait(5)
    assert world.solves == []  # nothing that its rules speak of
    repelling.clear()
    world.gone("x")
    world.wait(Settings().recheck_s)
    assert [solve.request.gang.name for solve in world.solves] == ["g"]
