"""Containers on real kubelets see exactly the GPUs that their Bindings name, where a DRA driver serves them.

As e2e/test_devices.py, with the same commands.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from e2e.devices.dra_fleet import NODES, DraFleet
from e2e.devices.members import Member, Part, gpus_seen
from e2e.dra import GPU
from local_cluster.real.nodes import DRIVER
from local_cluster.real.support import why_not

MEMBERS = int(os.environ.get("MUSTER_E2E_MEMBERS", "0"))
"""How many members the random rounds go on to; 0 for two rounds."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if MEMBERS else 1800)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraFleet]:
    if reason := why_not():
        pytest.skip(f"no real nodes on this machine: {reason}")
    with DraFleet(tmp_path_factory.mktemp("dra")) as new_fleet:
        yield new_fleet


@pytest.fixture(autouse=True)
def swept(fleet: DraFleet) -> Iterator[None]:
    """Each test begins with free devices: pods are gone when their nodes have freed them."""
    yield
    fleet.delete(fleet.pods())


def gang(name: str, *parts: Part, size: int = 4) -> list[Member]:
    return [Member(f"{name}-{number}", parts, name, size, resource=GPU) for number in range(size)]


def one(gpus: int) -> Part:
    return Part("main", gpus)


def test_gangs_of_four_in_random_order(fleet: DraFleet) -> None:
    """Freed GPUs are used again at once. With a seed, so that a failure can be repeated."""
    chance, rounds = random.Random(1), 0
    while rounds < 2 or fleet.checked < MEMBERS:
        rounds += 1
        shapes = chance.choice([[1, 1, 1, 1], [2, 2], [1, 1, 2], [4], [3]])
        gangs = [gang(f"r{rounds}-{chr(97 + at)}", one(gpus)) for at, gpus in enumerate(shapes)]
        members = [member for gang_members in gangs for member in gang_members]
        chance.shuffle(members)
        fleet.create(*members)
        fleet.check(members)
        fleet.delete((member.name for member in members), force=chance.random() < 0.3)


def test_equal_pods_that_race(fleet: DraFleet) -> None:
    members = [Member(f"equal-{number}", resource=GPU) for number in range(16)]
    fleet.create(*members)
    fleet.check(members)
    pods = fleet.pods()
    places = [
        (pods[member.name]["spec"]["nodeName"], gpus_seen(fleet.variables(member.name, "main")))
        for member in members
    ]
    assert len(set(places)) == 16


def test_several_containers(fleet: DraFleet) -> None:
    """Two containers, an init container that ends, and a sidecar."""
    members = [
        *gang("two", one(2), Part("helper", 1), size=2),
        *gang("init", Part("prepare", 2, ends=True), one(2), size=2),
        *gang("sidecar", Part("proxy", 1, sidecar=True), one(1), size=2),
    ]
    fleet.create(*members)
    fleet.check(members)


@pytest.mark.parametrize("program", ["kubelet", DRIVER])
def test_a_restart_withdraws_nothing(fleet: DraFleet, program: str) -> None:
    before = gang("before", one(1))
    fleet.create(*before)
    fleet.check(before)
    uids = {name: pod["metadata"]["uid"] for name, pod in fleet.pods().items()}
    for node in NODES:
        fleet.cluster.real_nodes.restart(node, program)
    after = gang("after", one(2))
    fleet.create(*after)
    fleet.check([*before, *after])
    pods_after = fleet.pods()
    assert {name: pods_after[name]["metadata"]["uid"] for name in uids} == uids
    assert not fleet.events("TopologyEvicted")


def test_freed_by_force_and_used_again(fleet: DraFleet) -> None:
    """The API server frees the devices before the node has. The driver refuses them until then."""
    for turn in range(2):
        members = gang(f"force-{turn}", one(4))
        fleet.create(*members)
        fleet.check(members)
        fleet.delete((member.name for member in members), force=True)
