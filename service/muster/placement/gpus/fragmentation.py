"""Measure how much of what is free on a node is unusable for typical requests, and the best fit.

F(node) = Σ over typical requests p, equally weighted, of the free GPUs that p cannot use, in GPU-thousandths.
A request for k whole GPUs needs a pool with at least k free GPUs. A pool is an NVLink domain if the node has
NVLink, else the whole node. This is the measure of "Beware of Fragmentation" (ATC'23) with topology added. A
pool with fewer than k free GPUs counts as unusable even if another pool has k.

If a node serves slices, the same is added for typical slices: ¼, ½ and all of a GPU's memory. A slice cannot
use a GPU that has less free than that. A whole request cannot use a partly used GPU, if the node serves whole
GPUs. A node that spreads is meant to have pieces left, so they do not count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.fabric import Shape

TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the typical requests. All have equal weight."""

TYPICAL_PARTS = (4, 2, 1)
"""Typical slices, as the divisor of a GPU's memory. All have equal weight."""

GPU = 1000
"""One GPU, in thousandths."""

EIGHTHS = 8
"""Steps of the best fit, for GPUs and for cpu. On a node with 8 GPUs a step is one GPU."""

Values = NDArray[np.int64]

Whole = TypeVar("Whole", int, Values)
"""A whole number, or one for each of many nodes."""


def unusable(free_in_pool: int) -> int:
    """Return F of one pool with this many free GPUs, in GPU-thousandths averaged over the typical requests.

    >>> [unusable(k) for k in (0, 1, 2, 3, 4, 8)]
    [0, 750, 1000, 1500, 1000, 0]
    """
    return free_in_pool * sum(GPU // len(TYPICAL_GPUS) for gpus in TYPICAL_GPUS if gpus > free_in_pool)


def fragmentation(shape: Shape, free: int, memory: Sequence[int] = ()) -> int:
    """Return F of a node of this shape, in GPU-thousandths.

    `free` is the mask of wholly free GPUs. `memory` is the units left for slices, by GPU.
    """
    whole = sum(unusable(max(0, (free & pool).bit_count() - shape.hidden)) for pool in shape.pools)
    return whole + sum(
        unusable_slices(shape, gpu, left) for gpu, left in enumerate(memory) if not free >> gpu & 1
    )


def unusable_slices(shape: Shape, gpu: int, left: Whole) -> Whole:
    """Return F of one partly used GPU that has `left` units of its memory free, in GPU-thousandths."""
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
    """Return the best fit of many nodes, 0 to 16: the shares of GPUs and of cpu still free after taking
    these.

    Each share is rounded down to eighths. Less is better, because it keeps empty nodes empty. The steps are
    coarse on purpose: with finer ones nearly every node would be a class of its own.
    """
    return _eighths(free_count - gpus, gpu_total) + _eighths(cpu_free - cpu_milli, cpu_total)


def _eighths(left: Values, total: Values) -> Values:
    """Return the share `left` / `total` in eighths; 0 if either is not positive."""
    return EIGHTHS * np.maximum(left, 0) * (total > 0) // np.maximum(total, 1)
