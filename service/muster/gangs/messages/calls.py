"""The shim's calls, and the coordinator's answers. `now` is in seconds of the inputs' clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

CallAnswer = TypeVar("CallAnswer")


class StaleError(Exception):
    """The call's epoch or generation is not the current one. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class PlanRef:
    """The plan that a call is about."""

    epoch: int
    gang: str
    generation: int


@dataclass(frozen=True, slots=True)
class Call(Generic[CallAnswer]):
    """One call of the shim, with the type of its answer."""

    now: float


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Nodes and devices of each member, in the order of the verdict; or a reason and nothing else."""

    candidates: tuple[tuple[str, ...], ...] = ()
    """Nodes of each member, the planned node first. A member with devices has only the planned node."""
    reason: str = ""
    devices: tuple[tuple[str, ...], ...] = ()
    """Devices that a DRA driver must give each member, in the order of its GPUs."""
    subrequests: tuple[int, ...] = ()
    """Number of the subrequest, from 1, by which each member gets its devices; 0 without subrequests."""
    memory: tuple[int, ...] = ()
    """GiB of each device of each member, 0 for whole devices; () if all members have whole devices."""


@dataclass(frozen=True, slots=True)
class Filter(Call[FilterAnswer]):
    """Ask on which nodes each member may go, or why there are none."""

    plan: PlanRef


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """Scores from 0 to 100, in the shape of `FilterAnswer.candidates`."""

    scores: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Score(Call[ScoreAnswer]):
    """Ask for the scores of the nodes that Filter returned."""

    plan: PlanRef


@dataclass(frozen=True, slots=True)
class ReserveAnswer:
    """Whether the member may have the node; if not, the reason."""

    claimed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reserve(Call[ReserveAnswer]):
    """Claim the plan for a member that kube-scheduler put on `node`. `member` is its index in the verdict's
    order."""

    plan: PlanRef
    member: int
    node: str


@dataclass(frozen=True, slots=True)
class PermitAnswer:
    """Whether the gang may bind; if not, the reason."""

    allowed: bool
    reason: str = ""
    bind_within_s: float = 0.0
    """How long, from now, the places of members are held that are not seen bound."""
    annotations: tuple[dict[str, str], ...] = ()
    """Annotations of each member's Binding, in the order of the verdict's members."""


@dataclass(frozen=True, slots=True)
class Permit(Call[PermitAnswer]):
    """Ask whether the gang may bind. `wall_ns`: wall-clock time in nanoseconds since the Unix epoch."""

    plan: PlanRef
    wall_ns: int


class BindingFate(StrEnum):
    """The fate of the Binding of a member that was given back."""

    NEVER_SENT = "never-sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AgreeingGroup:
    """GPUs of a node with which other devices of the pods must agree."""

    devices: frozenset[str]
    max_pods: int
    """Number of pods for which these other devices are enough."""


@dataclass(frozen=True, slots=True)
class InTreeAnswer:
    """The answer of the in-tree plugins for pods of one kind.

    Answers that differ only in scores are equal, because scores never make a gang fit.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    """Node → the plugin that refuses it, and its reason."""
    room: Mapping[str, int] = field(default_factory=dict)
    """Node → how many of these pods it can hold together. A node that is not listed has no such limit."""
    everywhere: str = ""
    """The plugin that refuses the pods whatever the node, and its reason; "" if no plugin does."""
    missing_claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that do not exist."""
    more_missing_claims: int = 0
    """Number of further claims that do not exist."""
    scores: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Node → kube-scheduler's preference from 0 to 100, for pods that have preferences; else empty."""
    devices: tuple[Mapping[str, frozenset[str]], ...] = ()
    """For each subrequest of the pods: node → the GPUs that they may have; () if no node is listed.

    On a node that is not listed, pods may have all untainted GPUs. A GPU is driver/name, or driver/pool/name
    if the driver has GPUs in several pools of the node.
    """
    groups: tuple[Mapping[str, tuple[AgreeingGroup, ...]], ...] = ()
    """For each subrequest: node → groups of these GPUs. Only groups are listed whose other devices run out
    before their GPUs."""

    def __hash__(self) -> int:
        by_node = (self.refused, self.room, *self.devices, *self.groups)
        return hash(
            (self.everywhere, self.missing_claims, *(frozenset(by_name.items()) for by_name in by_node))
        )


@dataclass(frozen=True, slots=True)
class InTreeReport(Call[None]):
    """Report answers of in-tree plugins. Each answer has the indices of its pods in the question's order.

    A long report comes in parts, numbered from 0. `has_more`: further parts follow.
    """

    epoch: int
    gang: str
    question: int
    answers: tuple[tuple[tuple[int, ...], InTreeAnswer], ...]
    part: int = 0
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Unreserve(Call[None]):
    """Give back a member that will not go to its planned node.

    `member` is its index in the verdict's order, and `uid` the pod's UID. `plugin` and `message` say which
    in-tree plugin refused `node` and why; "" if no plugin did.
    """

    plan: PlanRef
    member: int
    node: str
    fate: BindingFate
    plugin: str = ""
    message: str = ""
    uid: str = ""
