"""The whole problem as lists."""

from __future__ import annotations

from muster.placement.model.constraints import (
    decided_levels,
    gpu_capacity,
    parts_touched,
    replica_count,
    required_scope,
    weakest_link,
)
from muster.placement.model.objective import BEST_USE, COARSE, LINKS
from muster.placement.model.problem import Problem
from muster.placement.model.variables import Variables

CONSTRAINTS = (replica_count, gpu_capacity, required_scope, parts_touched, weakest_link, decided_levels)

OBJECTIVE = (*COARSE, *LINKS, *BEST_USE)  # lexicographic


def build(problem: Problem) -> Variables:
    """The model of the problem, without an objective: solve.py sets one level after another."""
    variables = Variables(problem)
    for constraint in CONSTRAINTS:
        constraint.add(variables)
    return variables
