"""Many refused gangs that a change may help: they are queued again in small parts, and none is forgotten."""

from __future__ import annotations

import pytest

from muster.domain.node import Resources
from muster.domain.pod import TopologyRequest
from muster.gangs.lifecycle import refusals
from muster.gangs.messages import inputs
from muster.gangs.record.phases import Phase
from tests.gangs.world import World, foreign, node, pod, with_topology


def refused() -> World:
    """Twelve refused gangs of different needs."""
    world = World().start(node("a", 8), node("b", 8))
    world.see(foreign("f", "a", gpus=8), foreign("g", "b", gpus=8))
    world.see(
        *(
            pod(f"p{number:02}", gang="", gpus=2, priority=number % 3, resources=Resources(number, 0, 1))
            for number in range(12)
        )
    )
    assert phases(world) == {"unplaceable": 12}
    return world


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> World:
    """The same, and three of them are queued again in one event."""
    monkeypatch.setattr(refusals, "_WOKEN_AT_ONCE", 3)
    return refused()


def phases(world: World) -> dict[str, int]:
    return dict(world.coordinator.tally().phases)


def planned(world: World) -> set[str]:
    return {gang.key for gang in world.coordinator.state.gangs.values() if gang.phase is Phase.PLANNED}


def test_the_planner_is_asked_once_all_are_queued(crowd: World) -> None:
    crowd.auto = False
    solves_before = len(crowd.solves)
    crowd.pods.pop("f")
    crowd.send(inputs.PodGone(crowd.now, "f"))
    for _ in range(3):
        assert len(crowd.solves) == solves_before
        assert crowd.coordinator.next_deadline() == crowd.now
        crowd.send(inputs.Tick(crowd.now))
    assert phases(crowd) == {"planning": 12}
    assert len(crowd.solves) == solves_before + 1


def test_the_same_gangs_get_the_room_as_where_all_are_queued_at_once(
    crowd: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd.gone("f")
    monkeypatch.setattr(refusals, "_WOKEN_AT_ONCE", 12)
    at_once = refused()
    at_once.gone("f")
    assert phases(crowd) == {"planned": 4, "unplaceable": 8}
    assert planned(crowd) == planned(at_once)


def test_a_gang_may_go_before_its_turn(crowd: World) -> None:
    crowd.auto = False
    crowd.pods.pop("f")
    crowd.send(inputs.PodGone(crowd.now, "f"))
    for uid in [uid for uid in crowd.pods if uid.startswith("p")]:
        crowd.pods.pop(uid)
        crowd.send(inputs.PodGone(crowd.now, uid))
    crowd.auto = True
    if crowd.solves:
        crowd.solve()
    crowd.wait(5)
    assert phases(crowd) == {}
    assert not crowd.coordinator.state.to_wake


def test_each_gang_is_queued_once_however_often_gpus_become_free(crowd: World) -> None:
    crowd.auto = False
    for uid in "fg":
        crowd.pods.pop(uid)
        crowd.send(inputs.PodGone(crowd.now, uid))
    assert len(crowd.coordinator.state.to_wake) == 12 - 2 * 3


@pytest.mark.parametrize(
    ("scope", "planned_again"),
    [
        pytest.param("node", ["f2"], id="one node must have all six GPUs"),
        pytest.param("gpu", [], id="two members never share a GPU"),
        pytest.param(None, ["g1"], id="two nodes may have three GPUs each"),
    ],
)
def test_a_gang_of_one_node_is_planned_again_if_that_node_has_all_its_gpus(
    scope: str | None, planned_again: list[str]
) -> None:
    world = World().start(node("a", 8), node("b", 8))
    world.see(*(foreign(f"f{number}", "a", gpus=2) for number in range(4)))
    world.see(*(foreign(f"g{number}", "b", gpus=2) for number in range(4)))
    world.see(
        *(
            with_topology(f"p{number}", TopologyRequest(required_scope=scope), of=2, gpus=3)
            for number in range(2)
        )
    )
    assert phases(world) == {"unplaceable": 1}
    world.auto = False
    asked_after = []
    for uid in ("f0", "f1", "g0", "g1", "f2"):
        world.gone(uid)
        if world.solves:
            asked_after.append(uid)
            world.solve()
    assert asked_after == planned_again
