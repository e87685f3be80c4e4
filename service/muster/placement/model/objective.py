"""The lexicographic objective: one list of its levels, each a cost to make small, in whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.domain.request import Scope
from muster.placement.gpus.costs import Cost
from muster.placement.model.problem import FREE, Ints, Patterns, Problem, Use

WIDE = Scope.NVLINK_DOMAIN.value
"""In `Problem.parts`: NVLink domains that a label names, which may span nodes."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level's cost: the sum of `sign` × a field of the patterns taken, and one for each part of `scope`
    touched (by members with GPUs, for NVLink domains). `worst`: the largest of them in place of the sum."""

    name: str
    field: str = ""
    sign: int = 1
    scope: str | None = None
    worst: bool = False

    def cost(self, patterns: Patterns) -> Ints:
        """By pattern [kind, pattern], without the parts touched."""
        if not self.field:
            return np.zeros_like(patterns.nodes)
        return np.asarray(self.sign * patterns.values(self.field))

    def touches(self, patterns: Patterns) -> Ints:
        """1 where taking the pattern touches the parts of `scope` [kind, pattern]."""
        return np.asarray(patterns.gpus > 0 if self.scope == WIDE else patterns.valid, np.int64)

    def value(self, problem: Problem, use: Use) -> int:
        """The cost of a solution."""
        cost, touches = self.cost(problem.patterns), self.touches(problem.patterns)
        total, touched = 0, set()
        if self.worst:
            return max((int(cost[problem.kind[c], p]) for c, p in use), default=0)
        part = problem.part(self.scope) if self.scope else None
        for (c, p), nodes in use.items():
            kind = problem.kind[c]
            total += int(cost[kind, p]) * nodes
            if part is not None and part[c] != FREE and touches[kind, p]:
                touched.add(int(part[c]))
        return total + len(touched)


def parts_level(scope: str) -> Level:
    """Parts of a scope above the node that are touched."""
    return Level(scope, scope=scope)


MEMBERS = Level("members")
PREFERRED_SCOPE = Level("preferred_scope")
NODES = Level("nodes", "nodes")
NVLINK_DOMAINS = Level(Cost.NVLINK_DOMAINS.value, "domains", scope=WIDE)
WEAKEST_LINK = Level("weakest_link", "weakest", -1, worst=True)
RING = Level("ring", "ring", -1)
DAMAGE = Level("damage", "damage")
BEST_FIT = Level("best_fit", "left_over")

PREFERENCES = {
    cost: NVLINK_DOMAINS if cost is Cost.NVLINK_DOMAINS else Level(cost.value, cost.value) for cost in Cost
}
"""The levels between the nodes and the links."""

SUMS = {level.name: level for level in (NODES, *PREFERENCES.values(), RING, DAMAGE, BEST_FIT)}
"""Levels by name that sum up a field of the patterns."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of OBJECTIVE.

    `levels`: how it is modelled, from the counted scopes (widest first) and the costs of the gang. `shown`:
    the fields of `domain.decision.Objective` that have its value.
    """

    levels: Callable[[Sequence[str], Sequence[Cost]], tuple[Level, ...]]
    shown: tuple[str, ...] = ()
    counted: bool = False
    """Whether it counts members or parts; the levels after those are of quality."""


def _always(level: Level) -> Callable[[Sequence[str], Sequence[Cost]], tuple[Level, ...]]:
    return lambda scopes, costs: (level,)


OBJECTIVE = (
    Entry(_always(MEMBERS), counted=True),
    Entry(_always(PREFERRED_SCOPE), ("preferred_reached",), counted=True),
    Entry(lambda scopes, costs: (*map(parts_level, scopes), NODES), ("crossings",), counted=True),
    Entry(lambda scopes, costs: tuple(PREFERENCES[cost] for cost in costs or (Cost.NVLINK_DOMAINS,))),
    Entry(_always(WEAKEST_LINK), ("weakest_link_gb_per_s",)),
    Entry(_always(RING), ("ring_gb_per_s",)),
    Entry(_always(DAMAGE), ("damage",)),
    Entry(_always(BEST_FIT), ("best_fit", "preference_penalty")),  # in one number: see on_node.best_fit
)
"""The levels of a plan, best first: a lower level never outweighs a higher one. See docs/objective.md."""


def levels_of_plan(scopes: Sequence[str], costs: Sequence[Cost]) -> tuple[Level, ...]:
    """Return the levels that are decided for given members: from the widest counted scope down."""
    every = [level for entry in OBJECTIVE for level in entry.levels(scopes, costs)]
    return tuple(level for level in every if level not in (MEMBERS, PREFERRED_SCOPE))


def quality_levels(costs: Sequence[Cost]) -> tuple[Level, ...]:
    """Return the levels below the nodes."""
    return tuple(level for entry in OBJECTIVE if not entry.counted for level in entry.levels((), costs))


def value_of(levels: Sequence[Level], plan: Mapping[str, int]) -> tuple[int, ...]:
    """Return what a plan is worth at these levels, each to be small, from its sums by field."""
    return tuple(level.sign * plan[level.field] for level in levels)
