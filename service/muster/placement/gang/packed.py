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

    `most` [count of each role of `axes` …, kind of node] is int16. It is the most members of role `deep` on
    such a node, next to these counts of the other roles. It is below zero if these counts alone do not fit.
    `roles` is the number of the gang's roles.
    """

    most: Small
    axes: tuple[int, ...]
    deep: int
    roles: int

    def holds(self, packing: Counts) -> Bools:
        """Return [kind] bool: whether there is room for the packing of members of these roles alone."""
        at = tuple(packing[r] for r in self.axes)
        if any(n >= size for n, size in zip(at, self.most.shape, strict=False)):
            return np.zeros(self.most.shape[-1], bool)
        return np.asarray(self.most[at] >= packing[self.deep])

    def largest(self) -> list[Ints]:
        """Return the maximal packings of each kind, [packing, role] int64."""
        most = self.most
        alone = most >= 0
        alone[(0,) * len(self.axes)] &= most[(0,) * len(self.axes)] > 0  # leaves out the empty packing
        for axis in range(len(self.axes)):
            fewer, more = ((slice(None),) * axis + (part,) for part in (slice(0, -1), slice(1, None)))
            alone[fewer] &= most[fewer] > most[more]
        *at, kind = np.nonzero(alone)
        order = np.argsort(kind, kind="stable")
        packings = np.zeros((len(order), self.roles), np.int64)
        for r, counts in zip(self.axes, at, strict=True):
            packings[:, r] = counts[order]
        packings[:, self.deep] = most[alone][order]
        return np.split(packings, np.searchsorted(kind[order], np.arange(1, most.shape[-1])))

    def every(self, kind: int) -> Ints:
        """Return all packings of one kind except the empty one, [packing, role] int64, sorted."""
        most = self.most[..., kind]
        at = np.argwhere(most >= 0)
        times = most[tuple(at.T)].astype(np.int64) + 1
        packings = np.zeros((int(times.sum()), self.roles), np.int64)
        packings[:, list(self.axes)] = np.repeat(at, times, axis=0)
        packings[:, self.deep] = np.arange(len(packings)) - np.repeat(np.cumsum(times) - times, times)
        packings = packings[packings.any(axis=1)]
        return packings[np.lexsort(packings.T[::-1])]


def packed(asks: Asks, caps: Ints, amounts: Ints, free: Ints, units: Ints, whole: Bools) -> Packed | None:
    """Return the table for these kinds of nodes; None if it would be too large.

    `caps` [role, kind] is how many members of each role alone a node takes. `amounts` [resource, role] is
    what a member asks for of further resources, and `free` [resource, kind] is what a node has. `units` [GPU,
    kind] is what is left of each GPU's memory, and `whole` [GPU, kind] bool is whether a member may take the
    GPU whole.
    """
    active = [r for r in range(len(asks)) if caps[r].max(initial=0)]
    single = [r for r in active if asks[r].units and asks[r].gpus == 1]
    if not single:
        return None
    deep = max(single, key=lambda r: (int(caps[r].max()), -r))
    axes = tuple(r for r in active if r != deep)
    filling = _Filling(asks, caps.max(axis=1, initial=0), axes, deep)
    kinds = caps.shape[1]
    if filling.work(int(units.max(initial=0)), len(units)) * kinds > MAX_WORK:
        return None
    chunk = max(1, AT_ONCE // filling.cells)
    parts = [
        filling.most(units[:, start : start + chunk], whole[:, start : start + chunk])
        for start in range(0, kinds, chunk)
    ]
    most = np.concatenate(parts, axis=-1)
    _limited(most, axes, deep, caps, amounts, free)
    return Packed(most, axes, deep, len(asks))


def _limited(most: Small, axes: Counts, deep: int, caps: Ints, amounts: Ints, free: Ints) -> None:
    """Cut the table down, in place, to what the other limits allow."""
    np.minimum(most, caps[deep], out=most, casting="unsafe")
    at: tuple[Ints, ...] = np.indices(most.shape[:-1], sparse=True)
    for r, counts in zip(axes, at, strict=True):
        most[np.broadcast_to(counts[..., None] > caps[r], most.shape)] = NEVER
    for ask, has in zip(amounts, free, strict=True):
        if (ask @ caps <= has).all():
            continue
        sums = sum((counts * int(ask[r]) for r, counts in zip(axes, at, strict=True)), np.int64(0))
        spare = has - np.asarray(sums)[..., None]
        most[np.broadcast_to(spare < 0, most.shape)] = NEVER
        if ask[deep]:
            np.minimum(most, spare // ask[deep], out=most, where=spare >= 0, casting="unsafe")


class _Filling:
    """Fill the GPUs of many nodes, one GPU after another.

    The axes of the state are the number of whole GPUs taken, then the places of each other role with slices.
    """

    def __init__(self, asks: Asks, most: Ints, axes: Counts, deep: int) -> None:
        self._asks, self._axes, self._deep = asks, axes, asks[deep].units
        self._sizes = tuple(int(most[r]) + 1 for r in axes)
        self._sliced = [i for i, r in enumerate(axes) if asks[r].units]
        self._units = tuple(asks[axes[i]].units for i in self._sliced)
        self._whole = [0 if asks[r].units else asks[r].gpus for r in axes]
        # Members of several GPUs have one slice on each. So their number bounds their slices on one GPU.
        self._several = [i for i in self._sliced if asks[axes[i]].gpus > 1]

    @property
    def cells(self) -> int:
        """The cells of the table for one node."""
        return prod(self._sizes)

    def work(self, units: int, gpus: int) -> int:
        """Return the steps for one node that has `gpus` GPUs of `units` units."""
        ways = prod(units // of_slice + 1 for of_slice in self._units)
        times = prod(self._sizes[i] for i in self._several)
        return max(self.cells, times * gpus * ways * prod(self._state(self._sizes, gpus)))

    def most(self, units: Ints, whole: Bools) -> Small:
        """Return [count of each other role …, node] int16: the most members of the deep role."""
        most = np.full((*self._sizes, units.shape[1]), NEVER, np.int16)
        for several in product(*(range(self._sizes[i]) for i in self._several)):
            on_several = dict(zip(self._several, several, strict=True))
            sizes = tuple(
                on_several[i] + 1 if i in on_several else size for i, size in enumerate(self._sizes)
            )
            state = self._filled(units, whole, sizes, on_several)
            counts = np.ix_(*(np.arange(on_several.get(i, 0), n) for i, n in enumerate(sizes)))
            whole_gpus = sum((n * gpus for n, gpus in zip(counts, self._whole, strict=True)), np.int64(0))
            whole_gpus = np.broadcast_to(whole_gpus, np.broadcast_shapes(*(n.shape for n in counts)))
            places = (counts[i] * self._asks[self._axes[i]].gpus for i in self._sliced)
            cells = state[(np.minimum(whole_gpus, len(state) - 1), *places)]
            most[counts] = np.where((whole_gpus < len(state))[..., None], cells, NEVER)
        return most

    def _state(self, sizes: Counts, gpus: int) -> tuple[int, ...]:
        whole = sum((size - 1) * gpus_each for size, gpus_each in zip(sizes, self._whole, strict=True))
        places = ((sizes[i] - 1) * self._asks[self._axes[i]].gpus + 1 for i in self._sliced)
        return (min(gpus, whole) + 1, *places)

    def _filled(self, units: Ints, whole: Bools, sizes: Counts, on_several: dict[int, int]) -> Small:
        shape = self._state(sizes, len(units))
        on_one = tuple(on_several.get(i, sizes[i] - 1) for i in self._sliced)
        state = np.full((*shape, units.shape[1]), NEVER, np.int16)
        state[(0,) * len(shape)] = 0
        for memory, free in zip(units, whole, strict=True):
            grown = np.maximum(state + (memory // self._deep).astype(np.int16), NEVER)
            for way, gain in self._ways(memory, on_one):
                _grow(grown, state, (0, *way), gain)
            if shape[0] > 1 and free.any():
                _grow(
                    grown, state, (1, *(0 for _ in self._sliced)), np.where(free, 0, NEVER).astype(np.int16)
                )
            state = np.maximum(grown, NEVER)
        return state

    def _ways(self, memory: Ints, on_one: Counts) -> Iterator[tuple[Counts, Small]]:
        """Yield the ways to put slices of the other roles on one GPU of each node.

        With each way comes [node] int16: how many slices of the deep role still fit on that GPU.
        """
        for way in every_filling(int(memory.max(initial=0)), self._units, on_one):
            if any(way):
                spare = memory - sum(n * of_slice for n, of_slice in zip(way, self._units, strict=True))
                yield way, np.where(spare >= 0, spare // self._deep, NEVER).astype(np.int16)


def _grow(grown: Small, state: Small, step: Counts, gain: Small) -> None:
    """Improve the cells of `grown` that are `step` further than cells of `state`."""
    if any(n >= size for n, size in zip(step, state.shape, strict=False)):
        return
    target = grown[tuple(slice(n, None) for n in step)]
    source = state[tuple(slice(0, size - n) for n, size in zip(step, state.shape, strict=False))]
    np.maximum(target, source + gain, out=target)
