"""The shim's four calls and Unreserve, as the coordinator answers them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StaleError(Exception):
    """The call's epoch or generation is not the current one: nothing was changed."""


@dataclass(frozen=True, slots=True)
class PlanRef:
    epoch: int
    gang: str
    generation: int


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Candidate nodes of each member, the planned one first; or `reason` and no candidates."""

    candidates: tuple[tuple[str, ...], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """Scores from 0 to 100, of the shape of `FilterAnswer.candidates`."""

    scores: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ReserveAnswer:
    claimed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PermitAnswer:
    """`annotations` of each member's Binding, in the order of the verdict's members. `bind_within_s`: how
    long from now the members' places are kept without their being seen bound."""

    allowed: bool
    reason: str = ""
    bind_within_s: float = 0.0
    annotations: tuple[dict[str, str], ...] = ()


class BindingFate(StrEnum):
    NEVER_SENT = "never-sent"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GivenBack:
    """One Unreserve: `member` is an index in the verdict's order, `uid` the pod's; `plugin` and `message` say
    which in-tree plugin refused `node`, "" where none did."""

    member: int
    node: str
    fate: BindingFate
    plugin: str = ""
    message: str = ""
    uid: str = ""
