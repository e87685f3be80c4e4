"""Assign slices to given GPUs with the least damage.

First the cost of every set of GPUs is found, for all sets at once. Then it is decided which member gets which
GPU.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from muster.domain.topology import bits
from muster.placement.cluster.fabric import Shape
from muster.placement.gpus.fragmentation import unusable_slices
from muster.placement.gpus.slices import Asks, Counts, NodeGpus, Values, every_filling

NEVER = np.int64(1) << 60
STEP = np.int64(1) << 24
"""One GPU-thousandth of damage in costs. Smaller amounts stand for evenness, which decides only between
equals.
"""


def filled(node: NodeGpus, shared: Values, units: Counts, most: Counts, slots: Counts) -> Values:
    """Return [set of shared GPUs, places of each role …] int64: the least damage of filling the set, in
    STEPs.

    Each GPU of the set gets at least one slice. The value is NEVER if that is impossible. `shared` must be
    sorted, and with each set it must have the set without its highest GPU.
    """
    cells = tuple(n + 1 for n in slots)
    found = np.full((len(shared), *cells), NEVER, np.int64)
    found[(0,) * found.ndim] = 0  # the first set is empty: no GPU is filled
    index = {mask: i for i, mask in enumerate(shared.tolist())}
    highest = [mask.bit_length() - 1 for mask in shared.tolist()]
    for gpu in sorted({gpu for gpu in highest if gpu >= 0}):
        sets = [i for i, top in enumerate(highest) if top == gpu]
        grown_from = found[[index[int(shared[i]) & ~(1 << gpu)] for i in sets]]
        best = np.full_like(grown_from, NEVER)
        for way, cost in _ways(node, gpu, units, most):
            into = tuple(slice(n, None) for n in way)
            out_of = tuple(slice(0, cell - n) for n, cell in zip(way, cells, strict=True))
            target = best[(slice(None), *into)]
            np.minimum(target, grown_from[(slice(None), *out_of)] + cost, out=target)
        found[sets] = np.where(best < NEVER // 2, best, NEVER)
    return found


def _ways(node: NodeGpus, gpu: int, units: Counts, most: Counts) -> tuple[tuple[Counts, int], ...]:
    """Return the ways to fill the GPU with at least one slice, each with its damage in STEPs.

    On nodes that spread, a small extra cost makes the GPUs fill evenly.
    """
    left = node.memory[gpu]
    most = tuple(min(n, left // each) for n, each in zip(most, units, strict=True))
    return _costed(node.shape, gpu, bool(node.free >> gpu & 1), left, units, most)


@lru_cache(maxsize=1 << 14)
def _costed(
    shape: Shape, gpu: int, fresh: bool, left: int, units: Counts, most: Counts
) -> tuple[tuple[Counts, int], ...]:
    ways = np.array([way for way in every_filling(left, units, most) if any(way)], np.int64)
    ways = ways.reshape(len(ways), len(units))
    before = 0 if fresh else unusable_slices(shape, gpu, left)
    costs = (unusable_slices(shape, gpu, left - ways @ np.array(units, np.int64)) - before) * int(STEP)
    if shape.spread:
        costs += np.minimum(ways.sum(axis=1) ** 2, int(STEP) >> 6)
    return tuple(zip(map(tuple, ways.tolist()), costs.tolist(), strict=True))


@lru_cache(maxsize=1 << 13)
def dealt(asks: Asks, packing: Counts, node: NodeGpus, shared: int) -> tuple[Counts, ...]:
    """Return by role how many of its slices each GPU of the node takes.

    The packing fills the shared GPUs with the least damage, as it was priced when they were chosen.
    """
    sliced = [r for r, ask in enumerate(asks) if ask.units and packing[r]]
    units = tuple(asks[r].units for r in sliced)
    most = tuple(packing[r] for r in sliced)
    goal = tuple(packing[r] * asks[r].gpus for r in sliced)
    states: dict[Counts, tuple[int, tuple[Counts, ...]]] = {(0,) * len(sliced): (0, ())}
    for gpu in bits(shared):
        more: dict[Counts, tuple[int, tuple[Counts, ...]]] = {}
        ways = _ways(node, gpu, units, most)
        for state, (cost, given) in states.items():
            for way, extra in ways:
                reached = tuple(have + n for have, n in zip(state, way, strict=True))
                if any(n > wanted for n, wanted in zip(reached, goal, strict=True)):
                    continue
                if reached not in more or cost + extra < more[reached][0]:
                    more[reached] = (cost + extra, (*given, way))
        states = more
    given = states[goal][1]
    count = len(node.memory)
    found = [[0] * count for _ in asks]
    for gpu, way in zip(bits(shared), given, strict=True):
        for r, n in zip(sliced, way, strict=True):
            found[r][gpu] = n
    return tuple(map(tuple, found))
