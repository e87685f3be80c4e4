"""Where each GPU lies: the parts of every scope, and the shape of a node as the planner sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from muster.domain.levels import DEFAULT_LEVELS, Level, part_of
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, bits

DOMAIN_LABELS = ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique")
"""Labels that name a node's NVLink domain, first that speaks wins: equal values are one domain."""

INSIDE = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value)
"""Scopes whose parts may be smaller than a node."""

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


@dataclass(frozen=True, slots=True)
class Place:
    """One node as the planner sees it.

    `levels` are those of the snapshot. `domains` are (name, mask) of the NVLink
    domains it lies in; `wide` is the domain's name where a label gives it, which may span nodes, else "".
    `promised` says that a scope narrower than the node can be kept: false while GPUs of unknown index are
    taken, unless all the node's GPUs are one domain.
    """

    name: str
    state: NodeState
    shape: Shape
    levels: tuple[Level, ...]
    domains: tuple[tuple[str, int], ...]
    wide: str
    promised: bool

    @property
    def all_gpus(self) -> int:
        """The mask of all GPUs of the node, taken or free."""
        return (1 << self.state.node.topology.gpu_count) - 1

    def parts(self, scope: str) -> tuple[tuple[str, int], ...]:
        """The parts of `scope` that the node lies in, with the mask of its GPUs there; () if unlabelled."""
        if scope == Scope.GPU:
            indices = bits(self.all_gpus) if not self.state.unindexed_gpus else ()
            return tuple((f"{self.name}/{i}", 1 << i) for i in indices)
        if scope == Scope.NVLINK_DOMAIN:
            return self.domains if self.promised else ()
        if scope == Scope.NODE:
            return ((self.name, self.all_gpus),)
        value = self.part(scope)
        return ((value, self.all_gpus),) if value else ()

    def part(self, scope: str) -> str:
        """The part of a scope that labels give, "" where the node has none."""
        return part_of(self.state.node, scope, self.levels)


def place_of(state: NodeState, levels: tuple[Level, ...] = DEFAULT_LEVELS) -> Place:
    """The view of one node under its state."""
    node = state.node
    count = node.topology.gpu_count
    everything = (1 << count) - 1
    wide = (
        next((node.labels[label] for label in DOMAIN_LABELS if node.labels.get(label)), "") if count else ""
    )
    if wide:
        domains: tuple[tuple[str, int], ...] = ((wide, everything),)
    else:
        domains = tuple((f"{node.name}/{i}", mask) for i, mask in enumerate(node.topology.islands))
    topology, masks = node.topology, tuple(mask for _, mask in domains)
    fabric = bool(wide) or node.topology.has_fabric
    pools = masks if fabric and not state.unindexed_gpus else (everything,)
    promised = not state.unindexed_gpus or len(domains) == 1
    if state.unindexed_gpus:
        # Which GPUs are free is a guess: no link can be promised, and no domain but the whole node.
        topology = GpuTopology.unknown(count)
        if not promised:
            masks = tuple(1 << i for i in range(count))
    if node.gpu_memory and not node.gpu_resources:
        pools = ()
    shape = Shape(topology, masks, pools, state.unindexed_gpus, node.gpu_memory, node.spread)
    return Place(node.name, state, shape, levels, domains, wide, promised)


def touched_domains(place: Place, mask: int) -> set[str]:
    """Names of the NVLink domains that these GPUs lie in; one a GPU where indices can't be promised."""
    if not place.promised:
        return {f"{place.name}/gpu{i}" for i in bits(mask)}
    return {name for name, domain in place.domains if domain & mask}


def narrow_to_wide(levels: tuple[Level, ...], asked: Iterable[str]) -> tuple[str, ...]:
    """All scopes that a plan may be said to lie in, narrowest first; label keys asked for before the widest
    level."""
    named = [level.scope for level in levels[::-1]]
    narrow = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value)
    custom = [scope for scope in asked if scope not in {*Scope, *named}]
    return tuple(dict.fromkeys((*narrow, *named[:-1], *custom, *named[-1:])))


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts worker-2 before worker-10."""
    return tuple(
        (0, int(piece), piece) if piece.isdecimal() else (1, 0, piece)
        for piece in re.split(r"(\d+)", name)
        if piece
    )
