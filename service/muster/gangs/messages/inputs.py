"""The inputs of the coordinator: events and their times. `now` is in seconds of a monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.domain.clearing import Clearing, NoClearing
from muster.domain.decision import Decision
from muster.domain.node import DeviceClaim, Node, Usage
from muster.domain.peers import Labels
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import Policies
from muster.domain.preemption import DisruptionBudget


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node appeared or changed."""

    now: float
    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    now: float
    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod appeared or changed."""

    now: float
    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted."""

    now: float
    uid: str


@dataclass(frozen=True, slots=True)
class PodGroupSeen:
    """A PodGroup appeared or changed."""

    now: float
    group: PodGroup


@dataclass(frozen=True, slots=True)
class PodGroupGone:
    """A PodGroup was deleted."""

    now: float
    key: PodGroupKey


@dataclass(frozen=True, slots=True)
class JobSeen:
    """The Job with this UID states how many of its pods have succeeded; 0 if the Job is gone.

    A Job does not make succeeded pods again, even if they are deleted. Only Jobs whose pods all run at once
    are reported.
    """

    now: float
    uid: str
    succeeded: int


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """The present labels of a namespace; None if it is gone. Terms of pod affinity select namespaces by
    labels."""

    now: float
    name: str
    labels: Labels | None


@dataclass(frozen=True, slots=True)
class VolumeClaimSeen:
    """Whether a PersistentVolumeClaim's volume attaches to one node only; False if the claim is gone."""

    now: float
    namespace: str
    name: str
    attaches_once: bool


@dataclass(frozen=True, slots=True)
class BudgetSeen:
    """A PodDisruptionBudget appeared or changed; None if it is gone. `key`: its namespace and name."""

    now: float
    key: str
    budget: DisruptionBudget | None


@dataclass(frozen=True, slots=True)
class BudgetsUnread:
    """Whether the account may not read PodDisruptionBudgets."""

    now: float
    unread: bool


@dataclass(frozen=True, slots=True)
class CheckpointsSeen:
    """Pods on nodes saved their work: UID → when, in seconds since the epoch; 0 if a pod no longer says."""

    now: float
    saved: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeviceClaimSeen:
    """The devices of a ResourceClaim changed, or the pods that it is for."""

    now: float
    claim: DeviceClaim


@dataclass(frozen=True, slots=True)
class PoliciesSeen:
    """The policies and levels that are valid from now on."""

    now: float
    policies: Policies


@dataclass(frozen=True, slots=True)
class Synced:
    """Every object that existed has been seen once: planning may begin."""

    now: float


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A shim connected. Every plan of earlier epochs is void."""

    now: float
    epoch: int
    in_flight: tuple[Usage, ...] = ()
    """Usage of each pod whose Binding has an unknown fate."""
    answers_in_tree: bool = False
    """Whether the shim answers questions about in-tree plugins."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session of this epoch ended."""

    now: float
    epoch: int


@dataclass(frozen=True, slots=True)
class SolveAnswered:
    """The planner answered an instruction `Solve`."""

    now: float
    gang: str
    generation: int
    decision: Decision
    trace_id: str = ""
    """The trace of the decision; "" if it was not traced."""
    waited_s: float = 0.0
    """How long the instruction waited before the planner began."""
    processor_s: float | None = None
    """Processor time that the planner used; None if unknown."""


@dataclass(frozen=True, slots=True)
class SolveFailed:
    """The planner failed (a defect) on an instruction `Solve`."""

    now: float
    gang: str
    generation: int
    error: str


@dataclass(frozen=True, slots=True)
class VictimsFound:
    """The answer to the instruction `FindVictims` of this number; None if none was found in time."""

    now: float
    number: int
    answer: Clearing | NoClearing | None


@dataclass(frozen=True, slots=True)
class WatchInterrupted:
    """The watch of this resource was interrupted. Changes are not seen until it resumes."""

    now: float
    resource: str


@dataclass(frozen=True, slots=True)
class WatchResumed:
    """The watch resumed where it was interrupted, or from a new list."""

    now: float
    resource: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: timers may have expired."""

    now: float


PeerChange = NamespaceSeen | VolumeClaimSeen | BudgetSeen | BudgetsUnread | CheckpointsSeen
"""Facts that concern pods only together with other pods."""
ClusterChange = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | PodGroupSeen
    | PodGroupGone
    | JobSeen
    | DeviceClaimSeen
    | PoliciesSeen
    | PeerChange
)
"""Objects of the cluster that were seen or are gone."""
Input = (
    ClusterChange
    | Synced
    | SessionOpened
    | SessionClosed
    | SolveAnswered
    | SolveFailed
    | VictimsFound
    | WatchInterrupted
    | WatchResumed
    | Tick
)
