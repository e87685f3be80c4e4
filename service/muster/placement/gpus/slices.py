"""Count how many slices nodes take, and fill GPUs with slices: by first fit, or with the least damage.

A member with slices takes `units` of memory on each of `gpus` different GPUs of a node. Slices may share a
GPU, but not with a member that takes the GPU whole. A *place* is room for one slice on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from muster.domain.request import Role
from muster.domain.topology import bits
from muster.placement.cluster.fabric import Shape
from muster.placement.gpus.damage import gpu_fragmentation
from muster.placement.gpus.node_rules import Counts

Values = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MemberAsk:
    """The request of one member: `gpus` whole GPUs, or `units` of the memory of each of `gpus` GPUs."""

    gpus: int
    units: int = 0


Asks = tuple[MemberAsk, ...]
"""The request of a member, by role."""


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of a node for a gang.

    `free` masks the wholly free GPUs, and `memory` is the free units by GPU. Only GPUs in `allowed` may be
    used.
    """

    shape: Shape
    free: int
    memory: Counts
    allowed: int = -1

    def units(self, gpu: int) -> int:
        """Return the units of a GPU that may be used."""
        return self.memory[gpu] if gpu < len(self.memory) and self.allowed >> gpu & 1 else 0

    def is_whole(self, gpu: int) -> bool:
        """Return whether a member may take the GPU whole."""
        return bool(self.free & self.allowed & 1 << gpu)


def ask_of(role: Role) -> MemberAsk:
    """Return the request of one member of the role for GPUs."""
    return MemberAsk(role.slice.gpus, role.slice.units) if role.slice else MemberAsk(role.gpus)


def slice_room(memory: Values, ask: MemberAsk) -> Values:
    """Return [node] int64: how many members of a role with slices the node takes.

    `memory` [GPU, node] is the free units. n members need n · gpus places, at most n of them on one GPU,
    because each member needs different GPUs. If n members fit, fewer members fit too. So the largest number
    is found bit by bit.
    """
    places = memory // max(1, ask.units)
    max_members = places.sum(axis=0) // max(1, ask.gpus)
    if ask.gpus == 1:
        return np.asarray(max_members, np.int64)
    members = np.zeros(memory.shape[1], np.int64)
    for bit in reversed(range(int(max_members.max(initial=0)).bit_length())):
        tried_members = members + (1 << bit)
        members = np.where(
            np.minimum(places, tried_members).sum(axis=0) >= tried_members * ask.gpus, tried_members, members
        )
    return members


@dataclass(frozen=True, slots=True)
class FillableGpu:
    """One GPU that packings fill: the free units for slices, and whether a member may take the GPU whole."""

    units: int
    is_whole: bool


def whole_gpus(asks: Asks, packing: Counts) -> int:
    """Return how many whole GPUs a packing takes."""
    return sum(count * ask.gpus for count, ask in zip(packing, asks, strict=True) if not ask.units)


def every_filling(room: int, units: Counts, max_slices: Counts) -> Iterator[Counts]:
    """Yield all ways to fill one GPU with slices of these units."""
    for way in product(*(range(min(n, room // size) + 1) for size, n in zip(units, max_slices, strict=True))):
        if sum(count * size for count, size in zip(way, units, strict=True)) <= room:
            yield way


def first_fit(
    asks: Asks, packing: Counts, gpus: tuple[FillableGpu, ...]
) -> tuple[list[Counts], list[int]] | None:
    """Return a way to place a packing, found without a search; None if first fit finds no room.

    The largest slices come first. Each slice goes to the GPU with the least free memory that is enough. A
    wholly free GPU is taken only if no used GPU is enough. The result is how many slices of each role each
    GPU takes, and the GPUs taken whole.
    """
    units_left = [gpu.units for gpu in gpus]
    slices_by_role = [[0] * len(gpus) for _ in asks]
    opened = [not gpu.is_whole for gpu in gpus]
    for r in sorted(range(len(asks)), key=lambda r: -asks[r].units):
        ask = asks[r]
        for _ in range(packing[r] if ask.units else 0):
            fitting_gpus = [g for g in range(len(gpus)) if units_left[g] >= ask.units]
            fitting_gpus.sort(
                key=lambda g: (slices_by_role[r][g] >= packing[r], not opened[g], units_left[g], g)
            )
            best_gpus = fitting_gpus[: ask.gpus]
            if len(best_gpus) < ask.gpus:
                return None
            for g in best_gpus:
                units_left[g] -= ask.units
                slices_by_role[r][g] += 1
                opened[g] = True
    unopened = [g for g, is_open in enumerate(opened) if not is_open]
    whole_count = whole_gpus(asks, packing)
    if len(unopened) < whole_count:
        return None
    return [tuple(counts) for counts in slices_by_role], unopened[:whole_count]


UNFILLED = np.int64(1) << 60
THOUSANDTH = np.int64(1) << 24
"""One GPU-thousandth of damage in costs. Smaller amounts stand for evenness, which decides only between equal
damages.
"""


def least_damage_by_filling(
    node: NodeGpus, shared: Values, units: Counts, max_slices: Counts, slots: Counts
) -> Values:
    """Return [set of shared GPUs, places of each role …] int64: the least damage of filling the set, in units
    of THOUSANDTH.

    Each GPU of the set gets at least one slice. The value is UNFILLED if that is impossible. `shared` must be
    sorted. With each set it must have the set without its highest GPU, from which the set is computed.
    """
    cells = tuple(n + 1 for n in slots)
    least_damage = np.full((len(shared), *cells), UNFILLED, np.int64)
    least_damage[(0,) * least_damage.ndim] = 0  # the first set is empty: no GPU is filled
    index = {mask: i for i, mask in enumerate(shared.tolist())}
    highest = [mask.bit_length() - 1 for mask in shared.tolist()]
    for gpu in sorted({gpu for gpu in highest if gpu >= 0}):
        sets = [i for i, top in enumerate(highest) if top == gpu]
        grown_from = least_damage[[index[int(shared[i]) & ~(1 << gpu)] for i in sets]]
        least_of_sets = np.full_like(grown_from, UNFILLED)
        for way, cost in _fillings(node, gpu, units, max_slices):
            into = tuple(slice(n, None) for n in way)
            out_of = tuple(slice(0, cell - n) for n, cell in zip(way, cells, strict=True))
            target = least_of_sets[(slice(None), *into)]
            np.minimum(target, grown_from[(slice(None), *out_of)] + cost, out=target)
        least_damage[sets] = np.where(least_of_sets < UNFILLED // 2, least_of_sets, UNFILLED)
    return least_damage


def _fillings(node: NodeGpus, gpu: int, units: Counts, max_slices: Counts) -> tuple[tuple[Counts, int], ...]:
    """Return the ways to fill the GPU with at least one slice, each with its damage in units of THOUSANDTH.

    On nodes that spread slices, a small extra cost makes the GPUs fill evenly.
    """
    units_left = node.memory[gpu]
    max_slices = tuple(min(n, units_left // of_slice) for n, of_slice in zip(max_slices, units, strict=True))
    return _fillings_with_costs(node.shape, gpu, bool(node.free >> gpu & 1), units_left, units, max_slices)


@lru_cache(maxsize=1 << 14)
def _fillings_with_costs(
    shape: Shape, gpu: int, fresh: bool, units_left: int, units: Counts, max_slices: Counts
) -> tuple[tuple[Counts, int], ...]:
    fillings = np.array([way for way in every_filling(units_left, units, max_slices) if any(way)], np.int64)
    fillings = fillings.reshape(len(fillings), len(units))
    fragmentation_now = 0 if fresh else gpu_fragmentation(shape, gpu, units_left)
    costs = (
        gpu_fragmentation(shape, gpu, units_left - fillings @ np.array(units, np.int64)) - fragmentation_now
    ) * int(THOUSANDTH)
    if shape.spreads_slices:
        costs += np.minimum(fillings.sum(axis=1) ** 2, int(THOUSANDTH) >> 6)
    return tuple(zip(map(tuple, fillings.tolist()), costs.tolist(), strict=True))


@lru_cache(maxsize=1 << 13)
def slices_by_gpu(asks: Asks, packing: Counts, node: NodeGpus, shared: int) -> tuple[Counts, ...]:
    """Return by role how many of its slices each GPU of the node takes.

    The slices fill the shared GPUs with the least damage, as `least_damage_by_filling` has counted.
    """
    sliced = [r for r, ask in enumerate(asks) if ask.units and packing[r]]
    units = tuple(asks[r].units for r in sliced)
    max_slices = tuple(packing[r] for r in sliced)
    goal = tuple(packing[r] * asks[r].gpus for r in sliced)
    states: dict[Counts, tuple[int, tuple[Counts, ...]]] = {(0,) * len(sliced): (0, ())}
    for gpu in bits(shared):
        next_states: dict[Counts, tuple[int, tuple[Counts, ...]]] = {}
        fillings = _fillings(node, gpu, units, max_slices)
        for state, (cost, ways_so_far) in states.items():
            for way, extra in fillings:
                reached = tuple(slices_so_far + n for slices_so_far, n in zip(state, way, strict=True))
                if any(n > limit for n, limit in zip(reached, goal, strict=True)):
                    continue
                if reached not in next_states or cost + extra < next_states[reached][0]:
                    next_states[reached] = (cost + extra, (*ways_so_far, way))
        states = next_states
    ways_so_far = states[goal][1]
    count = len(node.memory)
    slices_by_role = [[0] * count for _ in asks]
    for gpu, way in zip(bits(shared), ways_so_far, strict=True):
        for r, n in zip(sliced, way, strict=True):
            slices_by_role[r][gpu] = n
    return tuple(map(tuple, slices_by_role))
