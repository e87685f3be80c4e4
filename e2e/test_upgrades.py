"""Replicas come and go under a stream of gangs: no gang is halved, no GPU is given twice (the auditor)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from e2e import objects
from e2e.audit import LEASE_S, OURS
from e2e.conftest import SHORT
from e2e.drain import Seats
from e2e.releases import programs_of
from e2e.scene import Scene
from e2e.upgrades import MEMBERS, Deeds, Standby, stream
from local_cluster.stack import Programs, Stack

Replicas = dict[str, Standby]


def made(
    request: pytest.FixtureRequest, stack: Stack, folder: Path, programs: dict[str, Programs]
) -> Iterator[Replicas]:
    """Make a replica of each of these programs. The suite's own makes room, and those named "old" run."""
    quick = int(request.config.getoption("--gangs")) == SHORT
    stack.scheduler.stop()
    stack.service.stop()
    replicas = {
        name: Standby(
            stack.cluster, folder / name, scheduler_names=sorted(OURS), quick_lease=quick, programs=of
        )
        for name, of in programs.items()
    }
    try:
        for name in programs:
            if name.startswith("old"):
                replicas[name].start()
        yield replicas
    finally:
        for replica in replicas.values():
            replica.stop()


@pytest.fixture
def replicas(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[Replicas]:
    """Five replicas, all of this release: two run, and three come later."""
    yield from made(
        request, stack, tmp_path, dict.fromkeys(("old-1", "old-2", "new-1", "new-2", "new-3"), Programs())
    )


@pytest.fixture
def releases(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[Replicas]:
    """Replicas of two releases and of mixtures, by the shim's and the service's."""
    revision = str(request.config.getoption("--from"))
    if not revision:
        pytest.skip("builds another release: make upgrade FROM=<revision>")
    old, new = programs_of(revision, tmp_path / "release"), Programs()
    yield from made(
        request,
        stack,
        tmp_path,
        {
            "old": old,
            "new": new,
            "shim-of-old": replace(new, shim=old.shim, configuration=old.configuration),
            "service-of-old": replace(old, shim=new.shim, configuration=new.configuration),
            "back": old,
        },
    )


def measure(request: pytest.FixtureRequest, scene: Scene, deeds: Deeds) -> None:
    """Do the deeds under a stream of gangs, and print the longest pauses, and the lease.

    No pause is asserted, but what holds however long it lasts: pods are bound again after each deed, and all
    of each gang are. The auditor judges that none was started in half.
    """
    gangs = int(request.config.getoption("--gangs"))
    measured = stream(scene, gangs, deeds)
    print(json.dumps(asdict(measured)))
    assert measured.gangs >= gangs
    assert measured.pods == measured.gangs * MEMBERS
    assert {*measured.after_s} == {*deeds}
    assert all(measured.bound_since[name] > 0 for name in deeds), measured.bound_since


def leading(replicas: Replicas) -> str:
    (name,) = [name for name, replica in replicas.items() if replica.leads]
    return name


@pytest.mark.grace(LEASE_S)
def test_a_rolling_upgrade_a_drain_and_a_killed_leader(
    request: pytest.FixtureRequest, scene: Scene, replicas: Replicas
) -> None:
    """As a Deployment rolls: a new replica is ready before an old one goes.

    Then the leader's node is drained: its pod goes before there is another, and the budget keeps the second
    pod. At last the leader is killed.
    """
    nodes = [scene.node(objects.node(name)) for name in "abcd"]

    def upgrade(old: str, new: str) -> None:
        replicas[new].start()
        replicas[old].stop()

    def drain() -> None:
        with Seats(scene) as seats:
            for name, node in zip(("new-1", "new-2"), nodes, strict=False):
                seats.take(name, node)
            seats.may_go(1)
            first = leading(replicas)
            (standby,) = {"new-1", "new-2"} - {first}
            assert seats.evict(first)
            replicas[first].stop()
            assert not seats.evict(standby)
            replicas["new-3"].start()
            seats.take("new-3", nodes[2])
            seats.may_go(1)

    def crash() -> None:
        replicas[leading(replicas)].crash()

    deeds = {
        "replace the leader": lambda: upgrade("old-1", "new-1"),
        "replace the other": lambda: upgrade("old-2", "new-2"),
        "drain the leader's node": drain,
        "kill the leader": crash,
    }
    measure(request, scene, deeds)


@pytest.mark.grace(LEASE_S)
def test_two_releases_and_back(request: pytest.FixtureRequest, scene: Scene, releases: Replicas) -> None:
    """Upgrade by both mixtures of shim and service, and go back."""
    for name in "abcd":
        scene.node(objects.node(name))

    def upgrade(old: str, new: str) -> None:
        releases[new].start()
        releases[old].stop()

    deeds = {
        "old shim, new service": lambda: upgrade("old", "shim-of-old"),
        "new shim, old service": lambda: upgrade("shim-of-old", "service-of-old"),
        "the new release": lambda: upgrade("service-of-old", "new"),
        "the old release again": lambda: upgrade("new", "back"),
    }
    measure(request, scene, deeds)
