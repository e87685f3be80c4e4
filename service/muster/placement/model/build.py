"""The whole problem as lists."""

from __future__ import annotations

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
from muster.placement.model.shares import shares
from muster.placement.model.variables import LinearExpr, Variables

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
    _add_bounds(variables)
    if level is not None:
        variables.model.minimize(variables.cost(level))
    return variables


def _add_bounds(variables: Variables) -> None:
    """Add what follows from the rules, and what the solver would take long to see: the fewest nodes of the
    parts that take members in any case."""
    problem = variables.problem
    if (problem.patterns.nodes[problem.patterns.valid] == 0).any():
        return
    for i, share in enumerate(shares(problem)):
        for part, nodes in share.fewest_nodes(problem).items():
            here = [
                variables.takes[v]
                for g, group in enumerate(variables.groups)
                if share.part[group.classes[0]] == part
                for v in variables.of_group[g]
            ]
            variables.model.add(LinearExpr.sum(here) >= nodes).with_name(f"fewest_nodes/{i}/{part}")


def levels_of(problem: Problem, level: Level | None) -> list[Level]:
    """The levels that a model of the problem has to count: those decided, and the one to minimise."""
    levels = [SUMS.get(name) or parts_level(name) for name in problem.at_most]
    return levels if level is None else [*levels, level]
