"""The planner's answer: a placement with its proof, or the causes that forbid a placement, and changes that
would help."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.causes.not_planned import NotDecided, TookTooLong
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import GangId
from muster.domain.words import counted_noun, for_role, listed, number, plural

_LISTED_NODES = 3


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
    rails: int | None = None
    """On how many network rails the GPUs of a gang on several nodes lie; None if no rail is known."""


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


@dataclass(frozen=True, slots=True)
class MoreFree(Relaxation):
    """`amount` more of the resource free; `nodes` says how much on each node."""

    resource: str
    amount: int
    nodes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        resource, nodes = self.resource, self.nodes
        if len(nodes) > _LISTED_NODES:
            least_freed, most_freed = (pick(freed for _, freed in nodes) for pick in (min, max))
            share = number(resource, least_freed) + (
                f" to {number(resource, most_freed)}" if most_freed > least_freed else ""
            )
            free = f"{number(resource, self.amount)} more free {_unit(resource, self.amount)} in all"
            return f"{free}, {share} on each of {len(nodes)} nodes"
        (node, amount), *more_nodes = nodes
        first = f"{number(resource, amount)} more free {_unit(resource, amount)} on {node}"
        return " and ".join([first, *(f"{number(resource, free)} on {name}" for name, free in more_nodes)])


@dataclass(frozen=True, slots=True)
class Uncordon(Relaxation):
    """These cordoned nodes admit pods again. All of them are needed."""

    nodes: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.nodes) > _LISTED_NODES:
            return f"to uncordon {len(self.nodes)} nodes: {listed(self.nodes)}"
        return f"to uncordon {plural('node', len(self.nodes))} {' and '.join(self.nodes)}"


@dataclass(frozen=True, slots=True)
class Tolerate(Relaxation):
    """The role tolerates a taint, as key=value:effect; `nodes` that have it have room."""

    role: str
    taint: str
    nodes: int

    def __str__(self) -> str:
        return f"a toleration of taint {self.taint}{for_role(self.role)} ({_more_nodes(self.nodes)})"


@dataclass(frozen=True, slots=True)
class DropSelector(Relaxation):
    """The role goes without one selector term, or its node affinity; `nodes` more have room then."""

    role: str
    selector: str
    nodes: int

    def __str__(self) -> str:
        return f"no {self.selector}{for_role(self.role)} ({_more_nodes(self.nodes)})"


@dataclass(frozen=True, slots=True)
class WiderScope(Relaxation):
    """Another required scope, or none (""): then all of `members_needed` fit, in `part`. `role`: whose own
    scope it is, "" for the gang's."""

    scope: str
    wider: str
    part: str
    members_needed: int
    role: str = ""

    def __str__(self) -> str:
        new = f"scope {self.wider}" if self.wider else "no required scope"
        place, members = f" in {self.part}" if self.part else "", self.members_needed
        return f"{new} instead of {self.scope}{for_role(self.role)} ({members} of {members} fit{place})"


@dataclass(frozen=True, slots=True)
class SmallerSegments(Relaxation):
    """The role comes in segments of these sizes, widest first, or in none: ()."""

    role: str
    sizes: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        if not self.sizes:
            return f"no segments{for_role(self.role)}"
        sizes = ", each of ".join(f"{size} in one {scope}" for size, scope in self.sizes)
        return f"segments of {sizes}{for_role(self.role)}"


@dataclass(frozen=True, slots=True)
class FewerMembers(Relaxation):
    """`min_member` members of the gang are enough to start."""

    min_member: int
    before: int

    def __str__(self) -> str:
        return f"to start with {counted_noun('member', self.min_member)} instead of {self.before}"


def _more_nodes(count: int) -> str:
    return f"{count} more {plural('node', count)}"


def _unit(resource: str, amount: int) -> str:
    return plural("GPU", amount) if "/" in resource else resource
