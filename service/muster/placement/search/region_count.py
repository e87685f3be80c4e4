"""Count parts and nodes of regions on the coarse problem, widest scope first.

A part that may hold the gang alone is a region of its own, so that it has a bound of its own. Parts of the
narrowest level are left to the bound, which is made for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import ClassVar

import numpy as np

from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import NODES, UNUSABLE, Idle, Level, parts_level, quality_levels
from muster.placement.model.problem import FREE, Problem, Use
from muster.placement.model.shares import shares
from muster.placement.model.solve import Decided, counted_scope, decide, least, nodes_bound
from muster.placement.model.solver import Status
from muster.placement.search.classes import REGION, coarse, fine, without_equals
from muster.placement.search.greedy import greedy, with_others
from muster.placement.search.methods import (
    Answer,
    Counted,
    Infeasible,
    Partial,
    Regions,
    Solved,
    Start,
    Unknown,
)
from muster.placement.search.plan import Gap
from muster.placement.search.plan import Value as QualityValue
from muster.placement.search.regions import NOWHERE, regions
from muster.placement.search.surrogate_bounds import fewest_parts, in_fullest, parts_that_hold, prices, values

FEW_PARTS = 4
"""How many parts of the narrowest level, for each price, a first solution may use."""

MAX_CHOICES = 256
"""The most choices of parts of a level that are tried one by one. If there are more, the solver decides."""

COUNTING_SHARE = 0.5
"""The largest share of the solver's time for counting if members must be spread evenly.

The proof that one part less is too few may take long, and the plan must still be finished afterwards.
"""


Value = tuple[int, ...]
"""Touched parts of each level, widest first, then nodes."""


class RegionCount:
    """Decide parts and nodes by the Lagrangian bound, and by CP-SAT on the core that it leaves."""

    name: ClassVar = "region-count"
    given: ClassVar = (Start, Regions)

    def solve(self, plan: Partial, level: Level, incumbent: QualityValue | None, budget: Budget) -> Answer:
        """Decide all parts that are left to count, and the nodes."""
        instance, known = plan.instance, plan.known
        counting = Counting(instance, plan.need, budget, weigh=level is UNUSABLE)
        if isinstance(known, Regions):
            counting.regions(known.rows, known.region, known.uncounted)
        else:
            with budget.phase("scan"):
                region = regions(instance, plan.scopes, plan.need)
            rows = np.flatnonzero(region != NOWHERE)
            # A scope that is also a level is counted below, where it may count at most one part.
            once = tuple(scope for scope in instance.levels if scope in plan.scopes)
            if once:
                others = tuple(scope for scope in plan.scopes if scope not in once)
                region = regions(instance, others, plan.need)
            counting.regions(rows, region[rows], instance.levels, once)
        found, gap = counting.found, None
        if not (counting.proven and counting.complete):
            gap = next(filter(None, (counted.gap for counted in found)), Gap(NODES.name))
        if not found:
            return Unknown(gap) if gap else Infeasible()
        if plan.likely is not None and not any(map(plan.likely, found)):
            return Unknown(Gap(NODES.name))
        below = quality_levels(instance.costs, instance.idle)
        plans = [replace(plan, levels=below, known=counted, gap=counted.gap) for counted in found]
        return Solved(tuple(plans), gap)


class Counting:
    """Collects the best regions so far: all have the same, least value.

    `proven` is whether nothing was missed: if no region was found, none exists.
    """

    def __init__(self, instance: Instance, need: Counts, budget: Budget, *, weigh: bool = False) -> None:
        self.found: list[Counted] = []
        self.proven = True
        self.complete = True
        self._instance, self._need, self._budget = instance, need, budget
        self._prices = self._all_prices = prices(instance, need)
        self._weigh = weigh
        self._touching = need
        if instance.idle is Idle.BESIDE:  # the others touch no parts
            with_gpus = map(takes_gpus, instance.roles)
            self._touching = tuple(n if takes else 0 for n, takes in zip(need, with_gpus, strict=True))
            self._prices = prices(instance, self._touching)
        self._once: frozenset[str] = frozenset()

    def regions(self, rows: Ints, region: Ints, levels: Sequence[str], once: Sequence[str] = ()) -> None:
        """Count the regions that are given for each of these rows.

        `levels` are those still to be counted. For those in `once`, a single part must suffice.
        """
        if not len(rows):
            return
        self._once = frozenset(once)
        with self._budget.phase("scan"):
            problem, complete = coarse(self._instance, rows, self._need, self._instance.scopes, region)
            problem = replace(problem, spared=problem.spared - self._once)
            part = problem.part(REGION)
            holding = (
                parts_that_hold(problem, part, self._all_prices, self._need).tolist()
                if problem.classes
                else []
            )
        self.complete &= complete
        for one in holding:
            inside, _ = problem.narrowed(problem.open & (part == one)[:, None])
            if self._weigh:
                self._least_unusable(inside, levels)
            else:
                self._parts(inside, levels, ())

    def _least_unusable(self, problem: Problem, levels: Sequence[str]) -> None:
        """Count a region for a gang without GPUs: first the GPUs that it makes unusable, on all packings."""
        with self._budget.phase("sets"):
            problem, complete = fine(self._instance, problem)
        self.complete &= complete
        once = {scope: 1 for scope in levels if scope in self._once}
        decided = decide(problem.keeping(**once), UNUSABLE, self._budget)
        self.proven &= decided.status is not Status.UNKNOWN and decided.gap is None
        if decided.status is Status.SOLVED:
            problem = replace(decided.problem, at_most={UNUSABLE.name: decided.value})
            self._parts(problem, levels, (decided.value,))

    def _parts(self, problem: Problem, levels: Sequence[str], prefix: Value) -> Status:
        if not levels:
            return self._nodes(problem, prefix)
        scope, *narrower = levels
        part = problem.part(scope)
        count, spared = len(np.unique(part[part != FREE])), bool((part == FREE).any())
        lower = fewest_parts(problem, part, self._prices, self._need)
        if lower is None or (scope in self._once and lower > 1):
            return Status.INFEASIBLE
        if count == 1 and lower and not spared:
            return self._parts(problem, narrower, (*prefix, 1))
        if not narrower:
            return self._narrowest(problem, scope, lower, count, prefix)
        return self._wider(problem, levels, lower, count, prefix)

    def _wider(
        self, problem: Problem, levels: Sequence[str], lower: int, count: int, prefix: Value
    ) -> Status:
        """Count a level that has narrower levels below it."""
        scope, *narrower = levels
        spared = bool((problem.part(scope) == FREE).any())
        while not spared and comb(count, lower) <= MAX_CHOICES:
            status = self._each(problem, scope, lower, narrower, prefix)
            if status is not Status.INFEASIBLE or lower == count or scope in self._once:
                return status
            lower += 1
        if len(self._prices) > 1 or problem.rules or problem.at_most:
            solved = least(problem, parts_level(scope), self._budget)
            if solved.status is not Status.SOLVED:
                self.proven &= solved.status is Status.INFEASIBLE
                return solved.status
            lower = solved.value
            if scope in self._once and lower > 1:
                return Status.INFEASIBLE
        return self._parts(_limited(problem, scope, lower, count), narrower, (*prefix, lower))

    def _each(
        self, problem: Problem, scope: str, parts: int, narrower: Sequence[str], prefix: Value
    ) -> Status:
        """Decide every choice of this number of parts as a region of its own; that with fewest narrower parts
        first.
        """
        part, choices = problem.part(scope), []
        names = parts_that_hold(problem, part, self._prices, self._need) if parts == 1 else np.unique(part)
        for chosen in combinations(names.tolist(), parts):
            inside, _ = problem.narrowed(problem.kept(np.isin(part, chosen), scope))
            fewest = fewest_parts(inside, inside.part(narrower[0]), self._prices, self._need)
            if fewest is not None:
                choices.append((fewest, chosen, inside))
        best = Status.INFEASIBLE
        for _, _, inside in sorted(choices, key=lambda choice: choice[:2]):
            status = self._parts(inside, narrower, (*prefix, parts))
            if status is not Status.INFEASIBLE:
                best = Status.SOLVED if Status.SOLVED in (status, best) else status
        return best

    def _narrowest(self, problem: Problem, scope: str, lower: int, count: int, prefix: Value) -> Status:
        for parts in range(lower, min(count, 1 if scope in self._once else count) + 1):
            value = (*prefix, parts)
            if self.found and value > self.found[0].value[: len(value)]:
                return Status.SOLVED
            limited = _limited(problem, scope, parts, count)
            if parts == 1 and not (limited.part(scope) == FREE).any():
                alone = parts_that_hold(limited, limited.part(scope), self._prices, self._need)
                limited, _ = limited.narrowed(limited.kept(np.isin(limited.part(scope), alone), scope))
                if not limited.classes:
                    continue
            status = self._nodes(limited, value)
            if status is Status.UNKNOWN and scope not in self._once:
                return self._unproven(problem, scope, parts + 1, count, prefix)
            if status is not Status.INFEASIBLE:
                return status
        return Status.INFEASIBLE

    def _unproven(self, problem: Problem, scope: str, least: int, count: int, prefix: Value) -> Status:
        """Decide the nodes with the fewest parts for which a greedy solution exists.

        The solver ran out of time with fewer parts.
        """

        def found(parts: int) -> bool:
            return greedy(_limited(problem, scope, parts, count), self._all_prices) is not None

        with self._budget.phase("bound"):
            parts = bisect_left(range(count + 1), True, least, key=found)
        if parts > count:
            return Status.UNKNOWN
        return self._nodes(_limited(problem, scope, parts, count), (*prefix, parts), Gap(scope))

    def _nodes(self, whole: Problem, prefix: Value, doubt: Gap | None = None) -> Status:
        """Decide the fewest nodes. `doubt` is the gap of a level above.

        Of equal parts only as many are used as can matter. All are kept for the levels below, at which they
        may differ.
        """
        scope, limit = counted_scope(whole)
        problem = whole
        if scope is not None and limit is not None:
            unequal = without_equals(whole, scope, max(1, limit))
            problem, _ = whole.narrowed(whole.kept(unequal, scope))
        first = self._few_parts(problem)
        uneven = any(share.low.any() for share in shares(problem))
        with self._budget.share(COUNTING_SHARE if uneven else 1):
            decided = self._of_members_with_gpus(problem) or decide(problem, NODES, self._budget, first)
        if decided.status is Status.UNKNOWN:
            use = greedy(problem, self._all_prices)
            if use is not None:
                decided = decide(problem, NODES, self._budget, use)
        if decided.status is Status.SOLVED:
            if problem.classes < whole.classes or (problem.spared and problem is not whole):
                decided = _for_all(whole, decided)
            gap = doubt or (None if decided.gap is None else Gap(NODES.name, decided.gap))
            counted = Counted((*prefix, decided.value), decided.problem, decided.use, gap, decided.duals)
            self._add(counted)
        self.proven &= decided.status is not Status.UNKNOWN
        return decided.status

    def _of_members_with_gpus(self, problem: Problem) -> Decided | None:
        """Return the fewest nodes of these members, if the others then find room without GPUs; else None."""
        instance = self._instance
        if instance.idle is not Idle.BESIDE or not instance.plain or self._once:
            return None
        touching, _ = problem.narrowed(problem.open & (problem.patterns.gpus > 0)[problem.kind])
        touching = replace(touching, need=self._touching, spared=frozenset())
        decided = decide(touching, NODES, self._budget)
        if decided.status is not Status.SOLVED:
            return decided if decided.status is Status.INFEASIBLE else None
        use = with_others(problem, _in_terms_of(problem, decided))
        if use is None:
            return None
        floor = decided.value if decided.gap is None else 0
        return decide(problem, NODES, self._budget, use, floor)

    def _few_parts(self, problem: Problem) -> Use | None:
        """Return a first solution if rules make the search long; None without rules, or if none is found.

        It lies in the few parts that hold most of each role, or most of what the rules divide among parts.
        """
        scope, _ = counted_scope(problem)
        if not problem.rules or scope is None:
            return None
        every = np.zeros(problem.classes, bool)
        shared = [share for share in shares(problem) if share.low.any()]
        use = greedy(problem, self._all_prices) if shared else None
        if use is not None:
            return use
        for share in shared:
            every |= share.in_fullest(problem.part(scope))
        for by_class in values(problem, self._prices) if not shared else ():
            every |= in_fullest(problem, scope, by_class, FEW_PARTS)
        few, _ = problem.narrowed(problem.open & every[:, None])
        if few.classes == problem.classes or not few.classes:
            return None
        decided = decide(few, NODES, self._budget)
        if decided.status is not Status.SOLVED:
            return None
        return _in_terms_of(problem, decided)

    def _add(self, counted: Counted) -> None:
        if not self.found or counted.value < self.found[0].value:
            self.found = []
        if not self.found or counted.value == self.found[0].value:
            self.found.append(counted)


def _in_terms_of(problem: Problem, decided: Decided) -> Use:
    """Return the solution of a narrowed problem in the classes of this one. `start` identifies a class in
    both.
    """
    index = {start: c for c, start in enumerate(problem.start.tolist())}
    return {(index[int(decided.problem.start[c])], p): nodes for (c, p), nodes in decided.use.items()}


def _for_all(whole: Problem, decided: Decided) -> Decided:
    """Return what was decided without equal parts, with all of them."""
    still_open, _ = nodes_bound(whole, decided.duals).within(whole, decided.value)
    problem, use = whole.keeping_use(still_open, _in_terms_of(whole, decided))
    return replace(decided, problem=problem.keeping(nodes=decided.value), use=use)


def _limited(problem: Problem, scope: str, parts: int, count: int) -> Problem:
    return problem.keeping(**{scope: parts}) if parts < count else problem
