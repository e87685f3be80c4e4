"""What is free, node by node: an immutable view that the planner works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.domain.levels import DEFAULT_LEVELS, Level
from muster.domain.node import Node, Resources, Usage


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and what is free on it.

    `free_gpus` is the bit mask of GPUs that no known usage takes. `unindexed_gpus` of them are taken too, but
    nobody knows which (another scheduler's pods): at most `free_gpu_count` can be given, and no scope
    narrower than the node can be promised here while it is not zero.
    """

    node: Node
    free: Resources
    free_gpus: int
    unindexed_gpus: int = 0

    @classmethod
    def of(cls, node: Node, usages: Iterable[Usage]) -> NodeState:
        """The state of `node` under these usages, all of them on it."""
        free, mask, unindexed = node.allocatable, (1 << node.topology.gpu_count) - 1, 0
        for usage in usages:
            free -= usage.resources
            mask &= ~usage.gpus
            unindexed += usage.unindexed_gpus
        return cls(node, free, mask, unindexed)

    @property
    def free_gpu_count(self) -> int:
        return max(0, self.free_gpus.bit_count() - self.unindexed_gpus)

    def taking(self, usage: Usage) -> NodeState:
        """The state after one more usage."""
        return replace(
            self,
            free=self.free - usage.resources,
            free_gpus=self.free_gpus & ~usage.gpus,
            unindexed_gpus=self.unindexed_gpus + usage.unindexed_gpus,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All nodes, by name in a fixed (sorted) order, so that equal clusters are equal inputs; and the levels
    of the fabric above them, widest first: the parts that a plan crosses are counted level by level."""

    nodes: Mapping[str, NodeState]
    levels: tuple[Level, ...] = DEFAULT_LEVELS

    @classmethod
    def of(
        cls, nodes: Iterable[Node], usages: Iterable[Usage], levels: tuple[Level, ...] = DEFAULT_LEVELS
    ) -> Snapshot:
        """The snapshot of `nodes` under `usages`; usages of nodes that are not there are left out."""
        by_node: dict[str, list[Usage]] = {}
        for usage in usages:
            by_node.setdefault(usage.node, []).append(usage)
        ordered = sorted(nodes, key=lambda node: node.name)
        return cls({node.name: NodeState.of(node, by_node.get(node.name, ())) for node in ordered}, levels)

    def taking(self, usages: Iterable[Usage]) -> Snapshot:
        """The snapshot after these usages as well."""
        nodes = dict(self.nodes)
        for usage in usages:
            if usage.node in nodes:
                nodes[usage.node] = nodes[usage.node].taking(usage)
        return Snapshot(nodes, self.levels)
