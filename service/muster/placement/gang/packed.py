"""Decide which packings of slices, whole GPUs and cpu-only members fit on nodes, for many nodes at once.

A dynamic program goes over the GPUs of the nodes. For each number of members of the other roles it finds the
most members of one role, the deep one. This decides all packings, because a packing with fewer members than
one that fits also fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gpus.slices import Asks, Counts, every_filling

Small = NDArray[np.int16]

NEVER = -(1 << 13)
"""Stands for a packing that does not fit.

Adding members to it stays below zero, and a sum of four of it fits in 16 bits.
"""

AT_ONCE = 1 << 17
"""Cells of the tables that are filled at once: as many as a core's cache holds."""

MAX_WORK = 1 << 29
"""The most steps of filling the tables. If there were more, packings are checked one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A table of packings.

    `most` [count of each of `others` …, kind of node] is int16. It is the most members of role `deep` on such
    a node, next to these counts of the other roles. It is below zero if these counts alone do not fit.
    `roles` is the number of the gang's roles.
    """

    most: Small
    others: tuple[int, ...]
    deep: int
    roles: int

    def holds(self, packing: Counts) -> Bools:
        """Return [kind] bool: whether there is room for the packing. It must have members of these roles
        alone.
        """
        at = tuple(packing[r] for r in self.others)
        if any(n >= size for n, size in zip(at, self.most.shape, strict=False)):
            return np.zeros(self.most.shape[-1], bool)
        return np.asarray(self.most[at] >= packing[self.deep])

    def largest(self) -> list[Ints]:
        """Return the maximal packings of each kind, [packing, role] int64."""
        most = self.most
        alone = most >= 0
        alone[(0,) * len(self.others)] &= most[(0,) * len(self.others)] > 0  # leaves out the empty packing
        for axis in range(len(self.others)):
            fewer, more = ((slice(None),) * axis + (part,) for part in (slice(0, -1), slice(1, None)))
            alone[fewer] &= most[fewer] > most[more]
        *at, kind = np.nonzero(alone)
        order = np.argsort(kind, kind="stable")
        packings = np.zeros((len(order), self.roles), np.int64)
        for r, counts in zip(self.others, at, strict=True):
            packings[:, r] = counts[order]
        packings[:, self.deep] = most[alone][order]
        return np.split(packings, np.searchsorted(kind[order], np.arange(1, most.shape[-1])))

    def every(self, kind: int) -> Ints:
        """Return all packings of one kind except the empty one, [packing, role] int64, sorted."""
        most = self.most[..., kind]
        at = np.argwhere(most >= 0)
        times = most[tuple(at.T)].astype(np.int64) + 1
        packings = np.zeros((int(times.sum()), self.roles), np.int64)
        packings[:, list(self.others)] = np.repeat(at, times, axis=0)
        packings[:, self.deep] = np.arange(len(packings)) - np.repeat(np.cumsum(times) - times, times)
        packings = packings[packings.any(axis=1)]
        return packings[np.lexsort(packings.T[::-1])]


def packed(asks: Asks, caps: Ints, each: Ints, free: Ints, units: Ints, whole: Bools) -> Packed | None:
    """Return the table for these kinds of nodes; None if it would be too large.

    `caps` [role, kind] is how many members of each role alone a node takes. `each` [resource, role] is what a
    member asks for of other resources, and `free` [resource, kind] is what a node has. `units` [GPU, kind] is
    what is left of each GPU's memory, and `whole` [GPU, kind] bool is whether a member may take the GPU
    whole.
    """
    active = [r for r in range(len(asks)) if caps[r].max(initial=0)]
    single = [r for r in active if asks[r].units and asks[r].gpus == 1]
    if not single:
        return None
    deep = max(single, key=lambda r: (int(caps[r].max()), -r))
    others = tuple(r for r in active if r != deep)
    filling = _Filling(asks, caps.max(axis=1, initial=0), others, deep)
    kinds = caps.shape[1]
    if filling.work(int(units.max(initial=0)), len(units)) * kinds > MAX_WORK:
        return None
    some = max(1, AT_ONCE // filling.cells)
    parts = [
        filling.most(units[:, start : start + some], whole[:, start : start + some])
        for start in range(0, kinds, some)
    ]
    most = np.concatenate(parts, axis=-1)
    _limited(most, others, deep, caps, each, free)
    return Packed(most, others, deep, len(asks))


def _limited(most: Small, others: Counts, deep: int, caps: Ints, each: Ints, free: Ints) -> None:
    """Cut the table down to what the other limits allow. It is changed in place."""
    np.minimum(most, caps[deep], out=most, casting="unsafe")
    at: tuple[Ints, ...] = np.indices(most.shape[:-1], sparse=True)
    for r, counts in zip(others, at, strict=True):
        most[np.broadcast_to(counts[..., None] > caps[r], most.shape)] = NEVER
    for ask, left in zip(each, free, strict=True):
        if (ask @ caps <= left).all():
            continue
        taken = sum((counts * int(ask[r]) for r, counts in zip(others, at, strict=True)), np.int64(0))
        rest = left - np.asarray(taken)[..., None]
        most[np.broadcast_to(rest < 0, most.shape)] = NEVER
        if ask[deep]:
            np.minimum(most, rest // ask[deep], out=most, where=rest >= 0, casting="unsafe")


class _Filling:
    """Fill the GPUs of many nodes, one GPU after another.

    The axes of the state are the number of whole GPUs taken, then the places of each other role with slices.
    """

    def __init__(self, asks: Asks, most: Ints, others: Counts, deep: int) -> None:
        self._asks, self._others, self._deep = asks, others, asks[deep].units
        self._sizes = tuple(int(most[r]) + 1 for r in others)
        self._sliced = [i for i, r in enumerate(others) if asks[r].units]
        self._units = tuple(asks[others[i]].units for i in self._sliced)
        self._whole = [0 if asks[r].units else asks[r].gpus for r in others]
        # Members of several GPUs have one slice on each. So their number bounds their slices on one GPU.
        self._several = [i for i in self._sliced if asks[others[i]].gpus > 1]

    @property
    def cells(self) -> int:
        """The cells of the table for one node."""
        return prod(self._sizes)

    def work(self, units: int, gpus: int) -> int:
        """Return the steps for one node that has `gpus` GPUs of `units` units."""
        ways = prod(units // each + 1 for each in self._units)
        times = prod(self._sizes[i] for i in self._several)
        return max(self.cells, times * gpus * ways * prod(self._state(self._sizes, gpus)))

    def most(self, units: Ints, whole: Bools) -> Small:
        """Return [count of each other role …, node] int16: the most members of the deep role."""
        found = np.full((*self._sizes, units.shape[1]), NEVER, np.int16)
        for several in product(*(range(self._sizes[i]) for i in self._several)):
            fixed = dict(zip(self._several, several, strict=True))
            sizes = tuple(fixed[i] + 1 if i in fixed else size for i, size in enumerate(self._sizes))
            state = self._filled(units, whole, sizes, fixed)
            counts = np.ix_(*(np.arange(fixed.get(i, 0), n) for i, n in enumerate(sizes)))
            taken = sum((n * each for n, each in zip(counts, self._whole, strict=True)), np.int64(0))
            taken = np.broadcast_to(taken, np.broadcast_shapes(*(n.shape for n in counts)))
            places = (counts[i] * self._asks[self._others[i]].gpus for i in self._sliced)
            reached = state[(np.minimum(taken, len(state) - 1), *places)]
            found[counts] = np.where((taken < len(state))[..., None], reached, NEVER)
        return found

    def _state(self, sizes: Counts, gpus: int) -> tuple[int, ...]:
        whole = sum((size - 1) * each for size, each in zip(sizes, self._whole, strict=True))
        places = ((sizes[i] - 1) * self._asks[self._others[i]].gpus + 1 for i in self._sliced)
        return (min(gpus, whole) + 1, *places)

    def _filled(self, units: Ints, whole: Bools, sizes: Counts, fixed: dict[int, int]) -> Small:
        shape = self._state(sizes, len(units))
        on_one = tuple(fixed.get(i, sizes[i] - 1) for i in self._sliced)
        state = np.full((*shape, units.shape[1]), NEVER, np.int16)
        state[(0,) * len(shape)] = 0
        for left, free in zip(units, whole, strict=True):
            grown = np.maximum(state + (left // self._deep).astype(np.int16), NEVER)
            for way, gain in self._ways(left, on_one):
                _grow(grown, state, (0, *way), gain)
            if shape[0] > 1 and free.any():
                _grow(
                    grown, state, (1, *(0 for _ in self._sliced)), np.where(free, 0, NEVER).astype(np.int16)
                )
            state = np.maximum(grown, NEVER)
        return state

    def _ways(self, left: Ints, on_one: Counts) -> Iterator[tuple[Counts, Small]]:
        """Yield the ways to put slices of the other roles on one GPU of each node.

        With each way comes [node] int16: how many slices of the deep role still fit on that GPU.
        """
        for way in every_filling(int(left.max(initial=0)), self._units, on_one):
            if any(way):
                rest = left - sum(n * each for n, each in zip(way, self._units, strict=True))
                yield way, np.where(rest >= 0, rest // self._deep, NEVER).astype(np.int16)


def _grow(grown: Small, state: Small, step: Counts, gain: Small) -> None:
    """Improve the cells of `grown` that are `step` further than cells of `state`."""
    if any(n >= size for n, size in zip(step, state.shape, strict=False)):
        return
    target = grown[tuple(slice(n, None) for n in step)]
    source = state[tuple(slice(0, size - n) for n, size in zip(step, state.shape, strict=False))]
    np.maximum(target, source + gain, out=target)
