"""Describe how the GPUs of a node are connected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from muster.domain.allocation import MAX_GPUS
from muster.domain.topology import GpuTopology

MAX_RING_GPUS = 16
"""The most GPUs of a node whose link matrix is used. Tables over subsets of n GPUs have 2^n entries."""

ALL_GPUS = (1 << MAX_GPUS) - 1
"""The mask of all GPUs that a node may have."""


@dataclass(frozen=True)
class Shape:
    """All properties of a node that decide the value of a set of its GPUs. Nodes of equal shape share tables.

    `domains` are the NVLink domains inside the node, as bit masks of GPUs. A typical request must find all
    its GPUs in one of `pools`: the NVLink domains if the node has NVLink, else all GPUs of the node. `hidden`
    is how many GPUs that look free are in fact taken, by pods whose GPU indices are unknown.

    `memory` is the memory that each GPU offers for slices, by GPU index, in units (GiB); () if the node
    serves no slices. A node that serves slices has pools only if it serves whole GPUs too. `spreads_slices`
    is true if slices go to the GPU with most memory left.
    """

    topology: GpuTopology
    domains: tuple[int, ...]
    pools: tuple[int, ...]
    hidden: int = 0
    memory: tuple[int, ...] = ()
    spreads_slices: bool = False

    @cached_property
    def _hash(self) -> int:
        return hash((self.topology, self.domains, self.pools, self.hidden, self.memory, self.spreads_slices))

    def __hash__(self) -> int:
        return self._hash
