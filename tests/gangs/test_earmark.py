"""A gang that waits for long: what comes free in its best domain is kept for it, for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.node import Node
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.gangs.earmark import best_domain
from muster.gangs.settings import Settings
from tests.gangs.world import World, foreign, node, pod, wishing


def waiting() -> World:
    """Gang g of 2 × 4 GPUs waits for ten minutes on two nodes of which others have a part."""
    world = World().start(node("a"), node("b"), node("c"))
    world.see(foreign("fa", "a", 1), foreign("fb", "b", 2), foreign("fc", "c", 3))
    world.see(pod("p0", gpus=4), pod("p1", gpus=4))
    world.wait(600)
    return world


def test_the_best_domain_is_kept_for_the_oldest_waiting_gang_and_said() -> None:
    world = waiting()
    assert world.verdict().reason.endswith("What comes free on a, b is kept for it for a while")
    world.see(pod("q", gang="", gpus=2), pod("r", gang="", gpus=1))
    assert world.phase("q") == "unplaceable"
    assert world.home(0, "r") == "c"
    world.gone("fb")
    assert world.phase("q") == "unplaceable"  # a passing gang took it before
    world.gone("fa")
    assert world.planned()
    world.run()
    assert world.phase() == "running"
    assert world.coordinator.lives.earmark is None


def test_others_have_what_was_kept_when_it_ends() -> None:
    world = waiting()
    world.see(pod("q", gang="", gpus=2))
    world.wait(599)
    assert world.phase("q") == "unplaceable"
    world.wait(1)
    assert world.planned("q")
    assert "is kept for it" not in world.verdict().reason
    world.wait(599)
    assert world.coordinator.lives.earmark is None


def test_it_ends_with_its_gang_and_goes_to_the_next() -> None:
    world = waiting()
    world.see(*(pod(f"h{i}", "h", gpus=4) for i in range(2)))
    world.wait(599)
    assert "is kept for it" not in world.verdict("h").reason
    world.gone("p0", "p1")
    world.wait(1)
    assert "is kept for it" in world.verdict("h").reason


def test_half_a_gang_may_take_what_is_kept_for_another() -> None:
    world = waiting()
    earmark = world.coordinator.lives.earmark
    assert earmark is not None
    gang = next(iter(world.coordinator.lives.gangs.values()))
    other = replace(earmark, gang="another")
    world.coordinator.lives.earmark = other
    assert world.coordinator.lives.open_to(gang).nodes["a"].free_gpu_count == 0
    gang.whole, gang.group = False, replace(gang.group, bound=(pod("x", node="c"),))
    assert world.coordinator.lives.open_to(gang).nodes["a"].free_gpu_count == 3


def asked(*sizes: int, least: int, **more: object) -> Request:
    world = World(Settings(), auto=False).start(node("z"))
    wishes = replace(wishing("x").claim.wishes, **more)  # type: ignore[union-attr]
    world.see(*(wishing(f"p{i}", wishes, of=least, gpus=size) for i, size in enumerate(sizes)))
    world.wait(1)
    return world.solves[0].request


def racks(**nodes: int) -> list[Node]:
    """Nodes of four GPUs by name, in the rack of the name's first letter."""
    return [node(name, 4, {"topology.kubernetes.io/rack": name[0]}) for name in nodes]


@pytest.mark.parametrize(
    ("sizes", "least", "scope", "used", "nodes"),
    [
        ((4, 4), 2, None, {"a1": 4, "a2": 1, "b1": 2, "b2": 2}, {"a2", "b1"}),
        ((4, 4), 2, "rack", {"a1": 4, "a2": 0, "b1": 1, "b2": 2}, {"b1", "b2"}),
        ((2, 2), 2, "node", {"a1": 3, "a2": 4, "b1": 1, "b2": 2}, {"b1"}),
        ((4, 1, 1), 2, None, {"a1": 4, "a2": 4, "b1": 3, "b2": 4}, {"b1"}),
        ((4, 4, 4), 3, "rack", {"a1": 0, "a2": 0, "b1": 0, "b2": 0}, set()),
        ((8,), 1, None, {"a1": 0, "a2": 0, "b1": 0, "b2": 0}, set()),
    ],
    ids=["the most free", "one rack", "one node", "the smallest that must", "no rack is", "no node is"],
)
def test_the_best_domain_lacks_least(
    sizes: tuple[int, ...], least: int, scope: str | None, used: dict[str, int], nodes: set[str]
) -> None:
    request = asked(*sizes, least=least, required_scope=scope)
    usages = [usage for name, gpus in used.items() if (usage := foreign(f"f{name}", name, gpus).usage)]
    assert best_domain(request, Snapshot.of(racks(**used), usages)) == nodes


def test_a_gang_whose_waiting_pods_have_just_gone_gets_none() -> None:
    """They are not counted yet when the earmark before ends."""
    world = World(Settings()).start(node("a", gpus=4))
    world.see(pod("p0", gang="", gpus=4))
    world.run("p0")
    world.see(pod("old", gang="", gpus=4))
    world.see(*(wishing(f"e{i}", of=1, node="a" if i == 0 else "") for i in range(2)))
    world.wait(700)
    lives = world.coordinator.lives
    assert lives.earmark is not None
    assert lives.gangs[lives.earmark.gang].name[2] == "old"
    world.gone("e1")
    world.gone("old")
    assert lives.earmark is None
