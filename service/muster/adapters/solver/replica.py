"""The planner's copy of the cluster. Each request brings the changes since the last request.

Two snapshots share the states of unchanged nodes. So a comparison by identity finds the changed nodes, in
some nanoseconds for each node. The process builds each snapshot from its own states. An unchanged state is
the same object as before, as the planner's columns require.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress, count
from operator import attrgetter, is_not
from typing import Any, NamedTuple, TypeVar

from muster.domain.clearing import Occupancy, Occupant, Unit
from muster.domain.levels import FabricLevel, Naming
from muster.domain.node import Node
from muster.domain.request import TypicalRequest
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology

T = TypeVar("T")

CHUNK = 64
"""Number of states that are compared together."""


MAX_LINKS = 1 << 20
"""Largest number of links in the topologies that are sent once and shared by nodes. A cluster has few
topologies. Above this number, for example if a node publishes new topologies all the time, a topology is sent
with its node."""

_ELSEWHERE = GpuTopology(())
"""Stands for the topology in a Node on the wire if the topology is sent by its number."""


AMOUNTS = tuple(field.name for field in fields(NodeState) if field.name != "node")
"""The fields of a NodeState, without its Node, in order."""
_amounts_of: Callable[[NodeState], tuple[Any, ...]] = attrgetter(*AMOUNTS)


class NodeChange(NamedTuple):
    """The present state of one node. `node` is None if the replica has its Node already. `topology` is the
    number of the Node's topology among the sent topologies; -1 if the Node contains it. `amounts` are the
    values of AMOUNTS."""

    name: str
    node: Node | None
    topology: int
    amounts: tuple[Any, ...]


SnapshotFacts = tuple[tuple[FabricLevel, ...], tuple[TypicalRequest, ...], Naming]
"""The facts of a snapshot other than its nodes, as its constructor takes them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The update from one snapshot to the next. `names`: all nodes in order; None if they are unchanged.
    `facts`: the facts of the snapshot other than nodes; None if they are unchanged."""

    changed: tuple[NodeChange, ...]
    topologies: tuple[GpuTopology, ...] = ()
    names: tuple[str, ...] | None = None
    facts: SnapshotFacts | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the snapshot is the previous snapshot."""
        return not self.changed and self.names is None and self.facts is None


@dataclass(frozen=True, slots=True)
class OccupancyDifference:
    """The update from one occupancy to the next: nodes and units that changed. None if one is gone."""

    by_node: Mapping[str, Sequence[Occupant] | None]
    units: Mapping[str, Unit | None]


class SentState:
    """The service's record of the state that one process has."""

    def __init__(self) -> None:
        self._by_node: Mapping[str, Sequence[Occupant]] = {}
        self._units: Mapping[str, Unit] = {}
        self._names: list[str] = []
        self._states: list[NodeState] = []
        self._facts: SnapshotFacts | None = None
        self._topologies: dict[GpuTopology, int] = {}
        self._links = 0
        """Number of links of these topologies."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was sent yet."""
        return self._facts is None

    def difference(self, snapshot: Snapshot) -> Difference:
        """Return the update that the process needs for this snapshot. From now on the snapshot counts as
        sent."""
        names, states = list(snapshot.nodes), list(snapshot.nodes.values())
        facts = _facts(snapshot)
        new_facts = None if facts == self._facts else facts
        new_names = None if names == self._names else tuple(names)
        pairs: list[tuple[NodeState | None, NodeState]]
        if new_names is None:
            pairs = [
                (self._states[index], states[index]) for index in _changed_positions(self._states, states)
            ]
        else:
            states_before = dict(zip(self._names, self._states, strict=True))
            olds = [states_before.get(name) for name in names]
            pairs = [(olds[index], states[index]) for index in compress(count(), map(is_not, olds, states))]
        first = len(self._topologies)
        changed = tuple(self._change(old, new) for old, new in pairs)
        topologies = tuple(self._topologies)[first:] if len(self._topologies) > first else ()
        self._names, self._states, self._facts = names, states, facts
        return Difference(changed, topologies, new_names, new_facts)

    def occupancy_difference(self, occupancy: Occupancy) -> OccupancyDifference:
        """Return the update that the process needs for this occupancy. From now on the occupancy counts as
        sent."""
        by_node, units = occupancy.by_node, occupancy.units
        difference = OccupancyDifference(_changes(self._by_node, by_node), _changes(self._units, units))
        self._by_node, self._units = by_node, units
        return difference

    def _change(self, old: NodeState | None, new: NodeState) -> NodeChange:
        node, number = None, -1
        if old is None or old.node is not new.node:
            node, number = new.node, self._number_of(new.node.topology)
            if number >= 0:
                node = replace(node, topology=_ELSEWHERE)
        return NodeChange(new.node.name, node, number, _amounts_of(new))

    def _number_of(self, topology: GpuTopology) -> int:
        number = self._topologies.get(topology)
        if number is None:
            links = topology.gpu_count**2
            if self._links + links > MAX_LINKS:
                return -1
            self._links += links
            number = self._topologies[topology] = len(self._topologies)
        return number


class Replica:
    """The last snapshot and the last occupancy, in the planner's process."""

    def __init__(self) -> None:
        self.snapshot = Snapshot({})
        self._topologies: list[GpuTopology] = []
        self._facts, self._occupancy = Occupancy({}, {}, 0.0), Occupancy({}, {}, 0.0)

    def apply(self, difference: Difference) -> Snapshot:
        """Return the snapshot that the difference leads to: the same object as before if nothing changed."""
        self._topologies += difference.topologies
        if difference.is_empty:
            return self.snapshot
        states = dict(self.snapshot.nodes)
        for changed in difference.changed:
            states[changed.name] = self._state(changed)
        if difference.names is not None:
            states = {name: states[name] for name in difference.names}
        self.snapshot = Snapshot(states, *(difference.facts or _facts(self.snapshot)))
        return self.snapshot

    def occupancy(self, facts: Occupancy, difference: OccupancyDifference) -> Occupancy:
        """Return the occupancy that the difference leads to, with the other facts of `facts`.

        It is the same object as before if nothing changed.
        """
        if difference.by_node or difference.units or facts != self._facts:
            by_node = _apply(self._occupancy.by_node, difference.by_node)
            units = _apply(self._occupancy.units, difference.units)
            self._facts, self._occupancy = facts, replace(facts, by_node=by_node, units=units)
        return self._occupancy

    def _state(self, changed: NodeChange) -> NodeState:
        node = changed.node
        if node is None:
            node = self.snapshot.nodes[changed.name].node
        elif changed.topology >= 0:
            node = replace(node, topology=self._topologies[changed.topology])
        return NodeState(node, *changed.amounts)


def _changes(old: Mapping[str, T], new: Mapping[str, T]) -> dict[str, T | None]:
    """Return the values that are new objects. None if the key is gone."""
    changes: dict[str, T | None] = {key: value for key, value in new.items() if old.get(key) is not value}
    return changes | dict.fromkeys(old.keys() - new.keys())


def _apply(old: Mapping[str, T], changes: Mapping[str, T | None]) -> dict[str, T]:
    """Return the values with the changes."""
    return {key: value for key, value in {**old, **changes}.items() if value is not None}


def _facts(snapshot: Snapshot) -> SnapshotFacts:
    return snapshot.levels, snapshot.typical, snapshot.naming


def _changed_positions(old_states: Sequence[NodeState], new_states: Sequence[NodeState]) -> list[int]:
    """Return the positions of unequal states. Lists compare by identity first, so only unequal chunks cost
    time."""
    positions: list[int] = []
    for start in range(0, len(new_states), CHUNK):
        old, new = old_states[start : start + CHUNK], new_states[start : start + CHUNK]
        if old != new:
            differ = compress(count(start), map(is_not, old, new))
            positions.extend(index for index in differ if old_states[index] != new_states[index])
    return positions
