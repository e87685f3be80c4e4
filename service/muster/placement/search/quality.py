"""Decide the levels below the nodes for one region whose parts and nodes are counted.

For gangs that share GPUs or have a policy, choosing the GPUs for each packing of each node takes long. So a
filter first leaves out packings that no plan with the counted number of nodes can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from muster.placement.cluster.columns import Bools, Ints, gpu_counts
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import context_on, gpus_on
from muster.placement.gang.packings import Packings, PackingsByRow, packings_on
from muster.placement.gpus.choices import CHOICE_VALUES, choices, choosing_time
from muster.placement.gpus.costs import Cost, NodeContext
from muster.placement.gpus.gpusets import SET_VALUES
from muster.placement.gpus.node_rules import Counts
from muster.placement.gpus.slices import Asks, NodeGpus
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.bound import EPSILON
from muster.placement.model.objective import NODES, NVLINK_DOMAINS, WEAKEST_LINK, Level, WithoutGpus
from muster.placement.model.problem import FREE, Floats, Problem, Use, to_full, to_narrowed
from muster.placement.model.solve import (
    DecidedLevel,
    Solution,
    any_solution,
    counted_scope,
    decide,
    nodes_bound,
)
from muster.placement.model.solver import SolveStatus
from muster.placement.search.classes import (
    NodeTable,
    fine_problem,
    packing_values,
    rows_and_cells,
    with_tables,
    without_surplus_parts,
)
from muster.placement.search.plan import (
    Declined,
    Gap,
    MethodAnswer,
    OpenPatterns,
    PartialPlan,
    Solved,
    Unknown,
    Value,
)
from muster.placement.search.regions import position_in_run

LEVEL_SHARE = 1 / 8
"""The largest share of the solver's time for each level below the nodes.

This leaves time for later levels when a proof takes long.
"""


class LinkThresholds:
    """Decide the weakest link by thresholds, from the fastest link down. The first threshold at which a plan
    exists is the best value.
    """

    name: ClassVar = "link-thresholds"
    accepted_states: ClassVar = (OpenPatterns,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide the weakest link."""
        if level is not WEAKEST_LINK:
            return Declined("it decides the weakest link alone")
        assert isinstance(plan.state, OpenPatterns)
        return _decide_weakest_link(plan, plan.state, budget)


class LevelCore:
    """Decide one level: the Lagrangian bound fixes patterns, and CP-SAT solves the remaining core."""

    name: ClassVar = "level-core"
    accepted_states: ClassVar = (DecidedLevel, OpenPatterns)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide one level. For the first level after counting, the patterns of the nodes are enumerated."""
        if level.worst:
            return Declined("the level is not a sum")
        plans, gap = plan.state, None
        if isinstance(plans, DecidedLevel):
            with budget.phase("sets"):
                plans, complete = _open_patterns(plan.instance, plans, budget)
            gap = None if complete else Gap(NVLINK_DOMAINS.name)
        assert isinstance(plans, OpenPatterns)
        if not plans.problem.open.any():  # for example on a node with too many GPU sets to enumerate
            return Unknown(Gap(level.name))
        with budget.share(LEVEL_SHARE):
            decision = decide(plans.problem, level, budget, plans.use)
        if decision.status is not SolveStatus.SOLVED:
            return Unknown(gap or Gap(level.name))
        if gap is None and decision.gap is not None:
            gap = Gap(level.name, decision.gap)
        return Solved((plan.with_level(OpenPatterns(decision.problem, decision.use), decision.value),), gap)


def _open_patterns(
    instance: Instance, nodes_level: DecidedLevel, budget: Budget
) -> tuple[OpenPatterns, bool]:
    """Return the problem with all patterns, with a solution if one is found, and whether the patterns are
    complete.

    Patterns that no plan with this number of nodes can have are left out. The solution uses the nodes of the
    coarse solution.
    """
    by_row = _without_surplus(nodes_level.problem, nodes_level.use)
    idle_rows = np.zeros(0, np.int64)
    if nodes_level.problem.gpu_only_scopes:
        nodes_level, idle_rows = _find_idle_rows(nodes_level)
    if instance.policy_costs:
        problem, complete = patterns_for_count(instance, nodes_level, by_row, budget)
    else:
        problem, complete = fine_problem(instance, nodes_level.problem, budget)
    if not problem.open.any():
        return OpenPatterns(problem, None), complete
    if len(idle_rows):  # either all nodes of a class are idle, or none
        is_idle = np.isin(problem.rows[problem.begin], idle_rows)
        touching = (problem.patterns.gpus > 0)[problem.kind] & is_idle[:, None]
        problem, _ = problem.narrow_to(problem.open & ~touching)
    # With rules, the coarse solution may have no GPU sets that keep the rules. So the solver looks for
    # another solution on its nodes.
    if instance.binds_only_by_scopes:
        use = _use_of_members(problem, by_row)
    else:
        used_rows = {row for row, _, _ in nodes_level.problem.used_nodes(nodes_level.use)}
        use = _solve_on_nodes(problem, sorted(used_rows), budget)
    still_open, _ = nodes_bound(problem, nodes_level.duals).usable_below(problem, nodes_level.value)
    plans = OpenPatterns(problem, use).with_only(still_open)
    if not plans.problem.open.any():  # nodes were left out, as there was no time for them
        return plans, complete
    plans = plans.with_only(without_surplus_parts(plans.problem))
    problem = plans.problem
    counts = (problem.patterns.nodes[problem.kind] | ~problem.open).all(axis=1)
    max_nodes = np.where(counts, max(1, nodes_level.value), problem.size)
    return replace(plans, problem=replace(problem, size=np.minimum(problem.size, max_nodes))), complete


def _find_idle_rows(nodes_level: DecidedLevel) -> tuple[DecidedLevel, Ints]:
    """Return the decided level, and the idle rows: no best plan puts members with GPUs there, because no
    pattern with GPUs is open after counting.

    In the returned problem the idle rows are one cell, which lies in no part. They keep their own cells if
    rules refer to cells, or if a scope is required for all members.
    """
    problem = nodes_level.problem
    is_idle = problem.classes_without_gpus(problem.gpu_only_scopes)
    rows = problem.rows[:0]
    if is_idle.any():
        rows = np.concatenate([problem.nodes(c) for c in np.flatnonzero(is_idle).tolist()])
    if problem.rules or not problem.gpu_only_scopes.issuperset(problem.at_most.keys() & problem.parts.keys()):
        return nodes_level, rows
    nowhere = max((len(part) for part in problem.parts.values()), default=0)
    parts = {scope: np.append(part, FREE) for scope, part in problem.parts.items()}
    cell = np.where(is_idle, nowhere, problem.cell)
    return replace(nodes_level, problem=replace(problem, cell=cell, parts=parts)), rows


def _without_surplus(problem: Problem, use: Use) -> dict[int, Counts]:
    """Return the members by row of a coarse solution, without surplus members. These are removed from the
    least filled nodes first.
    """
    by_row: dict[int, list[int]] = {
        row: problem.patterns.counts[kind, p].tolist() for row, kind, p in problem.used_nodes(use)
    }
    for role, need in enumerate(problem.need):
        surplus = sum(counts[role] for counts in by_row.values()) - need
        for row in sorted(by_row, key=lambda row: (sum(by_row[row]), row)):
            removed = min(surplus, by_row[row][role])
            by_row[row][role] -= removed
            surplus -= removed
    return {row: tuple(counts) for row, counts in by_row.items() if any(counts)}


def _solve_on_nodes(problem: Problem, rows: list[int], budget: Budget) -> Use | None:
    """Return a solution that uses only these nodes; None if no solution is found."""
    if not rows:
        return None
    is_used = np.isin(problem.rows, rows)
    size = np.array(
        [int(is_used[start : start + n].sum()) for start, n in zip(problem.begin, problem.size, strict=True)]
    )
    problem_on_rows = replace(problem, size=np.minimum(problem.size, size))
    problem_on_rows, old_classes = problem_on_rows.narrow_to(problem_on_rows.open & (size > 0)[:, None])
    solved = any_solution(problem_on_rows, budget)
    if solved.status is not SolveStatus.SOLVED:
        return None
    return to_full(solved.use, old_classes)


def _use_of_members(problem: Problem, by_row: Mapping[int, Counts]) -> Use | None:
    """Return members by row as a solution, on GPU sets with the best links; None if a pattern is lacking."""
    use: Use = {}
    class_of = {int(row): c for c in range(problem.classes) for row in problem.nodes(c)}
    for row, counts in by_row.items():
        c = class_of.get(row)
        if c is None:
            return None
        kind = problem.kind[c]
        is_equal = (problem.patterns.counts[kind] == np.array(counts)).all(axis=1)
        equal_patterns = np.flatnonzero(is_equal & problem.patterns.valid[kind])
        if not len(equal_patterns):
            return None
        key = (c, int(equal_patterns[0]))
        use[key] = use.get(key, 0) + 1
    return use


def _decide_weakest_link(plan: PartialPlan, state: OpenPatterns, budget: Budget) -> MethodAnswer:
    """Try thresholds of the weakest link from the fastest down: the first threshold with a plan is the
    level's value.

    More members can have faster links: if NVLinks join four GPUs in a ring, three of them close no ring. So
    each threshold filters the patterns, and the bound or the solver decides whether they still hold the gang.
    """
    problem, use, patterns = state.problem, state.use, state.problem.patterns
    links = np.where(problem.open, patterns.weakest[problem.kind], -1)
    used_link = min((int(links[c, p]) for c, p in use), default=-1) if use is not None else -1
    gap: Gap | None = None
    for threshold in sorted(set(links[problem.open].tolist()), reverse=True):
        fast = problem.open & (links >= threshold)
        fast_use = use
        if threshold > used_link:
            solved, old_classes = _solve_on_fast_links(problem, fast, budget)
            if solved.status is not SolveStatus.SOLVED:
                gap = Gap(WEAKEST_LINK.name) if solved.status is SolveStatus.UNKNOWN else gap
                continue
            fast_use = to_full(solved.use, old_classes)
        decided = OpenPatterns(*_keep_largest_rings(problem, fast, fast_use))
        return Solved((plan.with_level(decided, -threshold),), gap)
    return Unknown(Gap(WEAKEST_LINK.name))


def _solve_on_fast_links(problem: Problem, fast: Bools, budget: Budget) -> tuple[Solution, Ints]:
    """Return a solution with these patterns alone, if any, and its classes as indices in `problem`."""
    infeasible = Solution(SolveStatus.INFEASIBLE, {})
    narrowed, old_classes = problem.narrow_to(fast)
    if not narrowed.classes:
        return infeasible, old_classes
    if NODES.name in narrowed.at_most:
        with budget.phase("bound"):
            count = nodes_bound(narrowed)
        if count.lower > narrowed.at_most[NODES.name] + 1e-6 * max(1, narrowed.at_most[NODES.name]):
            return infeasible, old_classes
        still_open, _ = count.usable_below(narrowed, narrowed.at_most[NODES.name])
        narrowed, kept_classes = narrowed.narrow_to(still_open)
        old_classes = old_classes[kept_classes]
    return any_solution(narrowed, budget), old_classes


def _keep_largest_rings(problem: Problem, fast: Bools, use: Use | None) -> tuple[Problem, Use | None]:
    """Return the problem with one GPU set for each packing of a class, and the solution in its classes.

    The last set that is fast enough has the largest ring, and also the least damage (see gpusets.best_sets).
    """
    packing = problem.patterns.packing[problem.kind]
    width = fast.shape[1]
    later = np.zeros_like(fast)
    for p in range(width - 1):
        later[:, p] = fast[:, p + 1] & (packing[:, p + 1] == packing[:, p])
    still_open = fast & ~later
    moved: Use = {}
    for (c, p), nodes in (use or {}).items():
        last = max(q for q in range(width) if fast[c, q] and packing[c, q] == packing[c, p])
        moved[c, last] = moved.get((c, last), 0) + nodes
    narrowed, old_classes = problem.narrow_to(still_open)
    return narrowed, None if use is None else to_narrowed(moved, old_classes)


# Slices and policies: patterns of a node take long to enumerate


QUALITY_SHARE = 0.25
"""The largest share of the solver's time for choosing GPUs."""

MAX_FILTERED = 512
"""The most packings of one node that are considered. Of more packings, as three roles of slices can have, a
sample is taken.
"""

MAX_PRICES = 12
"""The most prices by which packings are filtered, because each price costs time for each packing."""


def patterns_for_count(
    instance: Instance, nodes_level: DecidedLevel, by_row: Mapping[int, Counts], budget: Budget
) -> tuple[Problem, bool]:
    """Return the problem with all patterns of plans with the counted number of nodes, and whether the
    patterns are complete.

    Rows with members in `by_row` are always considered, other rows only as long as there is time. Among
    those, rows of parts in which a plan may open few GPUs come first.
    """
    problem, nodes = nodes_level.problem, nodes_level.value
    rows, cell = rows_and_cells(problem)
    packings = packings_on(instance, rows, problem.need)
    scope, limit = counted_scope(problem)
    part = problem.parts[scope][cell] if scope is not None and limit == 1 else np.zeros(len(rows), np.int64)
    part = part - int(part.min(initial=0))
    packing_filter = _packing_filter(instance, nodes_level, packings, part)
    complete = packings.complete
    tables: list[NodeTable | None] = [None] * len(rows)
    is_used = np.isin(rows, list(by_row))
    in_used_parts = np.isin(part, part[is_used])
    memory = _free_memory_on_used_gpus(instance, rows, part, nodes)
    order = np.lexsort((rows, part, -memory, ~in_used_parts, ~is_used))
    with budget.share(1 - QUALITY_SHARE):
        for i in order.tolist():
            if not is_used[i] and budget.spent:
                complete = False
                break
            passing_packings = packing_filter.select(i, packings.of(i))
            if len(passing_packings) > MAX_FILTERED:
                passing_packings, complete = _sample(passing_packings, by_row.get(int(rows[i]))), False
            if len(passing_packings):
                tables[i], all_of_them = _node_table(instance, int(rows[i]), passing_packings)
                complete &= all_of_them
                budget.spend(choosing_time(instance.asks, passing_packings))
    extra_fields = tuple(cost.value for cost in instance.policy_costs if cost is not Cost.NVLINK_DOMAINS)
    return with_tables(instance, problem, tables, extra_fields), complete


def _sample(packings: Ints, counts: Counts | None) -> Ints:
    """Return an evenly spaced sample of the packings, and the packing of `counts`."""
    sampled = np.zeros(len(packings), bool)
    sampled[np.linspace(0, len(packings) - 1, MAX_FILTERED).astype(np.int64)] = True
    if counts is not None:
        sampled |= (packings == np.array(counts)).all(axis=1)
    return np.asarray(packings[sampled])


@dataclass(frozen=True, slots=True, eq=False)
class _PackingFilter:
    """A filter for packings: at each price, the members on a used node have at least a minimum value.

    A plan has the counted number of nodes, in one part. So the minimum is the value of all members, minus the
    most that the other nodes of the part hold.
    """

    prices: Floats
    """[role, price] The value of a member."""
    min_values: Floats
    """[row, price] The minimum value of the members on the node."""
    touching: Bools | None = None
    """[role] Whether members have GPUs; None if all members touch nodes. Other members have no price."""

    def select(self, row: int, packings: Packings) -> Ints:
        """Return the packings [packing, role] of the row that pass the filter."""
        all_packings = packings.make_all()
        passes = (all_packings @ self.prices >= self.min_values[row]).all(axis=1)
        if self.touching is not None:
            passes |= ~all_packings[:, self.touching].any(axis=1)
        return np.asarray(all_packings[passes])


def _packing_filter(
    instance: Instance, nodes_level: DecidedLevel, packings: PackingsByRow, part: Ints
) -> _PackingFilter:
    need = np.array(nodes_level.problem.need)
    if instance.running:  # nodes with running members are not counted
        return _PackingFilter(np.zeros((len(need), 1)), np.zeros((len(part), 1)))
    prices = _prices_to_try(instance, nodes_level.problem.need, nodes_level.duals)
    touching = None
    if instance.without_gpus is WithoutGpus.SOME_MEMBERS:
        touching = np.array([takes_gpus(role) for role in instance.roles])
        prices = prices * touching[:, None]
    values = np.array([(node.maximal @ prices).max(axis=0, initial=0.0) for node in packings.lists])
    value_by_price = values[packings.index]
    value_elsewhere = np.stack(
        [_value_of_other_nodes(by_price, part, nodes_level.value) for by_price in value_by_price.T], axis=1
    )
    total = need @ prices
    return _PackingFilter(prices, total - value_elsewhere - EPSILON * (1 + total), touching)


def _prices_to_try(instance: Instance, need: Counts, duals: Sequence[Floats]) -> Floats:
    """Return [role, price] prices of a member: each role alone, by GPUs, by memory, and the bound's duals."""
    active = [r for r, count in enumerate(need) if count]
    columns = [np.eye(len(need))[r] for r in active]
    columns += [
        np.array([ask.gpus for ask in instance.asks]),
        np.array([ask.units * ask.gpus for ask in instance.asks]),
    ]
    for dual in duals:
        price = np.zeros(len(need))
        price[active] = np.maximum(0.0, dual[: len(active)])
        columns.append(price)
    return np.stack(columns[:MAX_PRICES], axis=1).astype(float)


def _value_of_other_nodes(value: Floats, part: Ints, nodes: int) -> Floats:
    """Return [row] the total value of the best `nodes` − 1 other nodes in the same part."""
    order = np.lexsort((-value, part))
    rank = np.empty(len(part), np.int64)
    rank[order] = position_in_run(part[order])
    is_among_best = rank < nodes - 1
    total_of_best = np.bincount(part, np.where(is_among_best, value, 0.0))
    next_value = np.bincount(part, np.where(rank == nodes - 1, value, 0.0))
    return np.asarray(total_of_best[part] + np.where(is_among_best, next_value[part] - value, 0.0))


def _free_memory_on_used_gpus(instance: Instance, rows: Ints, part: Ints, nodes: int) -> Floats:
    """Return [row] the free memory on GPUs in use: of the node, and of the best `nodes` − 1 other nodes in
    its part.
    """
    memory = instance.columns.gpu_memory[:, rows]
    free = instance.columns.free_gpus[rows] >> np.arange(len(memory))[:, None] & 1
    unused = (memory * (1 - free)).sum(axis=0).astype(float)
    return np.asarray(unused + _value_of_other_nodes(unused, part, nodes))


def _node_table(instance: Instance, row: int, packings: Ints) -> tuple[NodeTable, bool]:
    """Return the patterns of one node with their values, and whether the patterns are complete."""
    table, complete = _node_patterns(
        tuple(map(tuple, packings.tolist())), instance.asks, gpus_on(instance, row), context_on(instance, row)
    )
    values = packing_values(instance, np.array([row]), packings)
    values_of_row = {name: by_row[0] for name, by_row in values.items()}
    return NodeTable.of(instance, table, table.tobytes(), values_of_row), complete


@lru_cache(maxsize=1 << 14)
def _node_patterns(
    packings: tuple[Counts, ...], asks: Asks, node: NodeGpus, context: NodeContext
) -> tuple[Ints, bool]:
    """Return a table of the patterns of one node, and whether they are complete: in each line the counts by
    role, PATTERN_FIELDS, and further costs.
    """
    sets = choices(asks, packings, node, context)
    domains = np.zeros_like(sets.packing)
    extra_values = []
    for cost, values in zip(context.costs, sets.costs, strict=True):
        if cost is Cost.NVLINK_DOMAINS:
            domains = values
        else:
            extra_values.append(values)
    begins = np.searchsorted(sets.packing, np.arange(len(packings)))
    size = gpu_counts(sets.masks)
    choice = np.arange(len(sets.packing)) - begins[sets.packing]
    counts = np.array(packings, np.int64).reshape(len(packings), len(asks))[sets.packing]
    by_name = {"domains": domains, **{name: getattr(sets, name) for name in CHOICE_VALUES}}
    values = (by_name[name] for name in SET_VALUES)
    fields = (*values, size, sets.packing, choice, *extra_values)
    return np.concatenate([counts, np.stack(fields, axis=1)], axis=1), sets.complete
