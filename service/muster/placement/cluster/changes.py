"""Find what differs between two snapshots, without a look at each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import is_not

import numpy as np

from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.cluster.arrays import Source
from muster.placement.cluster.fabric import natural


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The nodes of a snapshot, in two orders.

    `names` and `states` are by row: in the natural order of the nodes' names. `chunks` are the states in the
    snapshot's own order, cut into pieces that are compared at once. `rows` is the row of each of these.
    """

    names: tuple[str, ...]
    states: Sequence[NodeState]
    chunks: list[list[NodeState]]
    rows: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What differs between two views. `order` has the nodes of the later one.

    `rows` are those with another state. Those in `reshaped` have another Node, or another number of GPUs
    taken with unknown indices. Those in `renewed` have another Node.
    """

    order: Order
    source: Source
    rows: list[int]
    reshaped: list[int]
    renewed: list[int]


def changes(last: Order, snapshot: Snapshot, size: int) -> Changes:
    """Return what changed between the previous view and the snapshot. `size` states are compared at once."""
    in_order = list(snapshot.nodes.values())
    chunks, positions = _compared(last.chunks, in_order, size)
    source: Source = None
    if positions is not None:
        names, states, position_rows = last.names, list(last.states), last.rows
        rows = [position_rows[position] for position in positions]
        for position, row in zip(positions, rows, strict=True):
            states[row] = in_order[position]
        before: list[NodeState | None] = [last.states[row] for row in rows]
    else:  # nodes were added or removed, or are in another order
        row_before = {name: row for row, name in enumerate(last.names)}
        known = [name for name in last.names if name in snapshot.nodes]  # nearly sorted, so sorting is cheap
        added = [name for name in snapshot.nodes if name not in row_before]
        names = tuple(sorted(known + added, key=natural))
        states = [snapshot.nodes[name] for name in names]
        row_now = {name: row for row, name in enumerate(names)}
        position_rows = [row_now[name] for name in snapshot.nodes]
        source = np.array([row_before.get(name, -1) for name in names], np.intp)
        olds = [last.states[row] if row >= 0 else None for row in source.tolist()]
        rows = list(compress(count(), map(is_not, states, olds)))
        before = [olds[row] for row in rows]
    pairs = [(row, old, states[row]) for row, old in zip(rows, before, strict=True)]
    renewed = [row for row, old, new in pairs if not old or old.node is not new.node]
    reshaped = [
        row
        for row, old, new in pairs
        if not old or old.node is not new.node or old.unindexed_gpus != new.unindexed_gpus
    ]
    return Changes(Order(names, states, chunks, position_rows), source, rows, reshaped, renewed)


def _compared(
    before: list[list[NodeState]], now: list[NodeState], size: int
) -> tuple[list[list[NodeState]], list[int] | None]:
    """Return `now` in chunks, and the positions of states that differ; None if they are of other nodes.

    Lists compare elements by identity first, at a few ns each. Only a chunk that differs costs more.
    """
    chunks: list[list[NodeState]] = []
    found: list[tuple[int, NodeState, NodeState]] = []
    for start, old in zip(range(0, len(now), size), chain(before, repeat([])), strict=False):
        new = now[start : start + size]
        if old == new:
            chunks.append(old)
            continue
        chunks.append(new)
        differing = compress(count(), map(is_not, old, new))
        found.extend((start + i, old[i], new[i]) for i in differing)
    same = sum(map(len, before)) == len(now) and all(old.node.name == new.node.name for _, old, new in found)
    return chunks, [position for position, _, _ in found] if same else None
