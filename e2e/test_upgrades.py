"""Replicas come and go under a stream of gangs: no gang is halved, no GPU is given twice (the auditor)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from e2e import objects
from e2e.audit import OURS
from e2e.scene import Scene
from e2e.upgrades import MEMBERS, Standby, stream
from local_cluster.stack import Stack

SHORT = 24
LEASE_S = 45.0
"""How long a gang may be half bound: a killed leader's lease must run out first."""


@pytest.fixture
def replicas(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[dict[str, Standby]]:
    """Four replicas, all of this release: two run, and two come later."""
    quick = int(request.config.getoption("--gangs")) == SHORT
    stack.scheduler.stop()
    stack.service.stop()
    made = {
        name: Standby(stack.cluster, tmp_path / name, scheduler_names=sorted(OURS), quick_lease=quick)
        for name in ("old-1", "old-2", "new-1", "new-2")
    }
    try:
        for name in ("old-1", "old-2"):
            made[name].start()
        yield made
    finally:
        for replica in made.values():
            replica.stop()


@pytest.mark.grace(LEASE_S)
@pytest.mark.timeout(900)
def test_a_rolling_upgrade_and_a_killed_leader(
    request: pytest.FixtureRequest, scene: Scene, replicas: dict[str, Standby]
) -> None:
    """As a Deployment rolls: a new replica is ready before an old one goes. Then the leader is killed."""
    gangs = int(request.config.getoption("--gangs"))
    for name in "abcd":
        scene.node(objects.node(name))

    def replace(old: str, new: str) -> None:
        replicas[new].start()
        replicas[old].stop()

    def crash() -> None:
        """Kill the one that leads: it is one of the new ones."""
        (leading,) = [replica for name, replica in replicas.items() if "new" in name and replica.leads]
        leading.crash()

    deeds = {
        "replace the leader": lambda: replace("old-1", "new-1"),
        "replace the other": lambda: replace("old-2", "new-2"),
        "kill the leader": crash,
    }
    measured = stream(scene, gangs, deeds)
    print(json.dumps(asdict(measured)))
    assert measured.gangs >= gangs
    assert measured.pods == measured.gangs * MEMBERS
    assert {*measured.after_s} == {*deeds}
