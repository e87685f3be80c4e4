"""Instructions to the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.clearing import ClearQuestion
from muster.domain.podgroup import OURS, GroupStatus
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot


class Lane(StrEnum):
    """The two planners: each decides about one gang at a time."""

    FOREGROUND = "foreground"
    """This planner has a short time for each gang. Slower gangs go to the background planner."""
    BACKGROUND = "background"
    """This planner has the full time limit."""


@dataclass(frozen=True, slots=True)
class Solve:
    """Place `request` on `snapshot`.

    The answer is `inputs.SolveAnswered` of this generation, or `SolveFailed`.
    """

    gang: str
    generation: int
    request: Request
    snapshot: Snapshot
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Role → node → the in-tree plugin that refused the pair, for `placement.limits.Limits`."""
    lane: Lane = Lane.FOREGROUND
    """The planner that decides."""
    reserves: bool = False
    """Whether the answer becomes the gang's backfill reservation, and no plan."""


@dataclass(frozen=True, slots=True)
class EndSolve:
    """End the background decision about this gang, because other gangs wait. The planner still answers the
    `Solve`."""

    gang: str
    generation: int


@dataclass(frozen=True, slots=True)
class FindVictims:
    """Find the cheapest victims with whose end a gang fits.

    The answer is `inputs.VictimsFound` of this number.
    """

    gang: str
    number: int
    request: ClearQuestion
    snapshot: Snapshot
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """As in `Solve`."""


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
    """Ask the shim which nodes the in-tree plugins refuse to these pods, (name, UID) each.

    A question about no pods takes back the gang's last question.
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

    An event is never retried. `kind` is Pod, the kind of a group or a controller, ConfigMap, or Node. A node
    has no namespace: its events go to `default` with its name as UID, like the kubelet's events.
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
    """Write the status of a PodGroup object. A later instruction replaces a waiting one.

    `generation` is the generation of the object's spec that the status is about.
    """

    namespace: str
    name: str
    uid: str
    status: GroupStatus
    api_version: str = OURS
    generation: int = 0


@dataclass(frozen=True, slots=True)
class ShowWaiting:
    """Set a condition on these pods, (name, UID) each, that says why their gang waits.

    Without `reason`, the condition says that the gang waits for no member any more. Without `renew`, pods
    with such a condition are not changed.
    """

    namespace: str
    pods: tuple[tuple[str, str], ...]
    reason: str = ""
    message: str = ""
    renew: bool = True


@dataclass(frozen=True, slots=True)
class Moved:
    """Note that a gang has entered `phase` at the time `moved_at` of the inputs' clock, for traces.

    `why` is the trigger. `link` is the traceparent of the first member that has a traceparent; else "".
    """

    moved_at: float
    gang: str
    name: str
    namespace: str
    phase: str
    why: str
    link: str = ""


Instruction = (
    Solve
    | EndSolve
    | FindVictims
    | PushVerdict
    | AskInTree
    | EmitEvent
    | Evict
    | WriteStatus
    | ShowWaiting
    | Moved
)
