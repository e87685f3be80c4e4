"""Processes die at the worst moments and come back: no GPU is booked twice, no gang stays half bound."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.audit import LEASE_S
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.stack import Stack


def gang(name: str, size: int, gpus: int = 1) -> list[Object]:
    return [objects.pod(f"{name}-{rank}", gpus=gpus, gang=objects.ack(name, size)) for rank in range(size)]


def test_the_service_is_killed_while_a_gang_waits(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    first, last = gang("g", 2)
    (waiting,) = scene.create(first)
    scene.event("TopologyWaiting", waiting)
    stack.service.kill()
    stack.start_service()
    (late,) = scene.create(last)
    scene.runs([waiting, late])


def test_without_the_service_gpu_pods_wait_and_others_go_on(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    stack.service.kill()
    lone = scene.create(objects.pod("lone"))
    whole = scene.create(*gang("g", 2))
    scene.runs(scene.create(*(objects.pod(f"cpu-{number}", gpus=0) for number in range(3))))
    assert not {*lone, *whole} & scene.bound()
    stack.start_service()
    scene.runs(lone + whole)


def test_the_gpus_of_bound_pods_stay_taken_over_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a", topology=objects.DOCUMENT_MESH))
    names = scene.create(*gang("g", 3, gpus=2))
    scene.runs(names)
    # what the original device plugin does when the container starts
    assigned = {"metadata": {"annotations": {"ALIYUN_COM_GPU_ASSIGNED": "true"}}}
    scene.client.patch(f"/api/v1/namespaces/{scene.name}/pods/{names[0]}", assigned)
    stack.service.kill()
    stack.start_service()
    scene.runs(scene.create(objects.pod("two", gpus=2)))
    (more,) = scene.create(objects.pod("more"))
    scene.event("TopologyUnplaceable", more)
    assert more not in scene.bound()


def test_a_reason_survives_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a", gpus=4))
    names = scene.create(*gang("g", 3, gpus=2))
    for name in names:
        scene.says(name, objects.GPU)
    stack.service.kill()
    stack.start_service()
    scene.runs(scene.create(objects.pod("lone")))
    assert all(scene.condition(name) for name in names)
    scene.node(objects.node("b", gpus=4))
    scene.runs(names)


@pytest.mark.grace(LEASE_S)
def test_the_scheduler_is_killed_and_comes_back(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    scene.runs(scene.create(*gang("runs", 2)))
    first, last = gang("waits", 2)
    (waiting,) = scene.create(first)
    scene.event("TopologyWaiting", waiting)
    stack.scheduler.kill()
    (late,) = scene.create(last)
    scene.create(objects.pod("lone", gpus=2))
    stack.start_scheduler()
    scene.runs([waiting, late, "lone"])


@pytest.mark.grace(LEASE_S)
def test_the_scheduler_is_killed_while_a_gang_is_being_bound(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    scene.node(objects.node("b"))
    names = scene.create(*gang("g", 12))
    scene.until(scene.bound, "a first member is bound")
    stack.scheduler.kill()
    second_gang = scene.create(*gang("other", 4))
    stack.start_scheduler()
    scene.runs(names + second_gang)


@pytest.mark.grace(LEASE_S)
def test_the_service_is_killed_while_a_gang_is_being_bound(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    scene.node(objects.node("b"))
    names = scene.create(*gang("g", 12))
    scene.until(scene.bound, "a first member is bound")
    stack.service.kill()
    stack.start_service()
    second_gang = scene.create(*gang("other", 4))
    scene.runs(names + second_gang)


@pytest.mark.grace(LEASE_S)
def test_both_are_killed_at_once(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    names = scene.create(*gang("g", 6))
    scene.until(scene.bound, "a first member is bound")
    stack.scheduler.kill()
    stack.service.kill()
    second_gang = scene.create(*gang("other", 3))
    stack.restore()
    scene.runs(names)
    scene.event("TopologyUnplaceable", second_gang[0])  # six of eight GPUs are taken
    assert not {*second_gang} & scene.bound()


@pytest.mark.grace(LEASE_S)
def test_the_api_server_goes_away_and_comes_back(scene: Scene, stack: Stack, arena: Arena) -> None:
    assert arena.cluster is not None
    scene.node(objects.node("a"))
    scene.runs(scene.create(*gang("runs", 2)))
    first, last = gang("waits", 2)
    (waiting,) = scene.create(first)
    scene.event("TopologyWaiting", waiting)
    arena.cluster.stop("kube-apiserver")
    arena.cluster.start("kube-apiserver")
    stack.restore()  # a scheduler that could not renew its lease has ended, as it should
    (late,) = scene.create(last)
    scene.runs([waiting, late])


def test_a_node_vanishes_while_its_pods_run(scene: Scene) -> None:
    """Its GPUs are gone with it, and a node of the same name is a new one."""
    node = scene.node(objects.node("a"))
    names = scene.create(*gang("g", 2, gpus=4))
    scene.runs(names)
    scene.client.delete(f"/api/v1/nodes/{node}")
    scene.delete(*names)
    again = scene.create(*gang("again", 2, gpus=4))
    scene.event("TopologyUnplaceable", again[0])
    scene.node(objects.node("a"))
    scene.runs(again)
