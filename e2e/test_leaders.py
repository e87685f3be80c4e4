"""Two schedulers, each with its own service. The leader dies, and the other one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.audit import LEASE_S, OURS
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.stack import Stack
from local_cluster.stack_config import leader


class Standby(Stack):
    """Ready when its processes are: it may never lead."""

    def wait_ready(self) -> None:
        self.service.wait_ready(lambda: self.service_get("/readyz"))


@pytest.fixture
def standby(arena: Arena, stack: Stack, tmp_path: Path) -> Iterator[Stack]:
    with Standby(stack.cluster, tmp_path / "standby", scheduler_names=sorted(OURS)) as started:
        yield started


def gang(name: str, size: int) -> list[Object]:
    return [objects.pod(f"{name}-{rank}", gang=objects.ack(name, size)) for rank in range(size)]


@pytest.mark.grace(LEASE_S)
def test_leadership_changes_hands_and_back(scene: Scene, stack: Stack, standby: Stack) -> None:
    """Each time while a gang is being bound and another one waits; what ran keeps its GPUs."""
    for name in "abc":
        scene.node(objects.node(name))
    running = scene.create(*gang("runs", 3))
    scene.runs(running)
    (waiting,) = scene.create(gang("waits", 2)[0])
    scene.event("TopologyWaiting", waiting)
    first = leader(scene.client)

    caught = scene.create(*gang("first", 8))
    scene.until(lambda: {*caught} & scene.bound(), "a first member is bound")
    stack.scheduler.kill()
    stack.service.kill()
    scene.create(gang("waits", 2)[1])
    scene.runs([*caught, waiting, "waits-1"])
    second = leader(scene.client)
    assert second != first

    caught = scene.create(*gang("second", 8))
    scene.until(lambda: {*caught} & scene.bound(), "a first member is bound")
    standby.stop()
    stack.restore()
    scene.runs(caught)
    assert leader(scene.client) != second
    (more,) = scene.create(objects.pod("more", gpus=4))  # three GPUs are left
    scene.event("TopologyUnplaceable", more)
