"""The planner's answer: a placement with its proof, or the causes that forbid a placement, and changes that
would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.domain.causes.not_planned import NotDecided, TookTooLong
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import GangId
from muster.domain.words import counted_noun, for_role, list_names, number, plural

if TYPE_CHECKING:  # a clearing has a plan
    from muster.domain.clearing import Clearing, NoClearing

_LISTED_NODES = 3


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """The place of one member.

    `gpus` are indices on the node in rising order; empty for a cpu-only member. The member takes the GPUs
    whole, or, if `units` is not 0, this many units of the memory of each GPU.
    """

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
    """(preference, the first of its scopes that holds its roles, or None if no scope does); () if no role has
    preferences."""
    crossings: tuple[tuple[str, int], ...]
    unusable_gpus: int | None
    """How many GPUs members without GPUs make unusable; None if every member has GPUs."""
    costs: tuple[tuple[str, int], ...]
    """The costs by policies and slices: (level, cost), the most important level first; () if the gang has
    neither. NVLink domains are among `crossings`."""
    weakest_link_gb_per_s: float | None
    ring_gb_per_s: float
    socket_distance: int
    damage: int
    best_fit: int = 0
    preference_penalty: int | None = None
    """Sum over members of 100 − the score of the member's node; None if no role has scores."""
    rails: int | None = None
    """The number of network rails of the GPUs, for a gang on several nodes; None if no rail is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """The method that decided one level of the objective. `declined`: (method, reason) of earlier methods
    that do not apply."""

    level: str
    method: str
    declined: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan.

    `domain` is the narrowest part of the fabric that holds all members ("node dgx-07", "nvlink-domain
    dgx-07/0", "rack r1"); empty if no part does.

    If `optimal`, every level is proven best. Otherwise `unproven` is the first level without a proof. `gap`
    bounds its error, as a share: how far its value is above its bound. `truncated`: wall clock cut the search
    short. `steps` name the method of each level, in the order of the levels.

    `unknown_links` are nodes on which the gang has several GPUs, and no link between GPUs is known: the
    choice of GPUs there is arbitrary. `unknown_indices` are nodes on which other pods have GPUs with unknown
    indices: the chosen GPUs may be among these.
    """

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
    """Number of members that come later. The plan leaves room for them, and they are not in `members`."""
    unknown_indices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """No plan exists now. `causes` together forbid each plan, and no cause can be left out.

    `relaxations` are changes that were checked to help, the cheapest first.

    `contested`: nodes that admit the gang and on which other pods hold the GPUs that it lacks. If one part of
    the fabric nearly holds the gang, only nodes of this part. () if there are too many nodes.

    `clearing`: the cheapest victims that would make room, or why there are none. None if this was not asked.
    """

    gang: GangId
    causes: tuple[Cause, ...]
    relaxations: tuple[Relaxation, ...] = ()
    contested: tuple[str, ...] = ()
    clearing: Clearing | NoClearing | None = None

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
    """`amount` more of the resource becomes free; `nodes` has the amount of each node."""

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
    """These cordoned nodes admit pods again. The gang needs all of these nodes."""

    nodes: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.nodes) > _LISTED_NODES:
            return f"to uncordon {len(self.nodes)} nodes: {list_names(self.nodes)}"
        return f"to uncordon {plural('node', len(self.nodes))} {' and '.join(self.nodes)}"


@dataclass(frozen=True, slots=True)
class Tolerate(Relaxation):
    """The role tolerates a taint, given as key=value:effect. `nodes` with this taint have room."""

    role: str
    taint: str
    nodes: int

    def __str__(self) -> str:
        return f"a toleration of taint {self.taint}{for_role(self.role)} ({_more_nodes(self.nodes)})"


@dataclass(frozen=True, slots=True)
class DropSelector(Relaxation):
    """The role drops one selector term, or its node affinity. Then `nodes` more nodes have room."""

    role: str
    selector: str
    nodes: int

    def __str__(self) -> str:
        return f"no {self.selector}{for_role(self.role)} ({_more_nodes(self.nodes)})"


@dataclass(frozen=True, slots=True)
class WiderScope(Relaxation):
    """The required scope becomes another scope, or none (""). Then all `members_needed` members fit, in
    `part`.

    `role` is the role that has the scope; "" for the gang's scope.
    """

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
    """The role has segments of these sizes, the widest first; () for no segments."""

    role: str
    sizes: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        if not self.sizes:
            return f"no segments{for_role(self.role)}"
        sizes = ", each of ".join(f"{size} in one {scope}" for size, scope in self.sizes)
        return f"segments of {sizes}{for_role(self.role)}"


@dataclass(frozen=True, slots=True)
class FewerMembers(Relaxation):
    """The gang starts with `min_member` members."""

    min_member: int
    before: int

    def __str__(self) -> str:
        return f"to start with {counted_noun('member', self.min_member)} instead of {self.before}"


def _more_nodes(count: int) -> str:
    return f"{count} more {plural('node', count)}"


def _unit(resource: str, amount: int) -> str:
    return plural("GPU", amount) if "/" in resource else resource
