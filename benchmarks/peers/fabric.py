"""The cluster as peers see it: free amounts by node, and the tree of parts above the nodes, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from muster.domain.levels import part_of
from muster.domain.request import Request, Role, Scope
from muster.domain.snapshot import NodeState, Snapshot

Ints = npt.NDArray[np.int64]

GPUS, CPU, MEMORY, PODS = range(4)
"""Columns of `Fabric.free`, and places in what a role asks."""

Assignment = Mapping[str, str]
"""Member uid → node."""


@dataclass(frozen=True)
class Fabric:
    """Nodes in the order of their path (zone, rack, name), so that each part is a range of them.

    `levels`: scopes, widest first, the last one the nodes. `starts[l][p]` is the first node of part p of
    level l; a closing entry has the number of nodes. Parts rise in the order of their paths too.
    """

    snapshot: Snapshot
    names: tuple[str, ...]
    levels: tuple[str, ...]
    starts: tuple[Ints, ...]
    free: Ints
    _admitting: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Fabric:
        """The fabric of the levels that any node has a label for; a node that lacks one of them is left out,
        as both Kueue and KAI do."""
        scopes = [
            level.scope
            for level in snapshot.levels
            if any(part_of(state.node, level.scope, snapshot.levels) for state in snapshot.nodes.values())
        ]
        paths = sorted(
            (*(part_of(state.node, scope, snapshot.levels) for scope in scopes), name)
            for name, state in snapshot.nodes.items()
        )
        paths = [path for path in paths if all(path)]
        starts = []
        for depth in range(1, len(scopes) + 2):
            first = [i for i, path in enumerate(paths) if not i or path[:depth] != paths[i - 1][:depth]]
            starts.append(np.array([*first, len(paths)], dtype=np.int64))
        names = tuple(path[-1] for path in paths)
        free = np.array([_free(snapshot.nodes[name]) for name in names], dtype=np.int64).reshape(-1, 4)
        return cls(snapshot, names, (*scopes, Scope.NODE), tuple(starts), free)

    def refreshed(self, snapshot: Snapshot) -> Fabric:
        """The fabric of a later snapshot of the same nodes."""
        free, before = self.free.copy(), self.snapshot.nodes
        for i, name in enumerate(self.names):
            if snapshot.nodes[name] is not before[name]:
                free[i] = _free(snapshot.nodes[name])
        return replace(self, snapshot=snapshot, free=free)

    @cached_property
    def parents(self) -> tuple[Ints, ...]:
        """For each level but the widest: the part one level up in which each part lies."""
        return tuple(
            np.searchsorted(above, starts[:-1], side="right") - 1
            for above, starts in zip(self.starts, self.starts[1:], strict=False)
        )

    def level(self, scope: str) -> int | None:
        """The level of a scope; an NVLink domain inside a node is no label, so the node stands for it."""
        scope = Scope.NODE if scope == Scope.NVLINK_DOMAIN else scope
        return self.levels.index(scope) if scope in self.levels else None

    def nodes(self, level: int, part: int) -> range:
        """The nodes of a part; of all where the level is -1."""
        if level < 0:
            return range(len(self.names))
        return range(int(self.starts[level][part]), int(self.starts[level][part + 1]))

    def span(self, level: int, within: int, part: int) -> tuple[int, int]:
        """The parts of a level that lie in `part` of the level `within`, as first and one past the last."""
        if level < 0:
            return 0, 1
        nodes = self.nodes(within, part)
        first, end = np.searchsorted(self.starts[level], (nodes.start, nodes.stop))
        return int(first), int(end)

    def summed(self, level: int, values: Ints, first: int, end: int) -> Ints:
        """Values of nodes, summed up by the parts from `first` to before `end` of a level."""
        if level < 0:
            everything: Ints = values.sum(axis=0)[np.newaxis]
            return everything
        starts = self.starts[level][first:end]
        if level == len(self.levels) - 1 or first == end:
            return values[first:end]
        sums: Ints = np.add.reduceat(values[: self.starts[level][end]], starts, axis=0)
        return sums

    def room(self, free: Ints, role: Role, nodes: range | None = None) -> Ints:
        """How many members of the role each node can take, or each of `nodes`, by count alone."""
        span = slice(nodes.start, nodes.stop) if nodes is not None else slice(None)
        amounts = asks(role)
        kinds = np.flatnonzero(amounts)
        room = np.maximum((free[span][:, kinds] // amounts[kinds]).min(axis=1), 0)
        return np.where(self.admitting(role)[span], room, 0)

    def admitting(self, role: Role) -> npt.NDArray[np.bool_]:
        """Whether a node offers the resource and is open; selectors and taints do not occur in benchmarks."""
        resource = role.gpu_resource if role.gpus else ""
        if resource not in self._admitting:
            nodes = (self.snapshot.nodes[name].node for name in self.names)
            self._admitting[resource] = np.array(
                [
                    (not resource or resource in node.gpu_resources) and node.ready and not node.unschedulable
                    for node in nodes
                ],
                dtype=np.bool_,
            )
        return self._admitting[resource]


Peer = Callable[[Fabric, Request], Assignment | None]
"""Where another scheduler's method puts the members; None if it refuses the gang."""


def asks(role: Role) -> Ints:
    """What one member takes of each column of `Fabric.free`."""
    resources = role.resources
    return np.array(
        [role.gpus, resources.cpu_milli, resources.memory_bytes, max(1, resources.pods)], dtype=np.int64
    )


def _free(state: NodeState) -> tuple[int, int, int, int]:
    return (state.free_gpu_count, state.free.cpu_milli, state.free.memory_bytes, state.free.pods)
