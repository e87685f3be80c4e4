"""Place the whole gang on the best node, because no plan touches fewer parts.

Gangs with members without GPUs begin here too: the GPUs that these members make unusable are an early level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from muster.domain.decision import Step
from muster.domain.request import Scope
from muster.placement.cluster.columns import LARGEST, Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.instance import Instance, fits_at_once
from muster.placement.gang.on_node import context_on, fit_with_penalty, gpus_on, node_kinds
from muster.placement.gang.packings import packings_on
from muster.placement.gpus.choices import CHOICE_VALUES, NODE_TIME, LowerBounds, choices
from muster.placement.gpus.costs import Cost
from muster.placement.gpus.damage import Prices
from muster.placement.gpus.gpusets import SET_VALUES
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget
from muster.placement.model.objective import (
    BEST_FIT,
    DAMAGE,
    NODES,
    NVLINK_DOMAINS,
    POLICY_LEVELS,
    UNUSABLE,
    Level,
    WithoutGpus,
    quality_levels,
    value_of,
)
from muster.placement.search.plan import (
    Decide,
    Declined,
    Gap,
    Infeasible,
    MethodAnswer,
    NodePlan,
    PartialPlan,
    Solved,
    Undecided,
    Value,
    gpu_sets_on,
    members_by_domain,
)

BETTER_ELSEWHERE = "members without GPUs may be better off elsewhere"
"""Why a method declines gangs with members without GPUs."""


@dataclass(frozen=True, slots=True)
class SingleNode:
    """Decide all levels on the best node that takes all members. No plan touches fewer parts.

    If the gang may lie on several nodes, members without GPUs may be better off on other nodes. Then the
    method declines, unless the gang must lie in one NVLink domain.
    """

    decide: Decide
    name: ClassVar = "single-node"
    accepted_states: ClassVar = (Undecided,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide all levels if some node takes all members."""
        instance, in_wide = plan.instance, plan.instance.columns.topology.in_wide
        must_be_one_node = {Scope.NODE, Scope.GPU} & {*plan.scopes} or (
            sum(plan.need) == 1 and not instance.running
        )
        leaves_out_wide_domains = (
            instance.without_gpus is WithoutGpus.SOME_MEMBERS or level is UNUSABLE
        ) and not must_be_one_node
        if leaves_out_wide_domains and Scope.NVLINK_DOMAIN not in plan.scopes:
            return Declined(BETTER_ELSEWHERE)
        searched_instance = instance.restricted_to(~in_wide) if leaves_out_wide_domains else instance
        with budget.phase("scan"):
            inside_scopes = [scope for scope in plan.scopes if scope in INSIDE]
            rows = _rows_that_may_hold(searched_instance, plan.scopes, plan.need)
            best_node, proven = find_best_node(searched_instance, rows, plan.need, inside_scopes, budget)
        gap = None if proven else Gap(NODES.name)
        if best_node is None:
            return Declined("no node takes all members", gap)
        nodes: tuple[NodePlan, ...] = (best_node.plan,)
        if leaves_out_wide_domains and instance.room[:, in_wide].any():
            # An NVLink domain of several nodes may be better.
            wide_plan, unproven = self.decide(
                replace(plan, instance=instance.restricted_to(in_wide)), None, budget
            )
            gap = gap or unproven
            values = {nodes: best_node.value} | ({wide_plan.nodes(): wide_plan.value} if wide_plan else {})
            nodes = min(values, key=lambda nodes: _value_of_plan(instance, nodes, values[nodes]))
        return Solved((plan.complete(nodes),), gap)


def _value_of_plan(instance: Instance, nodes: Sequence[NodePlan], value: Value) -> tuple[int, ...]:
    """Return the value of a plan in one NVLink domain, at all levels from the parts down. `value` is the
    plan's value at the quality levels.
    """
    rows, counts = np.array([plan.row for plan in nodes]), np.array([plan.counts for plan in nodes], np.int64)
    some_without_gpus = instance.without_gpus is WithoutGpus.SOME_MEMBERS
    touching = rows[[plan.gpus.mask > 0 for plan in nodes]] if some_without_gpus else rows
    topology = instance.columns.topology
    parts = [len(np.unique(topology.index_or_own(scope)[touching])) for scope in instance.fabric_scopes]
    crossed, unusable = (*parts, len(touching)), int(instance.unusable_gpus(rows, counts[:, None]).sum())
    values_of_set = value[-len(quality_levels(instance.policy_costs)) :]
    return (*crossed, unusable, *values_of_set) if some_without_gpus else (unusable, *crossed, *values_of_set)


class BestNode(NamedTuple):
    """The best node, and the value of the plan there. Between equal values the first row is the best.

    `allowed` is the mask of the GPUs that the plan may use.
    """

    value: Value
    row: int
    allowed: int
    plan: NodePlan


def find_best_node(
    instance: Instance, rows: Ints, need: Counts, inside_scopes: list[str], budget: Budget
) -> tuple[BestNode | None, bool]:
    """Return the best of these nodes, and whether it is proven best. The first result is None if no node
    takes all members.

    The members lie inside one part of each of the `inside_scopes`. If members share GPUs or have a policy,
    choosing the GPUs takes long. If time runs out, the result is the best node so far.
    """
    if not len(rows):
        return None, True
    counts = np.array([need], np.int64)
    exact = {BEST_FIT: fit_with_penalty(instance, rows, counts)[:, 0]}
    usable = np.full(len(rows), -1)
    if instance.prices is not None:
        exact[DAMAGE], usable = _priced_damage(instance, instance.prices, rows, need)
    if instance.without_gpus is not WithoutGpus.NO_MEMBER:
        exact[UNUSABLE] = instance.unusable_gpus(rows, counts)[:, 0]
    first = _first_of_each_kind(instance, rows, [*exact.values()])
    rows, usable = rows[first], usable[first]
    exact = {level: row_values[first] for level, row_values in exact.items()}
    bounds = lower_bounds(instance, rows, (need,))[:, :, 0]
    bounds_by_level = split_by_level(instance, bounds, exact[BEST_FIT]) | exact
    levels = sorted(bounds_by_level, key=lambda level: level is not UNUSABLE)
    bounds_in_order, best_node = [bounds_by_level[level] for level in levels], None
    by_field = {level.field: row_values.tolist() for level, row_values in exact.items()}
    in_wide = instance.columns.topology.in_wide[rows].tolist()
    bounds_by_node = [*zip(*(line.tolist() for line in bounds_in_order), strict=True)]
    is_enumeration_slow, complete = bool(instance.policy_costs), True
    for i in np.lexsort((rows, *bounds_in_order[::-1])).tolist():
        row = int(rows[i])
        if best_node is not None and (bounds_by_node[i], row) > best_node[:2]:
            break  # no later node can be better
        if is_enumeration_slow and budget.spent and (best_node is not None or budget.truncated):
            complete = False
            break
        for allowed in masks_of_parts(instance, row, inside_scopes):
            node, values, proven = _plan_on_best_gpus(instance, row, need, allowed & int(usable[i]), budget)
            complete &= proven
            if node is not None:
                values |= {field: row_values[i] for field, row_values in by_field.items()}
                if in_wide[i]:
                    values[NVLINK_DOMAINS.field] = int(node.gpus.mask > 0)
                candidate = BestNode(value_of(levels, values), row, allowed, node)
                if best_node is None or candidate[:3] < best_node[:3]:
                    best_node = candidate
    return best_node, complete


def _rows_that_may_hold(instance: Instance, scopes: tuple[str, ...], need: Counts) -> Ints:
    """Return the nodes that may take all members and lie in a part of each scope."""
    fits = fits_at_once(instance, need)
    if instance.running:
        # With running members elsewhere, the gang is on several nodes, and parts must be counted.
        is_inside_node = any(scope in (*INSIDE, Scope.NODE) for scope in scopes)
        hosts = list(instance.running.masks) if is_inside_node and len(instance.running.masks) == 1 else []
        fits &= np.isin(np.arange(len(fits)), hosts)
    for scope in scopes:
        if scope not in (*INSIDE, Scope.NODE):
            fits &= instance.columns.topology.index(scope) >= 0
    rows = np.flatnonzero(fits)
    if len(rows) and instance.sliced and sum(map(bool, need)) > 1:
        packings = packings_on(instance, rows, need)
        may_hold = np.array([need in node.all or not node.complete for node in packings.lists], bool)
        rows = rows[may_hold[packings.index]]
    return rows


def _priced_damage(instance: Instance, prices: Prices, rows: Ints, need: Counts) -> tuple[Ints, Ints]:
    """Return by row the damage at the prices of typical requests, and the mask of the GPUs that may be taken.

    For a single slice the mask is the best GPU. Only two values depend on the GPU: the damage, and whether
    the GPU was wholly free before.
    """
    columns, counts = instance.columns, np.array([need], np.int64)
    cpu = instance.cpu(counts)
    if not instance.sliced:
        return prices.damage_of_gpus(rows, instance.gpus(counts), cpu)[:, 0], np.full(len(rows), -1)
    damage = prices.damage_of_slice(rows, instance.asks[need.index(1)].units, int(cpu[0]))
    is_free = (columns.free_gpus[rows][:, None] >> np.arange(damage.shape[1]) & 1).astype(bool)
    on_spreading_node = np.array([shape.spreads_slices for shape in columns.shapes], bool)[
        columns.shape[rows]
    ]
    preferred_damage = np.where(is_free == on_spreading_node[:, None], damage, LARGEST)
    has_preferred = (preferred_damage != LARGEST).any(axis=1)
    preferred_damage[~has_preferred] = 0  # then the damage alone decides
    gpu = np.lexsort((damage, preferred_damage), axis=1)[:, 0]
    return damage[np.arange(len(rows)), gpu], 1 << gpu


def _plan_on_best_gpus(
    instance: Instance, row: int, need: Counts, allowed: int, budget: Budget
) -> tuple[NodePlan | None, dict[str, int], bool]:
    """Return the best plan of the node inside the mask, its values by field, and whether it is proven best.

    The plan is None if the members do not fit inside the mask.
    """
    costs, complete, nodes = dict[str, int](), True, list[NodePlan]()
    rule = instance.rules.node_rules[instance.rules.in_node[row]]
    if instance.policy_costs and (rule is None or rule.admits(need)):
        context, node = context_on(instance, row), replace(gpus_on(instance, row), allowed=allowed)
        sets = choices(instance.asks, (need,), node, context)
        budget.spend(NODE_TIME)
        complete = sets.complete
        if len(sets.packing):
            gpus, shared = sets.as_gpu_set(0)
            nodes = [NodePlan(row, need, gpus, members_by_domain(instance, row, need, gpus.mask), shared)]
            values = zip(context.costs, sets.costs[:, 0].tolist(), strict=True)
            costs = {POLICY_LEVELS[cost].field: value for cost, value in values}
    elif not instance.policy_costs:
        whole_sets, complete = gpu_sets_on(instance, row, need, allowed)
        nodes = [NodePlan(row, need, *pair) for pair in whole_sets[:1]]
    if not nodes:
        return None, {}, complete
    return nodes[0], {name: getattr(nodes[0].gpus, name) for name in SET_VALUES} | costs, complete


def lower_bounds(instance: Instance, rows: Ints, packings: tuple[Counts, ...]) -> Ints:
    """Return [level, node, packing] int64: lower bounds of the cost of packings on these nodes.

    The levels are the costs of the gang and the values of GPU sets: see `split_by_level`.
    """
    columns, costs = instance.columns, instance.policy_costs or (Cost.NVLINK_DOMAINS,)
    bounds = np.zeros((len(costs) + len(CHOICE_VALUES), len(rows), len(packings)), np.int64)
    if instance.running:  # GPUs of running members count too, so no bound is known; few nodes are searched
        bounds[:] = -LARGEST
        return bounds
    shape, is_wide = columns.shape[rows], columns.topology.in_wide[rows]
    for code, in_wide in sorted(set(zip(shape.tolist(), is_wide.tolist(), strict=True))):
        indices = np.flatnonzero((shape == code) & (is_wide == in_wide))
        node_shape, rows_of_shape = columns.shapes[code], rows[indices]
        memory = columns.gpu_memory[: len(node_shape.memory), rows_of_shape]
        shape_bounds = LowerBounds(node_shape, memory, columns.free_gpus[rows_of_shape], instance.asks)
        for m in reversed(range(len(packings))):  # largest first, because smaller packings reuse its results
            bounds[:, indices, m] = shape_bounds.of(packings[m], costs, in_wide)
        if in_wide and Cost.NVLINK_DOMAINS in costs:
            gpus = np.array(packings, np.int64) @ np.array([ask.gpus for ask in instance.asks], np.int64)
            bounds[costs.index(Cost.NVLINK_DOMAINS), indices] = gpus > 0
    return bounds


def split_by_level(instance: Instance, bounds: Ints, fit: Ints) -> dict[Level, Ints]:
    """Return level → the bounds of `lower_bounds` or the best fit, the most important level first."""
    return dict(zip(quality_levels(instance.policy_costs), (*bounds, fit), strict=True))


def _first_of_each_kind(instance: Instance, rows: Ints, values: Sequence[Ints]) -> Ints:
    """Return the best node of each group of nodes with equal GPUs, as an index into `rows`.

    The best node has the smallest `values`. The last of the values is the most important.
    """
    code = node_kinds(instance, rows)
    order = np.lexsort((rows, *values, *code))
    return order[np.diff(code[:, order], prepend=-2, axis=1).any(axis=0)]


def masks_of_parts(instance: Instance, row: int, scopes: list[str]) -> list[int]:
    """Return the masks of the node's GPUs that lie in one part of each of these scopes."""
    columns, everything = instance.columns, instance.columns.place(row).all_gpus
    masks = [everything]
    for scope in scopes:
        holding = instance.running.parts(columns, scope)
        named_masks = columns.topology.parts(row, scope)
        parts = [mask for name, mask in named_masks if holding is None or name in holding]
        masks = [mask & part for mask in masks for part in parts if mask & part or not everything]
    return masks


# Members without GPUs


@dataclass(frozen=True, slots=True)
class MembersWithoutGpus:
    """Decide gangs without GPUs that nodes without GPUs hold. Such plans make no GPU unusable."""

    decide: Decide
    name: ClassVar = "members-without-gpus"
    accepted_states: ClassVar = (Undecided,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide all levels if nodes without GPUs hold the gang."""
        instance = plan.instance
        if level is not UNUSABLE:
            return Declined(
                "" if instance.without_gpus is WithoutGpus.NO_MEMBER else "other members have GPUs"
            )
        active, without = list(plan.active), instance.restricted_to(instance.columns.gpu_total == 0)
        completed, gap = self.decide(replace(plan, instance=without, levels=plan.levels[1:]), None, budget)
        if completed is not None:
            steps = (Step(level.name, self.name), *completed.steps)
            return Solved((replace(plan.complete(completed.nodes(), completed.value), steps=steps),), gap)
        if gap is None and (without.room[active] == instance.room[active]).all():
            return Infeasible()
        return Declined("nodes without GPUs do not hold the gang", gap)
