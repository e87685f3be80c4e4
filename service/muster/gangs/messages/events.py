"""What happens to gangs. Every event says when (`now`, seconds of a monotonic clock)."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.decision import Decision
from muster.domain.node import Node, Usage
from muster.domain.peers import Labels
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import Policies


@dataclass(frozen=True, slots=True)
class NodeSeen:
    now: float
    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    now: float
    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    now: float
    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    now: float
    uid: str


@dataclass(frozen=True, slots=True)
class PodGroupSeen:
    now: float
    group: PodGroup


@dataclass(frozen=True, slots=True)
class PodGroupGone:
    now: float
    key: PodGroupKey


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """The labels that a namespace has now: terms of pod affinity select namespaces by them."""

    now: float
    name: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class NamespaceGone:
    now: float
    name: str


@dataclass(frozen=True, slots=True)
class VolumeClaimSeen:
    """Whether a PersistentVolumeClaim is of a volume that attaches to one node alone; False if it is gone."""

    now: float
    namespace: str
    name: str
    attaches_once: bool


@dataclass(frozen=True, slots=True)
class PoliciesSeen:
    """The policies and levels that hold from now on."""

    now: float
    policies: Policies


@dataclass(frozen=True, slots=True)
class Synced:
    """All that existed has been seen once: planning may begin."""

    now: float


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A shim connected; every plan of the epoch before is void. `in_flight` are its Bindings whose fate is
    not known yet. `answers_in_tree`: it answers questions about in-tree plugins."""

    now: float
    epoch: int
    in_flight: tuple[Usage, ...] = ()
    answers_in_tree: bool = False


@dataclass(frozen=True, slots=True)
class SessionClosed:
    now: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The planner answered an instruction `Solve`. `trace_id`: of the trace that shows how, "" for none.
    `waited_s`: how long the gang waited, in seconds, before the planner began."""

    now: float
    gang: str
    generation: int
    decision: Decision
    trace_id: str = ""
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SolveFailed:
    """The planner failed (a defect) on an instruction `Solve`: the gang waits for the next change."""

    now: float
    gang: str
    generation: int
    error: str


@dataclass(frozen=True, slots=True)
class WatchInterrupted:
    """The watch of this resource broke off: what happens now is not seen."""

    now: float
    resource: str


@dataclass(frozen=True, slots=True)
class WatchResumed:
    """It goes on, from where it broke off or from a new list."""

    now: float
    resource: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: deadlines are looked at."""

    now: float


Event = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | PodGroupSeen
    | PodGroupGone
    | NamespaceSeen
    | NamespaceGone
    | VolumeClaimSeen
    | PoliciesSeen
    | Synced
    | SessionOpened
    | SessionClosed
    | Decided
    | SolveFailed
    | WatchInterrupted
    | WatchResumed
    | Tick
)
