"""The shim's calls, and the coordinator's answers. `now` is in seconds of the inputs' clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class StaleError(Exception):
    """The call's epoch or generation is not the current one. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class PlanRef:
    """The plan that a call is about."""

    epoch: int
    gang: str
    generation: int


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One call of the shim, with the type of its answer."""

    now: float


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Candidate nodes of each member, the planned one first; or `reason` and no candidates.

    `devices` of each member: those that a DRA driver is to give it, in the order of its GPUs. A member with
    devices has no candidate but the planned node. `subrequests` of each member: by which of its claims'
    subrequests it gets them, from 1; 0 if they have none. `memory` of each member: GiB of each of its
    devices, 0 if it gets them whole; () if all members do.
    """

    candidates: tuple[tuple[str, ...], ...] = ()
    reason: str = ""
    devices: tuple[tuple[str, ...], ...] = ()
    subrequests: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()


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
    """Claim the plan for a member that landed on `node`. `member` is its index in the verdict's order."""

    plan: PlanRef
    member: int
    node: str


@dataclass(frozen=True, slots=True)
class PermitAnswer:
    """Whether the gang may bind; if not, the reason.

    `annotations` of each member's Binding, in the order of the verdict's members. `bind_within_s`: for how
    many seconds from now the places are held for members that are not seen bound.
    """

    allowed: bool
    reason: str = ""
    bind_within_s: float = 0.0
    annotations: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Permit(Call[PermitAnswer]):
    """Ask whether the gang may bind. `wall_ns`: wall-clock time in nanoseconds since the Unix epoch."""

    plan: PlanRef
    wall_ns: int


class BindingFate(StrEnum):
    """What became of the Binding of a member that was given back."""

    NEVER_SENT = "never-sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AgreeingGroup:
    """GPUs of a node with which other devices of the pods must agree, and those last for `max_pods` pods."""

    devices: frozenset[str]
    max_pods: int


@dataclass(frozen=True, slots=True)
class InTreeAnswer:
    """What the in-tree plugins answer for pods of one kind.

    `refused`: node → the plugin that refuses it, and its reason. `room`: node → how many of these pods it can
    hold together; others have no such limit. `everywhere`: the plugin and its reason if the pods are refused
    whatever the node, else "". `missing_claims` are PersistentVolumeClaims that do not exist,
    and `more_missing_claims` is how many more of them there are.

    `scores`: node → how much kube-scheduler prefers it (0 to 100), for pods that have preferences; 0 for
    others. Answers that differ only in scores are equal, because scores never make a gang fit.

    `devices`, for each subrequest of the pods: node → the GPUs that the pods may have, as driver/name, or
    driver/pool/name if the driver has GPUs in several pools of the node. On other nodes these are all that
    have no taint. It is () for pods that may have these on all nodes. `groups` has those of these GPUs that
    are enough for fewer pods than they could be by their number.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    room: Mapping[str, int] = field(default_factory=dict)
    everywhere: str = ""
    missing_claims: tuple[str, ...] = ()
    more_missing_claims: int = 0
    scores: Mapping[str, int] = field(default_factory=dict, compare=False)
    devices: tuple[Mapping[str, frozenset[str]], ...] = ()
    groups: tuple[Mapping[str, tuple[AgreeingGroup, ...]], ...] = ()

    def __hash__(self) -> int:
        by_node = (self.refused, self.room, *self.devices, *self.groups)
        return hash(
            (self.everywhere, self.missing_claims, *(frozenset(by_name.items()) for by_name in by_node))
        )


@dataclass(frozen=True, slots=True)
class InTreeReport(Call[None]):
    """Report what in-tree plugins answer: each answer has the indices of its pods in the question's order.

    A long report comes in parts, numbered from 0; `has_more`: others follow.
    """

    epoch: int
    gang: str
    question: int
    answers: tuple[tuple[tuple[int, ...], InTreeAnswer], ...]
    part: int = 0
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Unreserve(Call[None]):
    """Give back a member that will not go where it was planned.

    `member` is its index in the verdict's order, `uid` the pod's. `plugin` and `message` state which in-tree
    plugin refused `node` and why; "" if none did.
    """

    plan: PlanRef
    member: int
    node: str
    fate: BindingFate
    plugin: str = ""
    message: str = ""
    uid: str = ""
