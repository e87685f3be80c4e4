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
class Wishes:
    """Where one pod wants its gang to be. What is not said is empty.

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


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class GangClaim:
    """What one pod says of the gang it belongs to.

    `min_member` is None when the pod does not say it. `replicas` is the exact number of members where the
    dialect fixes it (ACK's gpu-topology-replica): more live pods than that are an error. `count_key` is the
    key that gives these two, for sentences: it does not tell claims apart. `size` is the number
    of members that are expected: when they are there, the gang waits for no more. `by_object`: a PodGroup of
    the dialect and name says the rest, and the gang waits until there is one. If a job says it, and no
    PodGroup, `job` is its kind, namespace and name.
    """

    dialect: str
    name: str
    min_member: int | None = None
    replicas: int | None = None
    wishes: Wishes = field(default_factory=Wishes)
    lone: bool = False
    by_object: bool = False
    size: int | None = None
    job: str = ""
    count_key: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of the members that were let go together, written on each."""

    needed: int
    """How many members had to be bound for it not to be partially bound; 0 if it was complete before."""
    left_out: int
    """Waiting members that were left out."""
    newest: float
    """When the newest member that was there then was created."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The object that made a pod, as the pod's controlling ownerReference names it."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `node` is "" until it is bound. `causes` say what is ill-formed in it; such a pod is never
    planned. `gpus` counts whole GPUs of `gpu_resource`, summed over its containers; `container_gpus` are the
    parts, in the order of the containers. `slice`: it asks for memory of shared GPUs instead, and
    `container_gpus` are the units on each of its GPUs: of all containers by their place in the pod, also of
    those that take none, then of sidecars.

    `allocation` is the bit mask of its GPUs (shared ones too) on its node where its annotations say which
    (None: unknown). `planned` is that of its plan, where a node agent found other GPUs in its containers.
    """

    uid: str
    namespace: str
    name: str
    scheduler_name: str
    resources: Resources
    gpus: int = 0
    gpu_counts: tuple[int, ...] = ()
    """GPUs by each subrequest of its claims, 0 for all that match on its node; () if `gpus` says it. Until it
    is bound, `gpus` are the fewest of them."""
    gpu_resource: str = ""
    slice: Slice | None = None
    container_gpus: tuple[tuple[str, int], ...] = ()
    rules: NodeRules = field(default_factory=NodeRules)
    claim: GangClaim | None = None
    rank: int | None = None
    owner: str = ""
    """UID of its controller; "Deployment/<name>" for a Deployment's, "" for a bare pod."""
    controller: Controller | None = None
    """What events about its gang are posted on; None for a bare pod."""
    priority: int = 0
    created: float = 0.0
    started: float = 0.0
    """When its kubelet first took it up; 0 before."""
    node: str = ""
    running: bool = False
    finished: bool = False
    succeeded: bool = False
    """The pod has succeeded: its gang needs no place for it again."""
    terminating: bool = False
    gated: bool = False
    """It has schedulingGates of its own, or a ResourceClaim that is not made: not a present member yet."""
    allocation: int | None = None
    planned: int | None = None
    devices: tuple[Device, ...] = ()
    """The devices of a DRA driver that its plan names."""
    batch: Batch | None = None
    """The batch that it was bound with; None if its annotations don't tell."""
    labels: Labels = ()
    peers: PeerRules = NO_PEER_RULES
    """What it asks for about other pods."""
    traceparent: str = ""
    """W3C trace context of what made it; "" if its annotations name none."""
    preferences: bool = False
    """It prefers some nodes (preferred affinity, ScheduleAnyway): kube-scheduler's scores of nodes count."""
    match_attributes: tuple[str, ...] = ()
    """Its claims want devices that agree on these attributes, by name."""
    several_claims: bool = False
    """Its GPUs are in several claims."""
    unallocated_claims: tuple[str, ...] = ()
    """Names of its ResourceClaims that other pods may name too, and that have no devices yet."""
    device_claims: bool = False
    """It has ResourceClaims, or Kubernetes makes one for an extended resource: where these can be met is an
    in-tree answer."""
    compute_domain: str = ""
    """UID of NVIDIA's ComputeDomain, if one of its claims is a channel of one."""
    causes: tuple[Cause, ...] = ()

    @property
    def wishes(self) -> Wishes:
        """Return where it wants its gang to be."""
        return self.claim.wishes if self.claim is not None else NO_WISHES

    @property
    def fewest_gpus(self) -> int:
        """Return the fewest GPUs that it asks for, also when it is bound with more."""
        return min(count or 1 for count in self.gpu_counts) if self.gpu_counts else self.gpus

    def may_take(self, gpus: int) -> bool:
        """Return whether it asks for as many GPUs, shared ones too."""
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
        """What it takes of its node: until it is gone or finished, also while it terminates."""
        if not self.node or self.finished:
            return None
        units = self.slice.units if self.slice else 0
        if self.allocation is not None:
            return Usage(self.uid, self.node, self.resources, gpus=self.allocation, units=units)
        count = self.slice.gpus if self.slice else self.gpus
        return Usage(self.uid, self.node, self.resources, unindexed_gpus=count, units=units if count else 0)
