"""Tests of dra-guard/admission.yaml: only Muster allocates the devices of the drivers that it names."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.applying import apply, connect
from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest

pytestmark = pytest.mark.cluster

DRIVER = "gpu.nvidia.com"
OTHER = "nic.example.com"
NAMESPACE = "observed"
REFUSAL = rf"only Muster allocates devices of {DRIVER} \(policy muster-dra-guard\), here gpu-1 of pool n1"


@pytest.fixture(scope="module")
def guarded(client: Any, installed: list[Manifest]) -> Any:
    """A client with all rights, once the API server heeds the policy."""
    assert installed
    label = {"resource.kubernetes.io/admin-access": "true"}
    client.resources.get(api_version="v1", kind="Namespace").create(
        body={"metadata": {"name": NAMESPACE, "labels": label}}
    )
    for manifest in yaml.safe_load_all((SCHEDULER_CONFIG / "dra-guard" / "admission.yaml").read_text()):
        apply(client, manifest)
    claim = _claim(client)
    eventually(lambda: _is_refused(client, claim), "the policy is heeded")
    return client


@pytest.fixture(scope="module")
def muster(cluster: LocalCluster, installed: list[Manifest]) -> Any:
    assert installed
    return connect(cluster.kubeconfig_for("muster-system/muster"))


def test_nobody_else_allocates_a_device_of_the_driver(guarded: Any) -> None:
    with pytest.raises(ApiException, match=REFUSAL):
        _write(guarded, _claim(guarded), _allocation(DRIVER))


def test_a_device_of_the_driver_next_to_another_one_is_refused(guarded: Any) -> None:
    with pytest.raises(ApiException, match=REFUSAL):
        _write(guarded, _claim(guarded), _allocation(OTHER, DRIVER))


def test_devices_of_other_drivers_are_anybodys(guarded: Any) -> None:
    _write(guarded, _claim(guarded), _allocation(OTHER))


def test_who_only_watches_a_device_takes_none(guarded: Any) -> None:
    allocation = _allocation(DRIVER)
    allocation["devices"]["results"][0]["adminAccess"] = True
    _write(guarded, _claim(guarded, admin=True), allocation)


def test_what_muster_allocated_is_reserved_reported_and_freed_by_anybody(guarded: Any, muster: Any) -> None:
    claim = _write(muster, _claim(guarded), _allocation(DRIVER))
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    device = {"driver": DRIVER, "pool": "n1", "device": "gpu-1", "data": {"a": 1}}
    claim["status"]["devices"] = [device]
    claim = _write(guarded, claim, claim["status"]["allocation"])
    assert [device["data"] for device in claim["status"]["devices"]] == [{"a": 1}]
    claim["status"] = {}
    claim = _write(guarded, claim, None)
    assert not claim.get("status")
    with pytest.raises(ApiException, match=REFUSAL):
        _write(guarded, claim, _allocation(DRIVER))


def _claims(client: Any) -> Any:
    return client.resources.get(api_version="resource.k8s.io/v1", kind="ResourceClaim")


def _claim(client: Any, *, admin: bool = False) -> Manifest:
    access = {"adminAccess": True} if admin else {}
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": "any", **access}} for at in range(2)]
    body = {"metadata": {"name": f"c-{uuid.uuid4().hex[:8]}"}, "spec": {"devices": {"requests": requests}}}
    created: Manifest = _claims(client).create(body=body, namespace=NAMESPACE).to_dict()
    return created


def _allocation(*drivers: str) -> Manifest:
    results = [
        {"request": f"r{at}", "driver": driver, "pool": "n1", "device": "gpu-1"}
        for at, driver in enumerate(drivers)
    ]
    return {"devices": {"results": results}}


def _write(client: Any, claim: Manifest, allocation: Manifest | None, *, dry_run: bool = False) -> Manifest:
    """Replace the claim's status, whatever the controller of claims wrote meanwhile; what became of it."""
    status = (claim.get("status") or {}) | ({"allocation": allocation} if allocation else {})
    body = claim | {"metadata": {**claim["metadata"], "resourceVersion": None}, "status": status}
    resource = _claims(client).subresources["status"]
    query = [("dryRun", "All")] if dry_run else []
    name = claim["metadata"]["name"]
    answer = resource.replace(body=body, name=name, namespace=NAMESPACE, query_params=query)
    written: Manifest = answer.to_dict()
    return written


def _is_refused(client: Any, claim: Manifest) -> bool:
    try:
        _write(client, claim, _allocation(DRIVER), dry_run=True)
    except ApiException as problem:
        return "muster-dra-guard" in str(problem.body)
    return False
