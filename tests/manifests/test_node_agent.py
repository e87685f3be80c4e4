"""Tests of scheduler-config/node-agent: an agent changes its own node and the pods on it, and few keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from local_cluster.cluster import LocalCluster
from muster.domain.allocation import ASSIGNED, DEVICES, GROUP
from muster.node_agent import hardware
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.annotating import pod, pods, refused
from tests.manifests.applying import apply, connect
from tests.manifests.comparing import made
from tests.manifests.rendering import Manifest

pytestmark = pytest.mark.cluster

ACCOUNT = "system:serviceaccount:muster-nodes:muster-node-agent"
NODE_OF_TOKEN = "Impersonate-Extra-authentication.kubernetes.io%2fnode-name"
HOME, OTHER = "agents-home", "agents-other"


def agent_on(cluster: LocalCluster, node: str) -> Any:
    """The account with its roles and no others, and a token that the kubelet of the node got."""
    client = connect(cluster.kubeconfig)
    for name, value in (("Impersonate-User", ACCOUNT), ("Impersonate-Group", "system:authenticated")):
        client.client.set_default_header(name, value)
    if node:
        client.client.set_default_header(NODE_OF_TOKEN, node)
    return client


@pytest.fixture(scope="module")
def agents(
    cluster: LocalCluster,
    client: Any,
    rendered: list[Manifest],
    installed: list[Manifest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """Nodes, a pod on each, and the component, once the API server heeds its policies."""
    assert installed
    for manifest in made(tmp_path_factory.mktemp("agents"), "node-agent"):
        if manifest["kind"] != "Deployment":
            apply(client, manifest)
    nodes, pods = client.resources.get(kind="Node"), client.resources.get(api_version="v1", kind="Pod")
    for node in (HOME, OTHER):
        nodes.create(body={"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{node}"}, "spec": spec}
        pods.create(body=pod, namespace="default")
    eventually(lambda: _refusal(agent_on(cluster, ""), "Node", HOME, {}), "the policy is heeded")
    report = {"annotations": {DEVICES: "{}"}}
    eventually(
        lambda: not _refusal(agent_on(cluster, HOME), "Pod", f"on-{HOME}", report), "agents are believed"
    )
    yield client
    for manifest in rendered:
        if manifest["kind"] == "ValidatingAdmissionPolicy":
            apply(client, manifest)
    bindings = client.resources.get(
        api_version="admissionregistration.k8s.io/v1", kind="ValidatingAdmissionPolicyBinding"
    )
    bindings.delete(name="muster-node-agent")


KEYS = [
    *((hardware.MATRIX, "annotations"), (hardware.UNHEALTHY, "annotations")),
    *((hardware.UUIDS, "annotations"), (hardware.MEMORY_BY_GPU, "annotations")),
    *((hardware.MACHINE, "annotations"), (hardware.PUBLISHED, "annotations")),
    *((hardware.DOMAIN, "labels"), (hardware.DOMAIN_SIZE, "labels"), (hardware.NUMA, "labels")),
    *((hardware.INTERCONNECT, "labels"), (hardware.GPU_COUNT, "labels")),
]


@pytest.mark.parametrize(("key", "part"), KEYS)
def test_its_node_gets_what_the_agent_publishes(
    cluster: LocalCluster, agents: Any, key: str, part: str
) -> None:
    assert agents
    assert not _refusal(agent_on(cluster, HOME), "Node", HOME, {part: {key: "1"}})
    assert not _refusal(agent_on(cluster, HOME), "Node", HOME, {part: {key: None}})


OWN = "changes only its own node and the pods on it"
KEYS_ALONE = "changes only these labels and annotations"


@pytest.mark.parametrize(
    ("kind", "name", "change", "says"),
    [
        ("Node", OTHER, {"annotations": {hardware.MATRIX: "{}"}}, OWN),
        ("Node", HOME, {"labels": {"node-role.kubernetes.io/control-plane": ""}}, KEYS_ALONE),
        ("Node", HOME, {"labels": {"ack.node.gpu.schedule": "cgpu"}}, KEYS_ALONE),
        ("Node", HOME, {"annotations": {"team": "a"}}, KEYS_ALONE),
        ("Node", HOME, {"finalizers": ["example.com/keep"]}, "and nothing else"),
        ("Pod", f"on-{OTHER}", {"annotations": {ASSIGNED: "true"}}, OWN),
        ("Pod", f"on-{HOME}", {"labels": {"app": "web"}}, "and nothing else"),
        ("Pod", f"on-{HOME}", {"annotations": {"team": "a"}}, KEYS_ALONE),
        ("Pod", f"on-{HOME}", {"annotations": {GROUP: "1"}}, "is forbidden"),
    ],
)
def test_nothing_else_may_be_changed(
    cluster: LocalCluster, agents: Any, kind: str, name: str, change: Mapping[str, Any], says: str
) -> None:
    assert agents
    assert says in _refusal(agent_on(cluster, HOME), kind, name, change)


def test_a_pod_on_its_node_is_marked(cluster: LocalCluster, agents: Any) -> None:
    assert agents
    assert not _refusal(agent_on(cluster, HOME), "Pod", f"on-{HOME}", {"annotations": {ASSIGNED: "true"}})


def annotated(agents: Any, number: int, namespace: str = "default") -> str:
    """A new pod on the agent's node, with this number of annotations."""
    body = pod({f"k{at}": "" for at in range(number)})
    body["spec"]["nodeName"] = HOME
    pods(agents).create(body=body, namespace=namespace)
    return str(body["metadata"]["name"])


def test_a_user_with_as_many_annotations_as_are_allowed_keeps_no_report_away(
    cluster: LocalCluster, agents: Any
) -> None:
    name = annotated(agents, 1000)
    assert not _refusal(
        agent_on(cluster, HOME), "Pod", name, {"annotations": {ASSIGNED: "true", DEVICES: "{}"}}
    )
    assert KEYS_ALONE in _refusal(agent_on(cluster, HOME), "Pod", name, {"annotations": {"k7": None}})


def test_the_number_of_annotations_that_are_compared_is_bounded(cluster: LocalCluster, agents: Any) -> None:
    """The API server's time grows with the square of the keys, and at 40,000 it gave up after 26 s."""
    namespaces = agents.resources.get(api_version="v1", kind="Namespace")
    labels = {"gpu.topology/nri-annotations": "allowed"}
    namespaces.create(
        body={"metadata": {"name": "exempt", "labels": labels}}
    )  # the other policy is not there
    many = {f"k{at}": "" for at in range(1_001)}
    eventually(lambda: not refused(agents, many, "exempt"), "the namespace is exempt there")
    name = annotated(agents, 40_000, "exempt")
    refusal = _refusal(agent_on(cluster, HOME), "Pod", name, {"annotations": {ASSIGNED: "true"}}, "exempt")
    assert "changes nothing that has more than 1,100 labels or annotations" in refusal
    assert "cost" not in refusal


def test_a_token_of_no_node_changes_nothing(cluster: LocalCluster, agents: Any) -> None:
    assert agents
    assert OWN in _refusal(agent_on(cluster, ""), "Node", HOME, {"annotations": {hardware.MATRIX: "{}"}})


def _refusal(client: Any, kind: str, name: str, change: Mapping[str, Any], namespace: str = "default") -> str:
    """What the API server says against a change of metadata; "" when it takes it."""
    resource = client.resources.get(api_version="v1", kind=kind)
    place = {"namespace": namespace} if kind == "Pod" else {}
    body = {"metadata": dict(change) or {"annotations": {"probe": "1"}}}
    try:
        resource.patch(name=name, body=body, content_type="application/merge-patch+json", **place)
    except ApiException as problem:
        return str(problem.body)
    return ""
