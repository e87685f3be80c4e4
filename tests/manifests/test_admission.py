"""Tests of admission.yaml: only Muster writes allocation annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from muster.domain.allocation import ALLOCATION, ASSIGNED, GROUP, RESERVED_KEYS
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.annotating import annotate, bind, create, pods, refused
from tests.manifests.applying import connect
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

REFUSAL = "only Muster writes the annotation"
ALLOCATED = {ALLOCATION: '{"version":1,"gpus":[0]}', GROUP: "0", ASSIGNED: "false"}


@pytest.fixture(scope="module")
def guarded(client: Any, installed: list[Manifest]) -> Any:
    """A client with all rights, once the API server heeds the policy."""
    assert installed
    eventually(lambda: refused(client, {ALLOCATION: "{}"}), "the policy is heeded")
    return client


@pytest.fixture(scope="module")
def muster(cluster: LocalCluster, installed: list[Manifest]) -> Any:
    assert installed
    return connect(cluster.kubeconfig_for("muster-system/muster"))


@pytest.fixture
def bound(guarded: Any, muster: Any) -> Manifest:
    """A pod that Muster has bound, with its GPUs."""
    pod = create(guarded, {})
    bind(muster, pod, ALLOCATED)
    bound_pod: Manifest = pods(guarded).get(name=pod["metadata"]["name"], namespace="default").to_dict()
    assert ALLOCATED.items() <= bound_pod["metadata"]["annotations"].items()
    return bound_pod


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_a_pod_that_comes_with_one_isrefused(guarded: Any, key: str) -> None:
    refusal = refused(guarded, {key: "0"})
    assert f"{REFUSAL} {key}" in refusal


def test_other_annotations_are_anybodys(guarded: Any) -> None:
    assert not refused(guarded, {"gpu.topology/group": "g", "gpu.topology/min-member": "2"})


@pytest.mark.parametrize(
    "change",
    [{ALLOCATION: "{}"}, {ALLOCATION: None}, {"gpu.topology/decision": "{}"}, {ASSIGNED: "true"}],
    ids=["changed", "removed", "added", "assigned"],
)
def test_a_bound_pod_keeps_them(guarded: Any, bound: Manifest, change: Mapping[str, str | None]) -> None:
    for path in ("", "status"):
        with pytest.raises(ApiException, match=REFUSAL):
            annotate(guarded, bound, change, path)


def test_what_is_not_ours_may_be_changed_on_a_bound_pod(guarded: Any, bound: Manifest) -> None:
    annotate(guarded, bound, {"team": "a"})


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
    annotate(plugin, bound, {ASSIGNED: "true"}, path)
    with pytest.raises(ApiException, match=REFUSAL):
        annotate(plugin, bound, {GROUP: "1"}, path)


def test_nobody_else_binds_with_them(guarded: Any) -> None:
    pod = create(guarded, {})
    with pytest.raises(ApiException, match=REFUSAL):
        bind(guarded, pod, ALLOCATED)
