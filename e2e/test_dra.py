"""Plain nvidia.com/gpu that a DRA driver serves: every member's claim has exactly the planned devices."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator

import pytest

from e2e import dra, objects
from e2e.audit import LEASE_S
from e2e.record import Record
from e2e.refusals import refused
from e2e.scene import Scene
from local_cluster.stack import Stack

KILLS = int(os.environ.get("KILLS") or 4)
"""How often the shim is killed between claims and Bindings: `make dra-kills KILLS=100`."""


@pytest.fixture(autouse=True)
def served(scene: Scene) -> Iterator[None]:
    with dra.device_class(scene):
        yield


def test_gangs_of_four_in_random_order_get_exactly_the_planned_devices(scene: Scene) -> None:
    shuffled = random.Random(4)
    dra.node(scene, "a", topology=objects.DOCUMENT_MESH)
    dra.node(scene, "b", topology=objects.DOCUMENT_MESH, uuids=(3, 1, 4, 0, 5, 2, 6, 7))
    checked = 0
    for turn in range(6):
        pods = [pod for gpus in (1, 2) for pod in dra.gang(f"g{turn}-{gpus}", 4, gpus)]
        shuffled.shuffle(pods)
        names = scene.create(*pods)
        scene.runs(names)
        checked += dra.judge(scene)
        scene.delete(*names)
    assert checked == 6 * 8
    dra.judge(scene)


def test_gpus_have_the_numbers_of_the_nodes_matrix(scene: Scene) -> None:
    """In the mesh GPUs 0 and 3 have two NVLinks. The annotation says which uuids these are."""
    full = dra.node(scene, "a", topology=objects.DOCUMENT_MESH, uuids=(7, 6, 5, 4, 3, 2, 1, 0))
    (name,) = scene.create(*dra.gang("g", 1, gpus=8))
    scene.runs([name])
    devices = dra.planned(scene)[name]
    numbers = {f"{dra.DRIVER}/{full}/gpu-{7 - index}": index for index in range(8)}
    assert [numbers[device] for device in devices] == list(scene.allocation_in_order(name))
    dra.judge(scene)


def test_a_device_that_another_claim_has_is_taken(scene: Scene) -> None:
    full = dra.node(scene, "a")
    request = {"name": "r", "exactly": {"deviceClassName": scene.name}}
    claim = {"metadata": {"name": "held"}, "spec": {"devices": {"requests": [request]}}}
    created = scene.client.post(dra.claims(scene), claim)
    result = {"request": "r", "driver": dra.DRIVER, "pool": full, "device": "gpu-2"}
    created["status"] = {"allocation": {"devices": {"results": [result]}}}
    path = f"{dra.claims(scene)}/held"
    scene.client.call("PUT", f"{path}/status", created)
    whole = scene.create(*dra.gang("whole", 1, gpus=8))
    scene.says(whole[0], "nvidia.com/gpu")
    seven = scene.create(*dra.gang("seven", 1, gpus=7))
    scene.runs(seven)
    assert f"{dra.DRIVER}/{full}/gpu-2" not in dra.planned(scene)[seven[0]]
    scene.client.delete(path)
    scene.delete(*seven)
    scene.runs(whole)
    dra.judge(scene)


def test_a_claim_that_is_allocated_anew_by_hand_is_told_on_its_pod(scene: Scene) -> None:
    full = dra.node(scene, "a")
    (name,) = scene.create(*dra.gang("g", 1))
    scene.runs([name])
    (planned,) = dra.planned(scene)[name]
    (claim,) = scene.client.get(dra.claims(scene))["items"]
    path, status = f"{dra.claims(scene)}/{claim['metadata']['name']}/status", claim["status"]
    freed = scene.client.call("PUT", path, claim | {"status": {}})
    (result,) = status["allocation"]["devices"]["results"]
    result["device"] = "gpu-7" if planned.endswith("gpu-0") else "gpu-0"
    scene.client.call("PUT", path, freed | {"status": status})
    message = scene.event("TopologyDevicesDiffer", name).message
    held_device = f"{dra.DRIVER}/{full}/{result['device']}"
    assert message == f"its claims hold {held_device} in place of {planned}: Muster counts what they hold"


def test_a_withdrawn_gang_holds_no_devices(scene: Scene) -> None:
    dra.node(scene, "a")
    gate = {"schedulingGates": [{"name": "e2e.muster.dev/later"}]}
    pods = dra.gang("g", 2)
    for pod in pods:
        pod["spec"] |= gate
    names = scene.create(*pods)
    with refused(scene, names[1]):
        for name in names:
            path = f"/api/v1/namespaces/{scene.name}/pods/{name}"
            scene.client.patch(path, {"spec": {"schedulingGates": None}})
        scene.event("FailedScheduling", names[1])
    scene.runs(names)
    assert dra.judge(scene) == 2


def test_devices_stay_taken_over_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    dra.node(scene, "a")
    names = scene.create(*dra.gang("g", 3, gpus=2))
    scene.runs(names)
    stack.service.kill()
    stack.start_service()
    scene.runs(scene.create(*dra.gang("two", 1, gpus=2)))
    (more,) = scene.create(*dra.gang("more", 1))
    scene.says(more, "nvidia.com/gpu")
    assert dra.judge(scene) == 4


@pytest.mark.grace(LEASE_S)
@pytest.mark.timeout(1800 + 40 * KILLS)
def test_the_scheduler_is_killed_between_claims_and_bindings(scene: Scene, stack: Stack) -> None:
    """The gang's claims are written in parallel. The shim is killed once `claims_written` are seen."""
    dra.node(scene, "a")
    dra.node(scene, "b")
    between, size = 0, 4
    for turn, claims_written in zip(range(KILLS), itertools.cycle(range(1, size + 1)), strict=False):
        with Record(scene.client, (dra.claims(scene),)) as record:
            names = scene.create(*dra.gang(f"g{turn}", size, gpus=2))
            path = dra.claims(scene)
            record.until(lambda: len(record.live(path)) >= claims_written, "claims are written")  # noqa: B023
            stack.scheduler.kill()
        between += not dra.planned(scene)
        stack.start_scheduler()
        scene.runs(names)
        assert dra.judge(scene) == size
        scene.delete(*names)
    print(f"killed {KILLS} times, {between} times before any Binding; all members had the planned devices")
    assert between
