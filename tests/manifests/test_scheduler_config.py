"""scheduler-config/ is accepted by a real API server, and means there what its comments say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from muster.config_sources import load
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.applying import apply, connect
from tests.manifests.rendering import Manifest, one

pytestmark = pytest.mark.cluster

ACCOUNT = "system:serviceaccount:muster-system:muster"

# (allowed, verb, group/resource[/subresource], namespace, name)
RIGHTS = {
    "binds any pod": (True, "create", "pods/binding", "team-a", ""),
    "writes conditions": (True, "patch", "pods/status", "team-a", ""),
    "sees nodes": (True, "watch", "nodes", "", ""),
    "writes events": (True, "create", "events.k8s.io/events", "team-a", ""),
    "tells who leads": (True, "create", "events", "muster-system", ""),
    "changes events of its own kind alone": (False, "patch", "events", "team-a", ""),
    "provisions volumes": (True, "update", "persistentvolumeclaims", "team-a", ""),
    "allocates claims": (True, "update", "resource.k8s.io/resourceclaims/status", "team-a", ""),
    "leads": (True, "update", "coordination.k8s.io/leases", "muster-system", "muster"),
    "reads the API server's client CA": (
        True,
        "get",
        "configmaps",
        "kube-system",
        "extension-apiserver-authentication",
    ),
    "sees PodGroups": (True, "watch", "scheduling.run.ai/podgroups", "team-a", ""),
    "sees coscheduling's": (True, "list", "scheduling.x-k8s.io/podgroups", "", ""),
    "sees Kubernetes' own": (True, "watch", "scheduling.k8s.io/podgroups", "", ""),
    "sees their Workloads": (True, "watch", "scheduling.k8s.io/workloads", "", ""),
    "writes their status": (True, "patch", "scheduling.run.ai/podgroups/status", "team-a", "g"),
    "writes the status of Kubernetes' own": (
        True,
        "patch",
        "scheduling.k8s.io/podgroups/status",
        "team-a",
        "g",
    ),
    "no PodGroup of Kubernetes is changed": (False, "patch", "scheduling.k8s.io/podgroups", "team-a", "g"),
    "reads policies": (True, "watch", "configmaps", "muster-system", "kai-scheduler-config"),
    "no policies of others": (False, "watch", "configmaps", "kai-scheduler", "kai-scheduler-config"),
    "reads what device plugins publish": (True, "list", "configmaps", "kube-system", ""),
    "no PodGroup is changed": (False, "patch", "scheduling.run.ai/podgroups", "team-a", "g"),
    "no status of another scheduler's": (
        False,
        "patch",
        "scheduling.x-k8s.io/podgroups/status",
        "team-a",
        "g",
    ),
    "no other ConfigMaps": (False, "list", "configmaps", "kai-scheduler", ""),
    "no secrets": (False, "get", "secrets", "muster-system", ""),
    "no configuration": (False, "list", "configmaps", "muster-system", ""),
    "no pod is made": (False, "create", "pods", "team-a", ""),
    "no pod is changed": (False, "patch", "pods", "team-a", ""),
    "no node is changed": (False, "patch", "nodes", "", ""),
    "no node's status is changed": (False, "patch", "nodes/status", "", ""),
    "not the default scheduler's lease": (
        False,
        "update",
        "coordination.k8s.io/leases",
        "kube-system",
        "kube-scheduler",
    ),
    "no exec": (False, "create", "pods/exec", "team-a", ""),
    "no impersonation": (False, "impersonate", "users", "", ""),
}


@pytest.mark.parametrize("case", RIGHTS.values(), ids=RIGHTS)
def test_the_account_may_do_what_it_needs_and_no_more(
    client: Any, installed: list[Manifest], case: tuple[bool, str, str, str, str]
) -> None:
    expected, verb, path, namespace, name = case
    first, _, after_slash = path.partition("/")
    # a group has a dot in its name; the core group has none and is left out
    group, resource_path = (first, after_slash) if "." in first else ("", path)
    resource, _, subresource = resource_path.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    reviews = client.resources.get(api_version="authorization.k8s.io/v1", kind="SubjectAccessReview")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }
    assert reviews.create(body=review).status.allowed is expected


def test_the_lease_does_not_stand_behind_bindings(client: Any, shim_kubeconfig: Path) -> None:
    """The API server says by which FlowSchema it queued a request."""
    schemas = client.resources.get(api_version="flowcontrol.apiserver.k8s.io/v1", kind="FlowSchema")
    account = connect(shim_kubeconfig)
    leases = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases/muster"
    uid = schemas.get(name="muster-leader-election").metadata.uid
    # it is taken up some time after it has been stored
    eventually(lambda: queued_by(account, leases) == uid, "the lease has its own FlowSchema")
    assert queued_by(account, "/api/v1/nodes") == schemas.get(name="service-accounts").metadata.uid


def queued_by(account: Any, path: str) -> str:
    try:
        headers = account.request("GET", path, serialize=False).headers
    except ApiException as problem:  # there is no lease here
        headers = problem.headers
    return str(headers["X-Kubernetes-PF-FlowSchema-UID"])


def test_the_pods_of_the_deployment_are_admitted(client: Any, installed: list[Manifest]) -> None:
    """Pod Security "restricted", the priority class and the service account: all are asked at admission."""
    pod = _pod(installed)
    admitted = apply(client, pod, dry_run=True)
    assert admitted["spec"]["priority"] == 1_000_000_000


@pytest.mark.parametrize(
    "loosened",
    [
        {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}},
        {"hostNetwork": True},
    ],
    ids=["root", "host network"],
)
def test_looser_pods_are_refused(client: Any, installed: list[Manifest], loosened: dict[str, Any]) -> None:
    pod = _pod(installed)
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        apply(client, pod | {"spec": pod["spec"] | loosened}, dry_run=True)


def test_a_misspelt_field_is_refused(client: Any, installed: list[Manifest]) -> None:
    """The tests above prove something only if the API server is really asked to be strict."""
    deployment = one(installed, "Deployment", "muster")
    misspelt = {key: deployment[key] for key in ("apiVersion", "kind")}
    misspelt |= {"metadata": {"name": "misspelt", "namespace": "muster-system"}}
    misspelt |= {"spec": deployment["spec"] | {"replica": 2}}
    with pytest.raises(AssertionError, match="replica"):
        apply(client, misspelt, dry_run=True)


def test_both_containers_run_locked_down_as_the_same_user(rendered: list[Manifest]) -> None:
    pod = one(rendered, "Deployment", "muster")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 65532
    socket = next(volume for volume in pod["volumes"] if volume["name"] == "socket")
    assert socket["emptyDir"]["medium"] == "Memory"
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "socket", "mountPath": "/run"} in container["volumeMounts"]
        assert "runAsUser" not in container["securityContext"]


def test_the_service_takes_its_settings(rendered: list[Manifest]) -> None:
    containers = one(rendered, "Deployment", "muster")["spec"]["template"]["spec"]["containers"]
    service = next(container for container in containers if container["name"] == "service")
    settings = load(environment={item["name"]: item["value"] for item in service["env"]})
    assert settings.http.host == "0.0.0.0"  # a probe comes from the node, not from inside the pod
    port = service["ports"][0]["containerPort"]
    assert service["args"] == ["serve", f"--http-port={port}", "--page-port=8081"]
    assert settings.page.host == "127.0.0.1"  # kubectl port-forward ends inside the pod
    assert {"name": "MUSTER__SOCKET", "value": "/run/muster/muster.sock"} in service["env"]


def test_every_rule_names_what_it_grants(rendered: list[Manifest]) -> None:
    """No right has a wildcard, and none lets the account give itself more rights."""
    roles = [item for item in rendered if item["kind"] in {"Role", "ClusterRole"}]
    for role in roles:
        for rule in role["rules"]:
            values = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in values, role["metadata"]["name"]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            assert "rbac.authorization.k8s.io" not in rule["apiGroups"]


def test_the_binding_ends_before_the_next_leader_plans(rendered: list[Manifest]) -> None:
    """bindTimeout < leaseDuration − renewDeadline, as the comment in scheduler.yaml asks."""
    configuration = yaml.safe_load(one(rendered, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"])
    election = configuration["leaderElection"]
    arguments = configuration["profiles"][0]["pluginConfig"][0]["args"]
    margin = _seconds(election["leaseDuration"]) - _seconds(election["renewDeadline"])
    assert _seconds(arguments["bindTimeout"]) < margin


def test_applying_twice_changes_nothing(
    client: Any, rendered: list[Manifest], installed: list[Manifest]
) -> None:
    """No object fights with what the API server fills in. Other tests may have changed objects before."""
    assert len(installed) == len(rendered)
    for manifest in rendered:
        before, again = apply(client, manifest), apply(client, manifest)
        assert again["metadata"].get("generation") == before["metadata"].get("generation"), manifest["kind"]


def _pod(installed: list[Manifest]) -> Manifest:
    template = one(installed, "Deployment", "muster")["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"] | {"name": "muster-0", "namespace": "muster-system"},
        "spec": template["spec"],
    }


def _seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])
