"""The facts about a cluster, before the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.domain.node import HandsOut

Right = tuple[str, str, str]
"""API group, resource (or resource/subresource) and verb."""

SERVICE = """
list,watch nodes pods namespaces persistentvolumeclaims persistentvolumes
list,watch storageclasses.storage.k8s.io csidrivers.storage.k8s.io
list,watch poddisruptionbudgets.policy
list,watch resourceslices.resource.k8s.io deviceclasses.resource.k8s.io
list,watch devicetaintrules.resource.k8s.io resourceclaims.resource.k8s.io
list,watch podgroups.scheduling.run.ai podgroups.scheduling.x-k8s.io topologies.kai.scheduler
list,watch podgroups.scheduling.sigs.k8s.io podgroups.scheduling.volcano.sh
list,watch podgroups.scheduling.k8s.io compositepodgroups.scheduling.k8s.io workloads.scheduling.k8s.io
patch podgroups/status.scheduling.run.ai podgroups/status.scheduling.k8s.io pods/status
create pods/eviction events
"""
"""Rights of the service in the whole cluster: scheduler-config/rbac-service.yaml, without rights by object
name."""

SCHEDULER = """
list,watch,get,delete pods
create pods/binding events tokenreviews.authentication.k8s.io subjectaccessreviews.authorization.k8s.io
patch pods/status
create,patch events.events.k8s.io
list,watch nodes namespaces services replicationcontrollers replicasets.apps statefulsets.apps
list,watch poddisruptionbudgets.policy
list,watch,update persistentvolumes persistentvolumeclaims
list,watch storageclasses.storage.k8s.io csinodes.storage.k8s.io csidrivers.storage.k8s.io
list,watch csistoragecapacities.storage.k8s.io volumeattachments.storage.k8s.io
list,watch deviceclasses.resource.k8s.io resourceslices.resource.k8s.io devicetaintrules.resource.k8s.io
list,watch,get,update,create,delete resourceclaims.resource.k8s.io
update,patch resourceclaims/status.resource.k8s.io resourceclaims/binding.resource.k8s.io
update pods/finalizers
"""
"""Rights of the shim in the whole cluster: scheduler-config/rbac-scheduler.yaml."""

INSTALLER = """
create namespaces serviceaccounts configmaps services
create clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io
create roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io
create deployments.apps poddisruptionbudgets.policy priorityclasses.scheduling.k8s.io
create customresourcedefinitions.apiextensions.k8s.io flowschemas.flowcontrol.apiserver.k8s.io
create validatingadmissionpolicies.admissionregistration.k8s.io
create validatingadmissionpolicybindings.admissionregistration.k8s.io
"""
"""Rights of the user who applies scheduler-config/ or the chart, without the node agent and alert rules."""


def rights(table: str) -> frozenset[Right]:
    """Return the rights of a table: in each line the verbs, then resources as `resource.group`."""
    allowed = set()
    for line in table.strip().splitlines():
        verbs, *resources = line.split()
        for name in resources:
            resource, _, group = name.partition(".")
            allowed |= {(group, resource, verb) for verb in verbs.split(",")}
    return frozenset(allowed)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about a node.

    `gpus`: GPU resource → number of GPUs that a device plugin or a DRA driver offers. `links_known`: whether
    the links between its GPUs are known. `drivers`: DRA drivers whose devices are its GPUs. `not_exact`: why
    containers may get other GPUs than planned; None if they can't.
    """

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    links_known: bool = False
    drivers: frozenset[str] = frozenset()
    not_exact: HandsOut | None = None


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """A namespace of Muster that exists. `restricted`: it enforces this Pod Security level. `role_bindings`:
    RoleBindings in it that are not Muster's."""

    restricted: bool = False
    role_bindings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """Bounds in seconds for the API server's clock minus this machine's clock."""

    at_least_s: float
    at_most_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts.

    `served`: "group/version" ("v1" for the core) → its resources that Muster uses. `missing_rights`: rights
    that Muster's account lacks if it is `installed`, else the user; None if the API server does not say.
    `policy`, `policy_bound`: whether the admission policy and its binding exist.

    `guarded_drivers`: DRA drivers whose devices only Muster may allocate, by another policy. `gpu_drivers`:
    DRA drivers that seem to publish GPUs, planned or not. `leases_ahead`: node → seconds by which its clock
    is ahead of the API server's. `gpu_pods`: schedulerName → number of live pods with GPUs. `namespaces`:
    existing namespaces of Muster. `exempt`: namespaces whose pods may name GPUs. `labels_guarded`: whether a
    policy guards the label of exempt namespaces.
    """

    version: str
    served: Mapping[str, frozenset[str]]
    installed: bool
    missing_rights: frozenset[Right] | None
    policy: bool
    policy_bound: bool
    guarded_drivers: frozenset[str]
    nodes: tuple[NodeFacts, ...]
    gpu_drivers: frozenset[str]
    gpu_pods: Mapping[str, int]
    clock: Clock | None
    leases_ahead: Mapping[str, float]
    namespaces: Mapping[str, NamespaceFacts] = field(default_factory=dict)
    exempt: tuple[str, ...] = ()
    labels_guarded: bool = True
    unread: tuple[str, ...] = ()
