"""A pod as the gangs see it: facts read from its API object by the dialects."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from muster.domain.constraints import PerScope
from muster.domain.node import Device, Resources, Usage
from muster.domain.peers import NO_PEER_RULES, Labels, PeerRules
from muster.domain.preemption import NO_TERMS, Preemption
from muster.domain.reasons import Cause
from muster.domain.request import NodeRules, Segment, Slice

GROUP = 10**9
"""Largest number of ranks in one group of a controller's pods, because an index has nine digits.

The rank of a pod in a group is the group's index times this number, plus the pod's index.
"""

KUBERNETES = "PodGroup"
"""The dialect of gangs that a PodGroup of Kubernetes' own API describes."""
COMPOSITE = "CompositePodGroup"
"""The dialect of gangs that a CompositePodGroup describes: each PodGroup below it is a role."""
NATIVE = (KUBERNETES, COMPOSITE)
"""The dialects of Kubernetes' own API."""


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """The topology constraints that one pod states for its gang. Constraints that are not stated are empty.

    `role_scope`, `role_preferred` and `segments` are for the pod's `role`, the others for the whole gang.
    """

    role: str = ""
    required_scope: str | None = None
    preferred_scopes: tuple[str, ...] = ()
    role_scope: str | None = None
    segments: tuple[Segment, ...] = ()
    per_scope: tuple[PerScope, ...] = ()
    policies: tuple[str, ...] = ()
    """Names of policies of the cluster."""
    role_preferred: tuple[str, ...] = ()

    def completed_by(self, *others: TopologyRequest) -> TopologyRequest:
        """Return these constraints, completed by others: the first that states a constraint counts."""
        stated: dict[str, Any] = {}
        for request in (*reversed(others), self):
            stated |= {
                field.name: value for field in fields(request) if (value := getattr(request, field.name))
            }
        return TopologyRequest(**stated)


NO_TOPOLOGY_REQUEST = TopologyRequest()


@dataclass(frozen=True, slots=True)
class GangClaim:
    """The gang to which a pod belongs, as the pod states it."""

    dialect: str
    name: str
    min_member: int | None = None
    """Number of members that must fit at once; None if the pod does not state it."""
    replicas: int | None = None
    """Exact number of members, if the dialect fixes it (ACK's gpu-topology-replica). More present pods are an
    error."""
    topology_request: TopologyRequest = field(default_factory=TopologyRequest)
    lone: bool = False
    """Whether the pod is a gang by itself."""
    by_object: bool = False
    """Whether a PodGroup of this dialect and name has the other facts. Without the PodGroup the gang waits.
    """
    size: int | None = None
    """Expected number of members. Once this many are present, the gang waits for no more."""
    job: str = ""
    """Kind, namespace and name of the job that has the other facts. Then there is no PodGroup."""
    count_key: str = field(default="", compare=False)
    """The key that states `min_member` and `replicas`, for sentences. Claims that differ only in this key are
    equal."""

    @property
    def ignores_owners(self) -> bool:
        """Return whether all pods with this name are one gang, whichever owners they have. This is so if a
        job, or a group of Kubernetes, states which pods belong to it."""
        return bool(self.job) or self.dialect in NATIVE


@dataclass(frozen=True, slots=True)
class Batch:
    """The record about members that were permitted together. Each of these pods has this record."""

    needed: int
    """Number of members that had to be bound for a complete gang; 0 if the gang was complete before."""
    left_out: int
    """Number of waiting members that were left out."""
    newest: float
    """When the newest member among them was created, in seconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The object that made a pod, as the pod's controlling ownerReference names it."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod."""

    uid: str
    namespace: str
    name: str
    scheduler_name: str
    resources: Resources
    gpus: int = 0
    """Number of whole GPUs of `gpu_resource`, summed over its containers."""
    gpu_counts: tuple[int, ...] = ()
    """Number of GPUs by each subrequest of its claims, 0 for all matching GPUs of its node. () if `gpus`
    states the number. Until the pod is bound, `gpus` is the smallest of these numbers."""
    gpu_resource: str = ""
    slice: Slice | None = None
    """The memory of shared GPUs that it requests. Then it requests no whole GPUs."""
    container_gpus: tuple[tuple[str, int], ...] = ()
    """(container, GPUs) in the order of the containers. If the pod has a slice: (container, units on each
    GPU), first of all containers in their order, then of sidecars with units."""
    rules: NodeRules = field(default_factory=NodeRules)
    claim: GangClaim | None = None
    rank: int | None = None
    owner: str = ""
    """UID of its controller; "Deployment/<name>" for a Deployment's, "" for a bare pod."""
    controller: Controller | None = None
    """The object on which events about its gang are posted; None for a bare pod."""
    priority: int = 0
    created: float = 0.0
    started: float = 0.0
    """When its kubelet accepted the pod, in seconds since the Unix epoch; 0 before."""
    node: str = ""
    """Its node; "" until the pod is bound."""
    running: bool = False
    finished: bool = False
    succeeded: bool = False
    """Whether the pod has succeeded. Its gang needs no place for it again."""
    terminating: bool = False
    ends: float = 0.0
    """When a terminating pod on a node should have ended, in seconds since the Unix epoch; 0 for other pods.
    """
    finalizers: tuple[str, ...] = ()
    """What a terminating pod on a node waits for."""
    saved: float = 0.0
    """When it saved its work last, in seconds since the Unix epoch; 0 if not known."""
    gated: bool = False
    """Whether it has schedulingGates, or a ResourceClaim that is not made yet. Then it is not a present
    member."""
    allocation: int | None = None
    """Bit mask of its GPUs on its node, whole or shared, by its annotations; None if unknown."""
    planned: int | None = None
    """Bit mask of its planned GPUs, if a node agent found other GPUs in its containers."""
    devices: tuple[Device, ...] = ()
    """The devices of a DRA driver that its plan names."""
    batch: Batch | None = None
    """The batch with which it was bound; None if its annotations have no batch."""
    labels: Labels = ()
    peers: PeerRules = NO_PEER_RULES
    """Its rules about other pods."""
    preemption: Preemption = NO_TERMS
    traceparent: str = ""
    """W3C trace context of its creator; "" if its annotations have no trace context."""
    preferences: bool = False
    """Whether it prefers some nodes (preferred affinity, ScheduleAnyway). Then kube-scheduler's scores of
    nodes count."""
    match_attributes: tuple[str, ...] = ()
    """Names of attributes on which the devices of its claims must agree."""
    several_claims: bool = False
    """Whether its GPUs are in several claims."""
    unallocated_claims: tuple[str, ...] = ()
    """Names of its ResourceClaims that other pods may name too, and that have no devices yet."""
    group_claims: tuple[str, ...] = ()
    """Names of the ResourceClaims that it shares with the other pods of its PodGroup. These pods must lie on
    one node, and the claims' GPUs count for one of them."""
    device_claims: bool = False
    """Whether it has ResourceClaims, also claims that Kubernetes makes for an extended resource. In-tree
    answers tell which nodes can serve these claims."""
    compute_domain: str = ""
    """UID of NVIDIA's ComputeDomain, if one of its claims is for a channel."""
    causes: tuple[Cause, ...] = ()
    """Why it is ill-formed. A pod with causes is never planned."""

    @property
    def topology_request(self) -> TopologyRequest:
        """Return the topology constraints that it states."""
        return self.claim.topology_request if self.claim is not None else NO_TOPOLOGY_REQUEST

    @property
    def fewest_gpus(self) -> int:
        """Return the fewest GPUs that it requests, even if it is bound with more."""
        return min(count or 1 for count in self.gpu_counts) if self.gpu_counts else self.gpus

    def may_take(self, gpus: int) -> bool:
        """Return whether it may have this number of GPUs, shared or whole."""
        if self.slice is not None:
            return gpus == self.slice.gpus
        if self.gpu_counts:
            return gpus > 0 and (gpus in self.gpu_counts or 0 in self.gpu_counts)
        return gpus == self.gpus

    @property
    def present(self) -> bool:
        """Return whether it counts as a member of its gang now."""
        return not (self.finished or self.terminating or self.gated)

    @property
    def usage(self) -> Usage | None:
        """Return the capacity that it takes of its node. A terminating pod still takes capacity, a finished
        pod takes none."""
        if not self.node or self.finished:
            return None
        units = self.slice.units if self.slice else 0
        if self.allocation is not None:
            return Usage(self.uid, self.node, self.resources, gpus=self.allocation, units=units)
        count = self.slice.gpus if self.slice else self.gpus
        return Usage(self.uid, self.node, self.resources, unindexed_gpus=count, units=units if count else 0)
