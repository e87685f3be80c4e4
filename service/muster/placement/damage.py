"""How much of what stays free on a node is of no use to the requests that usually come.

F(node) = Σ over typical requests p, equally weighted, of the free GPUs that p can't use, in GPU-thousandths.
A request for k whole GPUs can use those in pools with k free ones at least; a pool is an NVLink domain where
the node has NVLink, else the whole node. (The measure of "Beware of Fragmentation", ATC'23, whole GPUs only,
with topology added; a pool with fewer than k free GPUs counts as unusable also where another pool has k.)
"""

from __future__ import annotations

from muster.domain.snapshot import NodeState
from muster.placement.fabric import Shape

TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the typical requests, each of equal weight."""

GPU = 1000
"""One GPU, in thousandths."""


def unusable(free_in_pool: int) -> int:
    """F of one pool with that many free GPUs, in GPU-thousandths averaged over the typical requests.

    >>> [unusable(k) for k in (0, 1, 2, 3, 4, 8)]
    [0, 750, 1000, 1500, 1000, 0]
    """
    return free_in_pool * sum(GPU // len(TYPICAL_GPUS) for gpus in TYPICAL_GPUS if gpus > free_in_pool)


def fragmentation(shape: Shape, free: int) -> int:
    """F of a node of this shape with these GPUs free (a bit mask), in GPU-thousandths."""
    return sum(unusable(max(0, (free & pool).bit_count() - shape.hidden)) for pool in shape.pools)


def left_over(state: NodeState, gpus: int, cpu_milli: int) -> int:
    """The best-fit term, decided after damage: shares of the node's GPUs and of its cpu still free after so
    much is taken, each in thousandths, added. Less is better: it keeps empty nodes empty.
    """
    total = state.node.topology.gpu_count
    gpu_share = GPU * max(0, state.free_gpu_count - gpus) // total if total else 0
    cpu = state.node.allocatable.cpu_milli
    cpu_share = GPU * max(0, state.free.cpu_milli - cpu_milli) // cpu if cpu > 0 else 0
    return gpu_share + cpu_share
