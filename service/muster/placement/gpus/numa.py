"""The NUMA nodes of a node's GPUs, as far as the link matrix tells them apart."""

from __future__ import annotations

from functools import lru_cache

from muster.domain.topology import GpuTopology

ACROSS_SOCKETS = "SYS"
"""The kind of a link that leads from one NUMA node to another. PSB, PIX, PXB, PHB and NODE stay
inside one; NVLink, PCIE and unknown links say nothing."""


@lru_cache(maxsize=256)
def numa_nodes(topology: GpuTopology) -> tuple[int, ...]:
    """Masks: each GPU, by index, is of the first NUMA node to none of whose GPUs its link is SYS."""
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
