"""Decide one level: compute the bound, then solve with CP-SAT the small core that the bound does not exclude.

A guess of the level's value, from the bound upwards, rules out most of the problem. If the core is
infeasible, the guess is raised; otherwise its solution is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from muster.placement.limits import Budget
from muster.placement.model.bound import EPSILON, ITERATIONS, Bound, Coupling, bound
from muster.placement.model.build import QuorumRule, build, levels_of
from muster.placement.model.objective import NODES, SUMMED_LEVELS, Level
from muster.placement.model.problem import FREE, Bools, Floats, Ints, Problem, Use, to_full
from muster.placement.model.solver import SolveStatus, cp_model, run

GUESSES = (0, 3, 12, 48)
"""Guesses above the bound, in the level's unit. After them comes the largest possible value."""

FEW, MORE = 160, 1.25
"""Go on to the next guess if its core has at most FEW patterns, or at most MORE times the patterns of this
guess.
"""


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of one solve. No solution of the problem costs less than `bound`. If the value is proven
    best, `bound` equals `value`.
    """

    status: SolveStatus
    use: Use
    value: int = 0
    bound: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class DecidedLevel:
    """A decided level: the remaining problem, a solution of it, and the level's value.

    `gap` is |value − bound| / max(1, |bound|) if the value is not proven best, else None. `duals` are the
    points where the bound was found.
    """

    status: SolveStatus
    problem: Problem
    use: Use
    value: int = 0
    gap: float | None = None
    duals: tuple[Floats, ...] = ()


def decide(
    problem: Problem, level: Level, budget: Budget, use: Use | None = None, floor: float = -inf
) -> DecidedLevel:
    """Return the least value of the level. The search starts from the solution `use` if there is one.

    No solution has a value below `floor`.
    """
    cost, unit = _cost_in_units(problem, level)
    if use is not None and level.scope is None and not cost.any():
        return DecidedLevel(SolveStatus.SOLVED, problem, use)  # no open pattern costs anything
    scope, limit = counted_scope(problem)
    with budget.phase("bound"):
        lower_bound = bound(problem, cost, couplings(problem), scope, limit)
    lower = lower_bound.lower
    least_value = max(ceil(lower - EPSILON * max(1.0, abs(lower))), floor)  # no plan costs less
    max_nodes = _max_nodes(problem, lower_bound) if level is NODES else inf
    value = level.value(problem, use) // unit if use is not None else None
    guesses = _guesses(least_value, max_nodes if value is None else value - 1)
    while guesses and (value is None or value > least_value):
        core = _next_core(problem, lower_bound, level, guesses)
        upper = core.upper if value is None else min(core.upper, value - 1)
        solved = _solve(replace(core, upper=upper), level, unit, budget, least_value)
        if solved.status is SolveStatus.SOLVED:
            use, value = to_full(solved.use, core.old_classes), solved.value
            least_value = max(least_value, solved.bound)
        if solved.status is not SolveStatus.INFEASIBLE:
            break
        least_value = upper + 1
    duals = tuple(point.x for point in lower_bound.points)
    if value is None or use is None:
        status = (
            SolveStatus.INFEASIBLE if least_value > max_nodes or least_value == inf else SolveStatus.UNKNOWN
        )
        return DecidedLevel(
            status, problem, {}, gap=1.0 if status is SolveStatus.UNKNOWN else None, duals=duals
        )
    gap = (value - least_value) / max(1.0, abs(least_value)) if least_value < value else None
    still_open, _ = lower_bound.usable_below(problem, value)
    narrowed, use = problem.narrow_with_use(still_open, use)
    narrowed = narrowed.with_decided(**{level.name: value * unit})
    return DecidedLevel(SolveStatus.SOLVED, narrowed, use, value * unit, gap, duals)


def any_solution(problem: Problem, budget: Budget) -> Solution:
    """Return any solution that keeps the decided levels, or the proof that no solution exists."""
    return _solve(_core_of(problem, None, None, inf), None, 1, budget)


def solve_without_bound(problem: Problem, level: Level, budget: Budget) -> Solution:
    """Return the least value of a level that counts only parts. No bound is computed, so use this function
    only for small problems.
    """
    return _solve(_core_of(problem, None, level, inf), level, 1, budget)


def most_members(
    problem: Problem, budget: Budget, quorum: QuorumRule | None = None, *, roles_in_order: bool = False
) -> tuple[tuple[int, ...], bool]:
    """Return how many members of each role fit, and whether that is proven best; () if no plan was found.

    The sum over all roles is the largest possible. With `roles_in_order`, the first role's number decides
    between equal sums, then the second role's, and so on. With a quorum, the gang must start.
    """
    variables = build(problem)
    by_role = variables.placed if quorum is None else quorum.add(variables.model, variables.placed)
    counts: tuple[int, ...] = ()
    proven = True
    for members in (cp_model.LinearExpr.sum(by_role), *(by_role if roles_in_order else ())):
        variables.model.maximize(members)
        status, solver = run(variables.model, budget)
        if solver is None:
            return counts, status is SolveStatus.INFEASIBLE
        counts = tuple(map(solver.value, by_role))
        proven &= solver.response_proto.status == cp_model.OPTIMAL
        variables.model.add(members >= solver.value(members))
    return counts, proven


def couplings(problem: Problem) -> list[Coupling]:
    """Return the constraints over all nodes: the members of each role, and the decided levels."""
    constraints = [
        Coupling(problem.patterns.counts[:, :, role], need, equal=problem.exact)
        for role, need in enumerate(problem.need)
        if need
    ]
    for name, value in problem.at_most.items():
        if name in SUMMED_LEVELS:
            constraints.append(Coupling(-SUMMED_LEVELS[name].cost(problem.patterns), -value))
    return constraints


def nodes_bound(problem: Problem, duals: Sequence[Floats] = ()) -> Bound:
    """Return the bound of the number of nodes without the decided levels: at `duals` alone, if given."""
    members = couplings(replace(problem, at_most={}))
    iterations = 0 if duals else ITERATIONS
    cost = NODES.cost(problem.patterns)
    seeds = [x[: len(members)] for x in duals]  # the entries after the members price decided levels
    return bound(problem, cost, members, *counted_scope(problem), seeds=seeds, iterations=iterations)


def counted_scope(problem: Problem) -> tuple[str | None, int | None]:
    """Return the narrowest scope whose touched parts are limited, and the limit."""
    scopes = [name for name in problem.at_most if name not in SUMMED_LEVELS and name in problem.parts]
    return (scopes[-1], problem.at_most[scopes[-1]]) if scopes else (None, None)


def _cost_in_units(problem: Problem, level: Level) -> tuple[Ints, int]:
    """Return the level's cost in its largest common unit, and the unit."""
    cost = level.cost(problem.patterns)
    is_open = np.zeros(cost.shape, bool)
    np.logical_or.at(is_open, problem.kind, problem.open)
    unit = 1 if level.scope else int(np.gcd.reduce(np.abs(cost[is_open]), initial=0)) or 1
    return np.where(is_open, cost // unit, 0), unit


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """The part of the problem that plans of cost `upper` or less can use.

    The nodes of `pooled` classes are counted together, without their cells. That is possible if every plan of
    cost `upper` or less touches their part, or if no part is counted.
    """

    upper: float
    problem: Problem
    old_classes: Ints
    """[class] The index of the class in the full problem."""
    pooled: Bools | None
    """[class]; None if no class is pooled."""


def _guesses(lower: float, last: float) -> list[float]:
    """Return the guesses of the level's value in the order tried. No plan has a value above the last one."""
    return [*(lower + guess for guess in GUESSES if lower + guess < last), *([last] if last >= lower else [])]


def _next_core(problem: Problem, lower_bound: Bound, level: Level, guesses: list[float]) -> _Core:
    """Remove the next guess from the list and return its core.

    If the core of the next higher guess has nearly the same size, take that guess: one solve in place of two.
    """
    core = _core_of(problem, lower_bound, level, guesses.pop(0))
    max_patterns = max(FEW, MORE * int(core.problem.open.sum()))
    while guesses and guesses[0] < inf:
        larger = _core_of(problem, lower_bound, level, guesses[0])
        if larger.problem.open.sum() > max_patterns:
            break
        core = larger
        guesses.pop(0)
    return core


def _core_of(problem: Problem, lower_bound: Bound | None, level: Level | None, upper: float) -> _Core:
    core, old_classes = problem, np.arange(problem.classes)
    always: Bools | None = None
    if lower_bound is not None and upper < inf:
        still_open, always = lower_bound.usable_below(problem, upper)
        core, old_classes = problem.narrow_to(still_open)
    scope, limit = counted_scope(problem)
    counted_scopes = {
        counted_level.scope for counted_level in levels_of(problem, level) if counted_level.scope
    }
    counted_scopes &= problem.parts.keys()
    if problem.rules:
        return _Core(upper, core, old_classes, None)
    if counted_scopes - {scope}:
        return _Core(upper, core, old_classes, core.classes_without_gpus(counted_scopes))
    if scope is None or limit is None:
        return _Core(upper, core, old_classes, np.ones(core.classes, bool))
    part = core.part(scope)
    pooled = part == FREE
    if always is not None:
        pooled |= np.append(always, True)[part]  # the last entry stands for FREE
    parts_left = limit - len(np.unique(part[pooled & (part != FREE)]))
    if parts_left <= 0:
        core, kept_classes = core.narrow_to(core.open_patterns_of(pooled & (parts_left == 0), scope))
        old_classes, pooled = old_classes[kept_classes], pooled[kept_classes]
    pooled |= core.classes_without_gpus((scope,))
    return _Core(upper, replace(core, at_most={**core.at_most, scope: parts_left}), old_classes, pooled)


def _max_nodes(problem: Problem, lower_bound: Bound) -> float:
    """Return the most nodes of any plan: the nodes of the largest parts that may be touched."""
    nodes = np.where(problem.open, problem.patterns.nodes[problem.kind], 0).max(axis=1) * problem.size
    in_part = lower_bound.part != FREE
    by_part = np.sort(np.bincount(lower_bound.part[in_part], nodes[in_part]))[::-1]
    return float(nodes[~in_part].sum() + by_part[: lower_bound.limit].sum())


def _solve(core: _Core, level: Level | None, unit: int, budget: Budget, lower: float = -inf) -> Solution:
    """Solve once with CP-SAT. Values are in units of the level."""
    if not core.problem.classes:
        return Solution(SolveStatus.INFEASIBLE, {})
    if budget.spent:
        return Solution(SolveStatus.UNKNOWN, {})
    with budget.phase("build"):
        variables = build(core.problem, level, core.pooled)
        if level is not None:
            cost = variables.cost(level)
            if lower > -inf:
                variables.model.add(cost >= int(lower) * unit)
            if core.upper < inf:
                variables.model.add(cost <= int(core.upper) * unit)
    with budget.phase("solve"):
        status, solver = run(variables.model, budget)
    if solver is None:
        return Solution(status, {})
    solution: Sequence[int] = solver.response_proto.solution
    use = variables.use(solution)
    if level is None:
        return Solution(SolveStatus.SOLVED, use)
    value = level.value(core.problem, use)
    optimal = solver.response_proto.status == cp_model.OPTIMAL
    proven_bound = value if optimal else solver.best_objective_bound
    return Solution(SolveStatus.SOLVED, use, value // unit, proven_bound / unit)
