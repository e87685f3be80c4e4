"""A Lagrangian bound of one level, and what it rules out: one method for every level and any mix of
roles.

The constraints that couple nodes (members of each role, nodes, the levels decided) are priced with duals x:
    L(x) = x·rhs + the sum of the R lowest parts of
           Σ class size · min(0, min over patterns (cost − x·resources)),
R being how many parts of the narrowest counted scope the plan may touch. L(x) is a bound for every x;
Kelley's cutting planes make it large. Every x tried also rules out what no plan of cost UB or less can use: a
part or a pattern whose use raises L(x) above UB (reduced-cost fixing). Both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from muster.placement.model.problem import FREE, Bools, Ints, Problem

Floats = NDArray[np.float64]

ITERATIONS = 40
CLOSE = 0.02
"""Cutting planes end when the bound is so near its limit, in units of the level."""

BOX = 1000.0
"""The largest dual, as a multiple of the largest cost of a pattern over the largest resource. Where the
levels before are met exactly, their duals are large."""

UNBOUNDED = 1e8
"""The master problem's limit of the bound, in largest costs of a pattern. GLOP fails in silence at 1e12."""

KEPT_POINTS = 8
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Coupling:
    """One coupling constraint Σ resource · use ≥ rhs, or == where `equal`. `resource` is [kind, pattern]."""

    resource: Ints
    rhs: int
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One dual point: x, the bound there, the slack of each pattern over the best use of its class
    [class, pattern], and the value of each part of the counted scope (≤ 0)."""

    x: Floats
    bound: float
    slack: Floats
    by_part: Floats


@dataclass(frozen=True, slots=True)
class Bound:
    """`lower`: no plan costs less. `points`: where it was found, best first. `part`: the part of the counted
    scope by class; at most `limit` of them are touched."""

    lower: float
    points: tuple[Point, ...]
    part: Ints
    limit: int | None

    def within(self, problem: Problem, upper: float) -> tuple[Bools, Bools]:
        """What plans of cost `upper` or less can use: patterns [class, pattern]; and the parts of the counted
        scope that each of them touches [part]."""
        still_open = problem.open.copy()
        always = np.zeros(len(self.points[0].by_part), bool)
        for point in self.points:
            gap = upper - point.bound + EPSILON * max(1.0, abs(upper))
            room = np.full(problem.classes, gap)
            if self.limit is not None and len(point.by_part) > self.limit:
                last, following = -np.inf, -np.inf
                if self.limit:
                    ordered = np.partition(point.by_part, [self.limit - 1, self.limit])
                    last, following = ordered[self.limit - 1], ordered[self.limit]
                    always |= following - point.by_part > gap
                inside = self.part != FREE
                room[inside] -= np.maximum(0.0, point.by_part[self.part[inside]] - last)
            still_open &= point.slack <= room[:, None]
        return still_open, always


def bound(
    problem: Problem,
    cost: Ints,
    couplings: Sequence[Coupling],
    scope: str | None = None,
    limit: int | None = None,
    *,
    seeds: Sequence[Floats] = (),
    iterations: int = ITERATIONS,
) -> Bound:
    """A lower bound of Σ cost over the plans that touch at most `limit` parts of `scope`.

    `cost` is [kind, pattern], in whole units of the level. `seeds` are dual points to begin with.
    """
    part = problem.part(scope) if scope is not None else np.full(problem.classes, FREE)
    parts = int(part.max(initial=FREE)) + 1
    inside = part != FREE
    kinds, inverse = np.unique(problem.kind, return_inverse=True)
    valid = np.zeros((len(kinds), problem.open.shape[1]), bool)
    np.logical_or.at(valid, inverse, problem.open)
    costs = np.where(valid, cost[kinds], np.inf)
    resources = np.stack([c.resource[kinds] for c in couplings], axis=2).astype(float)
    rhs = np.array([c.rhs for c in couplings], float)
    # The master problem sees costs and resources as shares of the largest: GLOP likes numbers near one.
    scale = float(np.abs(cost[kinds][valid]).max(initial=1))
    unit = scale / np.maximum(1.0, np.abs(resources[valid]).max(axis=0, initial=1.0))
    size, each = problem.size.astype(float), np.arange(len(kinds))

    master = pywraplp.Solver.CreateSolver("GLOP")
    duals = [master.NumVar(-BOX if c.equal else 0.0, BOX, "") for c in couplings]
    top = master.NumVar(-UNBOUNDED, UNBOUNDED, "")
    master.Maximize(top)
    points: list[Point] = []

    def tried(x: Floats) -> None:
        reduced = costs - resources @ x
        best = reduced.argmin(axis=1)
        least = np.minimum(0.0, reduced[each, best])
        value = size * least[inverse]
        by_part = np.bincount(part[inside], value[inside], parts).astype(float)
        used = np.ones(parts + 1, bool)  # the last one stands for FREE
        if limit is not None and parts > limit:
            used[:-1] = False
            if limit:
                used[np.argpartition(by_part, limit - 1)[:limit]] = True
        taken = np.bincount(inverse, size * (used[part] & (least < 0)[inverse]), len(kinds))
        slope = rhs - taken @ resources[each, best]
        found = float(x @ rhs + value[used[part]].sum())
        points.append(Point(x, found, (reduced - least[:, None])[inverse], by_part))
        cut = master.Constraint(-master.infinity(), (found - float(slope @ x)) / scale)
        cut.SetCoefficient(top, 1.0)
        for variable, change in zip(duals, slope * unit / scale, strict=True):
            cut.SetCoefficient(variable, -float(change))

    for seed in seeds or [unit * (rhs > 0) * factor for factor in (1.0, 0.5, 2.0)]:
        tried(seed)
    for i in range(iterations):
        if master.Solve() != pywraplp.Solver.OPTIMAL:
            break
        best = max(points, key=lambda point: point.bound)
        if top.solution_value() * scale - best.bound < CLOSE:
            break
        x = np.array([variable.solution_value() for variable in duals]) * unit
        # Half-way back to the best point: plain cutting planes swing.
        tried(0.6 * x + 0.4 * best.x if i % 3 else x)
    points.sort(key=lambda point: -point.bound)
    return Bound(points[0].bound, tuple(points[:KEPT_POINTS]), part, limit)
