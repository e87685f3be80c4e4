"""Tests of admission-cdi.yaml: no user gives a container GPUs by an annotation of NVIDIA's NRI plugin."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

MAIN = "nvidia.cdi.k8s.io/container.main"
REFUSAL = "gives a container GPUs that Muster does not count"


@pytest.fixture(scope="module")
def guarded(client: Any, installed: list[Manifest]) -> Any:
    """A client with all rights, once the API server heeds the policy."""
    assert installed
    eventually(lambda: _refused(client, {MAIN: "nvidia.com/gpu=0"}), "the policy is heeded")
    namespaces = client.resources.get(api_version="v1", kind="Namespace")
    namespaces.create(body={"metadata": {"name": "gpu-operator"}})
    return client


@pytest.mark.parametrize("key", [MAIN, "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io"])
@pytest.mark.parametrize("scheduler", ["muster", "default-scheduler"])
def test_a_pod_of_any_scheduler_that_comes_with_one_is_refused(
    guarded: Any, key: str, scheduler: str
) -> None:
    refusal = _refused(guarded, {key: "nvidia.com/gpu=all"}, scheduler=scheduler)
    assert f"the annotation {key} {REFUSAL}" in refusal


def test_other_keys_are_anybodys(guarded: Any) -> None:
    assert not _refused(guarded, {"cdi.k8s.io/main": "a", "nvidia.cdi.k8s.io.example.com/x": "a"})


def test_the_number_of_annotations_is_bounded(guarded: Any) -> None:
    """The API server's time for a policy grows with the square of the keys that the policy looks at."""
    many = {f"key-{number}": "" for number in range(1000)}
    assert not _refused(guarded, many)
    assert "a pod has at most 1,000 annotations" in _refused(guarded, many | {"one": "more"})
    assert "a pod has at most 1,000 annotations" in _refused(guarded, many | {MAIN: "nvidia.com/gpu=0"})
    assert REFUSAL in _refused(guarded, {**dict.fromkeys([*many][1:], ""), MAIN: "nvidia.com/gpu=0"})


def test_pods_of_the_gpu_operator_may_have_them(guarded: Any) -> None:
    assert not _refused(guarded, {MAIN: "management.nvidia.com/gpu=all"}, "gpu-operator")


def test_a_pod_gets_none_later(guarded: Any) -> None:
    pod = _create(guarded, {})
    for path in ("", "status"):
        with pytest.raises(ApiException, match=REFUSAL):
            _annotate(guarded, pod, {MAIN: "nvidia.com/gpu=0"}, path)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod["metadata"]["name"], "annotations": {MAIN: "nvidia.com/gpu=0"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    resource = _pods(guarded).subresources["binding"]
    with pytest.raises(ApiException, match=REFUSAL):
        resource.create(body=binding, name=pod["metadata"]["name"], namespace="default")


def test_a_pod_of_before_the_policy_can_be_changed(guarded: Any) -> None:
    """Its annotation can be removed, and not changed; all others are free."""
    _exempt(guarded, "default")
    eventually(lambda: not _refused(guarded, {MAIN: "a"}), "the namespace is exempt")
    pod = _create(guarded, {MAIN: "nvidia.com/gpu=0"})
    _exempt(guarded, "gpu-operator")
    eventually(lambda: _refused(guarded, {MAIN: "a"}), "the policy is heeded")
    _annotate(guarded, pod, {"team": "a"})
    with pytest.raises(ApiException, match=REFUSAL):
        _annotate(guarded, pod, {MAIN: "nvidia.com/gpu=1"})
    _annotate(guarded, pod, {MAIN: None})


def _exempt(client: Any, namespace: str) -> None:
    bindings = client.resources.get(
        api_version="admissionregistration.k8s.io/v1", kind="ValidatingAdmissionPolicyBinding"
    )
    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    spec = {"matchResources": {"namespaceSelector": {"matchExpressions": [names]}}}
    content_type = "application/merge-patch+json"
    bindings.patch(body={"spec": spec}, name="muster-cdi-annotations", content_type=content_type)


def _pods(client: Any) -> Any:
    return client.resources.get(api_version="v1", kind="Pod")


def _pod(annotations: Mapping[str, str], scheduler: str = "muster") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}", "annotations": dict(annotations)},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "main"}]},
    }


def _create(client: Any, annotations: Mapping[str, str], namespace: str = "default") -> Manifest:
    created: Manifest = _pods(client).create(body=_pod(annotations), namespace=namespace).to_dict()
    return created


def _refused(
    client: Any, annotations: Mapping[str, str], namespace: str = "default", scheduler: str = "muster"
) -> str:
    """Why such a pod is refused; "" if it is not."""
    pod = _pod(annotations, scheduler)
    try:
        _pods(client).create(body=pod, namespace=namespace, query_params=[("dryRun", "All")])
    except ApiException as problem:
        return str(problem.body)
    return ""


def _annotate(client: Any, pod: Manifest, change: Mapping[str, str | None], path: str = "") -> None:
    resource = _pods(client).subresources[path] if path else _pods(client)
    resource.patch(
        body={"metadata": {"annotations": change}},
        name=pod["metadata"]["name"],
        namespace=pod["metadata"]["namespace"],
        content_type="application/merge-patch+json",
    )
