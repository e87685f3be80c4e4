"""Find the NUMA nodes of a node's GPUs from its link matrix."""

from __future__ import annotations

from functools import lru_cache

from muster.domain.topology import GpuTopology

ACROSS_SOCKETS = "SYS"
"""The kind of a link from one NUMA node to another.

PSB, PIX, PXB, PHB and NODE stay inside one NUMA node. NVLink, PCIE and unknown links say nothing about it.
"""


@lru_cache(maxsize=256)
def numa_nodes(topology: GpuTopology) -> tuple[int, ...]:
    """Return the NUMA nodes as masks of GPUs.

    Each GPU, in the order of indices, joins the first NUMA node to which it has no SYS link.
    """
    found: list[int] = []
    for gpu in range(topology.gpu_count):
        apart = sum(
            1 << other
            for other, link in enumerate(topology.links[gpu])
            if link is not None and link.kind == ACROSS_SOCKETS
        )
        home = next((i for i, mask in enumerate(found) if not mask & apart), None)
        if home is None:
            found.append(1 << gpu)
        else:
            found[home] |= 1 << gpu
    return tuple(found)
