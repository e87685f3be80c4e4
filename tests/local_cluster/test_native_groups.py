"""Kubernetes' own PodGroups: what a cluster with NATIVE_GATES serves, keeps and makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from tests.local_cluster.cluster_waiting import eventually

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
API = "/apis/scheduling.k8s.io"
POD_GROUPS = f"{API}/v1beta1/namespaces/default/podgroups"
IN_A_RACK = {"topology": [{"key": "topology.kubernetes.io/rack"}]}
POD_SPEC = {
    "schedulerName": "nobody",
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "none"}],
}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("native"), native=True) as booted:
        yield booted


@pytest.mark.parametrize("kind", ["v1beta1/podgroups", "v1beta1/workloads", "v1alpha3/compositepodgroups"])
def test_the_kinds_are_served_with_the_gates_alone(
    native: LocalCluster, cluster: LocalCluster, kind: str
) -> None:
    assert native.api.find(f"{API}/{kind}") is not None
    assert cluster.api.find(f"{API}/{kind}") is None


def test_no_field_is_dropped(native: LocalCluster) -> None:
    """The API server drops a field without a word when the field's gate is off."""
    spec: Object = {
        "parentCompositePodGroupName": "tree",
        "workloadRef": {"workloadName": "trains", "templateName": "workers"},
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": IN_A_RACK,
        "preemptionPolicy": "PreemptLowerPriority",
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "shared"}],
    }
    group = native.api.post(POD_GROUPS, {"metadata": {"name": "kept"}, "spec": spec})
    assert group["spec"].items() >= spec.items()
    membership = {"schedulingGroup": {"podGroupName": "kept"}}
    pod = native.api.post(PODS, {"metadata": {"name": "member"}, "spec": POD_SPEC | membership})
    assert pod["spec"].items() >= membership.items()


def test_the_job_controller_makes_the_podgroup_of_a_job(native: LocalCluster) -> None:
    scheduling = {"schedulingPolicy": {"gang": {}}, "schedulingConstraints": IN_A_RACK}
    spec = {"parallelism": 3, "completions": 3, "scheduling": scheduling, "template": {"spec": POD_SPEC}}
    job = native.api.post(JOBS, {"metadata": {"name": "trains"}, "spec": spec})
    assert job["spec"]["scheduling"] == scheduling

    def members() -> list[Object]:
        pods: list[Object] = native.api.get(f"{PODS}?labelSelector=job-name%3Dtrains")["items"]
        return pods if len(pods) == 3 else []

    pods = eventually(members, "the Job has its pods")
    (name,) = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}
    group = native.api.get(f"{POD_GROUPS}/{name}")
    assert group["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert group["spec"]["schedulingConstraints"] == IN_A_RACK
