"""Count the damage of a plan: how many of the GPUs that stay free become unusable for typical requests.

F(node) = Σ over typical requests p, equally weighted, of the free GPUs that p cannot use, in GPU-thousandths.
A request for k whole GPUs needs a pool with at least k free GPUs. A pool is an NVLink domain if the node has
NVLink, else the whole node. This is the measure of "Beware of Fragmentation" (ATC'23) with topology added. A
pool with fewer than k free GPUs counts as unusable even if another pool has k.

If a node serves slices, the same sum is added for typical slices: ¼, ½ and all of a GPU's memory. A slice
cannot use a GPU with less free memory. A request for whole GPUs cannot use a partly used GPU, if the node
serves whole GPUs. On a node that spreads slices, partly used GPUs are intended, so they do not count.

If the cluster lists its typical requests, these price the damage. For a typical request p, `usable(p)` of a
node is the free GPU-thousandths on GPUs that could serve p. If the node has too little cpu, `usable(p)` is
multiplied by (requests that the free cpu serves) / (requests that the GPUs serve). It is 0 if p does not fit.

    damage of members on a node = Σ over p of price(p) · (usable(p) before - after)
    price(p) = share(p) / GPUs(p) · (free GPUs of the cluster / usable(p) summed over the cluster)²

in steps of STEP GPU-thousandths. GPUs(p) are the GPUs that p asks for; a slice counts as a part of a GPU. The
first factor of the price is the measure of "Beware of Fragmentation". docs/measurements-appendix.md measures
the effect of the second factor. Which of a node's wholly free GPUs are taken does not count here, because the
levels of links decide that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, count, repeat
from operator import is_, is_not
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from muster.domain.request import Request, TypicalRequest
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints, gpu_counts
from muster.placement.cluster.fabric import Shape

TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the typical requests. All have equal weight."""

TYPICAL_PARTS = (4, 2, 1)
"""Typical slices, as the divisor of a GPU's memory. All have equal weight."""

ONE_GPU = 1000
"""One GPU, in thousandths."""

Whole = TypeVar("Whole", int, Ints)
"""An integer, or an integer for each of many nodes."""


def pool_fragmentation(free_in_pool: int) -> int:
    """Return F of one pool with this many free GPUs: GPU-thousandths, averaged over the typical requests.

    >>> [pool_fragmentation(k) for k in (0, 1, 2, 3, 4, 8)]
    [0, 750, 1000, 1500, 1000, 0]
    """
    return free_in_pool * sum(ONE_GPU // len(TYPICAL_GPUS) for gpus in TYPICAL_GPUS if gpus > free_in_pool)


def fragmentation(shape: Shape, free: int, memory: Sequence[int] = ()) -> int:
    """Return F of a node of this shape, in GPU-thousandths.

    `free` is the mask of wholly free GPUs. `memory` is the free units for slices, by GPU.
    """
    unusable_whole_gpus = sum(
        pool_fragmentation(max(0, (free & pool).bit_count() - shape.hidden)) for pool in shape.pools
    )
    return unusable_whole_gpus + sum(
        gpu_fragmentation(shape, gpu, units) for gpu, units in enumerate(memory) if not free >> gpu & 1
    )


def gpu_fragmentation(shape: Shape, gpu: int, units: Whole) -> Whole:
    """Return F of one partly used GPU with `units` of its memory free, in GPU-thousandths."""
    memory = shape.memory[gpu]
    if shape.spreads_slices or not memory:
        return 0 * units
    too_large = 0 * units
    for part in TYPICAL_PARTS:
        too_large = too_large + (units * part < memory)
    unusable_by_slices = ONE_GPU * units * too_large // (len(TYPICAL_PARTS) * memory)
    return unusable_by_slices + (ONE_GPU * units // memory if shape.pools else 0)


def damage_of(shape: Shape, free: int, mask: int) -> int:
    """Return the damage of taking these of the `free` GPUs whole: F after minus F before."""
    return fragmentation(shape, free & ~mask) - fragmentation(shape, free)


def damage_to_pools(shape: Shape, free: Ints | int, masks: Ints) -> Ints:
    """Return [way] int64: the damage of taking the GPUs of each mask from the wholly free GPUs, `free`."""
    wasted = np.array([pool_fragmentation(k) for k in range(shape.topology.gpu_count + 1)])
    damage = np.zeros_like(masks)
    for pool in shape.pools:
        damage += wasted[np.maximum(0, gpu_counts(free & ~masks & pool) - shape.hidden)]
        damage -= wasted[np.maximum(0, gpu_counts(np.asarray(free & pool)) - shape.hidden)]
    return damage


STEP = 10
"""The step of priced damage, in GPU-thousandths. With finer steps nearly all nodes would differ, and the best
fit would decide nothing.
"""

DIGITS = 6
"""Damage is rounded to this number of decimals before it is rounded to steps. Otherwise the inexact last
digit of a float would decide how half a step is rounded.
"""

MAX_PRICE_STEPS = 1 << 40
"""The most steps of one node's damage, so that sums over nodes fit into int64."""

MAX_CODES = 4
"""The most codes for each node. Beyond it, codes are assigned anew, because old codes are never removed."""

Floats = NDArray[np.float64]


def is_priced(request: Request, columns: Columns) -> bool:
    """Return whether the gang's damage is priced: for gangs of whole GPUs, and for one pod with one slice.

    With several slices, `slices.least_damage_by_filling` fills GPU by GPU. That function cannot use prices,
    because prices depend on the whole node.
    """
    sliced = [role.slice for role in request.roles if role.slice and role.members]
    is_single_pod = request.size == 1 and not request.running
    return bool(columns.snapshot.typical) and (not sliced or (is_single_pod and sliced[0].gpus == 1))


@dataclass(frozen=True, slots=True, eq=False)
class TypicalRequests:
    """The typical requests as arrays. A *kind* is a request and the nodes that it accepts. A *size* is its
    GPUs, memory and cpu, a *shape* its GPUs and memory. What several kinds share is computed once.
    """

    share: Floats
    """[kind] The share of all requests. The shares sum up to 1."""
    size: Ints
    """[kind] The index of the size."""
    label_selector: Ints
    """[kind] The index of the required labels in `labels`."""
    labels: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...]
    cpu: Ints
    """[size] In thousandths of a core."""
    shape: Ints
    """[size] The index of the shape."""
    gpus: Ints
    """[shape] The number of GPUs."""
    units: Ints
    """[shape] The memory on each GPU, 0 for whole GPUs."""


@lru_cache(maxsize=8)
def typical_requests(typical: tuple[TypicalRequest, ...]) -> TypicalRequests:
    """Return the typical requests as arrays."""
    sizes = sorted({(kind.gpus, kind.units, kind.cpu_milli) for kind in typical})
    shapes = sorted({size[:2] for size in sizes})
    labels = tuple(sorted({kind.labels for kind in typical}))
    share = np.array([kind.share for kind in typical], np.float64)
    gpus, units = np.array(shapes, np.int64).T
    return TypicalRequests(
        share / share.sum(),
        np.array([sizes.index((kind.gpus, kind.units, kind.cpu_milli)) for kind in typical], np.int64),
        np.array([labels.index(kind.labels) for kind in typical], np.int64),
        labels,
        np.array([cpu for *_, cpu in sizes], np.int64),
        np.array([shapes.index(size[:2]) for size in sizes], np.int64),
        gpus,
        units,
    )


class _Gpus(NamedTuple):
    units: Ints
    """[node, GPU] The free units for slices."""
    free: Ints
    """[node, GPU] The free thousandths of the GPU."""
    is_whole: Bools
    """[node, GPU] Whether the GPU is wholly free."""
    serving_gpus: Ints
    """[node, shape] How many GPUs of the node can serve one GPU of a request with this shape."""
    room: Ints
    """[node, shape] The free GPU-thousandths on these GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class _NodeFacts:
    """Properties of nodes that seldom change."""

    sources: tuple[object, ...]
    """The objects from which these values were read. While they are the same, so are the values."""
    row_class: Ints
    """[row] The class of the node. Nodes of one class accept the same kinds."""
    accepts: Floats
    """[class, kind] 1 if the nodes accept the kind, else 0."""
    memory: Ints
    """[row, GPU] The memory of the empty GPU, in units."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The prices of one snapshot."""

    columns: Columns
    kinds: TypicalRequests
    nodes: _NodeFacts
    gpus: _Gpus
    usable: Floats
    """[row, size] The GPU-thousandths that the size can use."""
    weights: Floats
    """[class, size] The price of the size, summed over its kinds."""
    code: Ints
    """[row] Rows with equal codes have equal damage, which is computed once for them."""
    codes: defaultdict[bytes, int]
    """State of a node → its code. Prices of successive snapshots share this dictionary.

    Any thread may add a code, because no code is assigned twice.
    """

    def damage_of_gpus(self, rows: Ints, gpus: Ints, cpu_milli: Ints) -> Ints:
        """Return [row, way] int64: the damage of taking `gpus` [way] whole GPUs and `cpu_milli` [way] of
        these nodes. The last free GPUs count as taken, because which GPUs are taken has no price.
        """
        rows, representative = self._representatives(rows)
        damage = np.zeros((len(rows), len(gpus)), np.int64)
        is_whole, units = self.gpus.is_whole[rows], self.gpus.units[rows]
        from_last = np.cumsum(is_whole[:, ::-1], axis=1)[:, ::-1]
        for way, (size, cpu) in enumerate(zip(gpus.tolist(), cpu_milli.tolist(), strict=True)):
            gpus_taken = np.zeros((len(rows), len(self.kinds.units)), np.int64)
            node, gpu = np.nonzero(is_whole & (from_last <= size))
            if len(node):
                begins = np.flatnonzero(np.diff(node, prepend=-1))
                could_serve = _can_serve(self.kinds, units[node, gpu], is_whole[node, gpu])
                gpus_taken[node[begins]] = np.add.reduceat(could_serve, begins, axis=0, dtype=np.int64)
            serving_gpus, room = (
                self.gpus.serving_gpus[rows] - gpus_taken,
                self.gpus.room[rows] - ONE_GPU * gpus_taken,
            )
            damage[:, way] = self._damage(rows, serving_gpus, room, cpu)
        return damage[representative]

    def damage_of_slice(self, rows: Ints, units: int, cpu_milli: int) -> Ints:
        """Return [row, GPU] int64: the damage of one slice on each GPU, LARGEST if the GPU has no room."""
        rows, representative = self._representatives(rows)
        gpus, memory = self.gpus, self.nodes.memory
        damage = np.full((len(rows), memory.shape[1]), LARGEST)
        # The first of several equal GPUs represents all of them.
        gpu_states = np.stack([gpus.units[rows], gpus.is_whole[rows], memory[rows]])
        same = (gpu_states[:, :, :, None] == gpu_states[:, :, None, :]).all(axis=0).argmax(axis=2)
        holds = gpu_states[0] >= units
        index, gpu = np.nonzero(holds & (same == np.arange(same.shape[1])))
        row = rows[index]
        units_left = gpus.units[row, gpu] - units
        could_serve = _can_serve(self.kinds, gpus.units[row, gpu], gpus.is_whole[row, gpu])
        can_serve = _can_serve(self.kinds, units_left, np.zeros(len(row), bool))
        free = (units_left * ONE_GPU // np.maximum(1, memory[row, gpu]))[:, None]
        serving_gpus = gpus.serving_gpus[row] - could_serve + can_serve
        room = gpus.room[row] - could_serve * gpus.free[row, gpu][:, None] + can_serve * free
        damage[index, gpu] = self._damage(row, serving_gpus, room, cpu_milli)
        return np.where(holds, np.take_along_axis(damage, same, axis=1), LARGEST)[representative]

    def _representatives(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return one row of each code, and for each given row the index of the row that represents it."""
        _, first, representative = np.unique(self.code[rows], return_index=True, return_inverse=True)
        return rows[first], representative

    def _damage(self, rows: Ints, serving_gpus: Ints, room: Ints, cpu_milli: int) -> Ints:
        cpu = self.columns.cpu[rows] - cpu_milli
        loss = self.usable[rows] - _usable_amounts(self.kinds, serving_gpus, room, cpu)
        # Sum along the last axis, so that the sum of a row does not depend on other rows.
        damage = np.round((self.weights[self.nodes.row_class[rows]] * loss).sum(axis=1), DIGITS)
        steps: Ints = np.rint(np.clip(damage / STEP, -MAX_PRICE_STEPS, MAX_PRICE_STEPS)).astype(np.int64)
        return STEP * steps


def prices_of(columns: Columns) -> Prices:
    """Return the prices of a snapshot with typical requests. This is cheap if most nodes are as in the
    previous snapshot.
    """
    last = _latest[0]
    if last is None or last.columns is not columns:
        last = _latest[0] = _prices_after(last, columns)
    return last


_latest: list[Prices | None] = [None]


def _prices_after(last: Prices | None, columns: Columns) -> Prices:
    kinds = typical_requests(columns.snapshot.typical)
    nodes = _node_facts(columns, kinds, last.nodes if last else None)
    if last and (last.nodes is not nodes or len(last.codes) > MAX_CODES * len(columns.names)):
        last = None
    differs = map(is_not, columns.states, last.columns.states) if last else repeat(True, len(columns.states))
    rows = np.fromiter(compress(count(), differs), np.int64)
    gpus = _gpus_of(columns, kinds, rows, nodes.memory)
    usable = _usable_amounts(kinds, gpus.serving_gpus, gpus.room, columns.cpu[rows])
    properties = (
        nodes.row_class[rows, None],
        columns.cpu[rows, None],
        gpus.units,
        gpus.is_whole,
        nodes.memory[rows],
    )
    codes = last.codes if last else defaultdict(count().__next__)
    code = np.array([codes[state.tobytes()] for state in np.hstack(properties)], np.int64)
    if last:
        gpus = _Gpus(*(_with_rows(old, rows, new) for old, new in zip(last.gpus, gpus, strict=True)))
        usable = _with_rows(last.usable, rows, usable)
        code = _with_rows(last.code, rows, code)
    return Prices(columns, kinds, nodes, gpus, usable, _weights(kinds, nodes, gpus, usable), code, codes)


def _with_rows(old: NDArray[Any], rows: Ints, values: NDArray[Any]) -> NDArray[Any]:
    new = old.copy()
    new[rows] = values
    return new


def _weights(kinds: TypicalRequests, nodes: _NodeFacts, gpus: _Gpus, usable: Floats) -> Floats:
    classes = len(nodes.accepts)
    by_class = np.stack([usable[nodes.row_class == code].sum(axis=0) for code in range(classes)])
    supply = np.maximum((nodes.accepts * by_class[:, kinds.size]).sum(axis=0), ONE_GPU)
    memories = nodes.memory[nodes.memory > 0]
    part = kinds.units / memories.mean() if len(memories) else np.ones(len(kinds.units))
    gpus_asked = kinds.gpus * np.where(kinds.units > 0, np.minimum(1, part), 1)
    price = kinds.share / gpus_asked[kinds.shape[kinds.size]] * (gpus.free.sum() / supply) ** 2
    weights = np.zeros((len(kinds.cpu), classes))
    np.add.at(weights, kinds.size, (nodes.accepts * price).T)
    return np.ascontiguousarray(weights.T)


def _node_facts(columns: Columns, kinds: TypicalRequests, last: _NodeFacts | None) -> _NodeFacts:
    keys = sorted({key for labels in kinds.labels for key, _ in labels})
    labels = {key: columns.label(key) for key in keys}
    sources = (
        kinds,
        columns.nodes,
        columns.shape,
        columns.shapes,
        columns.profile,
        columns.profiles,
        *labels.values(),
    )
    if last is not None and all(map(is_, sources, last.sources)):
        return last
    properties = [np.asarray([bool(shape.memory) for shape in columns.shapes], bool)[columns.shape]]
    properties += [
        np.array([bool(p.gpu_resources) for p in columns.profiles], bool)[columns.profile],
        np.array([p.ready and not p.unschedulable for p in columns.profiles], bool)[columns.profile],
    ]
    for condition in kinds.labels:
        accepted = np.ones(len(columns.names), bool)
        for key, values in condition:
            codes = [labels[key].index[value] for value in values if value in labels[key].index]
            accepted &= np.isin(labels[key].codes, codes)
        properties.append(accepted)
    classes, row_class = np.unique(np.stack(properties), axis=1, return_inverse=True)
    sliced = kinds.units[kinds.shape[kinds.size]] > 0
    serves = np.where(sliced, classes[0][:, None], classes[1][:, None])
    accepts = classes[3:].T[:, kinds.label_selector] & serves & classes[2][:, None]
    max_gpus = int(columns.gpu_total.max(initial=0))
    by_shape = np.zeros((len(columns.shapes), max_gpus), np.int64)
    for i, shape in enumerate(columns.shapes):
        by_shape[i, : len(shape.memory)] = shape.memory[:max_gpus]
    return _NodeFacts(sources, row_class, accepts.astype(np.float64), by_shape[columns.shape])


def _gpus_of(columns: Columns, kinds: TypicalRequests, rows: Ints, memory: Ints) -> _Gpus:
    count = memory.shape[1]
    is_whole = (columns.free_gpus[rows][:, None] >> np.arange(count) & 1).astype(bool)
    # If it is unknown which GPUs are taken, the last ones count as taken.
    is_whole &= np.cumsum(is_whole, axis=1) <= columns.free_count[rows][:, None]
    units = np.zeros((len(rows), count), np.int64)
    gpu_memory = columns.gpu_memory[:count, rows].T
    units[:, : gpu_memory.shape[1]] = gpu_memory
    free = np.where(is_whole, ONE_GPU, ONE_GPU * units // np.maximum(1, memory[rows]))
    can_serve = _can_serve(kinds, units, is_whole)
    return _Gpus(units, free, is_whole, can_serve.sum(axis=1), (free[:, :, None] * can_serve).sum(axis=1))


def _usable_amounts(kinds: TypicalRequests, serving_gpus: Ints, room: Ints, cpu: Ints) -> Floats:
    """Return [node, size]: the GPU-thousandths that the size can use, on GPUs that could serve it."""
    fitting = serving_gpus // kinds.gpus
    fed = cpu[:, None] / np.maximum(1, kinds.cpu)
    usable: Floats = np.minimum(1, fed / np.maximum(1, fitting)[:, kinds.shape])
    usable *= fed >= 1
    usable *= (room * (fitting > 0))[:, kinds.shape]
    return usable


def _can_serve(kinds: TypicalRequests, units: Ints, is_whole: Bools) -> Bools:
    """Return [GPU …, shape] bool: whether a GPU with these free units can serve one GPU of the shape."""
    return np.where(kinds.units > 0, units[..., None] >= kinds.units, is_whole[..., None])
