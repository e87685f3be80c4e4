"""Bound from below what members that share GPUs cost on a node, for many nodes at once.

Only the few nodes with good bounds are then searched exactly (choices.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

import numpy as np

from muster.domain.topology import GpuTopology
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.choices import CHOICE_VALUES
from muster.placement.gpus.costs import SPREAD, Cost, parts_of
from muster.placement.gpus.fragmentation import unusable, unusable_slices
from muster.placement.gpus.rings import NO_LINK, popcounts, rings
from muster.placement.gpus.slices import Ask, Asks, Counts, Values, whole_gpus


class Least:
    """Lower bounds for nodes of one shape.

    `memory` [GPU, node] is the units left, and `free` [node] masks the wholly free GPUs. Each bound holds
    among the plans that reach the best values of the levels before it.
    """

    def __init__(self, shape: Shape, memory: Values, free: Values, asks: Asks) -> None:
        self._shape, self._asks, self._memory = shape, asks, memory
        self._free = (free >> np.arange(len(memory))[:, None] & 1).astype(bool)
        pools = np.array(shape.pools, np.int64)
        self._fresh = np.bitwise_count(free & pools[:, None]).astype(np.int64)
        self._damage: dict[tuple[Ask, int], Values] = {}
        self._known: dict[Hashable, Values] = {}
        """Results that many packings have in common."""

    def of(self, packing: Counts, costs: tuple[Cost, ...], wide: bool) -> Values:
        """Return [level, node] int64: the costs in their order, then CHOICE_VALUES, each to be small.

        A value without a bound of its own is never below 0.
        """
        places, needed, kind = self._places(packing)
        slots = sum(count * ask.gpus for count, ask in zip(packing, self._asks, strict=True) if ask.units)
        if self._shape.spread:
            opened = np.minimum((self._free & (places > 0)).sum(axis=0), slots)
            shared = np.minimum((places > 0).sum(axis=0), slots)
        else:
            most_used = self._once((kind, "used"), lambda: _cumulated(np.where(self._free, 0, places)))
            most_unused = self._once((kind, "unused"), lambda: _cumulated(np.where(self._free, places, 0)))
            opened = (most_used[-1] + most_unused < needed).sum(axis=0)
            opened = np.minimum(opened, len(places))
            held = np.take_along_axis(most_unused, opened[None], axis=0)
            shared = opened + np.minimum((most_used + held < needed).sum(axis=0), len(places))
        # A node that needs more GPUs than it has cannot hold the packing at all.
        shared = np.minimum(shared, len(places))
        sign = -1 if self._shape.spread else 1
        whole = whole_gpus(self._asks, packing)
        none: Values = np.zeros_like(opened)

        def covering(parts: tuple[int, ...]) -> Values:
            """Return [node] the fewest of these parts of the node that can hold the slices."""
            if not needed:
                return np.full(places.shape[1], int(whole > 0))
            most = self._once((kind, parts), lambda: _cumulated(_within(parts, places)))
            return np.asarray(np.minimum((most < needed).sum(axis=0), len(parts)), np.int64)

        def least(cost: Cost) -> Values:
            """Return [node] the bound of one level before the links."""
            if cost in (Cost.NVSWITCH, Cost.NVSWITCH_SPREAD):
                return none
            if cost in (Cost.SHARING, Cost.SHARED_GPUS):
                return np.asarray(sign * (opened if cost is Cost.SHARING else shared), np.int64)
            parts = parts_of(cost, self._shape.topology) or self._shape.domains
            if cost in SPREAD.values():
                return np.asarray(none - min(len(parts), slots + whole), np.int64)
            return none if wide and cost is Cost.NVLINK_DOMAINS else covering(parts)

        fastest, largest = _links(self._shape.topology)
        size = np.minimum(shared + whole, len(fastest) - 1)
        lines = [least(cost) for cost in costs]
        damage = self._damaged(packing, opened, whole)
        known = {"weakest": -fastest[size], "ring": -largest[size], "damage": damage}
        return np.stack([*lines, *(known.get(name, none) for name in CHOICE_VALUES)])

    def _once(self, key: Hashable, make: Callable[[], Values]) -> Values:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _places(self, packing: Counts) -> tuple[Values, int, Hashable]:
        """Return what each GPU can hold, how much is needed, and a key for the former.

        The unit is places of slices if only one role has slices, else units of memory.
        """
        sliced = [r for r, ask in enumerate(self._asks) if ask.units and packing[r]]
        if len(sliced) == 1:
            ask, members = self._asks[sliced[0]], packing[sliced[0]]
            every = self._once(ask, lambda: self._memory // ask.units)
            on_one = min(members, int(every.max(initial=0)))
            return np.minimum(every, on_one), members * ask.gpus, (ask, on_one)
        smallest = min((self._asks[r].units for r in sliced), default=1)
        useful = self._once(smallest, lambda: np.where(self._memory >= smallest, self._memory, 0))
        return useful, sum(packing[r] * self._asks[r].units * self._asks[r].gpus for r in sliced), smallest

    def _damaged(self, packing: Counts, opened: Values, whole: int) -> Values:
        """Return the least damage: to the pools, and to each shared GPU as if it were filled alone."""
        sliced = [r for r, ask in enumerate(self._asks) if ask.units and packing[r]]
        damage = self._pools(opened, whole)
        if len(sliced) == 1 and not whole:
            ask, members = self._asks[sliced[0]], packing[sliced[0]]
            damage += self._filled(ask, members * ask.gpus)[members * ask.gpus]
            return damage
        for gpu in range(len(self._memory)):
            damage -= self._before(gpu)
        return damage

    def _pools(self, opened: Values, whole: int) -> Values:
        """Return the damage to the wholly free GPUs; the least possible if it is open
        which GPUs are taken.
        """
        shape = self._shape
        table = np.array([unusable(k) for k in range(shape.topology.gpu_count + 1)])

        def at_best() -> Values:
            left = np.minimum(np.arange(len(table))[:, None, None], self._fresh)
            after = table[np.maximum(0, left - shape.hidden)].min(axis=0)
            return np.asarray((after - table[np.maximum(0, self._fresh - shape.hidden)]).sum(axis=0))

        if len(shape.pools) != 1 or whole:
            return self._once("pools", at_best).copy()
        before, after = table[
            np.maximum(0, np.array([self._fresh[0], self._fresh[0] - opened]) - shape.hidden)
        ]
        return np.asarray(after - before)

    def _filled(self, ask: Ask, places: int) -> Values:
        known = [filled for (of, most), filled in self._damage.items() if of == ask and most >= places]
        return known[0] if known else self._fill(ask, places)

    def _fill(self, ask: Ask, most: int) -> Values:
        """Return [places, node]: the least damage of this many slices, on any GPUs."""
        never = np.int64(1) << 40
        total = np.full((most + 1, self._memory.shape[1]), never)
        total[0] = 0
        for gpu, units in enumerate(self._memory):
            grown, before = total.copy(), self._before(gpu)
            for count in range(1, min(most, int(units.max(initial=0)) // ask.units) + 1):
                left = units - count * ask.units
                after = unusable_slices(self._shape, gpu, np.maximum(0, left))
                cost = np.where(left >= 0, after - before, never)
                np.minimum(grown[count:], total[: most + 1 - count] + cost, out=grown[count:])
            total = grown
        self._damage[ask, most] = total
        return total

    def _before(self, gpu: int) -> Values:
        """Return [node] F of the GPU as it is, if it is partly used; else 0."""
        return np.where(self._free[gpu], 0, unusable_slices(self._shape, gpu, self._memory[gpu]))


@lru_cache(maxsize=256)
def _links(topology: GpuTopology) -> tuple[Values, Values]:
    """Return by number of GPUs the fastest weakest link and the largest ring of any set."""
    count = topology.gpu_count
    fastest, largest = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    if count <= MAX_RING_GPUS:
        table, sizes = rings(topology), popcounts(count)
        np.maximum.at(fastest, sizes, table.weakest)
        np.maximum.at(largest, sizes, table.total)
    fastest[:2] = NO_LINK
    return fastest, largest


def _within(parts: tuple[int, ...], places: Values) -> Values:
    """Return [part, node]: what the GPUs of each part can hold."""
    gpus = np.arange(len(places))
    return np.array([places[np.array(part >> gpus & 1, bool)].sum(axis=0) for part in parts])


def _cumulated(held: Values) -> Values:
    """Return [n, node]: what the n largest entries hold together, from n = 0 on."""
    largest = -np.sort(-held, axis=0)
    return np.concatenate([np.zeros((1, held.shape[1]), np.int64), np.cumsum(largest, axis=0)])
