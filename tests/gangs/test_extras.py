"""Members beyond those that a gang needs: they must not take what other gangs need, and not wait for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, foreign, node, pod


def members(
    gang: str, count: int, least: int, priority: int = 0, created: float = 0.0, roles: Mapping[str, int] = {}
) -> list[Pod]:
    """Members of an elastic gang; `roles`: role → GPUs of each member, one after another."""
    gpus_by_role = [*(roles or {"": 1}).items()] * count
    return [
        pod(
            f"{gang}{i}",
            gpus=gpus,
            claim=GangClaim("annotations", gang, least, topology_request=TopologyRequest(role=role)),
            priority=priority,
            created=created,
        )
        for i, (role, gpus) in enumerate(gpus_by_role[:count])
    ]


def together(*gangs: list[Pod], gpus: int = 4, settings: GangSettings | None = None) -> World:
    """All pods come within the settle time of all gangs."""
    world = World(settings or GangSettings()).start(node("a", gpus))
    for gang in gangs:
        world.see(*gang)
    world.wait(world.settings.settle_most_s)
    return world


def planned(world: World, gang: str) -> int:
    return len(world.verdict(gang).members) if world.planned(gang) else 0


class Case(NamedTuple):
    gangs: tuple[list[Pod], ...]
    planned: dict[str, int]
    """Gang → members in its first plan."""


CASES = {
    "the minimums of both fit": Case((members("g", 4, 2), members("h", 4, 2)), {"g": 2, "h": 2}),
    "of three": Case((members("g", 4, 1), members("h", 4, 2), members("k", 3, 1)), {"g": 1, "h": 2, "k": 1}),
    "alone": Case((members("g", 4, 2),), {"g": 4}),
    "beside a gang of a lower priority": Case(
        (members("g", 4, 2, priority=1), members("h", 4, 2)), {"g": 4, "h": 0}
    ),
    "beside one that can do with no fewer": Case((members("g", 4, 2), members("h", 2, 2)), {"g": 2, "h": 2}),
    "the first by rank do not fit, others do": Case(
        (members("g", 2, 1, roles={"big": 8, "small": 1}), members("h", 4, 2)), {"g": 1, "h": 3}
    ),
    "nothing of the first fits": Case((members("g", 6, 5), members("h", 4, 2)), {"g": 0, "h": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_each_gang_gets_first(name: str) -> None:
    case = CASES[name]
    world = together(*case.gangs)
    assert {gang: planned(world, gang) for gang in case.planned} == case.planned


def test_the_others_have_their_turn_once_all_have_their_minimum() -> None:
    world = together(members("g", 4, 2), members("h", 3, 2), gpus=6)
    assert (planned(world, "g"), planned(world, "h")) == (2, 3)
    world.run("g")
    assert planned(world, "g") == 1
    assert world.verdict("g").members[0][0] == "g2"


@pytest.mark.parametrize(("later_s", "first"), [(299, "h"), (301, "g")])
def test_members_beyond_the_minimum_wait_for_gangs_that_came_within_a_fixed_time(
    later_s: float, first: str
) -> None:
    world = World().start(node("a"), node("b", 0))
    world.see(foreign("f", "a", 2), *members("g", 2, 2))
    world.run("g")
    world.see(*members("g", 4, 2, created=1.0)[2:])
    world.see(*members("h", 2, 2, created=1.0 + later_s))
    assert not world.planned("h")
    assert min(world.coordinator.summary(), key=lambda view: view.queue_order).name == first
    world.gone("f")
    assert planned(world, first) == 2
