"""The whole problem as lists."""

from __future__ import annotations

from muster.placement.model import by_part
from muster.placement.model.constraints import decided_levels, gpu_capacity, parts_touched, replica_count
from muster.placement.model.objective import SUMS, Level, parts_level
from muster.placement.model.problem import Bools, Problem
from muster.placement.model.variables import Variables


def build(problem: Problem, level: Level | None = None, pooled: Bools | None = None) -> Variables:
    """The model of the problem, to minimise `level`. `pooled` are classes [class] whose part is touched by
    every plan: their nodes are counted together."""
    variables = Variables(problem, levels_of(problem, level), pooled)
    for each in (replica_count, gpu_capacity, parts_touched):
        each.add(variables)
    for i, rule in enumerate(problem.rules):
        rule.add(variables, f"{type(rule).__name__}/{i}")
    decided_levels.add(variables)
    by_part.add(variables, level)
    if level is not None:
        variables.model.minimize(variables.cost(level))
    return variables


def levels_of(problem: Problem, level: Level | None) -> list[Level]:
    """The levels that a model of the problem has to count: those decided, and the one to minimise."""
    levels = [SUMS.get(name) or parts_level(name) for name in problem.at_most]
    return levels if level is None else [*levels, level]
