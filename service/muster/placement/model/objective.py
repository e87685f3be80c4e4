"""The lexicographic objective: each level a cost to make small, in whole numbers."""

from __future__ import annotations

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
    touched (by members with GPUs, for NVLink domains)."""

    name: str
    field: str | None = None
    sign: int = 1
    scope: str | None = None

    def cost(self, patterns: Patterns) -> Ints:
        """By pattern [kind, pattern], without the parts touched."""
        if self.field is None:
            return np.zeros_like(patterns.nodes)
        return np.asarray(self.sign * patterns.values(self.field))

    def touches(self, patterns: Patterns) -> Ints:
        """1 where taking the pattern touches the parts of `scope` [kind, pattern]."""
        return np.asarray(patterns.gpus > 0 if self.scope == WIDE else patterns.valid, np.int64)

    def value(self, problem: Problem, use: Use) -> int:
        """The cost of a solution."""
        cost, touches = self.cost(problem.patterns), self.touches(problem.patterns)
        total, touched = 0, set()
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


NODES = Level("nodes", "nodes")
NVLINK_DOMAINS = Level(Cost.NVLINK_DOMAINS.value, "domains", scope=WIDE)
RING = Level("ring", "ring", -1)
DAMAGE = Level("damage", "damage")
BEST_FIT = Level("best_fit", "left_over")

PREFERENCES = {
    cost: NVLINK_DOMAINS if cost is Cost.NVLINK_DOMAINS else Level(cost.value, cost.value) for cost in Cost
}
"""The levels between the nodes and the links."""

SUMS = {level.name: level for level in (NODES, *PREFERENCES.values(), RING, DAMAGE, BEST_FIT)}
"""Levels by name that sum up a field of the patterns."""
