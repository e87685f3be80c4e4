"""Enumerate the GPU choices of a node, for gangs with slices or a policy.

A *packing* is how many members of each role a node takes, for example (2, 1). A *choice* is the GPUs for
their slices and the GPUs taken whole. Only choices that an optimal plan may use are returned. Of equal GPUs,
the lowest indices are used. The least damage of filling shared GPUs is computed for all sets at once, each
set from the set with one GPU less. Last, for each packing and weakest link only the best choice stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.domain.topology import GpuTopology, bits
from muster.placement.cluster.columns import count_up, gpu_counts
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.costs import SPREADING_COSTS, Cost, GpuWays, NodeContext, cost_of, parts_of
from muster.placement.gpus.damage import (
    damage_of,
    damage_to_pools,
    fragmentation,
    gpu_fragmentation,
    pool_fragmentation,
)
from muster.placement.gpus.gpusets import (
    SET_VALUES,
    GpuSet,
    best_sets,
    kinds_in,
    least_of,
    links_over,
    lowest_gpus,
    sets_that_matter,
)
from muster.placement.gpus.links import NO_LINK, rings
from muster.placement.gpus.node_rules import (
    Counts,
    MembersByDomain,
    NodeRule,
    domains_of_members,
    is_packing_allowed,
    searched_domains,
)
from muster.placement.gpus.slices import (
    THOUSANDTH,
    UNFILLED,
    Asks,
    FillableGpu,
    MemberAsk,
    NodeGpus,
    Values,
    first_fit,
    least_damage_by_filling,
    whole_gpus,
)

MAX_SETS = 1 << 13
"""The most sets of one node that are tried. Beyond this number, first fit chooses one set, and nothing is
proven.
"""

MAX_FILLING_STEPS = 1 << 21
"""The most steps of `least_damage_by_filling`: sets times slices. Beyond it, first fit chooses."""


CHOICE_VALUES = tuple(name for name in SET_VALUES if name != "domains")
"""The values that decide between choices with equal `costs`. NVLink domains are among the costs."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The GPU choices of several packings, as int64 arrays.

    All arrays are [choice], except `costs`. Choices of one packing are adjacent, and ordered as in
    `gpusets.best_sets`: the largest weakest link first. `weakest`, `ring` and `sockets` are over all of the
    gang's GPUs on the node.
    """

    packing: Values
    """The index of the packing."""
    masks: Values
    """All GPUs of the choice, as a bit mask."""
    shared: Values
    """The GPUs for slices, as a bit mask."""
    costs: Values
    """[level, choice] The values at the levels before the links."""
    weakest: Values
    """The weakest link, in MB/s."""
    ring: Values
    """The sum of the best ring, in MB/s."""
    sockets: Values
    damage: Values
    """In GPU-thousandths."""
    complete: bool
    """False if some choices were not tried, so a better choice may exist."""

    def as_gpu_set(self, choice: int) -> tuple[GpuSet, int]:
        """Return one choice as a set, and the mask of its shared GPUs.

        The set has 0 NVLink domains, because `costs` counts them.
        """
        values = {name: int(getattr(self, name)[choice]) for name in CHOICE_VALUES}
        gpu_set = GpuSet(int(self.masks[choice]), 0, **values)
        return gpu_set, int(self.shared[choice])


NODE_TIME, PACKING_TIME, LIKE_TIME = 1e-3, 2e-5, 3e-6
"""The solver time (`Budget`) for choosing GPUs: for a node, for each packing with a new demand for GPUs, and
for each packing. It is close to the time that choosing really takes.
"""


def choosing_time(asks: Asks, packings: Values) -> float:
    """Return the solver time (`Budget`) for choosing GPUs on one node, for these packings.

    `packings` is [packing, role].
    """
    return NODE_TIME + PACKING_TIME * len(_distinct_demands(asks, packings)[0]) + LIKE_TIME * len(packings)


def _distinct_demands(asks: Asks, packings: Values) -> tuple[Values, Values]:
    """Return the first packing with each demand for GPUs, and [packing] the index of the packing's demand.

    Two members with one whole GPU each have the same demand as one member with two.
    """
    whole_counts = packings @ np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    gpus_taken = np.concatenate([packings[:, [ask.units > 0 for ask in asks]], whole_counts[:, None]], axis=1)
    _, first, demand = np.unique(gpus_taken, axis=0, return_index=True, return_inverse=True)
    return first, demand


@lru_cache(maxsize=1 << 13)
def choices(asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, context: NodeContext) -> Choices:
    """Return all choices of these packings. A packing that does not fit has no choice.

    Choices are computed once for packings with equal demand. If a rule binds members to domains, the choices
    may differ all the same.
    """
    if len(packings) < 2 or (context.rule is not None and context.rule.binds_domains):
        return _choose(asks, packings, node, context)
    first, demand = _distinct_demands(asks, np.array(packings, np.int64))
    if len(first) == len(packings):
        return _choose(asks, packings, node, context)
    own_choices = _choose(asks, tuple(packings[i] for i in first.tolist()), node, context)
    begins = np.searchsorted(own_choices.packing, np.arange(len(first)))
    counts = np.bincount(own_choices.packing, minlength=len(first))[demand]
    packing = np.repeat(np.arange(len(packings)), counts)
    choice_index = count_up(counts, begins[demand])
    arrays = {name: getattr(own_choices, name)[choice_index] for name in ("masks", "shared", *CHOICE_VALUES)}
    return replace(own_choices, packing=packing, costs=own_choices.costs[:, choice_index], **arrays)


def _choose(asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, context: NodeContext) -> Choices:
    nothing = np.zeros(0, np.int64)
    candidates: _Candidates | None = _Candidates(nothing, GpuWays(nothing, nothing), nothing)
    if packings:
        candidates = _candidates(asks, np.array(packings, np.int64), node, context)
    if candidates is None:
        return _choose_by_first_fit(asks, packings, node, context)
    return _choices_of(node, context, packings, candidates, complete=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Candidates for choices: a packing, and a way to take GPUs for it."""

    packing: Values
    """[way] The index of the packing."""
    gpu_ways: GpuWays
    damage: Values
    """[way] The damage to the shared GPUs, in units of THOUSANDTH."""

    def select(self, selection: NDArray[Any]) -> _Candidates:
        """Return only the candidates of `selection`."""
        gpus = GpuWays(self.gpu_ways.shared[selection], self.gpu_ways.whole_gpus[selection])
        return _Candidates(self.packing[selection], gpus, self.damage[selection])


def _candidates(asks: Asks, packings: Values, node: NodeGpus, context: NodeContext) -> _Candidates | None:
    """Return all candidates; None if there are too many to try."""
    sliced = [r for r, ask in enumerate(asks) if ask.units and packings[:, r].any()]
    units, gpus = tuple(asks[r].units for r in sliced), np.array([asks[r].gpus for r in sliced], np.int64)
    whole_counts = packings @ np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    slots_needed = packings[:, sliced] * gpus
    max_slots = int(slots_needed.sum(axis=1).max(initial=0))
    max_whole = int(whole_counts.max(initial=0))
    gpu_ways = _ways_to_take_gpus(node, context, min(units, default=0), max_whole, max_slots)
    if gpu_ways is None:
        return None
    shared, index = np.unique(gpu_ways.shared, return_inverse=True)
    right_size = gpu_counts(gpu_ways.whole_gpus) == whole_counts[:, None]
    candidates: list[tuple[Values, Values, Values]] = []
    # A member of several GPUs has at most one slice on a GPU, so the number of such members limits the slices
    # of a GPU. Packings with equal limits are solved together.
    several = packings[:, sliced] * (gpus > 1)
    for key in sorted({*map(tuple, several.tolist())}):
        group = np.flatnonzero((several == key).all(axis=1))
        slots = tuple(slots_needed[group].max(axis=0).tolist())
        if len(shared) * prod(n + 1 for n in slots) > MAX_FILLING_STEPS:
            return None
        cheapest = least_damage_by_filling(
            node, shared, units, tuple(packings[group][:, sliced].max(axis=0).tolist()), slots
        )
        damage_of_sets = cheapest[(slice(None), *slots_needed[group].T)].reshape(len(shared), -1)
        damage = np.broadcast_to(damage_of_sets, (len(shared), len(group))).T[:, index]
        group_index, way = np.nonzero((damage < UNFILLED) & right_size[group])
        candidates.append((group[group_index], way, damage[group_index, way]))
    packing, way, damage = (np.concatenate(arrays) for arrays in zip(*candidates, strict=True))
    return _Candidates(packing, GpuWays(gpu_ways.shared[way], gpu_ways.whole_gpus[way]), damage)


def _ways_to_take_gpus(
    node: NodeGpus, context: NodeContext, min_units: int, max_whole: int, max_slots: int
) -> GpuWays | None:
    """Return the ways to take GPUs, one of all that differ by a swap of equal GPUs; None if too many.

    At most `max_slots` GPUs are for slices, each with `min_units` free units or more. At most `max_whole` are
    taken whole.
    """
    shared, whole_gpus = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for gpus in _swappable_groups(node, context):
        can_share = 0 < min_units <= node.units(gpus[0])
        can_take_whole = max_whole > 0 and node.is_whole(gpus[0])
        size_pairs = [
            (shared_count, whole_count)
            for shared_count in range(len(gpus) + 1 if can_share else 1)
            for whole_count in range(len(gpus) - shared_count + 1 if can_take_whole else 1)
        ]
        first_gpus = [sum(1 << gpu for gpu in gpus[:n]) for n in range(len(gpus) + 1)]
        new_shared = np.array([first_gpus[shared_count] for shared_count, _ in size_pairs])
        new_whole = np.array(
            [
                first_gpus[shared_count + whole_count] - first_gpus[shared_count]
                for shared_count, whole_count in size_pairs
            ]
        )
        shared, whole_gpus = (shared[:, None] + new_shared).ravel(), (whole_gpus[:, None] + new_whole).ravel()
        small_enough = (gpu_counts(shared) <= max_slots) & (gpu_counts(whole_gpus) <= max_whole)
        shared, whole_gpus = shared[small_enough], whole_gpus[small_enough]
        if len(shared) > MAX_SETS:
            return None
    return GpuWays(shared, whole_gpus)


def _swappable_groups(node: NodeGpus, context: NodeContext) -> list[list[int]]:
    """Return the usable GPUs in groups. A swap of two GPUs of a group changes no level of the objective."""
    groups: dict[tuple[int, ...], list[int]] = {}
    running_domains, gang_gpus = (
        (context.rule.running_domains, context.rule.running_mask) if context.rule else (0, 0)
    )
    parts_by_cost = [parts_of(cost, node.shape.topology) for cost in context.costs]
    told_apart = context.rule is not None and context.rule.tells_domains_apart
    for number, kind in enumerate(kinds_in(node.shape, told_apart)):
        for gpu in kind:
            units, free = node.units(gpu), node.is_whole(gpu)
            memory = node.shape.memory[gpu] if gpu < len(node.shape.memory) else 0
            if units or free:
                homes = (next((mask for mask in parts if mask >> gpu & 1), 0) for parts in parts_by_cost)
                key = (number, units, memory, free, running_domains >> gpu & 1, gang_gpus >> gpu & 1, *homes)
                groups.setdefault(key, []).append(gpu)
    return [sorted(group) for group in groups.values()]


def _choices_of(
    node: NodeGpus,
    context: NodeContext,
    packings: tuple[Counts, ...],
    candidates: _Candidates,
    *,
    complete: bool,
) -> Choices:
    """Return the candidates that an optimal plan may use, as choices."""
    shape, rule = node.shape, context.rule
    if rule is not None and rule.binds_domains:
        domains = (searched_domains(rule, shape, mask) for mask in candidates.gpu_ways.all.tolist())
        pairs = list(zip(candidates.packing.tolist(), domains, strict=True))
        verdicts = {(i, gpus): is_packing_allowed(rule, packings[i], gpus) for i, gpus in set(pairs)}
        complete &= None not in verdicts.values()
        candidates = candidates.select(np.array([verdicts[pair] is True for pair in pairs], bool))
    for cost in context.costs:
        candidates = candidates.select(
            least_of(candidates.packing, cost_of(cost, node, candidates.gpu_ways, context))
        )
    packing, masks, shared = candidates.packing, candidates.gpu_ways.all, candidates.gpu_ways.shared
    weakest, ring, sockets, links_left = links_over(shape, node.free, masks, context.running_mask)
    whole_weakest, whole_ring, *_ = links_over(shape, node.free, candidates.gpu_ways.whole_gpus, 0)
    damage = candidates.damage + THOUSANDTH * damage_to_pools(shape, node.free, masks)
    tightness = np.zeros(len(packing), np.int64)
    for gpu, units in enumerate(node.memory):
        tightness += (shared >> gpu & 1) * (-units if shape.spreads_slices else units)
    # If two ways take the same GPUs, the way that takes the best-linked GPUs whole is better.
    ties = (-whole_weakest, -whole_ring, shared)
    order = sets_that_matter(packing, weakest, -ring, sockets, damage, tightness, -links_left, masks, *ties)
    best_ways = candidates.select(order)
    costs = np.zeros((len(context.costs), len(order)), np.int64)
    for level, cost in enumerate(context.costs):
        costs[level] = cost_of(cost, node, best_ways.gpu_ways, context)
    values = (weakest[order], ring[order], sockets[order], damage[order] // THOUSANDTH)
    return Choices(best_ways.packing, masks[order], shared[order], costs, *values, complete)


def _choose_by_first_fit(
    asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, context: NodeContext
) -> Choices:
    """Return one choice for each packing, for nodes with too many candidates."""
    count = max(len(node.memory), node.free.bit_length())
    gpus, rows = tuple(FillableGpu(node.units(gpu), node.is_whole(gpu)) for gpu in range(count)), []
    for packing_index, packing in enumerate(packings):
        if context.rule is not None and context.rule.binds_domains:  # then the gang has no slices
            first_way = _first_way(context.rule, packing, node)
        else:
            first_way = first_fit(asks, packing, gpus)
        if first_way is None:
            continue
        slices_by_role, taken_whole = first_way
        slices_by_gpu = list(zip(*slices_by_role, strict=True))[: len(node.memory)]
        shared = sum(1 << gpu for gpu, slices in enumerate(slices_by_gpu) if any(slices))
        units_left = [
            units - sum(count * ask.units for count, ask in zip(slices, asks, strict=True))
            for units, slices in zip(node.memory, slices_by_gpu, strict=True)
        ]
        mask = sum(1 << gpu for gpu in taken_whole)
        fragmentation_after = fragmentation(
            node.shape,
            node.free & ~(shared | mask),
            [0 if mask >> gpu & 1 else units for gpu, units in enumerate(units_left)],
        )
        damage = fragmentation_after - fragmentation(node.shape, node.free, node.memory)
        pool_damage = damage_of(node.shape, node.free, shared | mask)
        rows.append((packing_index, shared, mask, (damage - pool_damage) * int(THOUSANDTH)))
    table = np.array(rows, np.int64).reshape(len(rows), 4).T
    candidates = _Candidates(table[0], GpuWays(table[1], table[2]), table[3])
    return _choices_of(node, context, packings, candidates, complete=False)


def _first_way(rule: NodeRule, packing: Counts, node: NodeGpus) -> tuple[list[Counts], list[int]] | None:
    """Return one way to take GPUs under a rule about domains, as (slices by role, whole GPUs).

    The way takes the lowest GPUs of each domain. None if the packing breaks the rule.
    """
    free = node.free & node.allowed & sum(node.shape.domains)
    if not is_packing_allowed(rule, packing, searched_domains(rule, node.shape, free)):
        return None
    gpus_by_domain, mask = Counter[int](), 0
    for gpus, lying in zip(rule.gpus, domains_of_members(rule, packing, node.shape, free), strict=True):
        shares: list[int | Counts] = [*(lying or ())]
        for domain, share in enumerate(shares):
            if isinstance(share, int):
                gpus_by_domain[domain] += gpus * share
            else:
                gpus_by_domain.update(dict(enumerate(share)))
    for domain, gpus in gpus_by_domain.items():
        mask |= lowest_gpus(free & node.shape.domains[domain], gpus)
    total = sum(map(mul, packing, rule.gpus))
    mask |= lowest_gpus(free & ~mask, total - mask.bit_count())
    return [(0,) * len(node.memory)] * len(packing), list(bits(mask))


@lru_cache(maxsize=1 << 14)
def sets_under(
    rule: NodeRule, shape: Shape, free: int, packing: Counts, usable: int = -1
) -> tuple[tuple[tuple[GpuSet, MembersByDomain], ...], bool]:
    """Return the sets of whole GPUs that an optimal plan may use for a packing, and whether these are all.
    With each set come the domains of the members in the set.

    The order is that of `best_sets`. Links count over all of the gang's GPUs on the node, including running
    members. Domains that running members touch cost nothing more, so they are not counted.
    """
    domains = searched_domains(rule, shape, free & usable)
    verdict = is_packing_allowed(rule, packing, domains)
    if not verdict:
        return (), verdict is not None
    if not rule.binds_domains and not rule.running_domains:
        size = sum(count * gpus for count, gpus in zip(packing, rule.gpus, strict=True))
        anywhere: MembersByDomain = (None,) * len(packing)
        return tuple((gpu_set, anywhere) for gpu_set in best_sets(shape, free, size, usable)), True
    node, context = NodeGpus(shape, free, (), usable), NodeContext((Cost.NVLINK_DOMAINS,), rule=rule)
    sets = choices(tuple(map(MemberAsk, rule.gpus)), (packing,), node, context)
    gpu_sets = (
        replace(sets.as_gpu_set(i)[0], domains=int(sets.costs[0, i])) for i in range(len(sets.packing))
    )
    pairs = ((gpus, domains_of_members(rule, packing, shape, gpus.mask)) for gpus in gpu_sets)
    return tuple(pairs), sets.complete


class LowerBounds:
    """Lower bounds of costs, for all nodes of one shape at once.

    To enumerate the choices of a node takes long, so this is done only for nodes with good bounds.

    `memory` [GPU, node] is the free units, and `free` [node] masks the wholly free GPUs. The bound of a level
    holds for plans with the best values at all levels before it.
    """

    def __init__(self, shape: Shape, memory: Values, free: Values, asks: Asks) -> None:
        self._shape, self._asks, self._memory = shape, asks, memory
        self._free = (free >> np.arange(len(memory))[:, None] & 1).astype(bool)
        pools = np.array(shape.pools, np.int64)
        self._fresh = np.bitwise_count(free & pools[:, None]).astype(np.int64)
        self._damage: dict[tuple[MemberAsk, int], Values] = {}
        self._results: dict[Hashable, Values] = {}
        """Results that many packings share."""

    def of(self, packing: Counts, costs: tuple[Cost, ...], in_wide: bool) -> Values:
        """Return [level, node] int64: the costs in their order, then CHOICE_VALUES; less is better.

        The bound is 0 for values for which no better bound is computed.
        """
        capacity, demand, kind = self._slice_capacity(packing)
        slots = sum(count * ask.gpus for count, ask in zip(packing, self._asks, strict=True) if ask.units)
        if self._shape.spreads_slices:
            opened = np.minimum((self._free & (capacity > 0)).sum(axis=0), slots)
            shared = np.minimum((capacity > 0).sum(axis=0), slots)
        else:
            most_used = self._memoize((kind, "used"), lambda: _top_sums(np.where(self._free, 0, capacity)))
            most_unused = self._memoize(
                (kind, "unused"), lambda: _top_sums(np.where(self._free, capacity, 0))
            )
            opened = (most_used[-1] + most_unused < demand).sum(axis=0)
            opened = np.minimum(opened, len(capacity))
            held_by_unused = np.take_along_axis(most_unused, opened[None], axis=0)
            shared = opened + np.minimum((most_used + held_by_unused < demand).sum(axis=0), len(capacity))
        # A node that needs more GPUs than it has cannot hold the packing at all.
        shared = np.minimum(shared, len(capacity))
        sign = -1 if self._shape.spreads_slices else 1
        whole_count = whole_gpus(self._asks, packing)
        none: Values = np.zeros_like(opened)

        def fewest_parts_covering(parts: tuple[int, ...]) -> Values:
            """Return [node] the fewest of these parts of the node that hold the slices."""
            if not demand:
                return np.full(capacity.shape[1], int(whole_count > 0))
            max_slices = self._memoize((kind, parts), lambda: _top_sums(_capacity_of_parts(parts, capacity)))
            return np.asarray(np.minimum((max_slices < demand).sum(axis=0), len(parts)), np.int64)

        def bound_of(cost: Cost) -> Values:
            """Return [node] the bound of one level before the links."""
            if cost in (Cost.NVSWITCH, Cost.NVSWITCH_SPREAD):
                return none
            if cost in (Cost.SHARING, Cost.SHARED_GPUS):
                return np.asarray(sign * (opened if cost is Cost.SHARING else shared), np.int64)
            parts = parts_of(cost, self._shape.topology) or self._shape.domains
            if cost in SPREADING_COSTS.values():
                return np.asarray(none - min(len(parts), slots + whole_count), np.int64)
            return none if in_wide and cost is Cost.NVLINK_DOMAINS else fewest_parts_covering(parts)

        fastest, largest = _best_links(self._shape.topology)
        size = np.minimum(shared + whole_count, len(fastest) - 1)
        cost_bounds = [bound_of(cost) for cost in costs]
        damage = self._least_damage(packing, opened, whole_count)
        bounds = {"weakest": -fastest[size], "ring": -largest[size], "damage": damage}
        return np.stack([*cost_bounds, *(bounds.get(name, none) for name in CHOICE_VALUES)])

    def _memoize(self, key: Hashable, make: Callable[[], Values]) -> Values:
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]

    def _slice_capacity(self, packing: Counts) -> tuple[Values, int, Hashable]:
        """Return [GPU, node] what each GPU can hold, the packing's demand, and a cache key of the first.

        Both are slices if one role has slices. Slices of several sizes have only units of memory in common.
        """
        sliced = [r for r, ask in enumerate(self._asks) if ask.units and packing[r]]
        if len(sliced) == 1:
            ask, members = self._asks[sliced[0]], packing[sliced[0]]
            capacity = self._memoize(ask, lambda: self._memory // ask.units)
            on_one = min(members, int(capacity.max(initial=0)))
            return np.minimum(capacity, on_one), members * ask.gpus, (ask, on_one)
        smallest = min((self._asks[r].units for r in sliced), default=1)
        useful = self._memoize(smallest, lambda: np.where(self._memory >= smallest, self._memory, 0))
        return useful, sum(packing[r] * self._asks[r].units * self._asks[r].gpus for r in sliced), smallest

    def _least_damage(self, packing: Counts, opened: Values, whole_count: int) -> Values:
        """Return [node] a lower bound of the damage: to the pools, plus the least damage to shared GPUs.

        With several sizes of slices, the bound assumes that no shared GPU stays fragmented.
        """
        sliced = [r for r, ask in enumerate(self._asks) if ask.units and packing[r]]
        damage = self._pool_damage(opened, whole_count)
        if len(sliced) == 1 and not whole_count:
            ask, members = self._asks[sliced[0]], packing[sliced[0]]
            damage += self._slice_damage(ask, members * ask.gpus)[members * ask.gpus]
            return damage
        for gpu in range(len(self._memory)):
            damage -= self._fragmentation_now(gpu)
        return damage

    def _pool_damage(self, opened: Values, whole_count: int) -> Values:
        """Return [node] the damage to pools of free GPUs: exact for one pool, else the least possible."""
        shape = self._shape
        table = np.array([pool_fragmentation(k) for k in range(shape.topology.gpu_count + 1)])

        def least_possible_damage() -> Values:
            free_after = np.minimum(np.arange(len(table))[:, None, None], self._fresh)
            fragmentation_after = table[np.maximum(0, free_after - shape.hidden)].min(axis=0)
            return np.asarray(
                (fragmentation_after - table[np.maximum(0, self._fresh - shape.hidden)]).sum(axis=0)
            )

        if len(shape.pools) != 1 or (whole_count and opened.any()):
            return self._memoize("pools", least_possible_damage).copy()
        fragmentation_now, fragmentation_after = table[
            np.maximum(0, np.array([self._fresh[0], self._fresh[0] - opened - whole_count]) - shape.hidden)
        ]
        return np.asarray(fragmentation_after - fragmentation_now)

    def _slice_damage(self, ask: MemberAsk, slices: int) -> Values:
        tables = [
            table
            for (table_ask, max_slices), table in self._damage.items()
            if table_ask == ask and max_slices >= slices
        ]
        return tables[0] if tables else self._tabulate_slices(ask, slices)

    def _tabulate_slices(self, ask: MemberAsk, max_slices: int) -> Values:
        """Return [slices, node] the least damage of this many slices, on any GPUs."""
        never = np.int64(1) << 40
        total = np.full((max_slices + 1, self._memory.shape[1]), never)
        total[0] = 0
        for gpu, units in enumerate(self._memory):
            grown, fragmentation_now = total.copy(), self._fragmentation_now(gpu)
            for count in range(1, min(max_slices, int(units.max(initial=0)) // ask.units) + 1):
                units_left = units - count * ask.units
                fragmentation_after = gpu_fragmentation(self._shape, gpu, np.maximum(0, units_left))
                cost = np.where(units_left >= 0, fragmentation_after - fragmentation_now, never)
                np.minimum(grown[count:], total[: max_slices + 1 - count] + cost, out=grown[count:])
            total = grown
        self._damage[ask, max_slices] = total
        return total

    def _fragmentation_now(self, gpu: int) -> Values:
        """Return [node] the fragmentation F of the GPU before the plan; 0 if the GPU is wholly free."""
        return np.where(self._free[gpu], 0, gpu_fragmentation(self._shape, gpu, self._memory[gpu]))


@lru_cache(maxsize=256)
def _best_links(topology: GpuTopology) -> tuple[Values, Values]:
    """Return, by number of GPUs, the fastest weakest link and the largest ring of all sets of this size."""
    count = topology.gpu_count
    fastest, largest = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    if count <= MAX_RING_GPUS:
        table, sizes = rings(topology), gpu_counts(np.arange(1 << count))
        np.maximum.at(fastest, sizes, table.weakest)
        np.maximum.at(largest, sizes, table.total)
    fastest[:2] = NO_LINK
    return fastest, largest


def _capacity_of_parts(parts: tuple[int, ...], capacity: Values) -> Values:
    """Return [part, node] the sum of `capacity` [GPU, node] over the GPUs of each part."""
    gpus = np.arange(len(capacity))
    return np.array([capacity[np.array(part >> gpus & 1, bool)].sum(axis=0) for part in parts])


def _top_sums(amounts: Values) -> Values:
    """Return [n, node] the sum of the n largest amounts of the node, from n = 0 on."""
    largest = -np.sort(-amounts, axis=0)
    return np.concatenate([np.zeros((1, amounts.shape[1]), np.int64), np.cumsum(largest, axis=0)])
