"""How much of what stays free on a node is of no use to the requests that usually come.

F(node) = Σ over typical requests p, equally weighted, of the free GPUs that p can't use, in GPU-thousandths.
A request for k whole GPUs can use those in pools with k free ones at least; a pool is an NVLink domain where
the node has NVLink, else the whole node. (The measure of "Beware of Fragmentation", ATC'23, with topology
added; a pool with fewer than k free GPUs counts as unusable also where another pool has k.)

Where a node serves slices, the same is added for typical slices: ¼, ½ and all of a GPU's memory. The free
share of a GPU with less than that is of no use to them, nor is that of a partly used one to a whole request,
where the node serves these. A node that spreads is meant to be left with pieces: they do not count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.domain.snapshot import NodeState
from muster.placement.cluster.fabric import Shape

TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the typical requests, each of equal weight."""

TYPICAL_PARTS = (4, 2, 1)
"""Typical slices, each of equal weight: GPU memory over so much."""

GPU = 1000
"""One GPU, in thousandths."""

EIGHTHS = 8
"""Steps of the best-fit term, for each of GPUs and cpu: a GPU of an 8-GPU node is one."""

Values = NDArray[np.int64]

Whole = TypeVar("Whole", int, Values)
"""A whole number, or one for each of many nodes."""


def unusable(free_in_pool: int) -> int:
    """F of one pool with that many free GPUs, in GPU-thousandths averaged over the typical requests.

    >>> [unusable(k) for k in (0, 1, 2, 3, 4, 8)]
    [0, 750, 1000, 1500, 1000, 0]
    """
    return free_in_pool * sum(GPU // len(TYPICAL_GPUS) for gpus in TYPICAL_GPUS if gpus > free_in_pool)


def fragmentation(shape: Shape, free: int, memory: Sequence[int] = ()) -> int:
    """F of a node of this shape with these GPUs wholly free (a bit mask), in GPU-thousandths. `memory`: units
    left of each GPU for slices."""
    whole = sum(unusable(max(0, (free & pool).bit_count() - shape.hidden)) for pool in shape.pools)
    return whole + sum(
        unusable_slices(shape, gpu, left) for gpu, left in enumerate(memory) if not free >> gpu & 1
    )


def unusable_slices(shape: Shape, gpu: int, left: Whole) -> Whole:
    """F of one GPU that is partly used, with so many units left of its memory, in GPU-thousandths."""
    every = shape.memory[gpu]
    if shape.spread or not every:
        return 0 * left
    too_large = 0 * left
    for part in TYPICAL_PARTS:
        too_large = too_large + (left * part < every)
    of_slices = GPU * left * too_large // (len(TYPICAL_PARTS) * every)
    return of_slices + (GPU * left // every if shape.pools else 0)


def left_over_steps(
    gpu_total: Values,
    free_count: Values,
    cpu_total: Values,
    cpu_free: Values,
    gpus: Values | int,
    cpu_milli: Values | int,
) -> Values:
    """The best-fit term of many nodes, decided after damage: the shares of a node's GPUs and of its cpu still
    free after so much is taken, each rounded down to eighths, added: 0 … 16. Less is better: it keeps empty
    nodes empty. Coarse on purpose: in finer steps nearly every node is a class of its own.
    """
    return _eighths(free_count - gpus, gpu_total) + _eighths(cpu_free - cpu_milli, cpu_total)


def left_over(state: NodeState, gpus: int, cpu_milli: int) -> int:
    """`left_over_steps` of one node: plain numbers, for arrays of one cost forty times as much."""
    cpu_total = state.node.allocatable.cpu_milli
    gpu_steps = _eighths(state.free_gpu_count - gpus, state.node.topology.gpu_count)
    return gpu_steps + _eighths(state.free.cpu_milli - cpu_milli, cpu_total)


def _eighths(left: Whole, total: Whole) -> Whole:
    """`left` of `total`, 0 where there is nothing or less: without branches, for numbers and arrays alike."""
    some = (left > 0) * (total > 0)
    return EIGHTHS * left * some // (total * some + (1 - some))
