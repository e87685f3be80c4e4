"""The free capacity of each node: an immutable view on which the planner works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.domain.levels import DEFAULT_LEVELS, DEFAULT_NAMING, Level, Naming
from muster.domain.node import Node, Resources, Usage, total
from muster.domain.request import TypicalRequest


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and what is free on it.

    `free_gpus` is the bit mask of healthy GPUs that no known usage touches. `unindexed_gpus` of them are
    taken too, but it is unknown which ones (another scheduler's pods): at most `free_gpu_count` can be
    given whole, and no scope narrower than the node can be promised here while it is not zero.
    `memory` is what known usages leave of each GPU's memory, by index, 0 where a GPU is taken whole or
    unhealthy; () where the node serves no slices. See `free_memory`. `tainted` are the GPUs of
    `Node.tainted` that no known usage touches.
    """

    node: Node
    free: Resources
    free_gpus: int
    unindexed_gpus: int = 0
    memory: tuple[int, ...] = ()
    tainted: int = 0

    @classmethod
    def of(cls, node: Node, usages: Iterable[Usage]) -> NodeState:
        """Return the state of `node` under these usages, all of them on it."""
        healthy = ((1 << node.topology.gpu_count) - 1) & ~node.unhealthy
        memory = tuple(units if healthy >> gpu & 1 else 0 for gpu, units in enumerate(node.gpu_memory))
        mask, unindexed, tainted = healthy, 0, node.tainted
        usages = list(usages)
        free = node.allocatable - total(usage.resources for usage in usages)
        for usage in usages:
            mask &= ~usage.gpus
            tainted &= ~usage.gpus
            unindexed += usage.unindexed_gpus
            memory = _memory_after(memory, usage)
        return cls(node, free, mask, unindexed, memory, tainted)

    @property
    def free_memory(self) -> tuple[int, ...]:
        """Return the units that slices can get, by GPU. If GPUs with unknown indices are taken, any free GPU
        may be one of them: none of these is given."""
        if not self.unindexed_gpus:
            return self.memory
        return tuple(0 if self.free_gpus >> gpu & 1 else units for gpu, units in enumerate(self.memory))

    @property
    def free_gpu_count(self) -> int:
        """Return how many GPUs are free, less those that pods hold without known indices."""
        return max(0, self.free_gpus.bit_count() - self.unindexed_gpus)

    @property
    def most_gpus(self) -> int:
        """Return how many GPUs a gang can get at most: one that tolerates all taints of devices."""
        return max(0, (self.free_gpus | self.tainted).bit_count() - self.unindexed_gpus)

    @property
    def free_by_island(self) -> tuple[int, ...]:
        """Return the free GPUs of each NVLink domain inside the node; () if it is unknown which are taken."""
        if self.unindexed_gpus:
            return ()
        return tuple((island & self.free_gpus).bit_count() for island in self.node.topology.islands)

    def taking(self, usage: Usage) -> NodeState:
        """Return the state after one more usage."""
        return replace(
            self,
            free=self.free - usage.resources,
            free_gpus=self.free_gpus & ~usage.gpus,
            tainted=self.tainted & ~usage.gpus,
            unindexed_gpus=self.unindexed_gpus + usage.unindexed_gpus,
            memory=_memory_after(self.memory, usage),
        )


def _memory_after(memory: tuple[int, ...], usage: Usage) -> tuple[int, ...]:
    """Return the memory of each GPU that the usage leaves free. A slice on an unknown GPU counts on each
    GPU."""
    if not memory or not (usage.gpus or usage.units):
        return memory
    return tuple(
        units
        if not (usage.gpus >> gpu & 1 or (usage.units and usage.unindexed_gpus))
        else max(0, units - usage.units)
        if usage.units
        else 0
        for gpu, units in enumerate(memory)
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All nodes, by name in a fixed (sorted) order, so that equal clusters are equal inputs; and the levels
    of the fabric above them, widest first: the parts that a plan crosses are counted level by level.
    `typical` are the requests that usually come, () if none are given: they weight the damage. `naming` says
    what tells domains of one name apart."""

    nodes: Mapping[str, NodeState]
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    typical: tuple[TypicalRequest, ...] = ()
    naming: Naming = DEFAULT_NAMING

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node],
        usages: Iterable[Usage],
        levels: tuple[Level, ...] = DEFAULT_LEVELS,
        typical: tuple[TypicalRequest, ...] = (),
        naming: Naming = DEFAULT_NAMING,
    ) -> Snapshot:
        """Return the snapshot of `nodes` under `usages`; usages of nodes that are not there are left out."""
        by_node: dict[str, list[Usage]] = {}
        for usage in usages:
            by_node.setdefault(usage.node, []).append(usage)
        ordered = sorted(nodes, key=lambda node: node.name)
        states = {node.name: NodeState.of(node, by_node.get(node.name, ())) for node in ordered}
        return cls(states, levels, typical, naming)

    def taking(self, usages: Iterable[Usage]) -> Snapshot:
        """Return the snapshot after these usages as well."""
        nodes = dict(self.nodes)
        for usage in usages:
            if usage.node in nodes:
                nodes[usage.node] = nodes[usage.node].taking(usage)
        return replace(self, nodes=nodes)
