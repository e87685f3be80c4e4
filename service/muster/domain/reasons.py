"""Why a gang waits, does not fit or is ill-formed: typed causes with numbers in them.

Sentences are made from these in one place, `muster.domain.sentences`.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- ill-formed: the pods contradict themselves or each other ---------------------------------------


@dataclass(frozen=True, slots=True)
class BadValue:
    """A label, annotation or field that can't be read. `where` is the object, as kind/namespace/name."""

    where: str
    field: str
    value: str
    expected: str


@dataclass(frozen=True, slots=True)
class MembersDisagree:
    """Pods of one gang give a field different values."""

    field: str
    values: tuple[tuple[str, str], ...]
    """(value, the name of one pod that has it)."""


@dataclass(frozen=True, slots=True)
class TooManyMembers:
    live: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ForgedAllocation:
    """A pod came with an annotation that only the scheduler may write."""

    pod: str
    key: str


@dataclass(frozen=True, slots=True)
class DialectsDisagree:
    """One pod speaks two dialects that name different gangs or counts."""

    pod: str
    first: str
    second: str


# --- waiting: not complete yet -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MembersMissing:
    present: int
    needed: int


# --- unplaceable: complete, and nothing fits ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberTooLarge:
    """One member asks for more than any node that admits it has, even empty."""

    role: str
    resource: str
    needed: int
    largest_node: str
    largest: int


@dataclass(frozen=True, slots=True)
class NotEnoughFree:
    """The nodes that admit the role can't host all its members now, taken together.

    `members_fit` of `members_needed` fit; `free` and `needed` count the resource that is short.
    """

    role: str
    resource: str
    free: int
    needed: int
    members_fit: int
    members_needed: int


@dataclass(frozen=True, slots=True)
class DomainTooSmall:
    """No part of the required scope holds all; the best one holds `members_fit`."""

    scope: str
    best: str
    members_fit: int
    members_needed: int
    has_nvlink: bool = True
    """False when the scope is an nvlink-domain and the best part is a GPU without NVLink."""


@dataclass(frozen=True, slots=True)
class NodesExcluded:
    """Nodes that would have had room but do not admit the role. `by` is a selector term, a taint,
    "cordoned", "not ready" or the plugin that refused them."""

    role: str
    by: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NotDecided:
    """The search ended before it found a plan or a proof that there is none. `truncated`: by wall clock."""

    truncated: bool


Cause = (
    BadValue
    | MembersDisagree
    | TooManyMembers
    | ForgedAllocation
    | DialectsDisagree
    | MembersMissing
    | MemberTooLarge
    | NotEnoughFree
    | DomainTooSmall
    | NodesExcluded
    | NotDecided
)
