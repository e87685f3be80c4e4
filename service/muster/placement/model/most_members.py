"""Count the most members that fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.placement.limits import Budget
from muster.placement.model.build import build
from muster.placement.model.cp_sat import cp_model
from muster.placement.model.problem import Problem
from muster.placement.model.quorum import QuorumRule
from muster.placement.model.solver import Status, run


def most_members(
    problem: Problem, budget: Budget, quorum: QuorumRule | None = None
) -> tuple[tuple[int, ...] | None, bool]:
    """Return how many members of each role fit, and whether that is proven best; None if the search found
    nothing.

    First the sum over all roles is as large as possible, then the first role, then the second, and so on.
    With a quorum, only numbers count with which the gang starts.
    """
    variables = build(problem)
    of_roles = variables.placed if quorum is None else quorum.add(variables)
    counts: tuple[int, ...] | None = None
    proven = True
    roles = range(len(of_roles))
    for kept in (tuple(roles), *((role,) for role in roles)):
        found, best = _most(variables.model, of_roles, kept, budget)
        if found is None:
            return counts, best
        counts, proven = found, proven and best
        placed = cp_model.LinearExpr.sum([of_roles[role] for role in kept])
        variables.model.add(placed >= sum(counts[role] for role in kept))
    return counts, proven


def most_in_all(problem: Problem, budget: Budget) -> tuple[int, bool]:
    """Return how many members of all roles together fit, and whether that is proven best."""
    variables = build(problem)
    counts, proven = _most(variables.model, variables.placed, range(len(variables.placed)), budget)
    return sum(counts or ()), proven


def _most(
    model: cp_model.CpModel, of_roles: Sequence[cp_model.IntVar], kept: Iterable[int], budget: Budget
) -> tuple[tuple[int, ...] | None, bool]:
    """Return the members of each role if those of the `kept` roles are most, and whether that is proven."""
    model.maximize(cp_model.LinearExpr.sum([of_roles[role] for role in kept]))
    status, solver = run(model, budget)
    if status is not Status.SOLVED or solver is None:
        return None, status is Status.INFEASIBLE
    optimal = solver.response_proto.status == cp_model.OPTIMAL
    return tuple(solver.value(variable) for variable in of_roles), optimal
