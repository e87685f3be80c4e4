"""The lexicographic objective: each level a cost to make small, in whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from muster.placement.model.problem import Problem, Use, weakest_ranks
from muster.placement.model.variables import Variables

Cost = cp_model.LinearExprT


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its cost in the model, the same cost of a given solution, and a bound that always holds."""

    name: str
    cost: Callable[[Variables], Cost]
    value: Callable[[Problem, Use], int]
    floor: int | None = None


def _touched_value(index: str) -> Callable[[Problem, Use], int]:
    return lambda problem, use: len({getattr(problem.classes[c], index) for c, _ in use})


def _pattern_value(field: str, sign: int = 1) -> Callable[[Problem, Use], int]:
    return lambda problem, use: sum(
        sign * getattr(problem.classes[c].patterns[p], field) * nodes for (c, p), nodes in use.items()
    )


def _domains_value(problem: Problem, use: Use) -> int:
    wide = {problem.classes[c].domain for c, p in use if problem.classes[c].patterns[p].gpus > 0} - {-1}
    return len(wide) + _pattern_value("domains")(problem, use)


def _slowest_rank(problem: Problem, use: Use) -> int:
    ranks = weakest_ranks(problem)
    return max((ranks[problem.classes[c].patterns[p].weakest] for c, p in use), default=0)


def _sum(variables: dict[int, cp_model.IntVar]) -> Cost:
    return cp_model.LinearExpr.sum(list(variables.values()))


def _domains_cost(v: Variables) -> Cost:
    """Wide domains touched, and those inside the nodes."""
    return cp_model.LinearExpr.sum([_sum(v.domain), v.total(lambda p: p.domains)])


zones = Level("zones", lambda v: _sum(v.zone), _touched_value("zone"), 1)
racks = Level("racks", lambda v: _sum(v.rack), _touched_value("rack"), 1)
nodes = Level("nodes", lambda v: v.total(lambda _: 1), lambda _, use: sum(use.values()), 1)
nvlink_domains = Level("nvlink_domains", _domains_cost, _domains_value, 0)
weakest_link = Level("weakest_link", lambda v: cp_model.LinearExpr.sum(v.slower), _slowest_rank, 0)
ring = Level("ring", lambda v: -v.total(lambda p: p.ring), _pattern_value("ring", -1))
damage = Level("damage", lambda v: v.total(lambda p: p.damage), _pattern_value("damage"))
best_fit = Level("best_fit", lambda v: v.total(lambda p: p.left_over), _pattern_value("left_over"))

COARSE = (zones, racks, nodes)
"""Decided on the largest patterns of each node."""

LINKS = (nvlink_domains, weakest_link)
"""Decided on all patterns, with the coarse levels kept."""

BEST_USE = (ring, damage, best_fit)
"""Decided on the patterns that the weakest link leaves."""

LEVELS = {level.name: level for level in (*COARSE, *LINKS, *BEST_USE)}
