"""The cluster as columns: what decisions look at, one numpy array a fact, one row a node.

A decision may not touch thousands of nodes in Python. So a view is made from the view before it: only rows
whose `NodeState` is another object are read again, and an array that none of them changes is shared between
the views. A view does not tell how it was come by: codes follow the rows or the names, never history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.domain.levels import Level, part_of
from muster.domain.node import Node, Taint
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.cluster.arrays import Codes, Source, coded, fixed, with_rows
from muster.placement.cluster.changes import Changes, Order, changes
from muster.placement.cluster.fabric import Shape, natural
from muster.placement.cluster.topology import Domains, Place, Topology, by_path, place_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MASK_GPUS = 62
"""GPUs of one node that a mask in a column can show. Nodes have 16 at most today (HGX-2, p2.16xlarge); of a
larger one, GPUs from index 62 on count as taken."""

ALL_GPUS = (1 << MASK_GPUS) - 1
"""The mask of all GPUs that a column can show."""

LARGEST = 2**62
"""Amounts are cut off here: one absurd quantity in the API must not overflow a column."""

CHUNK = 256
"""States that are compared at once; a chunk that differs is looked through one by one."""


def gpu_counts(masks: Ints) -> Ints:
    """How many GPUs are in each mask."""
    counts: Ints = np.bitwise_count(masks).astype(np.int64)
    return counts


def gpus_in(masks: Ints, part: int) -> Ints:
    """How many GPUs of each mask of a column lie in a part of the node, which may reach further than
    masks."""
    return gpu_counts(masks & (part & ALL_GPUS))


class Profile(NamedTuple):
    """What of a node, besides labels and its name, decides whom it admits. Fields as in `Node`; of
    `gpu_memory`, whether it serves slices."""

    gpu_resources: frozenset[str]
    ready: bool
    unschedulable: bool
    taints: tuple[Taint, ...]
    gpu_memory: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A snapshot by columns; rows are nodes in natural order of their names. Nothing in it may be changed.

    `nodes` are the nodes' own names: the code of each is its row. `shape`, `profile` index `shapes` and
    `profiles`, in order of the first row that has each; `wide` indexes `wide_names`, as in `Domains`: what
    labels name, which `wide_domains` tells apart. What a wide domain is, and `promised`: see `Place`.
    """

    snapshot: Snapshot
    nodes: Domains
    states: Sequence[NodeState]
    promised: Bools
    shape: Codes
    shapes: tuple[Shape, ...]
    wide: Codes
    wide_names: tuple[str, ...]
    profile: Codes
    profiles: tuple[Profile, ...]
    amounts: Ints
    totals: Ints
    """Matrices, a line each column below: a new view copies once. `amounts` is what is free; `totals` what
    would be, had nobody taken anything, unhealthy GPUs left aside, and then the number of GPUs."""
    gpu_memory: Ints
    """[GPU, row]: units that slices can be given, `NodeState.free_memory`; as many lines as any node has GPUs
    that serve slices, none where no node does."""
    others: dict[str, Ints]
    """What is free of further resources, by name: those that `other` was asked about."""
    _order: Order
    _readings: dict[tuple[bool, str], Domains]
    """What `named` (True) and `label` (False) gave; views share the memo as long as all their nodes agree."""
    _domains: dict[str, Domains]
    """What `part` gave; views share the memo as long as no label that was read has changed."""
    _places: dict[str, Place]

    @property
    def names(self) -> tuple[str, ...]:
        return self.nodes.names

    @property
    def row(self) -> Mapping[str, int]:
        """Name → row."""
        return self.nodes.index

    @property
    def free_gpus(self) -> Ints:
        """The free GPUs as a bit mask, up to MASK_GPUS."""
        column: Ints = self.amounts[0]
        return column

    @property
    def free_count(self) -> Ints:
        """How many of these can be given: `NodeState.free_gpu_count`."""
        column: Ints = self.amounts[1]
        return column

    @property
    def unindexed(self) -> Ints:
        """GPUs that are taken, nobody knows which."""
        column: Ints = self.amounts[2]
        return column

    @property
    def cpu(self) -> Ints:
        """Free cpu, thousandths of a core; like all that is free, it may be negative."""
        column: Ints = self.amounts[3]
        return column

    @property
    def memory(self) -> Ints:
        """Free memory, bytes."""
        column: Ints = self.amounts[4]
        return column

    @property
    def pods(self) -> Ints:
        """Pods that there is room for."""
        column: Ints = self.amounts[5]
        return column

    def other(self, name: str) -> Ints:
        """Return by row what is free of a resource of `Resources.others`, in its own unit.

        It is read when it is first asked for: few gangs ask for more than GPUs, cpu and memory.
        """
        found = self.others.get(name)
        if found is None:
            amounts = (_cut(state.free.other(name)) for state in self.states)
            found = self.others[name] = fixed(np.fromiter(amounts, np.int64, len(self.states)))
        return found

    @property
    def gpu_total(self) -> Ints:
        """GPUs of the node, those beyond MASK_GPUS too."""
        column: Ints = self.totals[6]
        return column

    @property
    def cpu_total(self) -> Ints:
        """Allocatable cpu, thousandths of a core."""
        column: Ints = self.totals[3]
        return column

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.snapshot.levels

    @property
    def topology(self) -> Topology:
        """Which domain each node lies in."""
        return Topology(self)

    @property
    def wide_domains(self) -> Domains:
        """The NVLink domains that labels name."""
        return self.part(Scope.NVLINK_DOMAIN)

    def part(self, scope: str) -> Domains:
        """The domains of a scope given by labels: a level, a label key, or the wide NVLink domains."""
        found = self._domains.get(scope)
        if found is None:
            found = self._domains[scope] = by_path(self, scope)
        return found

    def named(self, scope: str) -> Domains:
        """What labels name the domains of such a scope, as `part_of` has it; equal names may be several
        domains."""
        return (
            Domains(self.wide, self.wide_names) if scope == Scope.NVLINK_DOMAIN else self._read(True, scope)
        )

    def label(self, key: str) -> Domains:
        """The values of a label. Other than for `named`, an empty value is a value."""
        return self._read(False, key)

    def place(self, row: int) -> Place:
        """The node as the planner sees it one by one."""
        state = self.states[row]
        place = self._places.get(state.node.name)
        if place is None or place.state is not state:
            place = self._places[state.node.name] = place_of(state)
        return place

    def _read(self, scope: bool, key: str) -> Domains:
        parts = self._readings.get((scope, key))
        if parts is None:
            rows = list(range(len(self.states)))
            values = [_reading(state.node, scope, key, self.levels) for state in self.states]
            blank = np.full(len(rows), -1, np.int32)
            parts = self._readings[scope, key] = Domains(*coded(blank, (), None, rows, values, natural))
        return parts


def columns(snapshot: Snapshot) -> Columns:
    """The columns of a snapshot; cheap where most of its states are those of the last snapshot seen.

    Any thread may call it: the one entry of the memo is replaced whole.
    """
    last = _latest[0]
    if last.snapshot is not snapshot:
        last = _latest[0] = following(last, snapshot)
    return last


def following(last: Columns, snapshot: Snapshot) -> Columns:
    """The columns of `snapshot`, made from those of any other one."""
    step = changes(last._order, snapshot, CHUNK)
    source, order, states, levels = step.source, step.order, step.order.states, snapshot.levels
    nodes = last.nodes
    if source is not None:
        nodes = Domains(fixed(np.arange(len(order.names), dtype=np.int32)), order.names)
    free = with_rows(last.amounts, source, step.rows, [amounts_of(states[row]) for row in step.rows])

    new_nodes = [states[row].node for row in step.renewed]
    totals = with_rows(last.totals, source, step.renewed, [_totals(node) for node in new_nodes])
    admission = [
        Profile(n.gpu_resources, n.ready, n.unschedulable, n.taints, bool(n.gpu_memory)) for n in new_nodes
    ]
    profile, profiles = coded(last.profile, last.profiles, source, step.renewed, admission, None)

    new = [place_of(states[row]) for row in step.reshaped]
    promised = with_rows(last.promised, source, step.reshaped, [place.promised for place in new])
    shape, shapes = coded(
        last.shape, last.shapes, source, step.reshaped, [place.shape for place in new], None
    )
    gpu_memory = _memory_with(last.gpu_memory, source, step.rows, states, shapes)
    wide, wide_names = coded(
        last.wide, last.wide_names, source, step.reshaped, [place.wide or None for place in new], natural
    )

    readings, domains, places = last._readings, last._domains, last._places
    if levels != last.levels:
        readings = {key: parts for key, parts in readings.copy().items() if not key[0]}
    if source is not None or new_nodes:
        readings = {
            key: _reread(parts, step, [_reading(node, *key, levels) for node in new_nodes])
            for key, parts in readings.copy().items()
        }
    if readings is not last._readings or snapshot.naming != last.snapshot.naming:
        kept = (levels, snapshot.naming) == (last.levels, last.snapshot.naming) and wide is last.wide
        kept = kept and all(parts is last._readings[key] for key, parts in readings.items())
        domains = domains.copy() if kept else {}
    if source is not None:
        places = {name: place for name, place in places.copy().items() if name in nodes.index}

    return Columns(
        snapshot=snapshot,
        nodes=nodes,
        states=states,
        promised=promised,
        shape=shape,
        shapes=shapes,
        wide=wide,
        wide_names=wide_names,
        profile=profile,
        profiles=profiles,
        amounts=free,
        totals=totals,
        gpu_memory=gpu_memory,
        others={},
        _order=order,
        _readings=readings,
        _domains=domains,
        _places=places,
    )


def amounts_of(state: NodeState) -> tuple[int, ...]:
    """What is free on a node, as `Columns.amounts` has it."""
    mask, free = state.free_gpus & ALL_GPUS, state.free
    given = min(mask.bit_count(), state.free_gpu_count)
    return mask, given, state.unindexed_gpus, _cut(free.cpu_milli), _cut(free.memory_bytes), _cut(free.pods)


def _totals(node: Node) -> tuple[int, ...]:
    gpus, each = node.topology.gpu_count, node.allocatable
    mask = ((1 << gpus) - 1) & ~node.unhealthy & ALL_GPUS
    return mask, mask.bit_count(), 0, _cut(each.cpu_milli), _cut(each.memory_bytes), _cut(each.pods), gpus


def _cut(amount: int) -> int:
    return max(-LARGEST, min(amount, LARGEST))


def _reading(node: Node, scope: bool, key: str, levels: tuple[Level, ...]) -> str | None:
    return part_of(node, key, levels) or None if scope else node.labels.get(key)


def _reread(parts: Domains, step: Changes, values: list[str | None]) -> Domains:
    codes, names = coded(parts.codes, parts.names, step.source, step.renewed, values, natural)
    return parts if codes is parts.codes else Domains(codes, names)


def _memory_with(
    old: Ints,
    source: Source,
    rows: Sequence[int],
    states: Sequence[NodeState],
    shapes: Sequence[Shape],
) -> Ints:
    """`Columns.gpu_memory` with these rows set; shapes say how many lines it has."""
    lines = max((min(len(shape.memory), MASK_GPUS) for shape in shapes), default=0)
    if lines != len(old):
        kept = np.zeros((lines, old.shape[1]), np.int64)
        kept[: min(len(old), lines)] = old[:lines]
        old = fixed(kept)
    if not lines:
        rows = ()
    return with_rows(old, source, rows, [memory_of(states[row], lines) for row in rows])


def memory_of(state: NodeState, lines: int) -> tuple[int, ...]:
    """A row of `Columns.gpu_memory`."""
    left = [_cut(units) for units in state.free_memory[:lines]]
    return (*left, *(0,) * (lines - len(left)))


def _nothing() -> Columns:
    """The columns of no node at all, from which any others follow."""
    no_code = fixed(np.zeros(0, np.int32))
    return Columns(
        snapshot=Snapshot({}),
        nodes=Domains(no_code, ()),
        states=(),
        promised=fixed(np.zeros(0, np.bool_)),
        shape=no_code,
        shapes=(),
        wide=no_code,
        wide_names=(),
        profile=no_code,
        profiles=(),
        amounts=fixed(np.zeros((6, 0), np.int64)),
        totals=fixed(np.zeros((7, 0), np.int64)),
        gpu_memory=fixed(np.zeros((0, 0), np.int64)),
        others={},
        _order=Order((), (), [], []),
        _readings={},
        _domains={},
        _places={},
    )


NOTHING = _nothing()
_latest = [NOTHING]
