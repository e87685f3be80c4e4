"""List the levels of the objective, one row for each: how it is bounded, counted and shown.

`OBJECTIVE` is the list. The search decides its levels, `evaluate` counts their values, and alternatives
compare the values. JSON, reports and the table of docs/objective.md are made from the list too. In the search
each level is a cost to make small, in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.domain.alternatives import SCOPE_NOUNS, Value
from muster.domain.decision import Objective
from muster.domain.request import Scope
from muster.domain.words import counted_noun
from muster.placement.gpus.costs import Cost
from muster.placement.gpus.links import MB_PER_GB, NO_LINK
from muster.placement.limits import asks_gpus
from muster.placement.model.problem import FREE, Ints, Patterns, Problem, Use

if TYPE_CHECKING:  # evaluate imports this module
    from muster.placement.evaluate import EvaluatedPlan

WIDE = Scope.NVLINK_DOMAIN.value
"""In `Problem.parts`: the NVLink domains that labels name, which may span nodes."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its cost is the sum of `sign` × a field of the patterns taken, plus the parts of `scope`
    touched.

    Only members with GPUs touch NVLink domains, and parts of `Problem.gpu_only_scopes`. If `worst` is true,
    the largest value counts in place of the sum.
    """

    name: str
    field: str = ""
    sign: int = 1
    scope: str | None = None
    worst: bool = False

    def cost(self, patterns: Patterns) -> Ints:
        """Return [kind, pattern] the cost without the parts touched."""
        if not self.field:
            return np.zeros_like(patterns.nodes)
        return np.asarray(self.sign * patterns.values(self.field))

    def touches(self, problem: Problem) -> Ints:
        """Return [kind, pattern] 1 if taking the pattern touches the node's part of `scope`, else 0."""
        patterns, with_gpus = problem.patterns, self.scope == WIDE or self.scope in problem.gpu_only_scopes
        return np.asarray(patterns.gpus > 0 if with_gpus else patterns.valid, np.int64)

    def value(self, problem: Problem, use: Use) -> int:
        """Return the cost of a solution."""
        cost, touches = self.cost(problem.patterns), self.touches(problem)
        total, parts = 0, set()
        if self.worst:
            return max((int(cost[problem.kind[c], p]) for c, p in use), default=0)
        part = problem.part(self.scope) if self.scope else None
        for (c, p), nodes in use.items():
            kind = problem.kind[c]
            total += int(cost[kind, p]) * nodes
            if part is not None and part[c] != FREE and touches[kind, p]:
                parts.add(int(part[c]))
        return total + len(parts)


def parts_level(scope: str) -> Level:
    """Return the level that counts the touched parts of a scope above the node."""
    return Level(scope, scope=scope)


MEMBERS = Level("members", sign=-1)
PREFERRED_SCOPE = Level("preferred_scope")
ROLE_PREFERENCES = Level("role_preferences")
NODES = Level("nodes", "nodes")
UNUSABLE = Level("unusable_gpus", "unusable")
NVLINK_DOMAINS = Level(Cost.NVLINK_DOMAINS.value, "domains", scope=WIDE)
WEAKEST_LINK = Level("weakest_link", "weakest", -1, worst=True)
RING = Level("ring", "ring", -1)
SOCKETS = Level("sockets", "sockets")
DAMAGE = Level("damage", "damage")
BEST_FIT = Level("best_fit", "best_fit")
RAILS = "rails"

POLICY_LEVELS = {
    cost: NVLINK_DOMAINS if cost is Cost.NVLINK_DOMAINS else Level(cost.value, cost.value) for cost in Cost
}
"""The levels of policies and slices, and of NVLink domains: all levels between nodes and links."""

SUMMED_LEVELS = {
    level.name: level for level in (NODES, UNUSABLE, *POLICY_LEVELS.values(), RING, SOCKETS, DAMAGE, BEST_FIT)
}
"""The levels, by name, that are the sum of a field of the patterns."""


class WithoutGpus(Enum):
    """Whether a gang has members without GPUs."""

    NO_MEMBER = auto()
    SOME_MEMBERS = auto()
    """Other members have GPUs. Members without GPUs then do not count as touching a part."""
    ALL_MEMBERS = auto()


@dataclass(frozen=True, slots=True)
class Worth:
    """One level of a plan, to be compared with the same level of another plan: a cost (less is better), and a
    value to show.

    The value is a number of `noun`s, or an amount in `unit`s.
    """

    level: str
    cost: float
    value: Value
    noun: str = ""
    unit: str = ""

    def instead_of(self, better: Worth) -> str:
        """Return "2 racks instead of 1", "best fit 12 instead of 4"."""
        if self.noun:
            return f"{counted_noun(self.noun, int(self.cost))} instead of {better.value}"
        name, unit = self.level.replace("_", " "), self.unit
        return f"{name} {_in_words(self.value)}{unit} instead of {_in_words(better.value)}{unit}"


def _in_words(value: Value) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


LevelsOfRow = Callable[[Sequence[str], Sequence[Cost], WithoutGpus], tuple[Level, ...]]
"""Return the levels of a row from the counted scopes (widest first), the costs of the gang, and whether it
has members without GPUs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRow:
    """One row of OBJECTIVE: one level, or several levels that are counted alike.

    `number`, `title`, `better` and `field` are a row of the table in docs/objective.md.
    """

    number: str
    title: str
    better: str
    """Which value is better: "fewer", "more GB/s"."""
    field: str
    """Where a decision has the value: a field of `domain.decision.Objective`, or `members` of the plan."""
    in_decision: bool = True
    """Whether the value comes from this row. If a level has two rows, it comes from only one of them."""
    levels: LevelsOfRow
    """The levels that the search decides."""
    count: Callable[[EvaluatedPlan], Any]
    """Return the value of a plan."""
    worths: Callable[[EvaluatedPlan, Any], Iterator[Worth]] | None = None
    """Yield the values of a plan that alternatives compare: by default what `count` returns."""
    key: str = ""
    """The name of the value in JSON, if it is not `field`."""
    unit: str = ""
    is_counted: bool = False
    """Whether the row counts members or parts. The levels of the other rows are the quality levels, which are
    decided after the nodes.
    """
    optional: bool = False
    """Whether the value is left out if it is None or (), because the gang does not have the level."""

    def worths_of(self, plan: EvaluatedPlan, value: Any) -> Iterator[Worth]:
        """Yield what alternatives compare of a plan that has this value."""
        if self.worths is not None:
            yield from self.worths(plan, value)
            return
        level = next(iter(self.levels((), (), WithoutGpus.NO_MEMBER)), Level(self.field))
        yield Worth(level.name, level.sign * (value or 0), value, unit=self.unit)


def _one_level(level: Level) -> LevelsOfRow:
    return lambda scopes, costs, without_gpus: (level,)


def _preferred_scope(plan: EvaluatedPlan) -> str | None:
    return next((scope for scope in plan.request.preferred_scopes if plan.parts.common_parts(scope)), None)


def _preferred_worth(plan: EvaluatedPlan, reached: str | None) -> Iterator[Worth]:
    yield Worth(PREFERRED_SCOPE.name, _rank_among(plan.request.preferred_scopes, reached), reached)


def _role_worths(plan: EvaluatedPlan, preferences: Sequence[tuple[str, str | None]]) -> Iterator[Worth]:
    for (name, reached), preference in zip(preferences, plan.request.role_preferences, strict=True):
        yield Worth(f"preference of {name}", _rank_among(preference.scopes, reached), reached)


def _rank_among(scopes: Sequence[str], reached: str | None) -> int:
    return scopes.index(reached) if reached in scopes else len(scopes)


def _unusable_row(*, before_parts: bool) -> LevelRow:
    """Return one of the two rows of the level of unusable GPUs. A gang has the level at one of two places.

    A gang without GPUs has the level before the parts: it takes more nodes rather than make GPUs unusable. A
    gang with GPUs has the level after the nodes, because the level must not put members with GPUs further
    apart. The row after the nodes writes the value of all gangs into the decision.
    """
    which = WithoutGpus.ALL_MEMBERS if before_parts else WithoutGpus.SOME_MEMBERS

    def worths(plan: EvaluatedPlan, unusable: int | None) -> Iterator[Worth]:
        if unusable is not None and asks_gpus(plan.request) != before_parts:
            yield Worth(UNUSABLE.name, unusable, unusable, noun="unusable GPU")

    return LevelRow(
        number="2⁺",
        title="GPUs that [members without GPUs](#members-without-gpus) make unusable",
        better="fewer",
        field="unusable_gpus",
        in_decision=not before_parts,
        levels=lambda scopes, costs, without_gpus: (UNUSABLE,) if without_gpus is which else (),
        count=lambda plan: plan.unusable_gpus(),
        worths=worths,
        is_counted=before_parts,
        optional=True,
    )


def _parts_worths(plan: EvaluatedPlan, crossings: Sequence[tuple[str, int]]) -> Iterator[Worth]:
    return (_parts_worth(scope, parts) for scope, parts in crossings if scope != WIDE)


def _parts_worth(scope: str, parts: int) -> Worth:
    return Worth(f"crossings {scope}", parts, parts, noun=SCOPE_NOUNS.get(scope, scope))


def _cost_worths(plan: EvaluatedPlan, costs: Sequence[tuple[str, int]]) -> Iterator[Worth]:
    totals, domains = dict(costs), dict(plan.crossings).get(WIDE)
    for cost in plan.policy_costs or (Cost.NVLINK_DOMAINS,):
        if cost is not Cost.NVLINK_DOMAINS:
            yield Worth(cost.value, totals[cost.value], totals[cost.value])
        elif domains is not None:
            yield _parts_worth(WIDE, domains)


def _weakest_link(plan: EvaluatedPlan) -> float | None:
    slowest = _slowest_link(plan)
    return None if slowest in (0, NO_LINK) else slowest / MB_PER_GB


def _slowest_link(plan: EvaluatedPlan) -> int:
    """Return the slowest link in MB/s, 0 if a link is unknown, NO_LINK if no node holds two of the GPUs."""
    return min((gpus.weakest for gpus, _ in plan.gpu_sets), default=NO_LINK)


def _weakest_worth(plan: EvaluatedPlan, weakest: float | None) -> Iterator[Worth]:
    slowest = _slowest_link(plan)
    cost = -math.inf if slowest == NO_LINK else -slowest / MB_PER_GB
    yield Worth(WEAKEST_LINK.name, cost, weakest, unit=" GB/s")


def _score_penalty(plan: EvaluatedPlan) -> int | None:
    scores = {role.name: role.scores for role in plan.request.roles if role.members}
    if not any(scores.values()):
        return None
    return sum(100 - max(0, min(100, scores[member.role].get(member.node, 0))) for member in plan.members)


OBJECTIVE = (
    LevelRow(
        number="0",
        title="members placed",
        better="more",
        field="members",
        levels=_one_level(MEMBERS),
        count=lambda plan: len(plan.members),
        is_counted=True,
    ),
    LevelRow(
        number="1",
        title="preferred scopes of the gang, tried in the order given",
        better="the first that can hold",
        field="preferred_reached",
        levels=_one_level(PREFERRED_SCOPE),
        count=_preferred_scope,
        worths=_preferred_worth,
        is_counted=True,
    ),
    LevelRow(
        number="1a",
        title="preferred scopes of roles, the earlier preferences first",
        better="for each the first that can hold",
        field="role_preferences",
        levels=_one_level(ROLE_PREFERENCES),
        count=lambda plan: plan.role_preferences(),
        worths=_role_worths,
        is_counted=True,
        optional=True,
    ),
    _unusable_row(before_parts=True),
    LevelRow(
        number="2",
        title="parts crossed: zones, then racks, then nodes, then NVLink domains",
        better="fewer",
        field="crossings",
        levels=lambda scopes, costs, without_gpus: (*map(parts_level, scopes), NODES),
        count=lambda plan: plan.crossings,
        worths=_parts_worths,
        is_counted=True,
    ),
    _unusable_row(before_parts=False),
    LevelRow(
        number="2a",
        title="of gangs with [slices](#slices): GPUs that slices open, then GPUs that they touch",
        better="fewer; on nodes that spread, more",
        field="costs",
        levels=lambda scopes, costs, without_gpus: tuple(
            POLICY_LEVELS[cost] for cost in costs or (Cost.NVLINK_DOMAINS,)
        ),
        count=lambda plan: plan.cost_totals(),
        worths=_cost_worths,
        optional=True,
    ),
    LevelRow(
        number="3a",
        title="the weakest link on the best [rings](#rings), one ring for each touched node",
        better="more GB/s",
        field="weakest_link_gb_per_s",
        levels=_one_level(WEAKEST_LINK),
        count=_weakest_link,
        worths=_weakest_worth,
    ),
    LevelRow(
        number="3b",
        title="the sum of the links on those rings",
        better="more GB/s",
        field="ring_gb_per_s",
        levels=_one_level(RING),
        count=lambda plan: sum(nodes * gpus.ring for gpus, nodes in plan.gpu_sets) / MB_PER_GB,
        unit=" GB/s",
    ),
    LevelRow(
        number="3c",
        title="[socket distance](#sockets): how far apart CPU sockets and PCIe switches put the gang's GPUs",
        better="less",
        field="socket_distance",
        levels=_one_level(SOCKETS),
        count=lambda plan: sum(nodes * gpus.sockets for gpus, nodes in plan.gpu_sets),
    ),
    LevelRow(
        number="4a",
        title="[damage](#damage): how many free GPUs typical requests can no longer use",
        better="less",
        field="damage",
        levels=_one_level(DAMAGE),
        count=lambda plan: plan.damage(),
        key="damage_gpu_thousandths",
    ),
    LevelRow(
        number="4b",
        title="[best fit](#best-fit): what stays free on the touched nodes, and which nodes are opened",
        better="less",
        field="best_fit",
        levels=_one_level(BEST_FIT),
        count=lambda plan: plan.best_fit(),
    ),
    LevelRow(
        number="5",
        title="of pods with [preferences](what-a-pod-may-ask.md#preferences): Σ over members of 100 − the "
        "score of their node",
        better="less",
        field="preference_penalty",
        levels=lambda scopes, costs, without_gpus: (),  # `fit_with_penalty` adds it below the best fit
        count=_score_penalty,
        optional=True,
    ),
    LevelRow(
        number="6",
        title="of gangs on several nodes: the network [rails](#rails) of their GPUs",
        better="fewer",
        field=RAILS,
        levels=lambda scopes, costs, without_gpus: (),  # decided after the search: see placement/rails.py
        count=lambda plan: plan.rails(),
        worths=lambda plan, rails: iter(()),  # rails do not decide between nodes
        optional=True,
    ),
)
"""The levels of a plan, the most important first. A lower level never outweighs a higher one: see
docs/objective.md.
"""

VALUES = tuple(row for row in OBJECTIVE if row.in_decision and row.field in Objective.__slots__)
"""The rows whose values are in `domain.decision.Objective`."""


def values_of(objective: Objective) -> Iterator[tuple[LevelRow, Any]]:
    """Yield the levels that the gang has, each with its value."""
    for row in VALUES:
        value = getattr(objective, row.field)
        if not row.optional or value not in (None, ()):
            yield row, value


@lru_cache(maxsize=256)
def levels_of_plan(
    scopes: tuple[str, ...], costs: tuple[Cost, ...], without_gpus: WithoutGpus
) -> tuple[Level, ...]:
    """Return the levels that are decided once the members are chosen, from the widest counted scope down."""
    all_levels = [level for row in OBJECTIVE for level in row.levels(scopes, costs, without_gpus)]
    return tuple(level for level in all_levels if level not in (MEMBERS, PREFERRED_SCOPE, ROLE_PREFERENCES))


@lru_cache(maxsize=256)
def quality_levels(
    costs: tuple[Cost, ...], without_gpus: WithoutGpus = WithoutGpus.NO_MEMBER
) -> tuple[Level, ...]:
    """Return the levels below the nodes. Zones, racks and nodes are decided before these levels."""
    below = [row for row in OBJECTIVE if not row.is_counted]
    return tuple(level for row in below for level in row.levels((), costs, without_gpus))


def value_of(levels: Sequence[Level], plan: Mapping[str, int]) -> tuple[int, ...]:
    """Return the value of a plan at these levels (less is better), from the plan's sums by field."""
    return tuple(level.sign * plan[level.field] for level in levels)
