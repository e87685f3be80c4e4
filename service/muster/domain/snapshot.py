"""The free capacity of each node: an immutable view on which the planner works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.domain.levels import DEFAULT_LEVELS, DEFAULT_NAMING, FabricLevel, Naming
from muster.domain.node import Node, Resources, Usage, total
from muster.domain.request import TypicalRequest


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and its free capacity.

    `free_gpus` is the bit mask of healthy GPUs that no known usage touches. `unindexed_gpus` of these are
    taken too, but their indices are unknown (pods of other schedulers). While it is not zero, at most
    `free_gpu_count` GPUs can be given whole, and no scope narrower than the node can be promised.

    `memory` is the memory that known usages leave of each GPU, by index; 0 if the GPU is unhealthy or taken
    whole. () if the node serves no slices. See `free_memory`. `tainted` are the GPUs of `Node.tainted` that
    no known usage touches.
    """

    node: Node
    free: Resources
    free_gpus: int
    unindexed_gpus: int = 0
    memory: tuple[int, ...] = ()
    tainted: int = 0

    @classmethod
    def of(cls, node: Node, usages: Iterable[Usage]) -> NodeState:
        """Return the state of `node` with these usages, which are all on this node."""
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
        """Return the units that slices can get, by GPU. If GPUs with unknown indices are taken, a free GPU
        may be one of these, and counts as 0."""
        if not self.unindexed_gpus:
            return self.memory
        return tuple(0 if self.free_gpus >> gpu & 1 else units for gpu, units in enumerate(self.memory))

    @property
    def free_gpu_count(self) -> int:
        """Return the number of free GPUs, without the GPUs with unknown indices that pods hold."""
        return max(0, self.free_gpus.bit_count() - self.unindexed_gpus)

    @property
    def max_gpus(self) -> int:
        """Return the largest number of GPUs that a gang can get, if it tolerates all taints of devices."""
        return max(0, (self.free_gpus | self.tainted).bit_count() - self.unindexed_gpus)

    @property
    def free_by_island(self) -> tuple[int, ...]:
        """Return the free GPUs of each NVLink domain inside the node; () if some taken GPUs have unknown
        indices."""
        if self.unindexed_gpus:
            return ()
        return tuple((island & self.free_gpus).bit_count() for island in self.node.topology.islands)

    def with_usage(self, usage: Usage) -> NodeState:
        """Return the state with one more usage."""
        return replace(
            self,
            free=self.free - usage.resources,
            free_gpus=self.free_gpus & ~usage.gpus,
            tainted=self.tainted & ~usage.gpus,
            unindexed_gpus=self.unindexed_gpus + usage.unindexed_gpus,
            memory=_memory_after(self.memory, usage),
        )


def _memory_after(memory: tuple[int, ...], usage: Usage) -> tuple[int, ...]:
    """Return the memory of each GPU that is free after this usage. A slice on an unknown GPU counts on each
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
    """All nodes by name, and the facts of the cluster.

    Names are sorted, so that equal clusters are equal inputs. `levels` are the levels of the fabric above the
    nodes, widest first. A plan's crossings are counted for each level. `typical` are the typical requests, ()
    if none are given; they weight the damage. `naming` tells domains of one name apart.
    """

    nodes: Mapping[str, NodeState]
    levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS
    typical: tuple[TypicalRequest, ...] = ()
    naming: Naming = DEFAULT_NAMING

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node],
        usages: Iterable[Usage],
        levels: tuple[FabricLevel, ...] = DEFAULT_LEVELS,
        typical: tuple[TypicalRequest, ...] = (),
        naming: Naming = DEFAULT_NAMING,
    ) -> Snapshot:
        """Return the snapshot of `nodes` with `usages`. Usages of unknown nodes are left out."""
        by_node: dict[str, list[Usage]] = {}
        for usage in usages:
            by_node.setdefault(usage.node, []).append(usage)
        ordered = sorted(nodes, key=lambda node: node.name)
        states = {node.name: NodeState.of(node, by_node.get(node.name, ())) for node in ordered}
        return cls(states, levels, typical, naming)

    def with_usages(self, usages: Iterable[Usage]) -> Snapshot:
        """Return the snapshot with these usages in addition."""
        nodes = dict(self.nodes)
        for usage in usages:
            if usage.node in nodes:
                nodes[usage.node] = nodes[usage.node].with_usage(usage)
        return replace(self, nodes=nodes)
