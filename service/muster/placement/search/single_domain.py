"""Decide one role without a solver.

Parts and nodes are counted by sorted capacities, which proves itself. Inside one domain a table decides the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.cluster.fabric import Shape
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import best_fit, kinds_of
from muster.placement.gpus.gpu_tables import sets_of
from muster.placement.gpus.gpusets import SET_VALUES
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import BEST_FIT, UNUSABLE, WEAKEST_LINK, Level, quality_levels, value_of
from muster.placement.search import node_tables
from muster.placement.search.classes import parts_by_row
from muster.placement.search.methods import (
    Answer,
    Declined,
    Infeasible,
    Partial,
    Regions,
    Solved,
    Start,
)
from muster.placement.search.plan import Share, Value
from muster.placement.search.regions import regions
from muster.placement.search.runs import fullest_first, place_in_run, renumbered
from muster.placement.search.single_node import IDLE, share_of

TOO_LARGE = "the tables are too large, or NVLink domains over several nodes are to be counted"
"""Why tables of one domain do not apply."""

FIELDS = (*SET_VALUES, "valid")
"""The values of a GPU set, and whether there is one."""


class TooLargeError(Exception):
    """Report that the levels do not fit in one number."""


class SortedCapacities:
    """Find by sorted capacities the levels at which a single part suffices, and which parts do."""

    name: ClassVar = "sorted-capacities"
    given: ClassVar = (Start,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the levels at which one part suffices, for one role that nothing binds."""
        instance, active = plan.instance, plan.active
        if len(active) != 1:
            return Declined("several roles")
        if level is UNUSABLE:
            return Declined(IDLE)
        if instance.rules.model or instance.existing:
            return Declined("rules or existing members bind the role")
        role = active[0]
        with budget.phase("scan"):
            region = regions(instance, plan.scopes, plan.need)
            found = regions_of(instance, region, role, plan.need[role])
        if found is None:
            return Infeasible()
        return Solved(
            (replace(plan, known=found, levels=plan.levels[len(instance.levels) - len(found.left) :]),)
        )


class NodeTable:
    """Decide one role inside one part of the narrowest level, by a table over nodes and members."""

    name: ClassVar = "node-table"
    given: ClassVar = (Regions,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the nodes and all below."""
        assert isinstance(plan.known, Regions)
        if not plan.instance.plain:
            return Declined("rules bind members on a node")
        if plan.instance.costs:
            return Declined("slices or policies")
        if plan.known.left:
            return Declined("no part of the narrowest level holds all members")
        (role,) = plan.active
        with budget.phase("sets"):
            shares = in_one_domain(plan.instance, plan.known, role, plan.need[role])
        if shares is None:
            return Declined(TOO_LARGE)
        return Solved((plan.complete(shares),))


def regions_of(instance: Instance, region: Ints, role: int, need: int) -> Regions | None:
    """Return the regions that hold the members, narrowed to single zones and single racks as far as one
    suffices.
    """
    cap = np.minimum(instance.room[role], need)
    rows = np.flatnonzero((region >= 0) & (cap > 0))
    found = _that_hold(rows, region[rows], cap[rows], need)
    if not len(found.rows):
        return None
    for i, level in enumerate(instance.levels):
        part = parts_by_row(instance, level, found.rows)
        inside = _that_hold(found.rows, _pairs(found.region, part), found.cap, need)
        if not len(inside.rows):
            return Regions(found.rows, found.region, found.cap, instance.levels[i:])
        found = inside
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Hopeful:
    """The nodes that can be in a plan with the fewest `nodes` in one region. All arrays are [node].

    `rows` are the nodes, `region` is the region of each from 0, and `at` its position there. It takes at most
    `cap` members, and at least `least`.
    """

    nodes: int
    rows: Ints
    region: Ints
    at: Ints
    cap: Ints
    least: Ints

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of regions, the nodes of the largest region, and one more than the members of the
        largest node.
        """
        return int(self.region[-1]) + 1, int(self.at.max()) + 1, int(self.cap.max()) + 1

    def of(self, regions: list[int]) -> tuple[Hopeful, Ints]:
        """Return the nodes of some regions, in this order, and their indices."""
        first, last = np.searchsorted(self.region, np.stack([regions, np.array(regions) + 1]))
        index = np.concatenate([np.arange(*each) for each in zip(first, last, strict=True)])
        region = np.repeat(np.arange(len(regions)), last - first)
        some = Hopeful(
            self.nodes, self.rows[index], region, self.at[index], self.cap[index], self.least[index]
        )
        return some, index


Fields = dict[str, Ints]
"""Values of GPU sets, [node, members, choice]. `valid` says which entries exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The members on each node, the choice of GPUs that they take, and the plan's value."""

    taken: Ints
    choice: Ints
    value: Value

    def shares(self, instance: Instance, role: int, hopeful: Hopeful) -> tuple[Share, ...]:
        """Return the plan node by node. GPUs are chosen once for equal nodes."""
        here = np.flatnonzero(self.taken)
        rows, taken = hopeful.rows[here], self.taken[here]
        kinds = np.stack([*kinds_of(instance, rows), self.choice[here, taken], taken], axis=1)
        like, shares = dict[tuple[int, ...], Share](), list[Share]()
        for row, kind in zip(rows.tolist(), map(tuple, kinds.tolist()), strict=True):
            if kind not in like:
                *_, choice, members = kind
                counts = tuple(members if other == role else 0 for other in range(len(instance.roles)))
                like[kind] = share_of(instance, row, counts, choice)
            alike = like[kind]
            shares.append(Share(row, alike.counts, alike.gpus, alike.spread, alike.shared))
        return tuple(shares)


def in_one_domain(instance: Instance, found: Regions, role: int, need: int) -> tuple[Share, ...] | None:
    """Return the best plan in one of these regions, where no parts are left to count; None if a table does
    not apply.

    It does not apply if it would be too large, or if wide NVLink domains must be counted.
    """
    hopeful = hopeful_nodes(instance, found, role, need)
    if hopeful is None or not for_a_table(hopeful, need):
        return None
    plan = best_plan(instance, role, hopeful, fields_of(instance, role, hopeful), need)
    return plan.shares(instance, role, hopeful) if plan else None


def hopeful_nodes(instance: Instance, found: Regions, role: int, need: int) -> Hopeful | None:
    """Return the nodes of these regions that can be in a plan; None if wide NVLink
    domains must be counted.
    """
    nodes, rows, region, cap = _fewest_nodes(found, need)
    wide = instance.columns.topology.index(Scope.NVLINK_DOMAIN)[rows]
    if takes_gpus(instance.roles[role]) and (wide >= 0).any():
        one_each = len(np.unique(np.stack([region, wide]), axis=1)[0]) == len(np.unique(region))
        if not one_each or (wide < 0).any():
            return None
    # The least that a node must take, if the fullest other nodes take all they can.
    order = fullest_first(region, cap)
    rows, region, cap = rows[order], region[order], cap[order]
    fullest = np.bincount(region, np.where(place_in_run(region) < nodes - 1, cap, 0)).astype(np.int64)
    least = np.maximum(1, need - fullest[region])
    kept = cap >= least
    rows, region, cap, least = rows[kept], region[kept], cap[kept], least[kept]
    order = np.lexsort((rows, region))
    rows, region, cap, least = rows[order], region[order], cap[order], least[order]
    region = renumbered(region)
    return Hopeful(nodes, rows, region, place_in_run(region), cap, least)


def for_a_table(hopeful: Hopeful, need: int) -> bool:
    """Return whether a table over nodes and members is small enough."""
    parts, width, most = hopeful.shape
    return node_tables.steps(parts, width, hopeful.nodes, need, most) <= node_tables.MAX_STEPS


def left_over_of(instance: Instance, role: int, hopeful: Hopeful) -> Ints:
    """Return the best fit, [node, members] int64."""
    members = np.arange(hopeful.shape[2])
    return best_fit(instance, hopeful.rows, members[:, None] * (np.arange(len(instance.roles)) == role))


Cheapest = Callable[[Ints], Ints | None]
"""Maps the cost of members on nodes to the members on each node in the cheapest plan; None if there is none.

The cost is [node, members], NEVER if impossible.
"""


def best_plan(
    instance: Instance,
    role: int,
    hopeful: Hopeful,
    fields: Fields,
    need: int,
    cheapest: Cheapest | None = None,
) -> Plan | None:
    """Return the best plan with the fewest nodes, in one region or as `cheapest` decides.

    The result is None if there is no plan, or if the numbers are too large.
    """
    nodes, region = hopeful.nodes, hopeful.region
    members = np.arange(hopeful.shape[2])
    levels = quality_levels(instance.costs)
    costs = levels[: levels.index(WEAKEST_LINK)]
    sums = [level for level in levels if level is not WEAKEST_LINK]
    valid = (members >= hopeful.least[:, None]) & (members <= hopeful.cap[:, None])
    left = left_over_of(instance, role, hopeful)  # equal for all choices
    fields = {**fields, BEST_FIT.field: np.broadcast_to(left[:, :, None], fields["valid"].shape)}

    def picked(level: Level, chosen: Ints) -> Ints:
        if level is BEST_FIT:
            return left
        return level.sign * np.take_along_axis(fields[level.field], chosen[:, :, None], 2)[:, :, 0]

    def best(chosen: Ints, allowed: Bools, levels: Sequence[Level]) -> Ints | None:
        told = [level for level in levels if level is BEST_FIT or fields[level.field].any()]
        cost = node_tables.combined([picked(level, chosen) for level in told], allowed, nodes, exactly=True)
        if cost is None:
            raise TooLargeError
        return cheapest(cost.cost) if cheapest else _in_one_region(hopeful, cost.cost, need)

    def summed(taken: Ints, chosen: Ints, levels: Sequence[Level]) -> dict[str, int]:
        here = np.flatnonzero(taken)
        at = (here, taken[here], chosen[here, taken[here]])
        return {level.field: int(fields[level.field][at].sum()) for level in levels}

    first = np.zeros((len(region), len(members)), np.int64)
    offered = fields["valid"] & valid[:, :, None]
    fewest = None
    try:
        if any(len(np.unique(fields[level.field][:, :, 0][offered[:, :, 0]])) > 1 for level in costs):
            taken = best(first, np.asarray(offered.any(axis=2)), (*costs, BEST_FIT))
            fewest = None if taken is None else summed(taken, first, costs)
        for threshold in sorted(set(fields["weakest"][offered].tolist()), reverse=True):
            fast = offered & (fields["weakest"] >= threshold)
            allowed = np.asarray(fast.any(axis=2))
            if not _could_hold(region, np.where(allowed, members, 0).max(axis=1), nodes, need):
                continue
            chosen = fast.shape[2] - 1 - fast[:, :, ::-1].argmax(axis=2)
            taken = best(chosen, allowed, sums)
            if taken is None:
                continue
            if fewest is None or summed(taken, chosen, costs) == fewest:
                worth = {**summed(taken, chosen, sums), WEAKEST_LINK.field: threshold}
                return Plan(taken, chosen, value_of(levels, worth))
    except TooLargeError:
        return None
    return None


def _in_one_region(hopeful: Hopeful, cost: Ints, need: int) -> Ints | None:
    table = np.full(hopeful.shape, node_tables.NEVER, np.int64)
    table[hopeful.region, hopeful.at] = cost
    found = node_tables.best_nodes(table, need, hopeful.nodes)
    return None if found is None else np.where(hopeful.region == found[0], found[1][hopeful.at], 0)


def fields_of(instance: Instance, role: int, hopeful: Hopeful) -> Fields:
    """Return the values of all GPU sets of these nodes that matter."""
    members = np.arange(hopeful.shape[2])
    fields = _tables(instance, hopeful.rows, members * instance.roles[role].gpus)
    if instance.prices:
        counts = members[:, None] * (np.arange(len(instance.roles)) == role)
        priced = instance.prices.of_whole(hopeful.rows, instance.gpus(counts), instance.cpu(counts))
        fields["damage"] = np.broadcast_to(priced[:, :, None], fields["damage"].shape)
    return fields


def _tables(instance: Instance, rows: Ints, sizes: Ints) -> Fields:
    """Return the values of the GPU sets of these sizes."""
    view = instance.columns
    masks, mask = np.unique(view.free_gpus[rows], return_inverse=True)
    alike, index = np.unique(mask * len(view.shapes) + view.shape[rows], return_inverse=True)
    mask, shape = np.divmod(alike, len(view.shapes))
    tables = [
        _table(view.shapes[s], free) for s, free in zip(shape.tolist(), masks[mask].tolist(), strict=True)
    ]
    found = np.zeros(
        (len(FIELDS), len(tables), len(sizes), max(table.shape[2] for table in tables)), np.int64
    )
    for i, table in enumerate(tables):
        some = sizes[sizes < table.shape[1]]
        found[:, i, : len(some), : table.shape[2]] = table[:, some]
    fields = dict(zip(FIELDS, found[:, index], strict=True))
    return {**fields, "valid": fields["valid"] > 0}


@lru_cache(maxsize=1 << 14)
def _table(shape: Shape, free: int) -> Ints:
    """Return the values of a node's GPU sets, [field, size, choice]."""
    sets = sets_of(shape, free)
    valid = np.arange(sets.masks.shape[1]) < sets.choices[:, None]
    return np.stack([getattr(sets, name) for name in FIELDS[:-1]] + [valid.astype(np.int64)])


def _could_hold(region: Ints, cap: Ints, nodes: int, need: int) -> bool:
    """Return whether the fullest nodes of some region hold the members."""
    order = fullest_first(region, cap)
    region, cap = region[order], cap[order]
    return bool((np.bincount(region, np.where(place_in_run(region) < nodes, cap, 0)) >= need).any())


def _fewest_nodes(found: Regions, need: int) -> tuple[int, Ints, Ints, Ints]:
    """Return the fewest nodes of any region that hold the members, and the rows, regions and caps of such
    regions.
    """
    order = fullest_first(found.region, found.cap)
    region, cap = found.region[order], found.cap[order]
    reached = np.cumsum(cap)
    first = np.arange(len(region)) - place_in_run(region)
    short = reached - (reached - cap)[first] < need
    nodes = np.bincount(region, short) + 1
    fewest = int(nodes.min())
    kept = nodes[found.region] == fewest
    return fewest, found.rows[kept], found.region[kept], found.cap[kept]


def _that_hold(rows: Ints, region: Ints, cap: Ints, need: int) -> Regions:
    """Return the regions whose nodes together hold the members, renumbered from 0."""
    holds = np.bincount(region, cap) >= need
    if holds.all():
        return Regions(rows, region, cap, ())
    kept = holds[region]
    return Regions(rows[kept], (np.cumsum(holds) - 1)[region[kept]], cap[kept], ())


def _pairs(region: Ints, part: Ints) -> Ints:
    """Return a code for each pair of a region and a part."""
    if not region.any():
        return part
    inside = np.zeros(int(region.max()) + 1, np.int64)
    inside[region] = part
    if (inside[region] == part).all():  # no region has several parts
        return region
    return renumbered(region * (int(part.max(initial=0)) + 1) + part)
