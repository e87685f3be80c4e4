"""A user who makes namespaces gets no rights by their names, nor by labels, on a real API server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from muster.domain.allocation import ASSIGNED, DEVICES
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.annotating import annotate, create, pod, pods, refused
from tests.manifests.applying import apply, connect
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

MAIN = {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}
RBAC = "rbac.authorization.k8s.io"
LABELS = ("gpu.topology/nri-annotations", "gpu.topology/reads-metrics")


@pytest.fixture(scope="module")
def user(cluster: LocalCluster, client: Any, installed: list[Manifest]) -> Any:
    """A user who may make namespaces, change their labels, and do all in them."""
    assert installed
    resources = ["namespaces", "namespaces/status", "namespaces/finalize", "pods"]
    meta: Manifest = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "makes-namespaces"}}
    role = {"kind": "ClusterRole", "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["*"]}]}
    of_role = {"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "makes-namespaces"}}
    apply(client, meta | role)
    apply(
        client,
        meta | of_role | {"kind": "ClusterRoleBinding", "subjects": [{"kind": "User", "name": "mallory"}]},
    )
    eventually(lambda: refused(client, MAIN), "the policy is heeded")
    user_client = connect(cluster.kubeconfig_for_user("mallory", ("system:authenticated",)))
    eventually(lambda: not _refusal(user_client, "allowed", {}), "the user has the right")
    eventually(lambda: _refusal(user_client, "heeded", {LABELS[0]: "allowed"}), "the policy is heeded")
    return user_client


def _refusal(client: Any, name: str, labels: dict[str, str]) -> str:
    """What the API server says against a new namespace; "" if nothing."""
    namespaces = client.resources.get(api_version="v1", kind="Namespace")
    body = {"metadata": {"name": name, "labels": labels}}
    try:
        namespaces.create(body=body, query_params=[("dryRun", "All")])
    except ApiException as problem:
        return str(problem.body)
    return ""


def _change(client: Any, on: Manifest, annotations: dict[str, str]) -> str:
    """What the API server says against a change; "" if nothing."""
    try:
        annotate(client, on, annotations)
    except ApiException as problem:
        return str(problem.body)
    return ""


@pytest.mark.parametrize("name", ["gpu-operator", "nvidia-gpu-operator", "muster-nodes", "kai-scheduler"])
def test_a_namespace_of_any_name_is_one_like_others(cluster: LocalCluster, user: Any, name: str) -> None:
    cluster.create_namespace(name)
    assert "gives a container GPUs that Muster does not count" in refused(user, MAIN, name)
    assert not refused(user, {}, name)


@pytest.mark.parametrize("label", LABELS)
def test_a_user_gives_no_namespace_trust(cluster: LocalCluster, user: Any, client: Any, label: str) -> None:
    says = f"the label {label} of a namespace is for those who may update the policy"
    assert says in _refusal(user, "trusted", {label: "allowed"})
    assert not _refusal(client, "trusted", {label: "allowed"})
    name = f"team-{label.rpartition('/')[2]}"
    cluster.create_namespace(name)
    namespaces = user.resources.get(api_version="v1", kind="Namespace")
    change = {"metadata": {"labels": {label: "allowed"}}}
    for resource in (namespaces, namespaces.subresources["status"]):
        with pytest.raises(ApiException, match=says):
            resource.patch(name=name, body=change, content_type="application/merge-patch+json")
    body = namespaces.get(name=name).to_dict()
    body["metadata"]["labels"][label] = "allowed"
    with pytest.raises(ApiException, match=says):
        user.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=body)
    free = {"metadata": {"labels": {"team": "a"}}}
    namespaces.patch(name=name, body=free, content_type="application/merge-patch+json")


def test_a_user_has_no_pod_of_musters_priority(user: Any) -> None:
    body = pod({})
    body["spec"]["priorityClassName"] = "muster"
    with pytest.raises(ApiException, match="the PriorityClass muster is for Muster's own pods"):
        pods(user).create(body=body, namespace="default")


@pytest.mark.parametrize(("containers", "names"), [(256, 4), (257, 0), (20, 52)])
def test_no_pod_makes_schedulers_count_for_seconds(user: Any, containers: int, names: int) -> None:
    amounts = {f"example.com/r{number}": "1" for number in range(names)}
    body = pod({})
    body["spec"]["initContainers"] = [
        {"name": f"c{number}", "image": "i", "resources": {"limits": amounts}} for number in range(containers)
    ]
    create_it = partial(pods(user).create, body=body, namespace="default", query_params=[("dryRun", "All")])
    if containers <= 256 and containers * names <= 1024:
        create_it()
        return
    with pytest.raises(ApiException, match="init containers"):
        create_it()


def test_an_account_of_the_agents_name_reports_no_devices(
    cluster: LocalCluster, client: Any, user: Any
) -> None:
    """The base does not make muster-nodes. So a user may have made it, and the account in it."""
    assert user
    account, groups = "system:serviceaccount:muster-nodes:muster-node-agent", ("system:masters",)
    agent = connect(cluster.kubeconfig_for_user(account, groups))
    eventually(lambda: refused(agent, MAIN), "the policies are those of the base")

    def is_refused(change: dict[str, str]) -> bool:
        return "only Muster writes" in _change(agent, create(client, {}), change)

    eventually(lambda: is_refused({DEVICES: '{"version":1,"gpus":[7]}'}), "a report is refused")
    eventually(lambda: is_refused({ASSIGNED: "true"}), "a mark is refused")
