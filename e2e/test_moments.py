"""What happens to a gang between its plan and its last Binding: processes die, nodes and pods go."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.audit import LEASE_S
from e2e.chaos.sight import PERMITTED, PLANNED, RESERVING
from e2e.moments import await_commit, caught, noticed
from e2e.record import NODES
from e2e.scene import Scene
from local_cluster.patience import HANG_S, stretched
from local_cluster.stack import Stack

SIZE, GPUS = 40, 48
"""Enough members that the time between the first and the last is seldom missed, and a node for them."""

HELD = (PLANNED, RESERVING)
"""Phases in which the scheduler stands still, and the API server does what it is asked."""


@pytest.mark.grace(LEASE_S)
@pytest.mark.parametrize("process", ["service", "scheduler"])
@pytest.mark.parametrize("phase", [PLANNED, RESERVING, PERMITTED])
def test_a_process_is_killed(arena: Arena, scene: Scene, stack: Stack, phase: str, process: str) -> None:
    """No GPU is given twice, the gang runs, and so does another one."""
    scene.node(objects.node("a", gpus=GPUS))
    scene.node(objects.node("b", gpus=GPUS))
    with caught(arena, scene, phase, SIZE) as gang:
        (stack.service if process == "service" else stack.scheduler).kill()
    stack.restore()
    second_gang = scene.create(
        *(objects.pod(f"other-{rank}", gang=objects.ack("other", 9)) for rank in range(9))
    )
    scene.runs(gang.pods + second_gang)


def test_a_scheduler_that_is_told_to_stop_binds_the_whole_gang(
    arena: Arena, scene: Scene, stack: Stack
) -> None:
    """Its Bindings are under way. No other scheduler is there that could bind the rest of the gang."""
    scene.node(objects.node("a", gpus=GPUS))
    with caught(arena, scene, PERMITTED, SIZE) as gang:
        await_commit(stack, scene, gang)
        stack.scheduler.terminate()
    stack.scheduler.wait(stretched(HANG_S))
    scene.runs(gang.pods)
    stack.restore()


@pytest.mark.parametrize("phase", HELD)
def test_the_planned_node_vanishes(arena: Arena, scene: Scene, stack: Stack, phase: str) -> None:
    """The gang goes elsewhere, whole."""
    nodes = {scene.node(objects.node(name, gpus=GPUS)) for name in "ab"}
    with caught(arena, scene, phase, SIZE) as gang:
        (planned,) = {*gang.sight.nodes.values()}
        scene.client.delete(f"{NODES}/{planned}")
        noticed(arena, scene, gang)
    scene.runs(gang.pods)
    assert {scene.pods()[name].node for name in gang.pods} == nodes - {planned}


@pytest.mark.parametrize("phase", HELD)
def test_the_only_node_vanishes_and_another_comes(
    arena: Arena, scene: Scene, stack: Stack, phase: str
) -> None:
    scene.node(objects.node("a", gpus=GPUS))
    with caught(arena, scene, phase, SIZE) as gang:
        (planned,) = {*gang.sight.nodes.values()}
        scene.client.delete(f"{NODES}/{planned}")
        noticed(arena, scene, gang)
    scene.event("TopologyUnplaceable", gang.pods[0])
    assert not scene.bound()
    scene.node(objects.node("b", gpus=GPUS))
    scene.runs(gang.pods)


@pytest.mark.parametrize("phase", HELD)
def test_a_member_is_deleted(arena: Arena, scene: Scene, stack: Stack, phase: str) -> None:
    """Those that waited for it are let go and hold nothing: others take the room, until it is replaced."""
    scene.node(objects.node("a", gpus=GPUS))
    with caught(arena, scene, phase, SIZE) as gang:
        scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods/{gang.pods[-1]}", grace_s=0)
        noticed(arena, scene, gang)
    (all_of_it,) = scene.create(objects.pod("all-of-it", gpus=GPUS))
    scene.runs([all_of_it])
    assert scene.bound() == {all_of_it}
    scene.delete(all_of_it)
    (replacement,) = scene.create(objects.pod("replacement", gang=objects.ack(gang.sight.gang, SIZE)))
    scene.runs([*gang.pods[:-1], replacement])


@pytest.mark.parametrize("phase", HELD)
def test_members_are_patched(arena: Arena, scene: Scene, stack: Stack, phase: str) -> None:
    """By a controller, say, that knows nothing of gangs: they are bound as they are now."""
    scene.node(objects.node("a", gpus=GPUS))
    with caught(arena, scene, phase, SIZE) as gang:
        for name in gang.pods:
            patch = {"metadata": {"annotations": {"e2e.muster.dev/patched": "yes"}}}
            scene.client.patch(f"/api/v1/namespaces/{scene.name}/pods/{name}", patch)
    scene.runs(gang.pods)


@pytest.mark.parametrize("phase", HELD)
def test_the_whole_gang_is_withdrawn(arena: Arena, scene: Scene, stack: Stack, phase: str) -> None:
    """What its plan held is free at once."""
    scene.node(objects.node("a", gpus=GPUS))
    with caught(arena, scene, phase, SIZE) as gang:
        for name in gang.pods:
            scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods/{name}", grace_s=0)
        noticed(arena, scene, gang)
    scene.runs(scene.create(objects.pod("all-of-it", gpus=GPUS)))
    assert not {*gang.pods} & scene.bound()
