"""The shape of a node as the planner sees it, and the natural order of names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from muster.domain.topology import GpuTopology

MAX_RING_GPUS = 16
"""Up to so many GPUs a node's link matrix is used: tables over their subsets grow as 2^n."""


@dataclass(frozen=True)
class Shape:
    """What decides the value of GPU sets on a node, whatever its name: equal shapes share their tables.

    `domains` are the NVLink domains inside the node as bit masks. `pools` are the sets within which a typical
    request must find its GPUs: the domains where the node has NVLink, else all its GPUs at once.
    `hidden` GPUs of those that look free are taken, nobody knows which.
    `memory` is what each GPU offers in slices, in units by index, () where the node serves none; such a node
    has pools only if it serves whole GPUs too. `spread`: slices go where most is left.
    """

    topology: GpuTopology
    domains: tuple[int, ...]
    pools: tuple[int, ...]
    hidden: int = 0
    memory: tuple[int, ...] = ()
    spread: bool = False

    @cached_property
    def _hash(self) -> int:
        return hash((self.topology, self.domains, self.pools, self.hidden, self.memory, self.spread))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts worker-2 before worker-10."""
    return tuple(
        (0, int(piece), piece) if piece.isdecimal() else (1, 0, piece)
        for piece in re.split(r"(\d+)", name)
        if piece
    )
