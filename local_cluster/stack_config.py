"""How the stack's two processes are set up: what scheduler-config/ says, moved onto one machine.

Only what must differ there is changed: addresses, credentials, and how long a dead leader's lease holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from local_cluster.api import Api, ApiError, Object
from local_cluster.certificates import write_private
from local_cluster.patience import Guard
from local_cluster.places import SOURCE

MANIFESTS = SOURCE.parent / "scheduler-config"
CONFIGURATION = MANIFESTS / "scheduler.yaml"
ACCOUNT = "muster-system/muster"
"""The service account of both processes, as scheduler-config/ has it: they are containers of one pod."""
USER = "system:serviceaccount:" + ACCOUNT.replace("/", ":")
TRACED = ("system:serviceaccounts", "system:monitoring")
"""Groups of the scheduler in a traced cluster, where it has a certificate with the account's name.

The API server continues a client's trace only for system:monitoring and system:masters. No service account is
in these.
"""

FEATURE_GATES = "NominatedNodeNameForExpectation=false"
LEASE_S = {"leaseDuration": 8, "renewDeadline": 5, "retryPeriod": 1}
"""Shorter than in production, where a killed leader's lease holds for 15 s: every fault test waits for it.
On a slow machine all of it is stretched."""
BIND_TIMEOUT_S = 2
"""Below leaseDuration less renewDeadline, as scheduler.yaml says."""

RIGHTS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
}
"""Kinds of scheduler-config/ that a cluster needs when the processes run outside of it, and their paths."""

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLL_EVERY_S = 0.05

APPLY = "?fieldManager=local-cluster&force=true&fieldValidation=Strict"


def apply_rights(api: Api) -> None:
    """Give the account what scheduler-config/ gives it: rights, no others, and its turn at the API server."""
    apply_kinds(api, (*_manifests(MANIFESTS), *_manifests(MANIFESTS / "jobs")))


def apply_kinds(api: Api, manifests: Sequence[Object], paths: Mapping[str, str] = RIGHTS) -> None:
    """Create or change the objects of these kinds, kind after kind.

    `paths`: kind → path, in which {namespace} stands for the namespace of the object.
    """
    for kind, path in paths.items():
        for manifest in manifests:
            if manifest["kind"] == kind:
                apply(api, path.format(namespace=manifest["metadata"].get("namespace", "")), manifest)


def apply(api: Api, path: str, manifest: Object) -> None:
    """Create or change one object."""
    path_of_object = f"{path}/{manifest['metadata']['name']}{APPLY}"
    api.call("PATCH", path_of_object, manifest, "application/apply-patch+yaml")


def apply_crds(api: Api) -> None:
    """Install the kinds of scheduler-config/podgroups/, and wait until the API server serves them."""
    apply_definitions(api, _manifests(MANIFESTS / "podgroups"))


def apply_definitions(api: Api, manifests: Sequence[Object]) -> None:
    """Install the CRDs among the manifests, and wait until the API server serves them."""
    guard = Guard()
    definitions = [manifest for manifest in manifests if manifest["kind"] == "CustomResourceDefinition"]
    for manifest in definitions:
        apply(api, CRDS, manifest)
    for manifest in definitions:
        path = f"{CRDS}/{manifest['metadata']['name']}"
        while not _established(api.get(path)):
            if guard.over:
                raise TimeoutError(f"{path} is not established after {guard.whole_s:.0f} s")
            time.sleep(POLL_EVERY_S)


def _established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(
        condition["type"] == "Established" and condition["status"] == "True" for condition in conditions
    )


def client_connection() -> Object:
    """Of the scheduler: requests a second, and at once after a pause."""
    connection: Object = _configuration()["clientConnection"]
    return connection


def lease_path() -> str:
    """The API path of the lease that the leading scheduler holds."""
    election = _configuration()["leaderElection"]
    namespace, name = election["resourceNamespace"], election["resourceName"]
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


def leader(api: Api) -> str:
    """Return the holder of the lease, or ""."""
    try:
        lease = api.get(lease_path())
    except ApiError as problem:
        if problem.status == 404:
            return ""
        raise
    return str(lease["spec"].get("holderIdentity") or "")


def release(api: Api, holder: str) -> None:
    """Give back the lease of a leader that was killed, if it still holds it."""
    if holder and leader(api) == holder:
        api.patch(lease_path(), {"spec": {"holderIdentity": ""}})


def write_scheduler_configuration(
    path: Path,
    *,
    kubeconfig: Path,
    socket: Path,
    names: Sequence[str] = ("muster",),
    quick_lease: int = 1,
    template: Path = CONFIGURATION,
) -> None:
    """The KubeSchedulerConfiguration of scheduler-config/, for a scheduler outside of a pod; its profile once
    for each of the scheduler names.

    `quick_lease`: by how much LEASE_S is stretched, after which a killed leader is followed. With 0 times are
    those of production.
    """
    document = _configuration(template)
    (profile,) = document["profiles"]
    document["profiles"] = [deepcopy(profile) | {"schedulerName": name} for name in names]
    document["clientConnection"] = document.get("clientConnection", {}) | {"kubeconfig": str(kubeconfig)}
    args = {"serviceAddress": f"unix://{socket}"}
    if quick_lease:
        document["leaderElection"] |= {key: f"{quick_lease * value}s" for key, value in LEASE_S.items()}
        args["bindTimeout"] = f"{quick_lease * BIND_TIMEOUT_S}s"
    for profile in document["profiles"]:
        for plugin in profile.get("pluginConfig", ()):
            if plugin["name"] == "Muster":
                plugin["args"] |= args
    write_private(path, json.dumps(document, indent=2).encode() + b"\n")


def _configuration(path: Path = CONFIGURATION) -> Object:
    document: Object = yaml.safe_load(path.read_text())
    return document


def _manifests(folder: Path) -> list[Any]:
    return [document for file in sorted(folder.glob("*.yaml")) for document in manifests_of(file)]


def manifests_of(file: Path) -> list[Any]:
    """Return the objects in a file."""
    return [manifest for manifest in yaml.safe_load_all(file.read_text()) if manifest and "kind" in manifest]
