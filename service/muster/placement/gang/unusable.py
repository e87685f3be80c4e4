"""Count the GPUs that members without GPUs make unusable: they take the cpu and memory next to them.

A GPU's share of a resource is what the node has of it over the GPUs of the node. Shares are counted in
GPU-thousandths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.domain.request import Role
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.limits import takes_gpus

GPU = 1000
SLACK = GPU // 8
"""A GPU that lacks this much of its share, or less, is still usable."""
MIB = 20
"""Memory is counted in MiB, as a shift of bytes."""
MOST = 1 << 42
"""Amounts are cut here, so that their products do not overflow."""


def unusable_gpus(view: Columns, roles: Sequence[Role], rows: Ints, counts: Ints, beside: Bools) -> Ints:
    """Return [row, packing] int64: the GPUs that these members without GPUs make unusable on these nodes.

    `counts` is int64, members of these roles: [packing, role], or [row, packing, role] if each node has its
    own packings. `beside` [row] bool is whether members of the gang with GPUs run on the node.
    """
    with_gpus = np.array([takes_gpus(role) for role in roles])
    counts = counts if counts.ndim == 3 else counts[None]
    theirs, idle = counts * with_gpus, counts * ~with_gpus
    taken = counts @ np.array([role.gpus for role in roles], np.int64)
    total = view.gpu_total[rows][:, None]
    before = after = GPU * (view.free_count[rows][:, None] - taken)
    excess = np.zeros_like(before)
    for every, free, asked, unit in (
        (view.cpu_total, view.cpu, [role.resources.cpu_milli for role in roles], 0),
        (view.memory_total, view.memory, [role.resources.memory_bytes for role in roles], MIB),
    ):
        whole, left = every[rows][:, None] >> unit, free[rows][:, None]
        scale = np.where(whole > 0, GPU * total, 0), np.maximum(1, whole)
        of_theirs = theirs @ np.array(asked, np.int64)
        of_all = of_theirs + idle @ np.array(asked, np.int64)
        enough = np.where(whole > 0, 0, GPU * total)
        before = np.minimum(before, enough + _shares((left - of_theirs) >> unit, scale))
        after = np.minimum(after, enough + _shares((left - of_all) >> unit, scale))
        beyond = [np.maximum(0, _shares(each >> unit, scale) - GPU * taken) for each in (of_all, of_theirs)]
        excess = np.maximum(excess, beyond[0] - beyond[1])
    now = (before - after + GPU - 1 - SLACK) // GPU
    alone = ~(theirs.any(axis=-1) | beside[:, None])
    later = np.where(alone, np.maximum(1, -(-excess // GPU)), (excess + GPU - 1 - SLACK) // GPU)
    later = np.minimum(later, total - taken)
    return np.asarray(np.where(idle.any(axis=-1), now + later, 0))


def _shares(amount: Ints, scale: tuple[Ints, Ints]) -> Ints:
    """Return how many GPUs have their share in this amount, in thousandths."""
    times, whole = scale
    return np.asarray(np.clip(amount, 0, MOST) * times // whole)
