"""List the levels of the objective. Each level is a cost to make small, in whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

import numpy as np

from muster.domain.request import Scope
from muster.placement.gpus.costs import Cost
from muster.placement.model.problem import FREE, Ints, Patterns, Problem, Use

WIDE = Scope.NVLINK_DOMAIN.value
"""In `Problem.parts`: the NVLink domains that labels name, which may span nodes."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its cost is the sum of `sign` × a field of the patterns taken, plus the parts of `scope`
    touched.

    Only members with GPUs touch NVLink domains, and the scopes that the problem spares. If `worst` is true,
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
        patterns, with_gpus = problem.patterns, self.scope == WIDE or self.scope in problem.spared
        return np.asarray(patterns.gpus > 0 if with_gpus else patterns.valid, np.int64)

    def value(self, problem: Problem, use: Use) -> int:
        """Return the cost of a solution."""
        cost, touches = self.cost(problem.patterns), self.touches(problem)
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
    """Return the level that counts the touched parts of a scope above the node."""
    return Level(scope, scope=scope)


MEMBERS = Level("members")
PREFERRED_SCOPE = Level("preferred_scope")
ROLE_PREFERENCES = Level("role_preferences")
NODES = Level("nodes", "nodes")
UNUSABLE = Level("unusable_gpus", "unusable")
NVLINK_DOMAINS = Level(Cost.NVLINK_DOMAINS.value, "domains", scope=WIDE)
WEAKEST_LINK = Level("weakest_link", "weakest", -1, worst=True)
RING = Level("ring", "ring", -1)
SOCKETS = Level("sockets", "sockets")
DAMAGE = Level("damage", "damage")
BEST_FIT = Level("best_fit", "left_over")

PREFERENCES = {
    cost: NVLINK_DOMAINS if cost is Cost.NVLINK_DOMAINS else Level(cost.value, cost.value) for cost in Cost
}
"""The levels between nodes and links."""

SUMS = {
    level.name: level for level in (NODES, UNUSABLE, *PREFERENCES.values(), RING, SOCKETS, DAMAGE, BEST_FIT)
}
"""Levels by name that sum up a field of the patterns."""


class Idle(Enum):
    """Whether a gang has members without GPUs."""

    NONE = auto()
    BESIDE = auto()
    """Others have GPUs, so they touch no parts."""
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of OBJECTIVE.

    `levels` returns its levels from the counted scopes (widest first), the costs of the gang, and whether it
    has members without GPUs. `shown` are
    the fields of `domain.decision.Objective` that have its value.
    """

    levels: Callable[[Sequence[str], Sequence[Cost], Idle], tuple[Level, ...]]
    shown: tuple[str, ...] = ()
    counted: bool = False
    """Whether the entry counts members or parts. The entries after those are levels of quality."""


def _always(level: Level) -> Callable[[Sequence[str], Sequence[Cost], Idle], tuple[Level, ...]]:
    return lambda scopes, costs, idle: (level,)


def _if(which: Idle) -> Callable[[Sequence[str], Sequence[Cost], Idle], tuple[Level, ...]]:
    return lambda scopes, costs, idle: (UNUSABLE,) if idle is which else ()


OBJECTIVE = (
    Entry(_always(MEMBERS), counted=True),
    Entry(_always(PREFERRED_SCOPE), ("preferred_reached",), counted=True),
    Entry(_always(ROLE_PREFERENCES), ("role_preferences",), counted=True),
    Entry(_if(Idle.ALONE), counted=True),
    Entry(lambda scopes, costs, idle: (*map(parts_level, scopes), NODES), ("crossings",), counted=True),
    Entry(_if(Idle.BESIDE), ("unusable_gpus",)),
    Entry(
        lambda scopes, costs, idle: tuple(PREFERENCES[cost] for cost in costs or (Cost.NVLINK_DOMAINS,)),
        ("costs",),
    ),
    Entry(_always(WEAKEST_LINK), ("weakest_link_gb_per_s",)),
    Entry(_always(RING), ("ring_gb_per_s",)),
    Entry(_always(SOCKETS), ("socket_distance",)),
    Entry(_always(DAMAGE), ("damage",)),
    Entry(_always(BEST_FIT), ("best_fit", "preference_penalty")),  # both in one number: see on_node.best_fit
)
"""The levels of a plan, the most important first. A lower level never outweighs a higher one: see
docs/objective.md.
"""


@lru_cache(maxsize=256)
def levels_of_plan(scopes: tuple[str, ...], costs: tuple[Cost, ...], idle: Idle) -> tuple[Level, ...]:
    """Return the levels that are decided for a given number of members, from the widest
    counted scope down.
    """
    every = [level for entry in OBJECTIVE for level in entry.levels(scopes, costs, idle)]
    return tuple(level for level in every if level not in (MEMBERS, PREFERRED_SCOPE, ROLE_PREFERENCES))


@lru_cache(maxsize=256)
def quality_levels(costs: tuple[Cost, ...], idle: Idle = Idle.NONE) -> tuple[Level, ...]:
    """Return the levels below the nodes."""
    below = [entry for entry in OBJECTIVE if not entry.counted]
    return tuple(level for entry in below for level in entry.levels((), costs, idle))


def value_of(levels: Sequence[Level], plan: Mapping[str, int]) -> tuple[int, ...]:
    """Return the value of a plan at these levels, each to be made small, from its sums by field."""
    return tuple(level.sign * plan[level.field] for level in levels)
