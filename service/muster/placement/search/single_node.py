"""Place the whole gang on one node: no plan touches fewer parts, and the best such node is read off.

Gangs with members without GPUs begin here too: the GPUs that these make unusable are decided early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from muster.domain.decision import Step
from muster.domain.request import Scope
from muster.placement.cluster.columns import LARGEST, Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.instance import Counts, Instance, fits_at_once
from muster.placement.gang.on_node import best_fit, costs_on, gpus_on, kinds_of
from muster.placement.gang.packings import packings_on
from muster.placement.gpus.choices import CHOICE_VALUES, NODE_TIME, Least, choices
from muster.placement.gpus.costs import Cost, Taken, cost_of
from muster.placement.gpus.gpusets import GpuSet
from muster.placement.limits import Budget
from muster.placement.model.objective import (
    BEST_FIT,
    DAMAGE,
    NODES,
    PREFERENCES,
    UNUSABLE,
    Idle,
    Level,
    quality_levels,
    value_of,
)
from muster.placement.search.plan import (
    Answer,
    Decide,
    Declined,
    Gap,
    Infeasible,
    Partial,
    Share,
    Solved,
    Start,
    Value,
    lying,
    sets_on,
)

IDLE = "members without GPUs may be better off elsewhere"


class SingleNode:
    """Decide the plan on the best node that takes all members. No plan touches fewer parts."""

    name: ClassVar = "single-node"
    given: ClassVar = (Start,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide all levels if some node takes all members."""
        if plan.instance.idle is Idle.BESIDE or level is UNUSABLE:
            return Declined(IDLE)
        with budget.phase("scan"):
            share, proven = on_one_node(plan.instance, plan.scopes, plan.need, budget)
        gap = None if proven else Gap(NODES.name)
        if share is None:
            return Declined("no node takes all members", gap)
        return Solved((plan.complete((share,)),), gap)


def on_one_node(
    instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget
) -> tuple[Share | None, bool]:
    """Return the best node that takes the whole gang inside one part of each scope, and whether that is
    proven.

    The node is None if there is none.
    """
    view = instance.columns
    counts = np.array(need, np.int64)
    fits = fits_at_once(instance, need)
    if instance.existing:
        # With existing members elsewhere, the gang is on several nodes, and parts must be counted.
        inside = any(scope in (*INSIDE, Scope.NODE) for scope in scopes)
        if not inside or len(instance.existing.masks) != 1:
            return None, True
        fits &= np.isin(np.arange(len(fits)), list(instance.existing.masks))
    for scope in scopes:
        if scope not in (*INSIDE, Scope.NODE):
            fits &= view.topology.index(scope) >= 0
    rows = np.flatnonzero(fits)
    if not len(rows):
        return None, True
    narrow = [scope for scope in scopes if scope in INSIDE]
    if instance.idle is Idle.NONE:
        return best_on(instance, rows, need, narrow, budget)
    unusable, proven = instance.unusable(rows, counts[None])[:, 0], True
    for least in np.unique(unusable).tolist():
        share, sure = best_on(instance, rows[unusable == least], need, narrow, budget)
        proven &= sure
        if share is not None:
            return share, proven
    return None, proven


def best_on(
    instance: Instance, rows: Ints, need: Counts, narrow: list[str], budget: Budget
) -> tuple[Share | None, bool]:
    """Return the best of these nodes, which take all members and make equally many GPUs unusable.

    The members lie inside one part of each of the `narrow` scopes.
    """
    view, counts = instance.columns, np.array(need, np.int64)
    left_over = best_fit(instance, rows, counts[None])[:, 0]
    priced = _priced(instance, rows, need)
    if instance.costs:
        return _sharing(instance, rows, need, narrow, (left_over, priced), budget)
    best_pair: tuple[tuple[int, ...], Share] | None = None
    levels, in_wide = quality_levels(instance.costs), view.topology.in_wide
    for i in _alike(instance, rows, left_over, priced):
        row, fit = int(rows[i]), int(left_over[i])
        for allowed in parts_inside(instance, row, narrow):
            for gpus, spread in sets_on(instance, row, need, allowed)[:1]:
                worth = {
                    "domains": int(gpus.mask > 0) if in_wide[row] else gpus.domains,
                    **_worth(gpus, priced, i, fit),
                }
                key = (*value_of(levels, worth), row, allowed)
                if best_pair is None or key < best_pair[0]:
                    best_pair = (key, Share(row, need, gpus, spread))
    return best_pair[1] if best_pair else None, True


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """By row, the damage priced by typical requests, and the mask of the GPUs that may be taken.

    For a single slice the mask is the best GPU. What the slice opens and damages is the only difference
    between GPUs.
    """

    damage: Ints
    gpus: Ints


def _priced(instance: Instance, rows: Ints, need: Counts) -> _Priced | None:
    """Return the priced damage; None if damage is F."""
    view, prices, counts = instance.columns, instance.prices, np.array([need], np.int64)
    if prices is None:
        return None
    cpu = instance.cpu(counts)
    if not instance.sliced:
        return _Priced(prices.of_whole(rows, instance.gpus(counts), cpu)[:, 0], np.full(len(rows), -1))
    damage = prices.of_slice(rows, instance.asks[need.index(1)].units, int(cpu[0]))
    whole = (view.free_gpus[rows][:, None] >> np.arange(damage.shape[1]) & 1).astype(bool)
    spread = np.array([shape.spread for shape in view.shapes], bool)[view.shape[rows]]
    first = np.where(whole == spread[:, None], damage, LARGEST)
    first[(first == LARGEST).all(axis=1)] = 0  # no GPU of the preferred kind, so any will do
    gpu = np.lexsort((damage, first), axis=1)[:, 0]
    return _Priced(damage[np.arange(len(rows)), gpu], 1 << gpu)


def _worth(gpus: GpuSet, priced: _Priced | None, i: int, fit: int) -> dict[str, int]:
    """Return the sums of a plan by field, below the preferences."""
    worth = {name: getattr(gpus, name) for name in CHOICE_VALUES} | {BEST_FIT.field: fit}
    return worth if priced is None else worth | {DAMAGE.field: int(priced.damage[i])}


def _sharing(
    instance: Instance,
    rows: Ints,
    need: Counts,
    narrow: list[str],
    values: tuple[Ints, _Priced | None],
    budget: Budget,
) -> tuple[Share | None, bool]:
    """Return the same if members share GPUs or have a policy. If time runs out, it is the best of those
    examined.
    """
    left_over, priced = values
    best_pair: tuple[tuple[int, ...], Share] | None = None
    if instance.sliced and sum(map(bool, need)) > 1:
        index, packings = packings_on(instance, rows, need)
        holds = np.array([need in packing.all or not packing.complete for packing in packings], bool)[index]
        rows, left_over = rows[holds], left_over[holds]
    complete, levels = True, quality_levels(instance.costs)
    every = np.array(_alike(instance, rows, left_over, priced), np.int64)
    least = by_level(instance, at_least(instance, rows[every], (need,))[:, :, 0], left_over[every])
    if priced is not None and not instance.existing:
        least[DAMAGE] = priced.damage[every]
    bounds = np.stack([least[level] for level in levels])
    order = np.lexsort((rows[every], *bounds[::-1]))
    for i, bound in zip(every[order].tolist(), bounds[:, order].T.tolist(), strict=True):
        row, fit = int(rows[i]), int(left_over[i])
        if best_pair is not None and (*bound, row) > best_pair[0]:
            break  # no other node can be better
        if budget.spent and (best_pair is not None or budget.truncated):
            complete = False
            break
        rule = instance.rules.node_rules[instance.rules.in_node[row]]
        if rule is not None and not rule.admits(need):
            continue
        for allowed in parts_inside(instance, row, narrow):
            usable = allowed if priced is None else allowed & int(priced.gpus[i])
            on, node = costs_on(instance, row), replace(gpus_on(instance, row), allowed=usable)
            sets = choices(instance.asks, (need,), node, on)
            budget.spend(NODE_TIME)
            complete &= sets.complete
            if not len(sets.packing):
                continue
            gpus, shared = sets.chosen(0)
            costs = {
                PREFERENCES[cost].field: int(value)
                + (on.wide and cost is Cost.NVLINK_DOMAINS and gpus.mask > 0)
                for cost, value in zip(on.costs, sets.costs[:, 0], strict=True)
            }
            key = (*value_of(levels, costs | _worth(gpus, priced, i, fit)), row, allowed)
            if best_pair is None or key < best_pair[0]:
                best_pair = (
                    key,
                    Share(row, need, gpus, lying(instance, row, need, gpus.mask, allowed), shared),
                )
    return best_pair[1] if best_pair else None, complete


def at_least(instance: Instance, rows: Ints, packings: tuple[Counts, ...]) -> Ints:
    """Return lower bounds of the cost of packings on these nodes [level, node, packing] int64.

    The levels are the costs of the gang and the values of GPU sets: see `by_level`.
    """
    view = instance.columns
    levels = len(instance.costs) + len(CHOICE_VALUES)
    bounds = np.zeros((levels, len(rows), len(packings)), np.int64)
    if instance.existing:  # then the gang's GPUs there count too, and only few nodes are examined
        bounds[:] = -LARGEST
        return bounds
    shape, wide = view.shape[rows], view.topology.in_wide[rows]
    for code, in_wide in sorted(set(zip(shape.tolist(), wide.tolist(), strict=True))):
        indices = np.flatnonzero((shape == code) & (wide == in_wide))
        of_shape = view.shapes[code]
        lines = len(of_shape.memory)
        least = Least(
            of_shape, view.gpu_memory[:lines, rows[indices]], view.free_gpus[rows[indices]], instance.asks
        )
        for m in reversed(range(len(packings))):  # largest first, because its results serve the others
            bounds[:, indices, m] = least.of(packings[m], instance.costs, in_wide)
        if in_wide and Cost.NVLINK_DOMAINS in instance.costs:
            gpus = np.array(packings, np.int64) @ np.array([ask.gpus for ask in instance.asks], np.int64)
            bounds[instance.costs.index(Cost.NVLINK_DOMAINS), indices] = gpus > 0
    return bounds


def by_level(instance: Instance, least: Ints, left_over: Ints) -> dict[Level, Ints]:
    """Return the bounds of `at_least` and the best fit by their levels, the most important first."""
    fields = (*(PREFERENCES[cost].field for cost in instance.costs), *CHOICE_VALUES)
    by_field = {**dict(zip(fields, least, strict=True)), BEST_FIT.field: left_over}
    return {level: by_field[level.field] for level in quality_levels(instance.costs)}


def _alike(instance: Instance, rows: Ints, left_over: Ints, priced: _Priced | None) -> list[int]:
    """Return the best one of nodes with equal GPUs, as indices into `rows`."""
    code = kinds_of(instance, rows)
    order = np.lexsort((rows, left_over, *(() if priced is None else (priced.damage,)), *code))
    begins = np.flatnonzero(np.diff(code[:, order], prepend=-2, axis=1).any(axis=0))
    return [int(i) for i in order[begins]]


def parts_inside(instance: Instance, row: int, scopes: list[str]) -> list[int]:
    """Return masks of the node's GPUs that lie in one part of each of these scopes."""
    view, everything = instance.columns, instance.columns.place(row).all_gpus
    masks = [everything]
    for scope in scopes:
        holding = instance.existing.parts(view, scope)
        inside = view.topology.parts(row, scope)
        parts = [mask for name, mask in inside if holding is None or name in holding]
        masks = [mask & part for mask in masks for part in parts if mask & part or not everything]
    return masks


# Members without GPUs


@dataclass(frozen=True, slots=True)
class MembersWithoutGpus:
    """Decide gangs inside one node, and gangs without GPUs that nodes without GPUs hold."""

    decide: Decide
    name: ClassVar = "members-without-gpus"
    given: ClassVar = (Start,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide all levels if the gang lies inside one node, or if nodes without GPUs hold it."""
        instance = plan.instance
        if instance.idle is Idle.NONE:
            return Declined("")
        inside = self._inside_one(plan, budget)
        if inside is not None:
            return inside
        if level is not UNUSABLE:
            return Declined("members without GPUs may lie on other nodes")
        active, without = list(plan.active), instance.on(instance.columns.gpu_total == 0)
        completed, gap = self.decide(replace(plan, instance=without, levels=plan.levels[1:]), None, budget)
        if completed is not None:
            steps = (Step(level.name, self.name), *completed.steps)
            return Solved((replace(plan.complete(completed.shares(), completed.value), steps=steps),), gap)
        if gap is None and (without.room[active] == instance.room[active]).all():
            return Infeasible()
        return Declined("nodes without GPUs do not hold the gang", gap)

    def _inside_one(self, plan: Partial, budget: Budget) -> Answer | None:
        """Return the best plan if all members must lie inside one node; None if they need not.

        An NVLink domain may span nodes. Then the best plan inside such domains is compared.
        """
        instance, wide = plan.instance, plan.instance.columns.topology.in_wide
        alone = sum(plan.need) == 1 and not instance.existing
        one_node = alone or bool({Scope.NODE, Scope.GPU} & {*plan.scopes})
        inside = instance if one_node else instance.on(~wide)
        narrow = alone or {Scope.NODE, *INSIDE} & {*plan.scopes}
        if not narrow or not inside.room[list(plan.active)].any():
            return None
        with budget.phase("scan"):
            share, proven = on_one_node(inside, plan.scopes, plan.need, budget)
        plans: list[tuple[Share, ...]] = [] if share is None else [(share,)]
        gap = None if proven else Gap(NODES.name)
        if not one_node and instance.room[:, wide].any():
            spread, doubt = self.decide(replace(plan, instance=instance.on(wide)), None, budget)
            gap = gap or doubt
            plans += [] if spread is None else [spread.shares()]
        if not plans:
            return Declined("no node is known to take all members", gap) if gap else Infeasible()
        return Solved((plan.complete(min(plans, key=lambda shares: _plan_value(instance, shares))),), gap)


def _plan_value(instance: Instance, shares: Sequence[Share]) -> tuple[int, ...]:
    """Return the value of a plan in one NVLink domain, without the domains: these are equal for all."""
    rows, counts = np.array([s.row for s in shares]), np.array([s.counts for s in shares], np.int64)
    unusable = int(instance.unusable(rows, counts[:, None]).sum())
    beside = instance.idle is Idle.BESIDE
    touching = rows[[s.gpus.mask > 0 for s in shares]] if beside else rows
    topology = instance.columns.topology
    parts = [len(np.unique(topology.index_or_own(scope)[touching])) for scope in instance.levels]
    crossed = (*parts, len(touching))
    values = [*crossed, unusable] if beside else [unusable, *crossed]
    for cost in instance.costs:
        if cost is not Cost.NVLINK_DOMAINS:
            values.append(sum(_cost(instance, share, cost) for share in shares))
    prices, damage = instance.prices, sum(share.gpus.damage for share in shares)
    if prices is not None:
        gpus, cpu = instance.gpus(counts), instance.cpu(counts)
        lines = zip(rows, gpus, cpu, strict=True)
        damage = sum(
            int(prices.of_whole(np.array([r]), np.array([g]), np.array([c]))[0, 0]) for r, g, c in lines
        )
    values += [-min(share.gpus.weakest for share in shares), -sum(share.gpus.ring for share in shares)]
    fit = sum(int(best_fit(instance, np.array([s.row]), np.array([s.counts]))[0, 0]) for s in shares)
    return (*values, sum(share.gpus.sockets for share in shares), damage, fit)


def _cost(instance: Instance, share: Share, cost: Cost) -> int:
    share_gpus = Taken(np.array([share.shared]), np.array([share.gpus.mask & ~share.shared]))
    return int(cost_of(cost, gpus_on(instance, share.row), share_gpus, costs_on(instance, share.row))[0])
