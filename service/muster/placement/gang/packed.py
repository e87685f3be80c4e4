"""Which packings of slices, whole GPUs and cpu-only members many nodes have room for, all nodes at once.

By dynamic programming over the GPUs of the nodes: for each number of the other roles' members, the most of
one role, the deepest. As all that fits still fits with fewer members, that says it of every packing.
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
"""No such packing fits: so low that what is added to it stays below zero, and four of it fit in 16 bits."""

AT_ONCE = 1 << 17
"""Cells of the tables that are filled at once: as much as a core's cache holds."""

MAX_WORK = 1 << 29
"""Steps of filling the tables, in all; where there are more, packings are looked at one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """`most` [count of each of `others` …, kind of node]: how many members of role `deep` fit beside so many
    of the others, below zero where these do not fit themselves. `roles`: of the gang."""

    most: Small
    others: tuple[int, ...]
    deep: int
    roles: int

    def holds(self, packing: Counts) -> Bools:
        """By kind, whether there is room for the packing, which has members of these roles alone."""
        at = tuple(packing[r] for r in self.others)
        if any(n >= size for n, size in zip(at, self.most.shape, strict=False)):
            return np.zeros(self.most.shape[-1], bool)
        return np.asarray(self.most[at] >= packing[self.deep])

    def largest(self) -> list[Ints]:
        """By kind, the packings that nothing can be added to, [packing, role]."""
        most = self.most
        alone = most >= 0
        alone[(0,) * len(self.others)] &= most[(0,) * len(self.others)] > 0  # else it is the empty one
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
        """All packings of one kind but the empty one, [packing, role], in order."""
        most = self.most[..., kind]
        at = np.argwhere(most >= 0)
        times = most[tuple(at.T)].astype(np.int64) + 1
        packings = np.zeros((int(times.sum()), self.roles), np.int64)
        packings[:, list(self.others)] = np.repeat(at, times, axis=0)
        packings[:, self.deep] = np.arange(len(packings)) - np.repeat(np.cumsum(times) - times, times)
        packings = packings[packings.any(axis=1)]
        return packings[np.lexsort(packings.T[::-1])]


def packed(asks: Asks, caps: Ints, each: Ints, free: Ints, units: Ints, whole: Bools) -> Packed | None:
    """The table for these kinds of nodes; None where it would be too large.

    `caps` [role, kind]: how many members of each role alone a node takes; `each` [resource, role] what a
    member takes of other resources, `free` [resource, kind] what there is. `units` left of each GPU,
    [GPU, kind], and whether it may be taken `whole`.
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
    """Cut the table down to what other limits leave."""
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
    """The GPUs of many nodes filled, one after another. Dimensions of the state: whole GPUs taken, then the
    places of each other role that asks for slices."""

    def __init__(self, asks: Asks, most: Ints, others: Counts, deep: int) -> None:
        self._asks, self._others, self._deep = asks, others, asks[deep].units
        self._sizes = tuple(int(most[r]) + 1 for r in others)
        self._sliced = [i for i, r in enumerate(others) if asks[r].units]
        self._units = tuple(asks[others[i]].units for i in self._sliced)
        self._whole = [0 if asks[r].units else asks[r].gpus for r in others]
        # Members of several GPUs have one slice on each: how many there are bounds those on one GPU.
        self._several = [i for i in self._sliced if asks[others[i]].gpus > 1]

    @property
    def cells(self) -> int:
        """Cells of the table for one node."""
        return prod(self._sizes)

    def work(self, units: int, gpus: int) -> int:
        """Steps for one node with GPUs of so many units."""
        ways = prod(units // each + 1 for each in self._units)
        times = prod(self._sizes[i] for i in self._several)
        return max(self.cells, times * gpus * ways * prod(self._state(self._sizes, gpus)))

    def most(self, units: Ints, whole: Bools) -> Small:
        """[count of each other role …, node]: the most members of the deepest one."""
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
        """The ways to put slices of the other roles on a GPU of each node; and how many of the deepest role's
        fit beside them."""
        for way in every_filling(int(left.max(initial=0)), self._units, on_one):
            if any(way):
                rest = left - sum(n * each for n, each in zip(way, self._units, strict=True))
                yield way, np.where(rest >= 0, rest // self._deep, NEVER).astype(np.int16)


def _grow(grown: Small, state: Small, step: Counts, gain: Small) -> None:
    """Reach cells that are a step further."""
    if any(n >= size for n, size in zip(step, state.shape, strict=False)):
        return
    target = grown[tuple(slice(n, None) for n in step)]
    source = state[tuple(slice(0, size - n) for n, size in zip(step, state.shape, strict=False))]
    np.maximum(target, source + gain, out=target)
