"""Count the parts and nodes that a gang touches in each region: on the coarse problem, widest scope first.

If few wide parts hold the gang, each choice of these parts becomes a region with a bound of its own. Parts of
the narrowest level are counted by the Lagrangian bound.

Cheaper bounds come from prices of the members. At any price, the k nodes (racks, zones) with the largest
value hold at least the value that any other k nodes hold. So the fewest nodes that reach the value of all
members are a lower bound. For one role the bound is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, islice
from math import comb
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Instance
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import NODES, UNUSABLE, Level, WithoutGpus, parts_level, quality_levels
from muster.placement.model.problem import FREE, PartLimits, Problem, Use, fewest_that_hold, limits_of
from muster.placement.model.solve import DecidedLevel, counted_scope, decide, nodes_bound, solve_without_bound
from muster.placement.model.solver import SolveStatus
from muster.placement.search.classes import REGION, coarse_problem, fine_problem, without_surplus_parts
from muster.placement.search.plan import (
    EqualRegions,
    Gap,
    Infeasible,
    MethodAnswer,
    PartialPlan,
    Solved,
    Undecided,
    Unknown,
    Value,
)
from muster.placement.search.regions import NOWHERE, regions

MAX_PART_CHOICES = 256
"""The most choices of parts of a level that are tried one by one. If there are more, the solver decides."""

COUNTING_SHARE = 0.5
"""The largest share of the solver's time for counting if members must be spread evenly.

The proof that one part fewer is not enough may take long, and the levels below must still be decided.
"""


class RegionCount:
    """Decide parts and nodes by the Lagrangian bound, and by CP-SAT on the core that it leaves."""

    name: ClassVar = "region-count"
    accepted_states: ClassVar = (Undecided, EqualRegions)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide all parts still to be counted, and the nodes."""
        instance, state = plan.instance, plan.state
        single_part_scopes: tuple[str, ...] = ()
        if isinstance(state, EqualRegions):
            rows, region, scopes = state.rows, state.region, state.uncounted_scopes
        else:
            with budget.phase("scan"):
                region = regions(instance, plan.scopes, plan.need)
            rows, scopes = np.flatnonzero(region != NOWHERE), instance.fabric_scopes
            # A required scope whose parts are counted divides no regions here. Instead, at most one of its
            # parts may be touched.
            single_part_scopes = tuple(scope for scope in scopes if scope in plan.scopes)
            if single_part_scopes:
                other_scopes = tuple(scope for scope in plan.scopes if scope not in single_part_scopes)
                region = regions(instance, other_scopes, plan.need)
            region = region[rows]
        best_regions = BestRegions(instance, plan.need, budget, frozenset(single_part_scopes))
        if len(rows):
            best_regions.count_regions(rows, region, scopes, unusable_first=level is UNUSABLE)
        gap = None
        if not best_regions.proven:
            gap = next(filter(None, (region.gap for region in best_regions.regions)), Gap(NODES.name))
        if not best_regions.regions:
            return Unknown(gap) if gap else Infeasible()
        below = quality_levels(instance.policy_costs, instance.without_gpus)
        plans = [
            replace(plan, levels=below, state=region.decided, gap=region.gap)
            for region in best_regions.regions
        ]
        return Solved(tuple(plans), gap)


class _DecidedRegion(NamedTuple):
    value: Value
    """How many parts of each level are touched, the widest level first, then how many nodes."""
    decided: DecidedLevel
    gap: Gap | None


class BestRegions:
    """Collect the regions with the smallest value so far: several, if they have equal values.

    For each of the `single_part_scopes`, one part must hold the gang. `proven` is whether no region was
    missed: then, if `regions` is empty, no region holds the gang.

    Each method that counts adds regions to `regions`. It returns SOLVED if some choice of parts holds
    the gang, INFEASIBLE if it is proven that none does, and else UNKNOWN.
    """

    def __init__(
        self, instance: Instance, need: Counts, budget: Budget, single_part_scopes: frozenset[str]
    ) -> None:
        self.regions: list[_DecidedRegion] = []
        self.proven = True
        self._instance, self._need = instance, need
        self._budget, self._single_part_scopes = budget, single_part_scopes
        self._prices = self._all_prices = prices_to_try(instance, need)
        self._gpu_member_need = need
        if instance.without_gpus is WithoutGpus.SOME_MEMBERS:  # members without GPUs touch no parts
            with_gpus = map(takes_gpus, instance.roles)
            self._gpu_member_need = tuple(n if takes else 0 for n, takes in zip(need, with_gpus, strict=True))
            self._prices = prices_to_try(instance, self._gpu_member_need)

    def count_regions(self, rows: Ints, region: Ints, scopes: Sequence[str], *, unusable_first: bool) -> None:
        """Count the parts of these scopes in each region that may hold the gang. `region` is [row].

        With `unusable_first`, the GPUs that members make unusable are minimised before parts are counted.
        """
        with self._budget.phase("scan"):
            problem, complete = coarse_problem(
                self._instance, rows, self._need, self._instance.scopes, region
            )
            problem = replace(problem, gpu_only_scopes=problem.gpu_only_scopes - self._single_part_scopes)
            part = problem.part(REGION)
            holding = (
                parts_that_hold(problem, part, self._all_prices, self._need) if problem.classes else part
            )
        self.proven &= complete
        for code in holding.tolist():
            region_problem, _ = problem.narrow_to(problem.open & (part == code)[:, None])
            if unusable_first:
                self._count_unusable_first(region_problem, scopes)
            else:
                self._count_parts(region_problem, scopes, ())

    def _count_unusable_first(self, problem: Problem, scopes: Sequence[str]) -> None:
        """Count a region for a gang without GPUs: first the GPUs that the gang makes unusable, on patterns of
        all packings, then parts and nodes.
        """
        with self._budget.phase("sets"):
            problem, complete = fine_problem(self._instance, problem, self._budget)
        self.proven &= complete
        one_part_limits = {scope: 1 for scope in scopes if scope in self._single_part_scopes}
        decided = decide(problem.with_decided(**one_part_limits), UNUSABLE, self._budget)
        self.proven &= decided.status is not SolveStatus.UNKNOWN and decided.gap is None
        if decided.status is SolveStatus.SOLVED:
            problem = replace(decided.problem, at_most={UNUSABLE.name: decided.value})
            self._count_parts(problem, scopes, (decided.value,))

    def _count_parts(self, problem: Problem, scopes: Sequence[str], prefix: Value) -> SolveStatus:
        """Count the parts of these scopes, then the nodes. `prefix` is the value at the levels above."""
        if not scopes:
            return self._count_nodes(problem, prefix)
        scope, *narrower = scopes
        part = problem.part(scope)
        count, some_need_no_part = len(np.unique(part[part != FREE])), bool((part == FREE).any())
        lower = fewest_parts(problem, part, self._prices, self._need)
        if lower is None or (scope in self._single_part_scopes and lower > 1):
            return SolveStatus.INFEASIBLE
        if count == 1 and lower and not some_need_no_part:
            return self._count_parts(problem, narrower, (*prefix, 1))
        if not narrower:
            return self._count_narrowest_level(problem, scope, lower, count, prefix)
        return self._count_wider_level(problem, scopes, lower, count, prefix)

    def _count_wider_level(
        self, problem: Problem, scopes: Sequence[str], lower: int, count: int, prefix: Value
    ) -> SolveStatus:
        """Count the parts of the first scope, from `lower` on, then the parts of the narrower scopes."""
        scope, *narrower = scopes
        some_need_no_part = bool((problem.part(scope) == FREE).any())
        while not some_need_no_part and comb(count, lower) <= MAX_PART_CHOICES:
            status = self._try_each_choice(problem, scope, lower, narrower, prefix)
            if status is not SolveStatus.INFEASIBLE or lower == count or scope in self._single_part_scopes:
                return status
            lower += 1
        if len(self._prices) > 1 or problem.rules or problem.at_most:
            solved = solve_without_bound(problem, parts_level(scope), self._budget)
            if solved.status is not SolveStatus.SOLVED:
                self.proven &= solved.status is SolveStatus.INFEASIBLE
                return solved.status
            lower = solved.value
            if scope in self._single_part_scopes and lower > 1:
                return SolveStatus.INFEASIBLE
        return self._count_parts(_limit_parts(problem, scope, lower, count), narrower, (*prefix, lower))

    def _try_each_choice(
        self, problem: Problem, scope: str, parts: int, narrower: Sequence[str], prefix: Value
    ) -> SolveStatus:
        """Count each choice of that many parts as a region, beginning with the fewest narrower parts."""
        part, choices = problem.part(scope), []
        names = parts_that_hold(problem, part, self._prices, self._need) if parts == 1 else np.unique(part)
        for combination in combinations(names.tolist(), parts):
            choice_problem, _ = problem.narrow_to(problem.open_patterns_of(np.isin(part, combination), scope))
            least_parts = fewest_parts(
                choice_problem, choice_problem.part(narrower[0]), self._prices, self._need
            )
            if least_parts is not None:
                choices.append((least_parts, combination, choice_problem))
        outcome = SolveStatus.INFEASIBLE
        for tries, (_, _, choice_problem) in enumerate(sorted(choices, key=lambda choice: choice[:2])):
            if tries and self._budget.late:
                self.proven = False
                return outcome if outcome is SolveStatus.SOLVED else SolveStatus.UNKNOWN
            status = self._count_parts(choice_problem, narrower, (*prefix, parts))
            if status is not SolveStatus.INFEASIBLE:
                outcome = SolveStatus.SOLVED if SolveStatus.SOLVED in (status, outcome) else status
        return outcome

    def _count_narrowest_level(
        self, problem: Problem, scope: str, lower: int, count: int, prefix: Value
    ) -> SolveStatus:
        """Try `lower` parts of the narrowest level, then more, until that many parts hold the gang."""
        for parts in range(lower, min(count, 1 if scope in self._single_part_scopes else count) + 1):
            value = (*prefix, parts)
            if self.regions and value > self.regions[0].value[: len(value)]:
                return SolveStatus.SOLVED
            limited = _limit_parts(problem, scope, parts, count)
            if parts == 1 and not (limited.part(scope) == FREE).any():
                holding_parts = parts_that_hold(limited, limited.part(scope), self._prices, self._need)
                limited, _ = limited.narrow_to(
                    limited.open_patterns_of(np.isin(limited.part(scope), holding_parts), scope)
                )
                if not limited.classes:
                    continue
            status = self._count_nodes(limited, value)
            if status is SolveStatus.UNKNOWN and scope not in self._single_part_scopes:
                return self._count_greedy_parts(problem, scope, parts + 1, count, prefix)
            if status is not SolveStatus.INFEASIBLE:
                return status
        return SolveStatus.INFEASIBLE

    def _count_greedy_parts(
        self, problem: Problem, scope: str, min_parts: int, count: int, prefix: Value
    ) -> SolveStatus:
        """Find the fewest parts for which there is a greedy solution, and decide the nodes there.

        This is called if the solver ran out of time with fewer parts. So fewer parts may be enough.
        """

        def has_solution(parts: int) -> bool:
            limited = _limit_parts(problem, scope, parts, count)
            return not self._budget.late and greedy_solution(limited, self._all_prices) is not None

        with self._budget.phase("bound"):
            parts = bisect_left(range(count + 1), True, min_parts, key=has_solution)
        if parts > count:
            return SolveStatus.UNKNOWN
        return self._count_nodes(_limit_parts(problem, scope, parts, count), (*prefix, parts), Gap(scope))

    def _count_nodes(self, full_problem: Problem, prefix: Value, unproven: Gap | None = None) -> SolveStatus:
        """Decide the fewest nodes. `unproven` is the first unproven level above.

        The model contains only as many equal parts as a plan can touch. The result has all equal parts,
        because they may differ at the levels below.
        """
        problem, _ = full_problem.narrow_to(without_surplus_parts(full_problem))
        first_use = self._first_solution(problem)
        uneven = any(limits.low.any() for limits in limits_of(problem))
        with self._budget.share(COUNTING_SHARE if uneven else 1):
            decided = self._count_gpu_members(problem) or decide(problem, NODES, self._budget, first_use)
        if decided.status is SolveStatus.UNKNOWN:
            use = greedy_solution(problem, self._all_prices)
            if use is not None:
                decided = decide(problem, NODES, self._budget, use)
        if decided.status is SolveStatus.SOLVED:
            if problem.open.sum() < full_problem.open.sum():
                decided = _extend_to_equal_parts(full_problem, decided)
            gap = unproven or (None if decided.gap is None else Gap(NODES.name, decided.gap))
            value = (*prefix, decided.value)
            if not self.regions or value < self.regions[0].value:
                self.regions = []
            if not self.regions or value == self.regions[0].value:
                self.regions.append(_DecidedRegion(value, decided, gap))
        self.proven &= decided.status is not SolveStatus.UNKNOWN
        return decided.status

    def _count_gpu_members(self, problem: Problem) -> DecidedLevel | None:
        """Return the fewest nodes of the members with GPUs, if the other members fit next to them on patterns
        without GPUs; else None.
        """
        instance = self._instance
        if (
            instance.without_gpus is not WithoutGpus.SOME_MEMBERS
            or not instance.binds_only_by_scopes
            or self._single_part_scopes
        ):
            return None
        touching, _ = problem.narrow_to(problem.open & (problem.patterns.gpus > 0)[problem.kind])
        touching = replace(touching, need=self._gpu_member_need, gpu_only_scopes=frozenset())
        decided = decide(touching, NODES, self._budget)
        if decided.status is not SolveStatus.SOLVED:
            return decided if decided.status is SolveStatus.INFEASIBLE else None
        use = add_members_without_gpus(problem, _in_classes_of(problem, decided))
        if use is None:
            return None
        floor = decided.value if decided.gap is None else 0
        return decide(problem, NODES, self._budget, use, floor)

    def _first_solution(self, problem: Problem) -> Use | None:
        """Return a solution to begin with, if rules divide members among parts; None without such rules, or
        if no solution is found.

        The solution is greedy, or it lies in the fullest narrower parts that hold the members which the rules
        divide.
        """
        scope, _ = counted_scope(problem)
        limits_with_minimum = [limits for limits in limits_of(problem) if limits.low.any()]
        if not limits_with_minimum or scope is None:
            return None
        use = greedy_solution(problem, self._all_prices)
        if use is not None:
            return use
        in_fullest_parts = np.zeros(problem.classes, bool)
        for limits in limits_with_minimum:
            in_fullest_parts |= limits.classes_in_fullest(problem.part(scope), limits.high)
        in_fullest, _ = problem.narrow_to(problem.open & in_fullest_parts[:, None])
        if in_fullest.classes == problem.classes or not in_fullest.classes:
            return None
        decided = decide(in_fullest, NODES, self._budget)
        if decided.status is not SolveStatus.SOLVED:
            return None
        return _in_classes_of(problem, decided)


def _in_classes_of(problem: Problem, decided: DecidedLevel) -> Use:
    """Return the solution of a narrowed problem in the classes of this problem. `begin` identifies a class in
    both.
    """
    index = {start: c for c, start in enumerate(problem.begin.tolist())}
    return {(index[int(decided.problem.begin[c])], p): nodes for (c, p), nodes in decided.use.items()}


def _extend_to_equal_parts(full_problem: Problem, decided: DecidedLevel) -> DecidedLevel:
    """Return a decision that was made without surplus equal parts, for the full problem with all of them."""
    still_open, _ = nodes_bound(full_problem, decided.duals).usable_below(full_problem, decided.value)
    problem, use = full_problem.narrow_with_use(still_open, _in_classes_of(full_problem, decided))
    return replace(decided, problem=problem.with_decided(nodes=decided.value), use=use)


def _limit_parts(problem: Problem, scope: str, parts: int, count: int) -> Problem:
    """Return the problem in which a plan touches at most `parts` of the `count` parts of the scope."""
    return problem.with_decided(**{scope: parts}) if parts < count else problem


# Bounds by prices


RolePrices = tuple[float, ...]
"""The price of a member, by role."""

RATIOS = 16
"""The most intervals between a price of one role alone and a price of another role alone."""

MAX_OF_PAIRS = 512
"""About the most prices of pairs of roles: all ratios for eight roles, then fewer ratios, then fewer pairs.

Each price costs time on every node, and any selection of prices gives a valid bound.
"""


def prices_to_try(instance: Instance, need: Counts) -> tuple[RolePrices, ...]:
    """Return the prices to try: each role alone, all equal, by GPUs, and pairs of roles at ratios of their
    needs.

    With many roles only some pairs are tried.
    """
    active = [r for r, count in enumerate(need) if count]
    candidates = [tuple(float(r == role) for r in range(len(need))) for role in active]
    if len(active) > 1:
        candidates += [tuple(float(n > 0) for n in need), tuple(float(role.gpus) for role in instance.roles)]
        candidates += [tuple(float(ask.units * ask.gpus) for ask in instance.asks)]
    pairs = comb(len(active), 2)
    steps = max(1, min(RATIOS - 1, MAX_OF_PAIRS // max(1, pairs)))
    stride = -(-pairs // MAX_OF_PAIRS)
    for a, b in islice(combinations(active, 2), 0, None, max(1, stride)):
        for step in range(1, steps + 1):
            fraction = step / (steps + 1)
            price = [0.0] * len(need)
            price[a], price[b] = fraction / need[a], (1 - fraction) / need[b]
            candidates.append(tuple(price))
    return tuple(price for price in dict.fromkeys(candidates) if any(price))


def max_node_values(problem: Problem, by_price: tuple[RolePrices, ...]) -> NDArray[np.float64]:
    """Return [price, class] the largest value of the members on one node of the class."""
    if not problem.classes or not by_price:
        return np.zeros((len(by_price), problem.classes))
    counts = problem.patterns.counts.astype(float)  # 0 if there is no pattern
    worth = np.stack([(counts @ np.array(price)).max(axis=1, initial=0.0) for price in by_price])
    return np.asarray(worth[:, problem.kind])


def fewest_parts(problem: Problem, part: Ints, by_price: tuple[RolePrices, ...], need: Counts) -> int | None:
    """Return a lower bound of the number of parts that hold the gang; None if all parts together do not hold
    the gang.

    `part` is [class]; FREE stands for classes whose nodes touch no part. For one role without further rules
    the bound is exact.
    """
    all_limits = list(limits_of(problem))
    if problem.gpu_only_scopes:  # members without a price touch no part
        priced = {role for price in by_price for role, value in enumerate(price) if value}
        all_limits = [limits for limits in all_limits if priced.issuperset(limits.roles)]
    min_parts = max((limits.fewest_parts(part) for limits in all_limits), default=0)
    for price, by_class in zip(by_price, max_node_values(problem, by_price), strict=True):
        capacities = _capacity_at_price(by_class * problem.size, part, price, all_limits)
        target = float(np.dot(price, need)) * (1 - 1e-9) - capacities[FREE]
        parts = fewest_that_hold(capacities[:FREE], target)
        if parts > len(capacities) - 1:
            return None
        min_parts = max(min_parts, parts)
    return min_parts


def _capacity_at_price(
    capacity: NDArray[np.float64], part: Ints, price: RolePrices, all_limits: Sequence[PartLimits]
) -> NDArray[np.float64]:
    """Return [part] the value that the part holds at a price, within the limits of the rules. The last entry
    is for FREE.
    """
    count = int(part.max(initial=FREE)) + 2
    bin_of_class = np.where(part == FREE, count - 1, part)
    capacities = np.bincount(bin_of_class, capacity, count).astype(float)
    priced = {role for role, value in enumerate(price) if value}
    for limits in all_limits:
        if priced <= set(limits.roles):
            max_values = np.append(limits.high * max(price), np.inf)
            width = len(max_values)
            bin_pair = bin_of_class * width + np.where(limits.part < 0, width - 1, limits.part)
            by_pair = np.bincount(bin_pair, capacity, count * width).reshape(count, width)
            capacities = np.minimum(capacities, np.minimum(by_pair, max_values).sum(axis=1))
    return capacities


def parts_that_hold(problem: Problem, part: Ints, by_price: tuple[RolePrices, ...], need: Counts) -> Ints:
    """Return the parts whose capacity is enough at each price. No other part can hold the whole gang."""
    holds, all_limits = np.ones(int(part.max(initial=-1)) + 1, bool), list(limits_of(problem))
    for price, by_class in zip(by_price, max_node_values(problem, by_price), strict=True):
        target = float(np.dot(price, need)) * (1 - 1e-9)
        holds &= _capacity_at_price(by_class * problem.size, part, price, all_limits)[:FREE] >= target
    return np.flatnonzero(holds)


def is_in_fullest_parts(problem: Problem, scope: str, by_class: NDArray[np.float64], count: int) -> Bools:
    """Return [class] bool: whether the class is in one of the `count` roomiest parts, or in no part.

    `by_class` [class] is the value of the members that one node holds.
    """
    part = problem.part(scope)
    in_part = part != FREE
    capacity = np.bincount(part[in_part], (by_class * problem.size)[in_part])
    fullest = np.argsort(-capacity, kind="stable")[:count]
    return np.asarray(~in_part | np.isin(part, fullest))


# Solutions without a solver, in case the solver runs out of time


def greedy_solution(problem: Problem, by_price: tuple[RolePrices, ...]) -> Use | None:
    """Return a solution that touches at most the decided number of parts of each level.

    The result is None if no solution is found, for example because several rules bind members.
    """
    if problem.exact:  # a greedy solution could place more members than needed
        return None
    if problem.rules:
        return _even_solution(problem)
    for price, by_class in zip(by_price, max_node_values(problem, by_price), strict=True):
        is_chosen, problem_in_parts = np.ones(problem.classes, bool), problem
        for name, max_parts in problem.at_most.items():  # widest first
            if name in problem.parts:
                is_chosen &= is_in_fullest_parts(problem, name, by_class * is_chosen, max_parts)
                problem_in_parts = replace(
                    problem_in_parts, open=problem_in_parts.open_patterns_of(is_chosen, name)
                )
        use = _fill(problem_in_parts, np.flatnonzero(problem_in_parts.open.any(axis=1)), np.array(price))
        if use is not None:
            return use
    return None


def add_members_without_gpus(problem: Problem, use: Use) -> Use | None:
    """Return the solution with the missing members added, on patterns without GPUs of nodes that `use` does
    not touch.

    The result is None if these nodes do not hold the missing members.
    """
    placed_members, size = np.zeros(len(problem.need), np.int64), problem.size.copy()
    for (c, p), nodes in use.items():
        placed_members += nodes * problem.patterns.counts[problem.kind[c], p]
        size[c] -= nodes
    idle = problem.open & (problem.patterns.gpus == 0)[problem.kind]
    missing = tuple(np.maximum(0, np.array(problem.need) - placed_members).tolist())
    remainder = replace(problem, need=missing, size=size, open=idle)
    added_use = _fill(remainder, np.flatnonzero(idle.any(axis=1)), np.ones(len(missing), np.int64))
    return None if added_use is None else {**use, **added_use}


def _even_solution(problem: Problem) -> Use | None:
    """Return a solution for one role that one rule divides among parts; None for other problems, or if no
    solution is found.

    Each part uses its roomiest narrower parts: first as many as its minimum of members needs, then more of
    them once the other parts are full.
    """
    active, all_limits = [role for role, need in enumerate(problem.need) if need], list(limits_of(problem))
    if len(active) != 1 or len(all_limits) != 1 or len(problem.rules) != 1:
        return None
    (limits,), (role,) = all_limits, active
    if limits.roles != (role,) or (problem.open.any(axis=1) & (limits.part < 0)).any():
        return None
    if (limits.low > limits.even).any():  # no full segment fits between the minimum and `even`
        return None
    scope, _ = counted_scope(problem)
    narrow_part = problem.part(scope or "")
    parts, counts = len(limits.low), limits.low.copy()
    fullest = limits.classes_in_fullest(narrow_part, counts) & (limits.capacity > 0)
    capacity_by_part = np.bincount(limits.part[fullest], limits.capacity[fullest], parts).astype(np.int64)
    for max_by_part in (np.minimum(limits.even, capacity_by_part), limits.even):
        room, missing = np.maximum(0, max_by_part - counts), problem.need[role] - int(counts.sum())
        counts += np.clip(missing - (np.cumsum(room) - room), 0, room)
    fullest = limits.classes_in_fullest(narrow_part, counts) & (limits.capacity > 0)
    in_pattern = np.where(problem.open, problem.patterns.counts[problem.kind, :, role], 0)
    by_node, use = in_pattern.max(axis=1), Use()
    for part in np.flatnonzero(counts).tolist():
        classes = np.flatnonzero(fullest & (limits.part == part))
        classes = classes[np.argsort(-by_node[classes], kind="stable")]
        capacity_before = np.cumsum(limits.capacity[classes]) - limits.capacity[classes]
        nodes = np.clip(-(-(counts[part] - capacity_before) // by_node[classes]), 0, problem.size[classes])
        use |= {
            (c, int(in_pattern[c].argmax())): n
            for c, n in zip(classes.tolist(), nodes.tolist(), strict=True)
            if n
        }
        if limits.capacity[classes].sum() < counts[part]:
            return None
    parts_touched = {
        name: parts_level(name).value(problem, use) for name in problem.at_most if name in problem.parts
    }
    few_enough = all(count <= problem.at_most[name] for name, count in parts_touched.items())
    return use if few_enough and counts.sum() == problem.need[role] else None


def _fill(problem: Problem, classes: Ints, price: Ints) -> Use | None:
    """Return a solution on these classes; None if they do not hold the needed members.

    The pattern with the largest value of missing members is used first. Between equal values, the pattern
    with the fewest surplus members, by their value, is used.
    """
    missing = np.array(problem.need, np.int64)
    room = problem.size.copy()
    counts = problem.patterns.counts[problem.kind[classes]]
    full_worth = counts @ price
    use: Use = {}
    while missing.any():
        useful = np.minimum(counts, missing) @ price
        useful = np.where(problem.open[classes] & (room[classes] > 0)[:, None], useful, 0.0)
        most_useful = useful.max(initial=0)
        if most_useful <= 0:
            return None
        wasted = np.where(useful == most_useful, full_worth - useful, np.inf)
        i, p = np.unravel_index(int(wasted.argmin()), useful.shape)
        c, in_pattern = int(classes[i]), counts[i, p]
        times = min([int(room[c]), *(int(gap // n) for gap, n in zip(missing, in_pattern, strict=True) if n)])
        times = max(1, times)
        use[c, int(p)] = use.get((c, int(p)), 0) + times
        room[c] -= times
        missing = np.maximum(0, missing - times * in_pattern)
    return use
