"""What the planner answers: a placement with its proof, or the causes that forbid one."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.causes.not_planned import NotDecided, TookTooLong
from muster.domain.reasons import Cause
from muster.domain.relaxations import Relaxation
from muster.domain.request import GangId


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """Where one member goes. `gpus` are indices on the node, rising; empty for a cpu-only member. It takes
    them whole, or `units` of the memory of each where that is not zero."""

    uid: str
    name: str
    role: str
    node: str
    gpus: tuple[int, ...]
    units: int = 0


@dataclass(frozen=True, slots=True)
class Objective:
    """The value of each lexicographic level, best first: see docs/objective.md.

    `crossings`: (scope, parts touched), widest first. `weakest_link_gb_per_s`: None if no node holds two of
    the GPUs or no link is known.
    """

    preferred_reached: str | None
    role_preferences: tuple[tuple[str, str | None], ...]
    """(preference, the first of its scopes that holds its roles or None); () if no role has preferences."""
    crossings: tuple[tuple[str, int], ...]
    unusable_gpus: int | None
    """How many GPUs members without GPUs make unusable; None if every member has GPUs."""
    costs: tuple[tuple[str, int], ...]
    """What policies and slices count: (level, cost), the first one first; () if the gang has neither. NVLink
    domains are among `crossings`."""
    weakest_link_gb_per_s: float | None
    ring_gb_per_s: float
    socket_distance: int
    damage: int
    best_fit: int = 0
    preference_penalty: int | None = None
    """Σ over members of 100 − the score of their node; None if no role has scores."""


@dataclass(frozen=True, slots=True)
class Step:
    """Which method decided one level of the objective.

    `declined`: the methods that were asked before it, each with the reason why it does not apply.
    """

    level: str
    method: str
    declined: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan. `domain` is the narrowest part of the fabric that holds all members: "node dgx-07",
    "nvlink-domain dgx-07/0", "rack r1"; empty when none does.

    `optimal` says that every level is proven best. Otherwise `unproven` is the first level that is not, and
    `gap` bounds it (its value over its bound, as a share). `truncated`: wall clock cut the search short.

    `steps` say which method decided which level, in the order of the levels. `unknown_links` are the nodes
    with two or more of the gang's GPUs where no link between GPUs is known: their choice is arbitrary.
    `unknown_indices` are the nodes with GPUs of new members where other pods have GPUs and do not say which:
    the chosen ones may be among them."""

    gang: GangId
    members: tuple[MemberPlacement, ...]
    objective: Objective
    scope_reached: str | None
    domain: str
    optimal: bool
    gap: float | None = None
    unproven: str | None = None
    truncated: bool = False
    steps: tuple[Step, ...] = ()
    unknown_links: tuple[str, ...] = ()
    coming: int = 0
    """Members that come later, for which there is room as well. They are not in `members`."""
    unknown_indices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Nothing fits now; `causes` together forbid it, and none of them can be left out. Each one of
    `relaxations` was checked to help, the cheapest first.

    `contested`: where other pods have GPUs that the gang lacks, on nodes that admit it: those of the part of
    the fabric that nearly holds it; () if they are very many."""

    gang: GangId
    causes: tuple[Cause, ...]
    relaxations: tuple[Relaxation, ...] = ()
    contested: tuple[str, ...] = ()

    @property
    def truncated(self) -> bool:
        """Return whether time ended the search before it found a plan or a proof that there is none."""
        return any(
            isinstance(cause, TookTooLong) or (isinstance(cause, NotDecided) and cause.truncated)
            for cause in self.causes
        )


@dataclass(frozen=True, slots=True)
class Invalid:
    """The pods are ill-formed: no cluster could place them as they are."""

    gang: GangId
    causes: tuple[Cause, ...]


Decision = Placed | Unplaceable
