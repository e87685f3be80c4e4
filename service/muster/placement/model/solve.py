"""Runs the model: one level after another, each kept while the next is decided.

One worker, no presolve, no cuts: measured best on these models (solver.md); deterministic time, fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ortools.sat.python import cp_model

from muster.placement.limits import Budget
from muster.placement.model.build import build
from muster.placement.model.objective import Cost, Level
from muster.placement.model.problem import Problem, Use
from muster.placement.model.variables import Variables


class Status(Enum):
    SOLVED = "solved"
    INFEASIBLE = "infeasible"
    """Proven: nothing fits."""
    UNKNOWN = "unknown"
    """The limits ended before either was known."""


class ModelError(Exception):
    """A defect of the model: it contradicts a solution that satisfies it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`gap` of the first level that is not proven best: |value − bound| / max(1, |bound|); else None."""

    status: Status
    use: Use
    gap: float | None = None
    placed: tuple[int, ...] = ()
    """Members by role: what the solve counted, which in a partial problem is its choice."""


def minimise(
    problem: Problem,
    levels: Sequence[Level],
    budget: Budget,
    incumbent: Use | None,
    floors: dict[str, int] | None = None,
) -> Outcome:
    """Decide the levels in order, starting from the incumbent where there is one.

    `floors` are proven bounds of levels: where the incumbent reaches its level's bound, nothing is solved.
    """
    variables: Variables | None = None
    use, gap = incumbent, None
    for level in levels:
        floor = (floors or {}).get(level.name, level.floor)
        if use is not None and level.value(problem, use) == floor:
            if variables is not None:
                variables.model.add(level.cost(variables) <= floor)
            else:
                problem = problem.keeping(**{level.name: floor})
            continue
        if variables is None:
            variables = build(problem)
        if floor is not None:
            variables.model.add(level.cost(variables) >= floor)
        found = _solve(variables, level.cost(variables), budget, use)
        if found.status is not Status.SOLVED and use is None:
            return found
        use = found.use if found.status is Status.SOLVED else use
        if use is None or found.status is Status.INFEASIBLE:
            raise ModelError(f"level {level.name}: infeasible, although a solution was at hand")
        value = level.value(problem, use)
        if gap is None and found.gap is not None:
            unsolved = found.status is not Status.SOLVED and floor is not None
            gap = abs(value - (floor or 0)) / max(1, abs(floor or 0)) if unsolved else found.gap
        variables.model.add(level.cost(variables) <= value).with_name(f"decided_levels/{level.name}")
    if use is None:
        return _solve(build(problem), 0, budget, None)
    return Outcome(Status.SOLVED, use, gap)


def most_members(problem: Problem, budget: Budget) -> tuple[tuple[int, ...] | None, int, bool]:
    """The most members that fit, then the most of the first role, of the second …: (counts, part, proven)."""
    variables = build(problem)
    counts: tuple[int, ...] | None = None
    proven, use, part = True, None, 0
    roles = range(len(problem.need))
    for kept in (tuple(roles), *((role,) for role in roles)):
        placed = cp_model.LinearExpr.sum([variables.placed[role] for role in kept])
        found = _solve(variables, -placed, budget, use)
        if found.status is not Status.SOLVED:
            return counts, part, False
        use, proven = found.use, proven and found.gap is None
        counts = found.placed
        part = next((problem.classes[c].part for c, _ in use), 0)
        variables.model.add(placed >= sum(counts[role] for role in kept))
    return counts, part, proven


def _solve(variables: Variables, cost: Cost, budget: Budget, use: Use | None) -> Outcome:
    """One solve, from the hint `use`; a solution may be better than asked, never worse than the hint."""
    if budget.spent:
        return Outcome(Status.UNKNOWN, {}, gap=1.0)
    if use is not None:
        variables.hint(use)
    variables.model.minimize(cost)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = 0
    parameters.cp_model_presolve = False
    parameters.cut_level = 0
    parameters.max_deterministic_time = budget.deterministic_time
    seconds = budget.seconds()
    if seconds is not None:
        parameters.max_time_in_seconds = seconds
    status = solver.solve(variables.model)
    budget.spend(solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE) and budget.deterministic_time > 0:
        budget.truncated |= seconds is not None and solver.wall_time >= seconds
    if status == cp_model.INFEASIBLE:
        return Outcome(Status.INFEASIBLE, {})
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(Status.UNKNOWN, {}, gap=1.0)
    taken = {key: solver.value(variable) for key, variable in variables.takes.items()}
    gap = None
    if status == cp_model.FEASIBLE:
        bound = solver.best_objective_bound
        gap = abs(solver.objective_value - bound) / max(1.0, abs(bound))
    placed = tuple(solver.value(variable) for variable in variables.placed)
    return Outcome(Status.SOLVED, {key: nodes for key, nodes in taken.items() if nodes}, gap, placed)
