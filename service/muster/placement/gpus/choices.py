"""Find the GPU sets of a node for gangs that share GPUs or have a policy.

For every packing of members it finds every set that can be in a best plan. A set is the GPUs for slices and
the GPUs taken whole. Of GPUs that are alike, those with the lowest indices are used. The cheapest way to fill
shared GPUs is found for all sets at once, each from a set with one GPU less. Then the sets of each packing
are narrowed, level by level, to those of each weakest link that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import gpu_counts
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.costs import On, Taken, cost_of, parts_of
from muster.placement.gpus.filling import NEVER, STEP, filled
from muster.placement.gpus.fragmentation import fragmentation, unusable
from muster.placement.gpus.gpu_tables import kinds_in, least_of
from muster.placement.gpus.gpusets import SET_VALUES, GpuSet
from muster.placement.gpus.node_rules import Spread, free_by_domain, spreads
from muster.placement.gpus.numa import socket_distances
from muster.placement.gpus.rings import NO_LINK, rings
from muster.placement.gpus.slices import Asks, Counts, Gpu, NodeGpus, Values, first_fit

MAX_SETS = 1 << 13
"""The most sets of one node that are tried. If there are more, first fit chooses one, and
nothing is proven.
"""

MAX_WORK = 1 << 21
"""The most steps of filling sets, in sets times places of slices. If there are more, first fit chooses."""


CHOICE_VALUES = tuple(name for name in SET_VALUES if name != "domains")
"""The values of a choice by name. Its NVLink domains are among its costs."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The GPU choices of several packings, as int64 arrays.

    All arrays are [choice], but `costs` is [level, choice]. `packing` is the index of the packing. Choices of
    one packing are adjacent, and ordered as in `gpusets.best_sets`: largest weakest link first. `masks` are
    all GPUs of the choice, and `shared` those for slices. `weakest` and `ring`, in MB/s, and `sockets` count
    all the gang's GPUs on the node. `damage` is in GPU-thousandths.
    """

    packing: Values
    masks: Values
    shared: Values
    costs: Values
    weakest: Values
    ring: Values
    sockets: Values
    damage: Values
    complete: bool

    def chosen(self, choice: int) -> tuple[GpuSet, int]:
        """Return one choice as a set, and the mask of its shared GPUs.

        NVLink domains are counted in `costs`, so the set says 0.
        """
        values = {name: int(getattr(self, name)[choice]) for name in CHOICE_VALUES}
        chosen = GpuSet(int(self.masks[choice]), 0, **values)
        return chosen, int(self.shared[choice])


NODE_TIME, PACKING_TIME, LIKE_TIME = 1e-3, 2e-5, 3e-6
"""The solver time (`Budget`) that choosing GPUs counts as: for a node, for each packing that takes other
GPUs than those before it, and for each packing. It is close to what choosing really takes."""


def choosing_time(asks: Asks, packings: Values) -> float:
    """Return the solver time (`Budget`) that choosing GPUs counts as, for one node and these packings.

    `packings` is [packing, role].
    """
    return NODE_TIME + PACKING_TIME * len(_taking(asks, packings)[0]) + LIKE_TIME * len(packings)


def _taking(asks: Asks, packings: Values) -> tuple[Values, Values]:
    """Return the first of all packings that take equal GPUs, and for each packing its index among these."""
    whole = packings @ np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    taken = np.concatenate([packings[:, [ask.units > 0 for ask in asks]], whole[:, None]], axis=1)
    _, first, like = np.unique(taken, axis=0, return_index=True, return_inverse=True)
    return first, like


@lru_cache(maxsize=1 << 13)
def choices(asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, on: On) -> Choices:
    """Return all choices of these packings. A packing without room has none.

    Packings that take equal GPUs have equal choices, unless a rule treats their members differently.
    """
    table = np.array(packings, np.int64).reshape(len(packings), len(asks))
    first, like = _taking(asks, table)
    if len(first) == len(packings) or (on.rule is not None and on.rule.binds_domains):
        return _choices(asks, packings, node, on)
    found = _choices(asks, tuple(packings[m] for m in first.tolist()), node, on)
    begins = np.searchsorted(found.packing, np.arange(len(first)))
    count = np.bincount(found.packing, minlength=len(first))[like]
    packing = np.repeat(np.arange(len(packings)), count)
    at = begins[like][packing] + np.arange(len(packing)) - np.repeat(np.cumsum(count) - count, count)
    fields = (found.masks, found.shared, found.weakest, found.ring, found.sockets, found.damage)
    masks, shared, *values = (field[at] for field in fields)
    weakest, ring, sockets, damage = values
    costs = found.costs[:, at]
    return Choices(packing, masks, shared, costs, weakest, ring, sockets, damage, found.complete)


def _choices(asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, on: On) -> Choices:
    table_in = np.array(packings, np.int64).reshape(len(packings), len(asks))
    nothing = np.zeros(0, np.int64)
    found = _sets(asks, table_in, node, on) if packings else _Found(nothing, Taken(nothing, nothing), nothing)
    if found is None:
        return _by_first_fit(asks, packings, node, on)
    return _narrowed(node, on, packings, found, complete=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Ways to take GPUs for packings.

    `packing` [way] is the index of the packing. `filled` [way] is the damage to the shared GPUs, in STEPs.
    """

    packing: Values
    taken: Taken
    filled: Values

    def those(self, kept: NDArray[Any]) -> _Found:
        """Return the ways in `kept` only."""
        taken = Taken(self.taken.shared[kept], self.taken.whole[kept])
        return _Found(self.packing[kept], taken, self.filled[kept])


def _sets(asks: Asks, packings: Values, node: NodeGpus, on: On) -> _Found | None:
    """Return all ways; None if there are too many."""
    sliced = [r for r, ask in enumerate(asks) if ask.units and packings[:, r].any()]
    units, gpus = tuple(asks[r].units for r in sliced), np.array([asks[r].gpus for r in sliced], np.int64)
    whole = packings @ np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    places = packings[:, sliced] * gpus
    most = int(places.sum(axis=1).max(initial=0))
    taken = _pairs(node, on, min(units, default=0), int(whole.max(initial=0)), most)
    if taken is None:
        return None
    shared, index = np.unique(taken.shared, return_inverse=True)
    right_size = gpu_counts(taken.whole) == whole[:, None]
    found: list[tuple[Values, Values, Values]] = []
    # A member of several GPUs has one slice on each. So packings with equal numbers of such members are
    # solved together.
    several = packings[:, sliced] * (gpus > 1)
    for key in np.unique(several, axis=0):
        group = np.flatnonzero((several == key).all(axis=1))
        slots = tuple(places[group].max(axis=0).tolist())
        if len(shared) * prod(n + 1 for n in slots) > MAX_WORK:
            return None
        cheapest = filled(node, shared, units, tuple(packings[group][:, sliced].max(axis=0).tolist()), slots)
        of_group = cheapest[(slice(None), *places[group].T)].reshape(len(shared), -1)
        damage = np.broadcast_to(of_group, (len(shared), len(group))).T[:, index]
        which, way = np.nonzero((damage < NEVER) & right_size[group])
        found.append((group[which], way, damage[which, way]))
    packing, way, damage = (np.concatenate(each) for each in zip(*found, strict=True))
    return _Found(packing, Taken(taken.shared[way], taken.whole[way]), damage)


def _pairs(node: NodeGpus, on: On, smallest: int, whole: int, places: int) -> Taken | None:
    """Return all sets, up to a swap of GPUs that are alike; None if there are too many."""
    shared, taken = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for gpus in _alike(node, on):
        slices, free = 0 < smallest <= node.units(gpus[0]), node.whole(gpus[0])
        ways = [
            (first, then)
            for first in range(len(gpus) + 1 if slices else 1)
            for then in range(len(gpus) - first + 1 if free and whole else 1)
        ]
        lowest = [sum(1 << gpu for gpu in gpus[:n]) for n in range(len(gpus) + 1)]
        of_shared = np.array([lowest[first] for first, _ in ways])
        of_whole = np.array([lowest[first + then] - lowest[first] for first, then in ways])
        shared, taken = (shared[:, None] + of_shared).ravel(), (taken[:, None] + of_whole).ravel()
        kept = (gpu_counts(shared) <= places) & (gpu_counts(taken) <= whole)
        shared, taken = shared[kept], taken[kept]
        if len(shared) > MAX_SETS:
            return None
    return Taken(shared, taken)


def _alike(node: NodeGpus, on: On) -> list[list[int]]:
    """Return the usable GPUs in groups. GPUs of one group can be swapped without any effect."""
    groups: dict[tuple[int, ...], list[int]] = {}
    touched, there = (on.rule.touched, on.rule.there) if on.rule else (0, 0)
    counted = [parts_of(cost, node.shape.topology) for cost in on.costs]
    for number, kind in enumerate(kinds_in(node.shape, on.rule is not None and on.rule.binds_domains)):
        for gpu in kind:
            units, free = node.units(gpu), node.whole(gpu)
            every = node.shape.memory[gpu] if gpu < len(node.shape.memory) else 0
            if units or free:
                homes = (next((mask for mask in parts if mask >> gpu & 1), 0) for parts in counted)
                key = (number, units, every, free, touched >> gpu & 1, there >> gpu & 1, *homes)
                groups.setdefault(key, []).append(gpu)
    return [sorted(group) for group in groups.values()]


def _narrowed(
    node: NodeGpus, on: On, packings: tuple[Counts, ...], found: _Found, *, complete: bool
) -> Choices:
    """Return the choices that matter, out of all ways."""
    shape = node.shape
    ways = _ways(node, on, packings)
    if ways is not None:
        pairs = zip(found.packing.tolist(), found.taken.all.tolist(), strict=True)
        found = found.those(np.array([free_by_domain(shape, mask) in ways[m] for m, mask in pairs], bool))
    for cost in on.costs:
        found = found.those(least_of(found.packing, cost_of(cost, node, found.taken, on)))
    packing, masks, shared = found.packing, found.taken.all, found.taken.shared
    weakest, ring, inside = _links(shape, node.free, masks, on.there)
    whole_weakest, whole_ring, _ = _links(shape, node.free, found.taken.whole, 0)
    sockets = socket_distances(shape.topology, masks | on.there)
    damage = found.filled + STEP * _pool_damage(node, masks)
    tightness = np.zeros(len(packing), np.int64)
    for gpu, units in enumerate(node.memory):
        tightness += (shared >> gpu & 1) * (-units if shape.spread else units)
    # As in gpu_tables: keep the first of each equal weakest link, then only sets with a faster weakest link.
    # in one union, the GPUs with the best links are taken whole
    split = (shared, -whole_ring, -whole_weakest)
    order = np.lexsort((*split, masks, -inside, tightness, damage, sockets, -ring, packing))
    rank = packing[order] * (2 * NO_LINK) + weakest[order]
    order = order[np.diff(np.maximum.accumulate(rank), prepend=-1) > 0]
    order = order[np.lexsort((-weakest[order], packing[order]))]
    best = found.those(order)
    costs = np.zeros((len(on.costs), len(order)), np.int64)
    for level, cost in enumerate(on.costs):
        costs[level] = cost_of(cost, node, best.taken, on)
    values = (weakest[order], ring[order], sockets[order], damage[order] // STEP)
    return Choices(best.packing, masks[order], shared[order], costs, *values, complete)


def _ways(node: NodeGpus, on: On, packings: tuple[Counts, ...]) -> list[dict[Counts, Spread]] | None:
    """Return the GPUs by NVLink domain that a rule allows each packing; None if no rule binds domains."""
    if on.rule is None or not on.rule.binds_domains:
        return None
    free = free_by_domain(node.shape, node.free & node.allowed)
    return [spreads(on.rule, packing, free) for packing in packings]


def _links(shape: Shape, free: int, masks: Values, there: int) -> tuple[Values, Values, Values]:
    """Return [way] the weakest link and the sum of the ring over the gang's GPUs, and the
    links of the rest.
    """
    union = masks | there
    if shape.topology.gpu_count > MAX_RING_GPUS:
        none = np.zeros_like(masks)
        return np.where(gpu_counts(union) < 2, NO_LINK, 0), none, none
    table = rings(shape.topology)
    return table.weakest[union], table.total[union], table.inside[free & ~masks]


def _pool_damage(node: NodeGpus, masks: Values) -> Values:
    """Return [way] the damage of taking these GPUs out of the wholly free ones."""
    shape = node.shape
    unused = np.array([unusable(k) for k in range(shape.topology.gpu_count + 1)])
    damage = np.zeros_like(masks)
    for pool in shape.pools:
        before = max(0, (node.free & pool).bit_count() - shape.hidden)
        after = np.maximum(0, gpu_counts(node.free & ~masks & pool) - shape.hidden)
        damage += unused[after] - unused[before]
    return damage


def _by_first_fit(asks: Asks, packings: tuple[Counts, ...], node: NodeGpus, on: On) -> Choices:
    """Return one way for each packing, for nodes with too many ways to try."""
    rows = []
    for m, packing in enumerate(packings):
        found = first_fit(asks, packing, gpus_of(node))
        if found is None:
            continue
        taken, whole = found
        shared = sum(1 << g for g in range(len(node.memory)) if any(of_role[g] for of_role in taken))
        left = [
            units - sum(of_role[g] * ask.units for of_role, ask in zip(taken, asks, strict=True))
            for g, units in enumerate(node.memory)
        ]
        mask = sum(1 << g for g in whole)
        after = fragmentation(
            node.shape,
            node.free & ~(shared | mask),
            [0 if mask >> g & 1 else units for g, units in enumerate(left)],
        )
        damage = after - fragmentation(node.shape, node.free, node.memory)
        pool = int(_pool_damage(node, np.array([shared | mask]))[0])
        rows.append((m, shared, mask, (damage - pool) * int(STEP)))
    table = np.array(rows, np.int64).reshape(len(rows), 4).T
    ways = _Found(table[0], Taken(table[1], table[2]), table[3])
    return _narrowed(node, on, packings, ways, complete=False)


def gpus_of(node: NodeGpus) -> tuple[Gpu, ...]:
    """Return the node's GPUs as packings see them."""
    count = max(len(node.memory), node.free.bit_length())
    return tuple(Gpu(node.units(gpu), node.whole(gpu)) for gpu in range(count))
