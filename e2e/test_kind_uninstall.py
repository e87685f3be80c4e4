"""Muster is taken off kind under running pods, and put back. It comes last of the tests on kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import kind, objects
from e2e.scene import Scene

OVERLAY = "--kustomize=/muster/kind-cluster"
CRD = "--filename=/muster/scheduler-config/podgroups/crd-podgroup.yaml"
OF_THE_CLUSTER = (
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "flowschemas,priorityclasses,customresourcedefinitions,namespaces"
)
OF_NAMESPACES = "roles,rolebindings,leases,configmaps,serviceaccounts,deployments,pods,services"


@pytest.fixture
def put_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Install Muster again, whatever became of the test."""
    if request.config.getoption("--cluster") != "kind":
        pytest.skip("needs the cluster of `make kind-up`: --cluster kind")
    yield
    for what in (OVERLAY, CRD):
        kind.kubectl("apply", "--server-side", "--force-conflicts", what)
    kind.kubectl("rollout", "status", "deployment/muster", "--namespace=muster-system", "--timeout=50s")


def of_kind(line: str) -> bool:
    """Whether a line names what kind's nodes have, which are named after the cluster."""
    name = line.rpartition("/")[2]
    return "muster-worker" in name or "muster-control-plane" in name


@pytest.mark.timeout(240)
def test_uninstalling_leaves_nothing_and_harms_no_pod(scene: Scene, put_back: None) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 2)
    running = scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(2)))
    scene.runs(running)
    before = scene.pods()
    kind.kubectl("delete", OVERLAY)
    kind.kubectl("delete", CRD)
    for listed in ((OF_THE_CLUSTER,), (OF_NAMESPACES, "--all-namespaces")):
        lines = kind.kubectl("get", *listed, "--output=name").splitlines()
        assert [line for line in lines if "muster" in line and not of_kind(line)] == []
    after = scene.pods()
    assert {name: after[name].uid for name in running} == {name: before[name].uid for name in running}
    assert all(after[name].phase == "Running" for name in running)
