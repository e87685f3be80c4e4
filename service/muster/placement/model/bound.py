"""Compute a Lagrangian bound of one level, and exclude patterns with it. The bound works for every level and
any mix of roles.

The constraints that couple nodes are the members of each role, the nodes, and the levels already decided.
They are priced with duals x:

    L(x) = x·rhs + the sum of the R lowest parts of
           Σ class size · min(0, min over patterns (cost − x·resources))

R is how many parts of the narrowest counted scope the plan may touch. L(x) is a bound for every x, and
Kelley's cutting planes make it large. Each x also excludes parts and patterns (reduced-cost fixing). UB is
the largest cost that is still of interest. If use of a part or pattern raises L(x) above UB, no plan of cost
≤ UB contains it. The bound and the fixing are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from muster.placement.model.problem import FREE, Bools, Floats, Ints, Problem

ITERATIONS = 40
CLOSE = 0.02
"""Cutting planes end when the bound is this close to the largest possible one, in units of the level."""

BOX = 1000.0
"""The largest dual, as a multiple of the largest cost of a pattern over the largest resource.

Duals are large if the decided levels must be met exactly.
"""

UNBOUNDED = 1e8
"""The master problem's limit of the bound, in largest costs of a pattern. GLOP fails without an error at
1e12.
"""

KEPT_POINTS = 8
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Coupling:
    """One coupling constraint: Σ resource · use ≥ rhs, or == if `equal`. `resource` is [kind, pattern]."""

    resource: Ints
    rhs: int
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One dual point."""

    x: Floats
    """[coupling] The duals."""
    bound: float
    """L(x)."""
    slack: Floats
    """[class, pattern] The reduced cost of the pattern, minus that of the best use of the class (at most 0).

    A pattern that touches no part is compared only with patterns that touch no part.
    """
    by_part: Floats
    """[part of the counted scope] The part's value in L(x), at most 0."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound: no plan costs less than `lower`.

    A plan touches at most `limit` parts of the counted scope.
    """

    lower: float
    points: tuple[Point, ...]
    """The best dual points, best first."""
    part: Ints
    """[class] The part of the counted scope."""
    limit: int | None
    patterns_touching_none: Bools | None = None
    """[kind, pattern] Whether the pattern touches no part of the counted scope; None if all patterns touch a
    part.
    """

    def usable_below(self, problem: Problem, upper: float) -> tuple[Bools, Bools]:
        """Return the patterns that plans of cost `upper` or less can use, and the parts that all such plans
        touch.

        The arrays are [class, pattern] bool and [part of the counted scope] bool.

        L(x) counts the `limit` cheapest parts. If a plan does not touch one of them, the cheapest part left
        out takes its place. If this costs more than the allowance, the part is in every plan.
        """
        still_open = problem.open.copy()
        in_every_plan = np.zeros(len(self.points[0].by_part), bool)
        for point in self.points:
            allowance = upper - point.bound + EPSILON * max(1.0, abs(upper))
            allowance_of_class = np.full(problem.classes, allowance)
            if self.limit is not None and len(point.by_part) > self.limit:
                dearest_chosen, cheapest_left_out = -np.inf, -np.inf
                if self.limit:
                    ordered = np.partition(point.by_part, [self.limit - 1, self.limit])
                    dearest_chosen, cheapest_left_out = ordered[self.limit - 1], ordered[self.limit]
                    in_every_plan |= cheapest_left_out - point.by_part > allowance
                in_part = self.part != FREE
                allowance_of_class[in_part] -= np.maximum(
                    0.0, point.by_part[self.part[in_part]] - dearest_chosen
                )
            if self.patterns_touching_none is None:
                still_open &= point.slack <= allowance_of_class[:, None]
            else:
                still_open &= point.slack <= np.where(
                    self.patterns_touching_none[problem.kind], allowance, allowance_of_class[:, None]
                )
        return still_open, in_every_plan


@dataclass(frozen=True, slots=True, eq=False)
class _Pricing:
    """The patterns of a problem, ready to be priced at dual points."""

    costs: Floats
    """[kind, pattern] Infinite if no class may take the pattern."""
    resources: Floats
    """[kind, pattern, coupling]"""
    rhs: Floats
    """[coupling]"""
    kind: Ints
    """[class]"""
    size: Floats
    """[class] The number of nodes."""
    part: Ints
    """[class] The part of the counted scope."""
    limit: int | None
    patterns_touching_none: Bools | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        cost: Ints,
        couplings: Sequence[Coupling],
        part: Ints,
        scope: str | None,
        limit: int | None,
    ) -> _Pricing:
        """Return the patterns of the kinds in the problem.

        Classes of one kind can have different open patterns, for example nodes that host no member with GPUs.
        Then each distinct set of open patterns counts as a kind of its own.
        """
        _, first, kind = np.unique(problem.kind, return_index=True, return_inverse=True)
        if (problem.open != problem.open[first][kind]).any():
            rows = np.column_stack((problem.kind, np.packbits(problem.open, axis=1)))
            row = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
            _, first, kind = np.unique(row.ravel(), return_index=True, return_inverse=True)
        kinds, valid = problem.kind[first], problem.open[first]
        patterns_touching_none = problem.patterns_touching_none(scope)
        patterns_touching_none = None if patterns_touching_none is None else patterns_touching_none[kinds]
        costs = np.where(valid, cost[kinds], np.inf)
        resources = np.stack([c.resource[kinds] for c in couplings], axis=2).astype(float)
        rhs = np.array([c.rhs for c in couplings], float)
        return cls(
            costs, resources, rhs, kind, problem.size.astype(float), part, limit, patterns_touching_none
        )

    def point_at(self, x: Floats) -> tuple[Point, Floats]:
        """Return the dual point at x, and the slope of the bound there [coupling].

        Patterns that touch no part can be used in all parts. So the value of a part is what its other
        patterns add.
        """
        kinds, parts, in_part = len(self.costs), int(self.part.max(initial=FREE)) + 1, self.part != FREE
        reduced = self.costs - self.resources @ x
        cheapest, each_kind = reduced.argmin(axis=1), np.arange(kinds)
        least = np.minimum(0.0, reduced[each_kind, cheapest])
        value, slack = self.size * least[self.kind], reduced - least[:, None]
        if self.patterns_touching_none is not None:
            anywhere = np.where(self.patterns_touching_none, reduced, np.inf)
            spared = anywhere.argmin(axis=1)
            always = np.minimum(0.0, anywhere[each_kind, spared])
            value -= self.size * always[self.kind]
            slack = np.where(self.patterns_touching_none, reduced - always[:, None], slack)
        by_part = np.bincount(self.part[in_part], value[in_part], parts).astype(float)
        in_cheapest = np.ones(parts + 1, bool)  # the last entry stands for FREE
        if self.limit is not None and parts > self.limit:
            in_cheapest[:-1] = False
            if self.limit:
                in_cheapest[np.argpartition(by_part, self.limit - 1)[: self.limit]] = True
        in_used_part = in_cheapest[self.part]
        nodes = np.bincount(self.kind, self.size * (in_used_part & (least < 0)[self.kind]), kinds)
        slope = self.rhs - nodes @ self.resources[each_kind, cheapest]
        lower = float(x @ self.rhs + value[in_used_part].sum())
        if self.patterns_touching_none is not None:
            nodes = np.bincount(self.kind, self.size * (~in_used_part & (always < 0)[self.kind]), kinds)
            slope -= nodes @ self.resources[each_kind, spared]
            lower += float((self.size * always[self.kind]).sum())
        return Point(x, lower, slack[self.kind], by_part), slope


class _Master:
    """Kelley's master problem: the largest bound under the cuts so far.

    Costs are divided by the largest cost, `scale`, and resources by the largest resource, `scale` / `unit`,
    because GLOP works best with numbers near 1.
    """

    def __init__(self, couplings: Sequence[Coupling], scale: float, unit: Floats) -> None:
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._duals = [self._solver.NumVar(-BOX if c.equal else 0.0, BOX, "") for c in couplings]
        self._top = self._solver.NumVar(-UNBOUNDED, UNBOUNDED, "")
        self._solver.Maximize(self._top)
        self._scale, self._unit = scale, unit

    def cut(self, point: Point, slope: Floats) -> None:
        """Add the cut of a dual point."""
        limit = (point.bound - float(slope @ point.x)) / self._scale
        cut = self._solver.Constraint(-self._solver.infinity(), limit)
        cut.SetCoefficient(self._top, 1.0)
        for variable, change in zip(self._duals, slope * self._unit / self._scale, strict=True):
            cut.SetCoefficient(variable, -float(change))

    def maximum(self) -> tuple[float, Floats] | None:
        """Return the largest bound that the cuts allow, and its duals; None if GLOP did not solve the
        problem.
        """
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        x = np.array([variable.solution_value() for variable in self._duals]) * self._unit
        return self._top.solution_value() * self._scale, x


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
    """Return a lower bound of Σ cost over the plans that touch at most `limit` parts of `scope`.

    `cost` is [kind, pattern] int64, in whole units of the level. `seeds` are dual points to begin with.
    """
    part = problem.part(scope) if scope is not None else np.full(problem.classes, FREE)
    pricing = _Pricing.of(problem, cost, couplings, part, scope, limit)
    valid = np.isfinite(pricing.costs)
    scale = float(np.abs(pricing.costs[valid]).max(initial=1))
    unit = scale / np.maximum(1.0, np.abs(pricing.resources[valid]).max(axis=0, initial=1.0))
    master, points = _Master(couplings, scale, unit), list[Point]()

    def try_duals(x: Floats) -> None:
        point, slope = pricing.point_at(x)
        points.append(point)
        master.cut(point, slope)

    for seed in seeds or [unit * (pricing.rhs > 0) * factor for factor in (1.0, 0.5, 2.0)]:
        try_duals(seed)
    for i in range(iterations):
        optimum = master.maximum()
        highest = max(points, key=lambda point: point.bound)
        if optimum is None or optimum[0] - highest.bound < CLOSE:
            break
        # Go half-way back to the best point, because plain cutting planes swing.
        try_duals(0.6 * optimum[1] + 0.4 * highest.x if i % 3 else optimum[1])
    points.sort(key=lambda point: -point.bound)
    return Bound(
        points[0].bound, tuple(points[:KEPT_POINTS]), part, limit, problem.patterns_touching_none(scope)
    )
