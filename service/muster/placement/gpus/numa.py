"""Find where a node's GPUs hang below its CPU sockets and PCIe switches, from its link matrix."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from muster.domain.topology import GpuTopology, bits
from muster.placement.cluster.fabric import MAX_RING_GPUS

Values = NDArray[np.int64]

BORDERS = (
    (frozenset({"SYS"}), 64),
    (frozenset({"SYS", "NODE"}), 1),
    (frozenset({"SYS", "NODE", "PHB"}), 1),
    (frozenset({"SYS", "NODE", "PHB", "PXB"}), 1),
)
"""The borders between NUMA nodes, host bridges, groups of PCIe switches, and single switches.

Each border has the kinds of links that cross it, and the cost of a further part. A NUMA node outweighs all
borders inside it. Other PCIe links stay inside one switch. NVLink, PCIE and unknown links say nothing.
"""


@lru_cache(maxsize=256)
def pcie_parts(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return the parts between each of BORDERS, as masks of GPUs.

    Parts lie inside the parts of the border before. Each GPU, in the order of indices, joins the first part
    to which it has no link that crosses the border.
    """
    found: list[tuple[int, ...]] = []
    outer = [(1 << topology.gpu_count) - 1]
    for kinds, _ in BORDERS:
        outer = [part for mask in outer for part in _parted(topology, mask, kinds)]
        found.append(tuple(outer))
    return tuple(found)


def _parted(topology: GpuTopology, inside: int, kinds: frozenset[str]) -> list[int]:
    """Return the parts of these GPUs at one border."""
    found: list[int] = []
    for gpu in bits(inside):
        links = enumerate(topology.links[gpu])
        apart = sum(1 << other for other, link in links if link is not None and link.kind in kinds)
        home = next((i for i, mask in enumerate(found) if not mask & apart), None)
        if home is None:
            found.append(1 << gpu)
        else:
            found[home] |= 1 << gpu
    return found


def numa_nodes(topology: GpuTopology) -> tuple[int, ...]:
    """Return the NUMA nodes as masks of GPUs."""
    return pcie_parts(topology)[0]


def socket_distances(topology: GpuTopology, masks: Values) -> Values:
    """Return how far apart the GPUs of each mask hang: the costs of all further parts that they touch.

    The distance is 0 below one PCIe switch, and on nodes whose link matrix is not used.
    """
    found = np.zeros_like(masks)
    if topology.gpu_count > MAX_RING_GPUS:
        return found
    for (_, cost), parts in zip(BORDERS, pcie_parts(topology), strict=True):
        if len(parts) > 1:
            touched = sum(((masks & part) != 0).astype(np.int64) for part in parts)
            found += cost * np.maximum(0, touched - 1)
    return found


@lru_cache(maxsize=1 << 14)
def socket_distance(topology: GpuTopology, mask: int) -> int:
    """Return the same for one mask."""
    return int(socket_distances(topology, np.array([mask]))[0])


@lru_cache(maxsize=256)
def pcie_homes(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return by GPU the parts that it lies in, −1 for one that it has alone.

    GPUs with equal values can be swapped: no distance changes.
    """
    if topology.gpu_count > MAX_RING_GPUS:
        return ((),) * topology.gpu_count
    every = [part for parts in pcie_parts(topology) for part in parts]
    return tuple(
        tuple(-1 if part == 1 << gpu else part for part in every if part >> gpu & 1)
        for gpu in range(topology.gpu_count)
    )
