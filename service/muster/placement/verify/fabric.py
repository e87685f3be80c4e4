"""Say in which parts of the scopes nodes and GPUs lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from muster.domain.node import Node
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.labels import Labels
from muster.placement.verify.spots import Spot

Part = tuple[str, str]
"""The name of a part. If the node or GPU is a part of its own, "" and the name of that node or GPU."""


class Fabric:
    """The parts of the scopes in which the nodes of some spots lie. Results are kept for one verdict.

    `in_words`: the names of parts have those of the wider parts too (`Labels.parts`).
    """

    def __init__(self, snapshot: Snapshot, spots: Iterable[Spot], *, in_words: bool) -> None:
        self.levels = snapshot.levels
        self._labels = Labels(snapshot)
        self._in_words = in_words
        self._nodes = [spot.state.node for spot in spots]
        self._parts: dict[str, Mapping[str, str]] = {}
        self._known: dict[str, Mapping[str, int]] = {}

    def common(self, spots: Iterable[Spot], scope: str) -> set[str]:
        """Return the parts of the scope that hold all of these spots."""
        common: set[str] | None = None
        for spot in spots:
            inside = self._holding(spot, scope)
            common = inside if common is None else common & inside
            if not common:
                break
        return common or set()

    def touched_by_all(self, spots: Iterable[Spot], scope: str) -> set[Part]:
        """Return the parts of the scope that any of these spots touches."""
        if scope == "nvlink-domain":
            return set().union(*(self.touched(spot, scope) for spot in spots))
        parts = {spot.state.node.name: self._named(spot.state.node, scope) for spot in spots}
        return {(part, "" if part else node) for node, part in parts.items()}

    def count(self, spots: Iterable[Spot], scope: str) -> Counter[Part]:
        """Return how many of these spots lie in each part of the scope, or touch it."""
        return Counter(part for spot in spots for part in self.touched(spot, scope))

    def touched(self, spot: Spot, scope: str) -> set[Part]:
        """Return the parts of the scope that count as touched.

        A node without the label is a part of its own. If no NVLink domain can be promised, each GPU is one.
        """
        node = spot.state.node
        if scope != "nvlink-domain":
            part = self._named(node, scope)
            return {(part, "" if part else node.name)}
        parts = self._domains(spot.state)
        if not spot.known and len(parts) == 1:
            return {(part, "") for part in parts}
        if parts:
            return {(part, "") for part, mask in parts.items() if spot.gpus & mask}
        return {("", f"{node.name}/gpu{i}") for i in range(spot.gpus.bit_length()) if spot.gpus >> i & 1}

    def _holding(self, spot: Spot, scope: str) -> set[str]:
        """Return the parts of the scope that hold the spot.

        A spot without GPUs lies in each part of its node. A spot whose GPU indices are unknown does so only
        if the node is one NVLink domain.
        """
        state, node = spot.state, spot.state.node
        if not spot.known and scope in ("gpu", "nvlink-domain") and len(self._domains(state)) != 1:
            return set()
        if scope == "nvlink-domain":
            return {part for part, mask in self._domains(state).items() if not spot.gpus & ~mask}
        if scope == "gpu":  # if some GPUs that look free are taken, no GPU can be promised
            count = 0 if state.unindexed_gpus else node.topology.gpu_count
            return {f"{node.name}/{i}" for i in range(count) if not spot.gpus & ~(1 << i)}
        return {part} if (part := self._named(node, scope)) else set()

    def _named(self, node: Node, scope: str) -> str:
        """Return the part of a scope that is a node or wider, "" for none."""
        if scope == "node":
            return node.name
        if scope not in self._parts:
            self._parts[scope] = self._labels.parts(scope, self._nodes, in_words=self._in_words)
        return self._parts[scope][node.name]

    def _domains(self, state: NodeState) -> Mapping[str, int]:
        """Return the NVLink domains of the node that can be promised: name → mask of its GPUs there."""
        node = state.node
        if node.name not in self._known:
            islands = node.topology.islands
            name = self._named(node, "nvlink-domain") if node.topology.gpu_count else ""
            if name:
                found = {name: (1 << node.topology.gpu_count) - 1}
            elif state.unindexed_gpus and len(islands) > 1:
                found = {}
            else:
                found = {f"{node.name}/{i}": mask for i, mask in enumerate(islands)}
            self._known[node.name] = found
        return self._known[node.name]
