"""An API server that is frozen behind live connections, which its kernel goes on acknowledging."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.audit import LEASE_S
from e2e.scene import Scene
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack

NOTICED_S = 60.0
"""8 s by design (`kube.liveness`); without it, 120 s. A slow machine has longer."""


@contextmanager
def frozen(cluster: LocalCluster) -> Iterator[None]:
    pid = cluster.running()["kube-apiserver"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def restarts(stack: Stack) -> float:
    """How often the service's watches of pods and nodes broke, but for being ended by the server."""
    counts = re.findall(
        r'muster_watch_restarts_total\{reason="unreachable",resource="(?:pods|nodes)"\} (\S+)',
        stack.service_get("/metrics"),
    )
    return sum(map(float, counts))


@pytest.mark.grace(LEASE_S)
def test_it_is_noticed_and_bindings_that_land_when_it_wakes_take_no_gpu_twice(
    scene: Scene, stack: Stack, arena: Arena
) -> None:
    """A scheduler that could not renew its lease ends, as it should, and all goes on."""
    assert arena.cluster is not None
    for name in ("a", "b"):
        scene.node(objects.node(name))
    gang = [objects.pod(f"g-{rank}", gang=objects.ack("g", 12)) for rank in range(12)]
    before = restarts(stack)
    names = scene.create(*gang)
    scene.until(scene.bound, "a first member is bound")
    with frozen(arena.cluster):
        scene.until(lambda: restarts(stack) >= before + 2, "both watches are given up", NOTICED_S)
        scene.until(lambda: not stack.scheduler.alive, "the scheduler could not renew its lease")
    stack.restore()
    second_gang = scene.create(objects.pod("other", gpus=4))
    scene.runs(names + second_gang)
