"""A pod as the gangs see it: facts read from its API object by the dialects."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.domain.constraints import PerScope
from muster.domain.node import Device, Resources, Usage
from muster.domain.peers import NO_PEER_RULES, Labels, PeerRules
from muster.domain.reasons import Cause
from muster.domain.request import NodeRules, Segment, Slice

GROUP = 10**9
"""Ranks of one group of a controller's pods, at most: an index has nine digits.

The rank of a pod in a group is the group's index times this, and its own index.
"""


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
    """Whether the pod is a gang of one."""
    by_object: bool = False
    """Whether a PodGroup of this dialect and name has the other facts. Without it the gang waits."""
    size: int | None = None
    """Expected number of members. When they are there, the gang waits for no more."""
    job: str = ""
    """Kind, namespace and name of the job that has the other facts, in place of a PodGroup."""
    count_key: str = field(default="", compare=False)
    """The key that states `min_member` and `replicas`, for sentences. It does not tell claims apart."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The record of the members that were permitted together, written on each of them."""

    needed: int
    """Number of members that had to be bound, so that the gang was not partially bound; 0 if it was complete
    before."""
    left_out: int
    """Number of waiting members that were left out."""
    newest: float
    """When the newest member of that time was created, in seconds since the Unix epoch."""


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
    """Number of GPUs by each subrequest of its claims, 0 for all matching GPUs of its node; () if `gpus`
    states the number. Until the pod is bound, `gpus` is the smallest of them."""
    gpu_resource: str = ""
    slice: Slice | None = None
    """Memory of shared GPUs that it requests, in place of whole GPUs."""
    container_gpus: tuple[tuple[str, int], ...] = ()
    """(container, GPUs) in the order of the containers. With a slice: (container, units on each GPU) of all
    containers by their place in the pod, then of sidecars with units."""
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
    """When its kubelet accepted it, in seconds since the Unix epoch; 0 before."""
    node: str = ""
    """Its node; "" until it is bound."""
    running: bool = False
    finished: bool = False
    succeeded: bool = False
    """The pod has succeeded: its gang needs no place for it again."""
    terminating: bool = False
    gated: bool = False
    """It has schedulingGates of its own, or a ResourceClaim that is not made: not a present member yet."""
    allocation: int | None = None
    """Bit mask of its GPUs on its node, also shared ones, by its annotations; None if unknown."""
    planned: int | None = None
    """Bit mask of its planned GPUs, if a node agent found other GPUs in its containers."""
    devices: tuple[Device, ...] = ()
    """The devices of a DRA driver that its plan names."""
    batch: Batch | None = None
    """The batch that it was bound with; None if its annotations don't tell."""
    labels: Labels = ()
    peers: PeerRules = NO_PEER_RULES
    """Its rules about other pods."""
    traceparent: str = ""
    """W3C trace context of its creator; "" if its annotations have none."""
    preferences: bool = False
    """It prefers some nodes (preferred affinity, ScheduleAnyway): kube-scheduler's scores of nodes count."""
    match_attributes: tuple[str, ...] = ()
    """Names of attributes on which the devices of its claims must agree."""
    several_claims: bool = False
    """Its GPUs are in several claims."""
    unallocated_claims: tuple[str, ...] = ()
    """Names of its ResourceClaims that other pods may name too, and that have no devices yet."""
    device_claims: bool = False
    """It has ResourceClaims, or Kubernetes makes one for an extended resource. In-tree answers tell which
    nodes can meet them."""
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
        """Whether it counts as a member of its gang now."""
        return not (self.finished or self.terminating or self.gated)

    @property
    def usage(self) -> Usage | None:
        """Return the capacity that it takes of its node, until it is gone or finished. A terminating pod
        still takes it."""
        if not self.node or self.finished:
            return None
        units = self.slice.units if self.slice else 0
        if self.allocation is not None:
            return Usage(self.uid, self.node, self.resources, gpus=self.allocation, units=units)
        count = self.slice.gpus if self.slice else self.gpus
        return Usage(self.uid, self.node, self.resources, unindexed_gpus=count, units=units if count else 0)
