"""The whole problem as lists."""

from __future__ import annotations

from muster.placement.model import by_part
from muster.placement.model.constraints import (
    apart,
    decided_levels,
    gpu_capacity,
    max_per_part,
    near,
    parts_touched,
    replica_count,
    role_scope,
    segments,
    skew,
)
from muster.placement.model.objective import SUMS, Level, parts_level
from muster.placement.model.problem import Bools, Problem
from muster.placement.model.variables import Variables

CONSTRAINTS = (
    replica_count,
    gpu_capacity,
    parts_touched,
    max_per_part,
    role_scope,
    segments,
    apart,
    near,
    skew,
    decided_levels,
)


def build(problem: Problem, level: Level | None = None, pooled: Bools | None = None) -> Variables:
    """The model of the problem, to minimise `level`. `pooled` are classes [class] whose part is touched by
    every plan: their nodes are counted together."""
    variables = Variables(problem, levels_of(problem, level), pooled)
    for constraint in CONSTRAINTS:
        constraint.add(variables)
    by_part.add(variables, level)
    if level is not None:
        variables.model.minimize(variables.cost(level))
    return variables


def levels_of(problem: Problem, level: Level | None) -> list[Level]:
    """The levels that a model of the problem has to count: those decided, and the one to minimise."""
    levels = [SUMS.get(name) or parts_level(name) for name in problem.at_most]
    return levels if level is None else [*levels, level]
