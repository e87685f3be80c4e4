"""Tests of admission.yaml: only Muster writes allocation annotations."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from muster.domain.allocation import ALLOCATION, ASSIGNED, GROUP, RESERVED_KEYS
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.applying import connect
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

REFUSAL = "only Muster writes the annotation"
GIVEN = {ALLOCATION: '{"version":1,"gpus":[0]}', GROUP: "0", ASSIGNED: "false"}


@pytest.fixture(scope="module")
def guarded(client: Any, installed: list[Manifest]) -> Any:
    """A client with all rights, once the API server heeds the policy."""
    assert installed
    eventually(lambda: _refused(client, {ALLOCATION: "{}"}), "the policy is heeded")
    return client


@pytest.fixture(scope="module")
def muster(cluster: LocalCluster, installed: list[Manifest]) -> Any:
    assert installed
    return connect(cluster.kubeconfig_for("muster-system/muster"))


@pytest.fixture
def bound(guarded: Any, muster: Any) -> Manifest:
    """A pod that Muster has bound, with its GPUs."""
    pod: Manifest = _pods(guarded).create(body=_pod({}), namespace="default").to_dict()
    name = pod["metadata"]["name"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": GIVEN},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    _pods(muster).subresources["binding"].create(body=binding, name=name, namespace="default")
    seen: Manifest = _pods(guarded).get(name=name, namespace="default").to_dict()
    assert GIVEN.items() <= seen["metadata"]["annotations"].items()
    return seen


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_a_pod_that_comes_with_one_is_refused(guarded: Any, key: str) -> None:
    refusal = _refused(guarded, {key: "0"})
    assert f"{REFUSAL} {key}" in refusal


def test_other_annotations_are_anybodys(guarded: Any) -> None:
    assert not _refused(guarded, {"gpu.topology/group": "g", "gpu.topology/min-member": "2"})


@pytest.mark.parametrize(
    "change",
    [{ALLOCATION: "{}"}, {ALLOCATION: None}, {"gpu.topology/decision": "{}"}, {ASSIGNED: "true"}],
    ids=["changed", "removed", "added", "assigned"],
)
def test_a_bound_pod_keeps_them(guarded: Any, bound: Manifest, change: Mapping[str, str | None]) -> None:
    for path in ("", "status"):
        with pytest.raises(ApiException, match=REFUSAL):
            _annotate(guarded, bound, change, path)


def test_what_is_not_ours_may_be_changed_on_a_bound_pod(guarded: Any, bound: Manifest) -> None:
    _annotate(guarded, bound, {"team": "a"})


@pytest.mark.parametrize(
    ("user", "groups", "path"),
    [
        ("system:node:n1", ["system:nodes"], "status"),  # NodeRestriction leaves it the status alone
        ("system:serviceaccount:kube-system:plugin", ["system:serviceaccounts:kube-system"], ""),
    ],
    ids=["node", "account"],
)
def test_a_device_plugin_may_say_that_the_gpus_are_given_and_no_more(
    cluster: LocalCluster, guarded: Any, bound: Manifest, user: str, groups: list[str], path: str
) -> None:
    # A master, too, so that it is this policy alone that can refuse.
    plugin = connect(cluster.kubeconfig_for_user(user, (*groups, "system:masters")))
    _annotate(plugin, bound, {ASSIGNED: "true"}, path)
    with pytest.raises(ApiException, match=REFUSAL):
        _annotate(plugin, bound, {GROUP: "1"}, path)


def test_nobody_else_binds_with_them(guarded: Any) -> None:
    name = _pods(guarded).create(body=_pod({}), namespace="default").metadata.name
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": GIVEN},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    with pytest.raises(ApiException, match=REFUSAL):
        _pods(guarded).subresources["binding"].create(body=binding, name=name, namespace="default")


def _pods(client: Any) -> Any:
    return client.resources.get(api_version="v1", kind="Pod")


def _pod(annotations: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}", "annotations": dict(annotations)},
        "spec": {"schedulerName": "muster", "containers": [{"name": "main", "image": "main"}]},
    }


def _refused(client: Any, annotations: Mapping[str, str]) -> str:
    """Why such a pod is refused; "" if it is not."""
    try:
        _pods(client).create(body=_pod(annotations), namespace="default", query_params=[("dryRun", "All")])
    except ApiException as problem:
        return str(problem.body)
    return ""


def _annotate(client: Any, pod: Manifest, change: Mapping[str, str | None], path: str = "") -> None:
    resource = _pods(client).subresources[path] if path else _pods(client)
    resource.patch(
        body={"metadata": {"annotations": change}},
        name=pod["metadata"]["name"],
        namespace="default",
        content_type="application/merge-patch+json",
    )
