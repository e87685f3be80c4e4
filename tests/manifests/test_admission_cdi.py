"""Tests of admission-cdi.yaml: no user gives a container GPUs by an annotation of NVIDIA's NRI plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.annotating import annotate, bind, create, pods, refused
from tests.manifests.applying import connect
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

MAIN = "nvidia.cdi.k8s.io/container.main"
EXEMPT = {"gpu.topology/nri-annotations": "allowed"}
REFUSAL = "gives a container GPUs that Muster does not count"


@pytest.fixture(scope="module")
def guarded(client: Any, installed: list[Manifest]) -> Any:
    """A client with all rights, once the API server heeds the policy."""
    assert installed
    eventually(lambda: refused(client, {MAIN: "nvidia.com/gpu=0"}), "the policy is heeded")
    return client


@pytest.fixture(scope="module")
def muster(cluster: LocalCluster, installed: list[Manifest]) -> Any:
    assert installed
    return connect(cluster.kubeconfig_for("muster-system/muster"))


@pytest.mark.parametrize("key", [MAIN, "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io"])
@pytest.mark.parametrize("scheduler", ["muster", "default-scheduler"])
def test_a_pod_of_any_scheduler_that_comes_with_one_isrefused(guarded: Any, key: str, scheduler: str) -> None:
    refusal = refused(guarded, {key: "nvidia.com/gpu=all"}, scheduler=scheduler)
    assert f"the annotation {key} {REFUSAL}" in refusal


def test_other_keys_are_anybodys(guarded: Any) -> None:
    assert not refused(guarded, {"cdi.k8s.io/main": "a", "nvidia.cdi.k8s.io.example.com/x": "a"})


def test_the_number_of_annotations_is_bounded(guarded: Any) -> None:
    """The API server's time for a policy grows with the square of the keys that the policy looks at."""
    many = {f"key-{number}": "" for number in range(1000)}
    assert not refused(guarded, many)
    assert "a pod has at most 1,000 annotations" in refused(guarded, many | {"one": "more"})
    assert "a pod has at most 1,000 annotations" in refused(guarded, many | {MAIN: "nvidia.com/gpu=0"})
    assert REFUSAL in refused(guarded, {**dict.fromkeys([*many][1:], ""), MAIN: "nvidia.com/gpu=0"})


@pytest.fixture(scope="module")
def exempt(guarded: Any) -> str:
    """A namespace that an administrator exempts, as that of the GPU operator."""
    namespaces = guarded.resources.get(api_version="v1", kind="Namespace")
    namespaces.create(body={"metadata": {"name": "operator", "labels": EXEMPT}})
    return "operator"


def test_pods_of_an_exempt_namespace_may_have_them(guarded: Any, exempt: str) -> None:
    allowed = {MAIN: "management.nvidia.com/gpu=all"}
    eventually(lambda: not refused(guarded, allowed, exempt), "the namespace has its account")


def test_a_pod_gets_none_later(guarded: Any) -> None:
    pod = create(guarded, {})
    for path in ("", "status"):
        with pytest.raises(ApiException, match=REFUSAL):
            annotate(guarded, pod, {MAIN: "nvidia.com/gpu=0"}, path)
    with pytest.raises(ApiException, match=REFUSAL):
        bind(guarded, pod, {MAIN: "nvidia.com/gpu=0"})


def test_muster_binds_a_pod_with_them_and_writes_them_in_no_other_way(guarded: Any, muster: Any) -> None:
    pod = create(guarded, {})
    bind(muster, pod, {MAIN: "nvidia.com/gpu=GPU-1"})
    bound_pod = pods(guarded).get(name=pod["metadata"]["name"], namespace="default").to_dict()
    assert bound_pod["metadata"]["annotations"] == {MAIN: "nvidia.com/gpu=GPU-1"}
    for path in ("", "status"):
        with pytest.raises(ApiException, match=REFUSAL):
            annotate(guarded, bound_pod, {MAIN: "nvidia.com/gpu=GPU-2"}, path)
    with pytest.raises(ApiException, match=REFUSAL):
        annotate(muster, bound_pod, {MAIN: "nvidia.com/gpu=GPU-2"}, "status")


def test_a_pod_of_before_the_policy_can_be_changed(guarded: Any) -> None:
    """Its annotation can be removed, and not changed; all others are free."""
    _label(guarded, "default", EXEMPT)
    eventually(lambda: not refused(guarded, {MAIN: "a"}), "the namespace is exempt")
    pod = create(guarded, {MAIN: "nvidia.com/gpu=0"})
    _label(guarded, "default", dict.fromkeys(EXEMPT))
    eventually(lambda: refused(guarded, {MAIN: "a"}), "the policy is heeded")
    annotate(guarded, pod, {"team": "a"})
    with pytest.raises(ApiException, match=REFUSAL):
        annotate(guarded, pod, {MAIN: "nvidia.com/gpu=1"})
    annotate(guarded, pod, {MAIN: None})


def _label(client: Any, namespace: str, labels: Mapping[str, str | None]) -> None:
    namespaces = client.resources.get(api_version="v1", kind="Namespace")
    body = {"metadata": {"labels": dict(labels)}}
    namespaces.patch(body=body, name=namespace, content_type="application/merge-patch+json")
