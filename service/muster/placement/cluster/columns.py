"""Read a snapshot as columns: one numpy array for each property, one row for each node.

A decision must not loop over thousands of nodes in Python. So `Columns` are made from the previous ones: only
rows whose `NodeState` is another object are read again, and an array in which no row changed is shared. Still
`Columns` do not depend on the ones before them: codes follow from the rows or from the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import is_not
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.domain.levels import FabricLevel, part_of
from muster.domain.node import BOARD_GPUS, Node, Taint
from muster.domain.request import Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.words import natural_key
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.topology import (
    Codes,
    Domains,
    Place,
    Source,
    Topology,
    domains_by_path,
    encode_rows,
    make_read_only,
    place_of,
    with_rows,
)


class Profile(NamedTuple):
    """The properties of a node, apart from its name and labels, that decide which pods it admits, and that
    refusals name.

    Fields are as in `Node`, but `gpu_memory` is only whether the node serves slices.
    """

    gpu_resources: frozenset[str]
    ready: bool
    unschedulable: bool
    taints: tuple[Taint, ...]
    gpu_memory: bool = False
    memory_resources: frozenset[str] = frozenset()
    partitions: tuple[tuple[int, str], ...] = ()
    missing_gpus: int = 0
    offers_parts: bool = False


def profile_of(node: Node) -> Profile:
    """Return the profile of the node."""
    profile = Profile._make(getattr(node, field) for field in Profile._fields)
    return profile._replace(gpu_memory=bool(node.gpu_memory))


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The nodes of a snapshot, in two orders.

    `names` and `states` are by row: in the natural order of the nodes' names. `chunks` are the states in the
    snapshot's own order, cut into pieces that are compared at once. `rows` are the rows of the states in that
    order.
    """

    names: tuple[str, ...]
    states: Sequence[NodeState]
    chunks: list[list[NodeState]]
    rows: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnChanges:
    """The differences between two `Columns`. `order` has the nodes of the later ones."""

    order: Order
    source: Source
    rows: list[int]
    """Rows with another state."""
    reshaped: list[int]
    """Rows with another Node, or with another number of taken GPUs of unknown index."""
    renewed: list[int]
    """Rows with another Node."""


def changes(last: Order, snapshot: Snapshot, size: int) -> ColumnChanges:
    """Return the changes from the previous `Columns` to the snapshot. `size` states are compared at once."""
    in_order = list(snapshot.nodes.values())
    chunks, positions = _cut_and_compare(last.chunks, in_order, size)
    source: Source = None
    if positions is not None:
        names, states, position_rows = last.names, list(last.states), last.rows
        rows = [position_rows[position] for position in positions]
        for position, row in zip(positions, rows, strict=True):
            states[row] = in_order[position]
        old_states: list[NodeState | None] = [last.states[row] for row in rows]
    else:  # nodes were added or removed, or are in another order
        row_before = {name: row for row, name in enumerate(last.names)}
        # Nearly sorted, so sorting is cheap.
        old_names = [name for name in last.names if name in snapshot.nodes]
        new_names = [name for name in snapshot.nodes if name not in row_before]
        names = tuple(sorted(old_names + new_names, key=natural_key))
        states = [snapshot.nodes[name] for name in names]
        row_now = {name: row for row, name in enumerate(names)}
        position_rows = [row_now[name] for name in snapshot.nodes]
        source = np.array([row_before.get(name, -1) for name in names], np.intp)
        olds = [last.states[row] if row >= 0 else None for row in source.tolist()]
        rows = list(compress(count(), map(is_not, states, olds)))
        old_states = [olds[row] for row in rows]
    pairs = [(row, old, states[row]) for row, old in zip(rows, old_states, strict=True)]
    renewed = [row for row, old, new in pairs if not old or old.node is not new.node]
    reshaped = [
        row
        for row, old, new in pairs
        if not old or old.node is not new.node or old.unindexed_gpus != new.unindexed_gpus
    ]
    return ColumnChanges(Order(names, states, chunks, position_rows), source, rows, reshaped, renewed)


def _cut_and_compare(
    old_chunks: list[list[NodeState]], states: list[NodeState], size: int
) -> tuple[list[list[NodeState]], list[int] | None]:
    """Return `states` in chunks, and the positions of changed states: None if the nodes are others.

    Lists compare elements by identity first, at a few ns each. Only a chunk that differs costs more.
    """
    chunks: list[list[NodeState]] = []
    pairs: list[tuple[int, NodeState, NodeState]] = []
    for start, old in zip(range(0, len(states), size), chain(old_chunks, repeat([])), strict=False):
        new = states[start : start + size]
        if old == new:
            chunks.append(old)
            continue
        chunks.append(new)
        differing = compress(count(), map(is_not, old, new))
        pairs.extend((start + i, old[i], new[i]) for i in differing)
    same = sum(map(len, old_chunks)) == len(states) and all(
        old.node.name == new.node.name for _, old, new in pairs
    )
    return chunks, [position for position, _, _ in pairs] if same else None


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LARGEST = 2**62
"""The largest amount in a column. Larger ones are cut, so that an absurd quantity does not overflow."""

GPU, CPU, MEMORY, PODS = "gpu", "cpu", "memory", "pods"
LINE_OF = {GPU: 1, CPU: 3, MEMORY: 4, PODS: 5}
"""The line of `Columns.amounts` for each resource that every cluster has."""

CHUNK = 256
"""How many states are compared at once. Only a chunk that differs is looked through one by one."""


def gpu_counts(masks: Ints) -> Ints:
    """Return int64, in the shape of `masks`: the number of GPUs in each mask."""
    counts: Ints = np.bitwise_count(masks).astype(np.int64)
    return counts


def count_up(counts: Ints, begins: Ints | int = 0) -> Ints:
    """Return the numbers begin, begin + 1 … for each begin, as many as its count, one after the other."""
    return np.asarray(np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()))


def values_in(values: Ints, masks: Ints | int) -> Ints:
    """Return [GPU, row] int64: the value of each GPU that is in the mask of its row, 0 for the others."""
    return values * (masks >> np.arange(len(values))[:, None] & 1)


@dataclass(frozen=True, slots=True)
class _ColumnProperty:
    """A property of `Columns`: one line of one of its matrices."""

    matrix: str
    line: int

    def __get__(self, columns: Columns, _: type[Columns]) -> Ints:
        """Return [row] the line."""
        column: Ints = getattr(columns, self.matrix)[self.line]
        return column


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A snapshot as columns. Rows are the nodes in the natural order of their names. No array may be changed.

    All columns have the axis [row]. Each node is its own domain in `nodes`, so its code is its row. `shape`
    and `profile` are indices into `shapes` and `profiles`, which are in the order of the first row with each.
    `wide_codes` are indices into `wide_names`: the name of an NVLink domain that a label gives, -1 for none.
    Equal names may be several domains, which `wide_domains` tells apart. `Place` explains wide domains and
    `promised`.
    """

    snapshot: Snapshot
    nodes: Domains
    states: Sequence[NodeState]
    promised: Bools
    shape: Codes
    shapes: tuple[Shape, ...]
    wide_codes: Codes
    wide_names: tuple[str, ...]
    profile: Codes
    profiles: tuple[Profile, ...]
    amounts: Ints
    totals: Ints
    """Two matrices of int64, with one line for each property, so that new columns copy only once.

    `amounts` [6, row] has the free amounts; the properties below name its lines. `totals` [7, row] has the
    same lines for the healthy node without any pod. Its last line is the number of all GPUs.
    """
    gpu_memory: Ints
    """[GPU index, row] int64: units of memory that slices can get, as `NodeState.free_memory` says.

    There is a line for each index that a GPU serving slices has on any node.
    """
    rails: Ints
    """[GPU index, row] int64: the network rail of the GPU (`Node.rail_by_gpu`) as a bit; 0 if not known."""
    other_amounts: dict[str, Ints]
    """Free amounts of further resources by name, [row] int64. `free_amount` reads each on its first call."""
    _order: Order
    _readings: dict[tuple[bool, str], Domains]
    """Results of `label_names` (key True) and `label` (key False). Views share them while all their nodes
    agree."""
    _domains: dict[str, Domains]
    """Results of `part`. Views share them while no label that was read has changed."""
    _places: dict[str, Place]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes, by row."""
        return self.nodes.names

    @property
    def row(self) -> Mapping[str, int]:
        """The row of each node, by name."""
        return self.nodes.index

    free_gpus = _ColumnProperty("amounts", 0)
    """[row] The free GPUs as a bit mask."""
    free_count = _ColumnProperty("amounts", 1)
    """[row] How many of the free GPUs can be given to pods, as `NodeState.free_gpu_count` says."""
    unindexed = _ColumnProperty("amounts", 2)
    """[row] How many GPUs are taken by pods whose GPU indices are unknown."""
    cpu = _ColumnProperty("amounts", 3)
    """[row] Free cpu in thousandths of a core. Like all free amounts, it may be negative."""
    memory = _ColumnProperty("amounts", 4)
    """[row] Free memory in bytes."""
    pods = _ColumnProperty("amounts", 5)
    """[row] How many more pods the node has room for."""

    def free_amount(self, name: str) -> Ints:
        """Return [row] the free amount of a resource of LINE_OF, or of one of `Resources.others` in its unit.

        Amounts of `Resources.others` are read on the first call: few gangs ask for such resources.
        """
        line = LINE_OF.get(name)
        column: Ints | None = self.other_amounts.get(name) if line is None else self.amounts[line]
        if column is None:
            amounts = [_cut(state.free.other_amount(name)) for state in self.states]
            column = self.other_amounts[name] = make_read_only(np.array(amounts, np.int64))
        return column

    gpu_total = _ColumnProperty("totals", 6)
    """[row] The number of GPUs of the node, including those that masks do not show."""
    cpu_total = _ColumnProperty("totals", 3)
    """[row] Allocatable cpu in thousandths of a core."""
    memory_total = _ColumnProperty("totals", 4)
    """[row] Allocatable memory in bytes."""

    @property
    def levels(self) -> tuple[FabricLevel, ...]:
        """The levels of the fabric above the node, widest first."""
        return self.snapshot.levels

    @property
    def topology(self) -> Topology:
        """The domain of each node, scope by scope."""
        return Topology(self)

    @property
    def wide_domains(self) -> Domains:
        """The NVLink domains that labels name."""
        return self.part(Scope.NVLINK_DOMAIN)

    def part(self, scope: str) -> Domains:
        """Return the domains of a scope that labels give: a level, a label key, or wide NVLink domains."""
        domains = self._domains.get(scope)
        if domains is None:
            domains = self._domains[scope] = domains_by_path(self, scope)
        return domains

    def label_names(self, scope: str) -> Domains:
        """Return the names that labels give to the parts of a scope, as `part_of` reads them.

        Equal names may be several domains: `part` tells them apart.
        """
        return (
            Domains(self.wide_codes, self.wide_names)
            if scope == Scope.NVLINK_DOMAIN
            else self._read(True, scope)
        )

    def label(self, key: str) -> Domains:
        """Return the values of a label. Unlike in `label_names`, an empty value is a value."""
        return self._read(False, key)

    def place(self, row: int) -> Place:
        """Return one node as the planner sees it."""
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
            parts = self._readings[scope, key] = Domains(
                *encode_rows(blank, (), None, rows, values, natural_key)
            )
        return parts


def columns_of(snapshot: Snapshot) -> Columns:
    """Return the columns of a snapshot: cheap if the snapshot shares most states with the previous one.

    Several threads may call this: the memo has one entry, which is replaced as a whole.
    """
    last = _latest[0]
    if last.snapshot is not snapshot:
        last = _latest[0] = columns_after(last, snapshot)
    return last


def columns_after(last: Columns, snapshot: Snapshot) -> Columns:
    """Return the columns of `snapshot`, made from the columns of any other snapshot."""
    step = changes(last._order, snapshot, CHUNK)
    source, order, states = step.source, step.order, step.order.states
    nodes = last.nodes
    if source is not None:
        nodes = Domains(make_read_only(np.arange(len(order.names), dtype=np.int32)), order.names)
    free = with_rows(last.amounts, source, step.rows, [free_amounts(states[row]) for row in step.rows])

    new_nodes = [states[row].node for row in step.renewed]
    totals = with_rows(last.totals, source, step.renewed, [_totals(node) for node in new_nodes])
    rails = with_rows(last.rails, source, step.renewed, [_rail_bits(node) for node in new_nodes])
    admission = [profile_of(node) for node in new_nodes]
    profile, profiles = encode_rows(last.profile, last.profiles, source, step.renewed, admission, None)

    new = [place_of(states[row]) for row in step.reshaped]
    promised = with_rows(last.promised, source, step.reshaped, [place.promised for place in new])
    shape, shapes = encode_rows(
        last.shape, last.shapes, source, step.reshaped, [place.shape for place in new], None
    )
    gpu_memory = _gpu_memory_with_rows(last.gpu_memory, source, step.rows, states, shapes)
    wide_codes, wide_names = encode_rows(
        last.wide_codes,
        last.wide_names,
        source,
        step.reshaped,
        [place.wide_domain or None for place in new],
        natural_key,
    )

    readings, domains, places = _valid_memos(last, step, snapshot, wide_codes)
    return Columns(
        snapshot=snapshot,
        nodes=nodes,
        states=states,
        promised=promised,
        shape=shape,
        shapes=shapes,
        wide_codes=wide_codes,
        wide_names=wide_names,
        profile=profile,
        profiles=profiles,
        amounts=free,
        totals=totals,
        gpu_memory=gpu_memory,
        rails=rails,
        other_amounts={},
        _order=order,
        _readings=readings,
        _domains=domains,
        _places=places,
    )


def _valid_memos(
    last: Columns, step: ColumnChanges, snapshot: Snapshot, wide_codes: Codes
) -> tuple[dict[tuple[bool, str], Domains], dict[str, Domains], dict[str, Place]]:
    """Return the readings, domains and places of `last` that are valid for the snapshot too.

    `wide_codes` [row] is the snapshot's column: the same array as in `last` if no entry changed.
    """
    levels, new_nodes = snapshot.levels, [step.order.states[row].node for row in step.renewed]
    readings, domains, places = last._readings, last._domains, last._places
    if levels != last.levels:
        readings = {key: parts for key, parts in readings.copy().items() if not key[0]}
    if step.source is not None or new_nodes:
        readings = {
            key: _reread(parts, step, [_reading(node, *key, levels) for node in new_nodes])
            for key, parts in readings.copy().items()
        }
    if readings is not last._readings or snapshot.naming != last.snapshot.naming:
        same_labels = (
            (levels, snapshot.naming) == (last.levels, last.snapshot.naming)
            and wide_codes is last.wide_codes
            and all(parts is last._readings[key] for key, parts in readings.items())
        )
        domains = domains.copy() if same_labels else {}
    if step.source is not None:
        node_names = set(step.order.names)
        places = {name: place for name, place in places.copy().items() if name in node_names}
    return readings, domains, places


def free_amounts(state: NodeState) -> tuple[int, ...]:
    """Return one node's values for the lines of `Columns.amounts`."""
    mask, free = state.free_gpus, state.free
    count = min(mask.bit_count(), state.free_gpu_count)
    return (
        mask,
        count,
        state.unindexed_gpus,
        _cut(free.cpu_milli),
        _cut(free.memory_bytes),
        _cut(free.pods),
    )


def _rail_bits(node: Node) -> tuple[int, ...]:
    rails = tuple(1 << rail for rail in node.rail_by_gpu)
    return rails + (0,) * (BOARD_GPUS - len(rails))


def _totals(node: Node) -> tuple[int, ...]:
    gpus, total = node.topology.gpu_count, node.allocatable
    mask = ((1 << gpus) - 1) & ~node.unhealthy
    return (
        mask,
        mask.bit_count(),
        0,
        _cut(total.cpu_milli),
        _cut(total.memory_bytes),
        _cut(total.pods),
        gpus,
    )


def _cut(amount: int) -> int:
    return max(-LARGEST, min(amount, LARGEST))


def _reading(node: Node, scope: bool, key: str, levels: tuple[FabricLevel, ...]) -> str | None:
    return part_of(node, key, levels) or None if scope else node.labels.get(key)


def _reread(parts: Domains, step: ColumnChanges, values: list[str | None]) -> Domains:
    codes, names = encode_rows(parts.codes, parts.names, step.source, step.renewed, values, natural_key)
    return parts if codes is parts.codes else Domains(codes, names)


def _gpu_memory_with_rows(
    old: Ints,
    source: Source,
    rows: Sequence[int],
    states: Sequence[NodeState],
    shapes: Sequence[Shape],
) -> Ints:
    """Return `Columns.gpu_memory` with these rows set. The shapes decide how many lines the matrix has."""
    gpu_count = max((len(shape.memory) for shape in shapes), default=0)
    if gpu_count != len(old):
        resized = np.zeros((gpu_count, old.shape[1]), np.int64)
        resized[: min(len(old), gpu_count)] = old[:gpu_count]
        old = make_read_only(resized)
    if not gpu_count:
        rows = ()
    return with_rows(old, source, rows, [memory_of(states[row], gpu_count) for row in rows])


def memory_of(state: NodeState, gpu_count: int) -> tuple[int, ...]:
    """Return one node's values for the lines of `Columns.gpu_memory`."""
    line = [_cut(line) for line in state.free_memory[:gpu_count]]
    return (*line, *(0,) * (gpu_count - len(line)))


_NO_CODES = make_read_only(np.zeros(0, np.int32))
NO_COLUMNS = Columns(
    snapshot=Snapshot({}),
    nodes=Domains(_NO_CODES, ()),
    states=(),
    promised=make_read_only(np.zeros(0, np.bool_)),
    shape=_NO_CODES,
    shapes=(),
    wide_codes=_NO_CODES,
    wide_names=(),
    profile=_NO_CODES,
    profiles=(),
    amounts=make_read_only(np.zeros((6, 0), np.int64)),
    totals=make_read_only(np.zeros((7, 0), np.int64)),
    gpu_memory=make_read_only(np.zeros((0, 0), np.int64)),
    rails=make_read_only(np.zeros((BOARD_GPUS, 0), np.int64)),
    other_amounts={},
    _order=Order((), (), [], []),
    _readings={},
    _domains={},
    _places={},
)
"""The columns of an empty cluster. The first `Columns` are made from them."""

_latest = [NO_COLUMNS]
