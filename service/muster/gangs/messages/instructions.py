"""Instructions to the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.podgroup import PodGroupStatus
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot


class Lane(StrEnum):
    """The two planners: each decides about one gang at a time."""

    FOREGROUND = "foreground"
    """Has a short time for each gang. What it can't decide in that time goes to the other one."""
    BACKGROUND = "background"
    """Has the full time limit."""


@dataclass(frozen=True, slots=True)
class Solve:
    """Place `request` on `snapshot`. Answer with `inputs.Decided` of this generation, or with `SolveFailed`.

    `excluded`: role → node → the in-tree plugin that refused the pair, for `placement.limits.Limits`.
    `lane`: which planner decides. `reserves`: the answer is no plan; it says where the gang's backfill
    reservation would lie.
    """

    gang: str
    generation: int
    request: Request
    snapshot: Snapshot
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lane: Lane = Lane.FOREGROUND
    reserves: bool = False


@dataclass(frozen=True, slots=True)
class EndSolve:
    """End the background decision about this gang if it is still being made, because others wait. It is
    answered as usual."""

    gang: str
    generation: int


class Outcome(StrEnum):
    """The outcomes of a verdict in the protocol."""

    PLANNED = "planned"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class PushVerdict:
    """Send a verdict to the shim. Members are (pod name, UID), in the order of the protocol's indices."""

    gang: str
    generation: int
    outcome: Outcome
    namespace: str
    members: tuple[tuple[str, str], ...]
    required: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskInTree:
    """Ask the shim which nodes the in-tree plugins refuse to these pods; (name, UID) each.

    A question about no pods takes the gang's last one back.
    """

    gang: str
    question: int
    namespace: str
    pods: tuple[tuple[str, str], ...]


class EventReason(StrEnum):
    """Reasons of the Kubernetes events that users see."""

    WAITING = "TopologyWaiting"
    PLACED = "TopologyPlaced"
    UNPLACEABLE = "TopologyUnplaceable"
    WITHDRAWN = "TopologyWithdrawn"
    INVALID = "TopologyInvalid"
    NO_GANG = "TopologyNoGang"
    COUNTS_DIFFER = "TopologyCountsDiffer"
    JOB_GONE = "TopologyJobGone"
    KEY_IGNORED = "TopologyKeyIgnored"
    DEVICES_DIFFER = "TopologyDevicesDiffer"


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Post one Kubernetes event on each of these objects: (name, UID).

    One is posted for each change of state, and never retried. `kind` is Pod, PodGroup, the kind of a
    controller, ConfigMap, or Node. A node has no namespace: its events go to `default` with its name as UID,
    as the kubelet does.
    """

    namespace: str
    objects: tuple[tuple[str, str], ...]
    reason: EventReason
    message: str
    kind: str = "Pod"
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict these pods, (name, UID) each. The instruction is repeated while they are there."""

    namespace: str
    pods: tuple[tuple[str, str], ...]
    why: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status of a PodGroup object. A later one replaces it: only the last counts."""

    namespace: str
    name: str
    uid: str
    status: PodGroupStatus


@dataclass(frozen=True, slots=True)
class ShowWaiting:
    """Let the condition of these pods, (name, UID) each, say what their gang waits for.

    Without `reason`, it waits for no member any more. Without `renew`, pods that say something already are
    left alone.
    """

    namespace: str
    pods: tuple[tuple[str, str], ...]
    reason: str = ""
    message: str = ""
    renew: bool = True


@dataclass(frozen=True, slots=True)
class Moved:
    """Note that a gang has entered `phase` at the time `moved_at` of the inputs' clock, for traces.

    `why` is the trigger. `link`: what its first member with a traceparent says, "" if none does.
    """

    moved_at: float
    gang: str
    name: str
    namespace: str
    phase: str
    why: str
    link: str = ""


Instruction = (
    Solve | EndSolve | PushVerdict | AskInTree | EmitEvent | Evict | WriteStatus | ShowWaiting | Moved
)
