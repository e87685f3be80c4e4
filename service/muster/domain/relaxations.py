"""What would help a gang that does not fit: each was tried before it is told.

Sentences are made from these in one place, `muster.domain.sentences`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoreFree:
    """`amount` more of the resource free; `nodes` says how much on each node."""

    resource: str
    amount: int
    nodes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Uncordon:
    """These cordoned nodes admit pods again. All of them are needed."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tolerate:
    """The role tolerates a taint, as key=value:effect; `nodes` that have it have room."""

    role: str
    taint: str
    nodes: int


@dataclass(frozen=True, slots=True)
class DropSelector:
    """The role goes without one selector term, or its node affinity; `nodes` more have room then."""

    role: str
    selector: str
    nodes: int


@dataclass(frozen=True, slots=True)
class WiderScope:
    """Another required scope, or none (""): then all of `members_needed` fit, in `part`. `role`: whose own
    scope it is, "" for the gang's."""

    scope: str
    wider: str
    part: str
    members_needed: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class SmallerSegments:
    """The role comes in segments of these sizes, widest first, or in none: ()."""

    role: str
    sizes: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ConstraintRelaxation:
    """Less of a constraint. These lie with the constraints; their text is a noun phrase, like all."""


@dataclass(frozen=True, slots=True)
class FewerMembers:
    """`min_member` members of the gang are enough to start."""

    min_member: int
    before: int


Relaxation = (
    MoreFree
    | Uncordon
    | Tolerate
    | DropSelector
    | WiderScope
    | SmallerSegments
    | ConstraintRelaxation
    | FewerMembers
)
