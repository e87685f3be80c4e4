"""Find the packings of nodes: how many members of each role one node can take. Equal nodes share one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from muster.domain.request import Role
from muster.placement.cluster.columns import Bools, Ints, count_up, gpu_counts, values_in
from muster.placement.gang.instance import Instance, amounts_of
from muster.placement.gpus.node_rules import Counts, NodeRule, is_packing_allowed, searched_domains
from muster.placement.gpus.slices import (
    Asks,
    FillableGpu,
    MemberAsk,
    ask_of,
    every_filling,
    first_fit,
    slice_room,
    whole_gpus,
)

MAX_PACKINGS = 2048
"""The most packings of a node that are listed. Beyond this number, only a thinned grid is listed, and nothing
is proven.
"""

MIN_STEPS = 3
"""The least number of counts of each role on a thinned grid."""

ENOUGH = -1
"""In the key of a packing: the node has enough of the resource for all packings."""

UNLIMITED = 1 << 62


@dataclass(frozen=True, eq=False)
class Packings:
    """The packings of a node, except the empty packing.

    `make_all` returns all packings, [packing, role] int64. Most nodes are only counted, and need only the
    maximal packings.
    """

    maximal: Ints
    """[packing, role]"""
    complete: bool
    """Whether no packing is missing."""
    make_all: Callable[[], Ints]

    @cached_property
    def all(self) -> tuple[Counts, ...]:
        """All packings, as tuples."""
        return tuple(map(tuple, self.make_all().tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class PackingsByRow:
    """The packings of several nodes. Equal nodes share one entry of `lists`."""

    index: Ints
    """[row] The entry of the node."""
    lists: list[Packings]

    @property
    def complete(self) -> bool:
        """Whether the packings of all these nodes are complete."""
        return all(packings.complete for packings in self.lists)

    def of(self, row: int) -> Packings:
        """Return the packings of one of the nodes."""
        return self.lists[int(self.index[row])]


def _packings_of(packings: Sequence[Counts], roles: int, *, complete: bool) -> Packings:
    """Return these packings as `Packings`: a packing is maximal if no other packing is larger."""
    table = np.array(packings, np.int64).reshape(len(packings), roles)
    is_below = (table[:, None] <= table[None]).all(axis=2)
    return Packings(table[is_below.sum(axis=1) == 1], complete, lambda: table)  # each is below itself


def packings_on(instance: Instance, rows: Ints, need: Counts, masks: Ints | None = None) -> PackingsByRow:
    """Return the packings of up to `need` members on these nodes.

    A node may use the GPUs of its mask in `masks` [row]. None means all GPUs of each node.
    """
    columns = instance.columns
    caps = np.minimum(instance.room[:, rows], np.array(need, np.int64)[:, None])
    gpus, memory, free = columns.free_count[rows], columns.gpu_memory[:, rows], columns.free_gpus[rows]
    if masks is not None:
        free = free & masks
        gpus = np.minimum(gpu_counts(free), gpus)
        memory = values_in(memory, masks)
        for r, role in enumerate(instance.roles):
            caps[r] = np.minimum(caps[r], gpus // role.gpus) if role.gpus else caps[r]
            caps[r] = np.minimum(caps[r], slice_room(memory, ask_of(role))) if role.slice else caps[r]
    active = [r for r, count in enumerate(need) if count]
    if len(active) == 1:
        packings = _of_one_role(caps[active[0]], active[0], len(need))
    elif _takes_one_member(instance, rows, active):
        packings = _of_one_member(caps, active)
    elif not any(instance.asks[r].units for r in active):
        packings = _of_roles(instance, rows, caps, active, gpus)
    elif (tabled := _from_table(instance, rows, caps, memory, free)) is not None:
        packings = tabled
    else:
        packings = _of_roles(instance, rows, caps, active, gpus)
        packings = _limit_to_first_fit(instance.asks, need, packings, memory, free)
    return _limit_to_rules(instance, rows, packings, free)


def _of_roles(instance: Instance, rows: Ints, caps: Ints, active: list[int], gpus: Ints) -> PackingsByRow:
    """Return the packings that fit by sums of resources."""
    caps = caps[active]
    roles = [instance.roles[r] for r in active]
    names, demand = _demand_by_resource(roles)
    asks = np.concatenate([np.array([[role.gpus] for role in roles], np.int64), demand], axis=1)
    free = np.concatenate([gpus[None], _free_amounts(instance, rows, names)])
    key = np.concatenate([caps, _binding_amounts(caps, asks, np.maximum(0, free))])
    index, first = distinct_columns(key)
    asks_of_roles = tuple(map(tuple, asks.tolist()))
    steps = tuple(gcd(*column) or 1 for column in asks.T.tolist())
    units = tuple(instance.common_unit(r) for r in active)
    lists = []
    for values in key[:, first].T.tolist():
        caps_of, free_of = tuple(values[: len(active)]), tuple(values[len(active) :])
        packings = _enumerate_packings(asks_of_roles, caps_of, free_of, steps, units)
        lists.append(_for_all_roles(packings, active, len(instance.roles)))
    return PackingsByRow(index, lists)


def _demand_by_resource(roles: Sequence[Role]) -> tuple[list[str], Ints]:
    """Return the resources other than GPUs that these roles ask for, and [role, resource] the amounts."""
    amounts = [amounts_of(role.resources) for role in roles]
    names = sorted(set[str]().union(*amounts))
    return names, np.array([[of_role.get(name, 0) for name in names] for of_role in amounts], np.int64)


def _free_amounts(instance: Instance, rows: Ints, names: Sequence[str]) -> Ints:
    """Return [resource, row] int64: the free amounts of these resources on these nodes."""
    return np.stack([instance.columns.free_amount(name)[rows] for name in names])


def _from_table(instance: Instance, rows: Ints, caps: Ints, memory: Ints, free: Ints) -> PackingsByRow | None:
    """Return the packings of a gang that shares GPUs, from one table; None if the table is too large.

    `memory` [GPU, row] is the free units of each GPU, and `free` [row] masks the free GPUs. Nodes are of one
    kind if they differ only in the order of their GPUs, or in amounts that no member can use.
    """
    asks = instance.asks
    units, is_whole = _gpu_kinds(asks, caps.max(axis=1, initial=0).tolist(), memory, free)
    names, demand = _demand_by_resource(instance.roles)
    free_amounts = np.maximum(0, _free_amounts(instance, rows, names))
    useful = np.minimum(free_amounts, demand.T @ caps)  # members cannot use more
    index, first = distinct_columns(np.concatenate([caps, useful, units * 2 + is_whole]))
    table = packing_table(
        asks, caps[:, first], demand.T, useful[:, first], units[:, first], is_whole[:, first]
    )
    if table is None:
        return None
    lists = [
        Packings(maximal, True, partial(table.all_of_kind, kind))
        for kind, maximal in enumerate(table.maximal_by_kind())
    ]
    return PackingsByRow(index, lists)


def _gpu_kinds(asks: Asks, need: Sequence[int], memory: Ints, free: Ints) -> tuple[Ints, Bools]:
    """Return the useful free units of each GPU, and whether the GPU can be taken whole, both [GPU, row].

    The GPUs with most units come first.
    """
    slice_units = [ask.units for ask, count in zip(asks, need, strict=True) if ask.units and count]
    step = gcd(*slice_units) or 1
    useful = np.minimum(memory, sum(need) * max(slice_units, default=0)) // step * step
    useful = useful * (useful >= min(slice_units, default=0))
    if not whole_gpus(asks, tuple(need)):
        return -np.sort(-useful, axis=0), np.zeros(useful.shape, bool)
    gpu_count = max(len(memory), int(free.max(initial=0)).bit_length())
    useful = np.concatenate([useful, np.zeros((gpu_count - len(memory), memory.shape[1]), np.int64)])
    kinds = -np.sort(-(useful * 2 + (free >> np.arange(gpu_count)[:, None] & 1)), axis=0)
    return kinds // 2, kinds % 2 > 0


def _limit_to_first_fit(
    asks: Asks, need: Counts, packings_by_row: PackingsByRow, memory: Ints, free: Ints
) -> PackingsByRow:
    """Return the packings for which first fit finds GPUs.

    `memory` [GPU, row] is the free units of each GPU, and `free` [row] masks the free GPUs. Nodes whose
    useful GPUs differ only in their order are checked once.
    """
    units, is_whole = _gpu_kinds(asks, need, memory, free)
    index, first = distinct_columns(np.concatenate([packings_by_row.index[None], units * 2 + is_whole]))
    lists = []
    for i in first.tolist():
        packings = packings_by_row.of(i)
        gpus = tuple(map(FillableGpu, units[:, i].tolist(), is_whole[:, i].tolist()))
        fitting = [packing for packing in packings.all if first_fit(asks, packing, gpus) is not None]
        if len(fitting) < len(packings.all):
            packings = _packings_of(fitting, len(asks), complete=False)
        lists.append(packings)
    return PackingsByRow(index, lists)


def _limit_to_rules(
    instance: Instance, rows: Ints, packings_by_row: PackingsByRow, free_gpus: Ints
) -> PackingsByRow:
    """Return the packings that the rule of the node allows.

    `free_gpus` are the free GPUs of each row that may be used, as masks.
    """
    rules = instance.rules
    if len(rules.node_rules) == 1:
        return packings_by_row
    shapes = instance.columns.shape[rows]
    index, first = distinct_columns(np.stack([packings_by_row.index, rules.in_node[rows], shapes, free_gpus]))
    lists = []
    for i in first.tolist():
        rule, shape, _ = instance.node_rule(int(rows[i]))
        packings = packings_by_row.of(i)
        if rule is not None:
            domains = searched_domains(rule, shape, int(free_gpus[i]))
            packings = _filter_by_rule(packings.all, rule, domains, packings.complete)
        lists.append(packings)
    return PackingsByRow(index, lists)


@lru_cache(maxsize=1 << 14)
def _filter_by_rule(
    packings: tuple[Counts, ...], rule: NodeRule, domains: Counts, complete: bool
) -> Packings:
    verdicts = [is_packing_allowed(rule, packing, domains) for packing in packings]
    allowed_packings = [packing for packing, verdict in zip(packings, verdicts, strict=True) if verdict]
    return _packings_of(allowed_packings, len(rule.gpus), complete=complete and None not in verdicts)


def _of_one_role(caps: Ints, role: int, roles: int) -> PackingsByRow:
    def up_to(cap: int) -> Ints:
        counts = np.zeros((cap, roles), np.int64)
        counts[:, role] = np.arange(1, cap + 1)
        return counts

    values, index = np.unique(caps, return_inverse=True)
    lists = [Packings(up_to(cap)[-1:], True, partial(up_to, cap)) for cap in values.tolist()]
    return PackingsByRow(index, lists)


def _takes_one_member(instance: Instance, rows: Ints, active: list[int]) -> bool:
    """Return whether each of these nodes takes at most one member, whatever its role."""
    rules_in_use = np.unique(instance.rules.in_node[rows]).tolist()
    rules = [instance.rules.node_rules[i] for i in rules_in_use]
    return bool(rules) and all(rule is not None and rule.takes_one(active) for rule in rules)


def _of_one_member(caps: Ints, active: list[int]) -> PackingsByRow:
    """Return the packings of one member each."""
    index, first = distinct_columns((caps[active] > 0).astype(np.int64))
    one_each = np.eye(len(caps), dtype=np.int64)[active]
    fitting_counts = [one_each[fits] for fits in caps[active][:, first].T > 0]
    lists = [Packings(counts, True, partial(np.asarray, counts)) for counts in fitting_counts]
    return PackingsByRow(index, lists)


def _binding_amounts(caps: Ints, asks: Ints, free: Ints) -> Ints:
    """Return [resource, row] the free amounts, in steps of the amounts that members ask for.

    The value is ENOUGH if the resource is enough for the most members of all roles together.
    """
    steps = np.empty_like(free)
    for i, ask in enumerate(asks.T):
        step = gcd(*ask.tolist()) or 1
        steps[i] = np.where(ask @ caps <= free[i], ENOUGH, free[i] // step)
    return steps


def distinct_columns(key: Ints) -> tuple[Ints, Ints]:
    """Return the index of each column of the key among distinct columns, and the first column of each."""
    code = np.zeros(key.shape[1], np.int64)
    for line in key:
        values = line - int(line.min(initial=0))
        if int(values.max(initial=0)) > 1 << 20:
            values = np.unique(line, return_inverse=True)[1]
        code = code * (int(values.max(initial=0)) + 1) + values
        if int(code.max(initial=0)) > 1 << 40:
            code = np.unique(code, return_inverse=True)[1]
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return index, first


def _for_all_roles(packings: Packings, active: list[int], roles: int) -> Packings:
    """Return packings of the active roles as packings of all roles."""

    def for_all_roles(counts: Ints) -> Ints:
        counts_of_all_roles = np.zeros((len(counts), roles), np.int64)
        counts_of_all_roles[:, active] = counts
        return counts_of_all_roles

    return Packings(
        for_all_roles(packings.maximal), packings.complete, lambda: for_all_roles(packings.make_all())
    )


@lru_cache(maxsize=1 << 14)
def _enumerate_packings(
    asks: tuple[Counts, ...], caps: Counts, free: Counts, steps: Counts, units: Counts
) -> Packings:
    """Return the packings with a multiple of each role's unit; beyond MAX_PACKINGS only a thinned grid."""
    free_amounts = tuple(UNLIMITED if f == ENOUGH else f * step for f, step in zip(free, steps, strict=True))
    unit_asks = tuple(tuple(ask * unit for ask in role) for role, unit in zip(asks, units, strict=True))
    caps = tuple(cap // unit for cap, unit in zip(caps, units, strict=True))
    complete = prod(cap + 1 for cap in caps) <= MAX_PACKINGS
    if complete:
        packings = [
            packing
            for packing in _walk_grid(unit_asks, [range(cap + 1) for cap in caps], free_amounts)
            if any(packing)
        ]
        packing_set = set(packings)
        largest = [
            packing
            for packing in packings
            if not any(larger_packing in packing_set for larger_packing in _with_one_more(packing))
        ]
    else:
        largest = list(
            dict.fromkeys(
                _fill_up(unit_asks, caps, free_amounts, packing)
                for packing in _thinned_packings(unit_asks, caps, free_amounts)
            )
        )
        packings = list(
            dict.fromkeys([*filter(any, _thinned_packings(unit_asks, caps, free_amounts)), *largest])
        )

    table, maximal = (
        np.array(counts, np.int64).reshape(len(counts), len(asks)) * np.array(units, np.int64)
        for counts in (packings, largest)
    )
    return Packings(maximal, complete, lambda: table)


def _with_one_more(packing: Counts) -> Iterator[Counts]:
    for r, count in enumerate(packing):
        yield (*packing[:r], count + 1, *packing[r + 1 :])


def _thinned_packings(asks: tuple[Counts, ...], caps: Counts, free: Counts) -> Iterator[Counts]:
    """Yield packings on an evenly thinned grid; with too many roles, packings of a single role each."""
    active_roles = sum(cap > 0 for cap in caps)
    steps = int(MAX_PACKINGS ** (1 / active_roles))
    if steps >= MIN_STEPS:
        yield from _walk_grid(asks, [_grid_counts(cap, steps) for cap in caps], free)
        return
    for r, cap in enumerate(caps):
        grids = [_grid_counts(cap, MIN_STEPS) if role == r else [0] for role in range(len(caps))]
        yield from _walk_grid(asks, grids, free)


def _grid_counts(cap: int, steps: int) -> Sequence[int]:
    return sorted({round(cap * i / (steps - 1)) for i in range(steps)})


def _fill_up(asks: tuple[Counts, ...], caps: Counts, free: Counts, packing: Counts) -> Counts:
    """Return a maximal packing: add as many members to the packing as fit, role after role."""
    filled = list(packing)
    free_amounts = [
        f - sum(n * ask[i] for n, ask in zip(packing, asks, strict=True)) for i, f in enumerate(free)
    ]
    for r, ask in enumerate(asks):
        room = min(
            (free_amount // amount for free_amount, amount in zip(free_amounts, ask, strict=True) if amount),
            default=caps[r],
        )
        added_members = min(room, caps[r] - filled[r])
        filled[r] += added_members
        free_amounts = [
            free_amount - added_members * amount
            for free_amount, amount in zip(free_amounts, ask, strict=True)
        ]
    return tuple(filled)


def _walk_grid(asks: tuple[Counts, ...], grids: Sequence[Sequence[int]], free: Counts) -> Iterator[Counts]:
    """Yield the packings that take a count of each role's grid and fit into the free amounts."""
    if not grids:
        yield ()
        return
    room = min((f // ask for f, ask in zip(free, asks[0], strict=True) if ask), default=grids[0][-1])
    for count in grids[0]:
        if count > room:
            return
        free_after = tuple(f - count * ask for f, ask in zip(free, asks[0], strict=True))
        for later_counts in _walk_grid(asks[1:], grids[1:], free_after):
            yield (count, *later_counts)


Small = NDArray[np.int16]

NO_ROOM = -(1 << 13)
"""Stands for a packing that does not fit.

The value stays below zero if members are added, and the sum of four such values fits in 16 bits.
"""

CELLS_PER_CHUNK = 1 << 17
"""How many cells of the tables are filled at once: as many as the cache of a core holds."""

MAX_PACKING_STEPS = 1 << 29
"""The most steps of filling the tables. Beyond this number, first fit decides, and nothing is proven."""


@dataclass(frozen=True, slots=True, eq=False)
class PackingTable:
    """A table of packings.

    `max_deep` [count of each role of `axes` …, kind of node] is int16: the most members of role `deep` on
    such a node, next to these counts of the other roles. It is below zero if the counts alone do not fit.
    `roles` is the number of the gang's roles; `deep` equals `roles` if the table has no deep role.
    """

    max_deep: Small
    axes: tuple[int, ...]
    deep: int
    roles: int

    def maximal_by_kind(self) -> list[Ints]:
        """Return the maximal packings of each kind, [packing, role] int64."""
        max_deep = self.max_deep
        is_max = max_deep >= 0
        is_max[(0,) * len(self.axes)] &= max_deep[(0,) * len(self.axes)] > 0  # leaves out the empty packing
        for axis in range(len(self.axes)):
            one_fewer, one_more = ((slice(None),) * axis + (part,) for part in (slice(0, -1), slice(1, None)))
            is_max[one_fewer] &= max_deep[one_fewer] > max_deep[one_more]
        *role_counts, kind = np.nonzero(is_max)
        order = np.argsort(kind, kind="stable")
        packings = np.zeros((len(order), self.roles + 1), np.int64)
        for r, counts in zip(self.axes, role_counts, strict=True):
            packings[:, r] = counts[order]
        packings[:, self.deep] = max_deep[is_max][order]
        return np.split(
            packings[:, : self.roles], np.searchsorted(kind[order], np.arange(1, max_deep.shape[-1]))
        )

    def all_of_kind(self, kind: int) -> Ints:
        """Return all packings of one kind except the empty one, [packing, role] int64, sorted."""
        max_deep = self.max_deep[..., kind]
        role_counts = np.argwhere(max_deep >= 0)
        times = max_deep[tuple(role_counts.T)].astype(np.int64) + 1
        packings = np.zeros((int(times.sum()), self.roles + 1), np.int64)
        packings[:, list(self.axes)] = np.repeat(role_counts, times, axis=0)
        packings[:, self.deep] = count_up(times)
        packings = packings[packings.any(axis=1), : self.roles]
        return packings[np.lexsort(packings.T[::-1])]


def packing_table(
    asks: Asks, caps: Ints, amounts: Ints, free: Ints, units: Ints, is_whole: Bools
) -> PackingTable | None:
    """Return the table for these kinds of nodes; None if it would be too large.

    A dynamic program goes over the GPUs of the nodes. For each combination of member counts of the other
    roles, it finds the most members of one role (the deep role). This gives all packings, because a packing
    still fits if members are removed.

    `caps` [role, kind] is how many members of each role alone a node takes. `amounts` [resource, role] is a
    member's request for further resources, and `free` [resource, kind] the free amount on a node. `units`
    [GPU, kind] is the free memory of each GPU, and `is_whole` [GPU, kind] bool is whether a member may take
    the GPU whole.
    """
    active = [r for r in range(len(asks)) if caps[r].max(initial=0)]
    single = [r for r in active if asks[r].units and asks[r].gpus == 1]
    deep = max(single, key=lambda r: (int(caps[r].max()), -r), default=len(asks))
    roles, kinds = caps.shape
    if not single:  # a role without members
        asks = (*asks, MemberAsk(1, int(units.max(initial=0)) + 1))
        caps = np.append(caps, np.zeros((1, kinds), np.int64), axis=0)
        amounts = np.append(amounts, np.zeros((len(amounts), 1), np.int64), axis=1)
    axes = tuple(r for r in active if r != deep)
    filling = _Filling(asks, caps.max(axis=1, initial=0), axes, deep)
    if filling.work(int(units.max(initial=0)), len(units)) * kinds > MAX_PACKING_STEPS:
        return None
    chunk = max(1, CELLS_PER_CHUNK // filling.cells)
    parts = [
        filling.max_deep(units[:, start : start + chunk], is_whole[:, start : start + chunk])
        for start in range(0, kinds, chunk)
    ]
    max_deep = np.concatenate(parts, axis=-1)
    _cut_to_limits(max_deep, axes, deep, caps, amounts, free)
    return PackingTable(max_deep, axes, deep, roles)


def _cut_to_limits(max_deep: Small, axes: Counts, deep: int, caps: Ints, amounts: Ints, free: Ints) -> None:
    """Cut the table, in place, to the caps and to the resources other than GPUs."""
    np.minimum(max_deep, caps[deep], out=max_deep, casting="unsafe")
    role_counts: tuple[Ints, ...] = np.indices(max_deep.shape[:-1], sparse=True)
    for r, counts in zip(axes, role_counts, strict=True):
        max_deep[np.broadcast_to(counts[..., None] > caps[r], max_deep.shape)] = NO_ROOM
    for ask, has in zip(amounts, free, strict=True):
        if (ask @ caps <= has).all():
            continue
        sums = sum((counts * int(ask[r]) for r, counts in zip(axes, role_counts, strict=True)), np.int64(0))
        spare = has - np.asarray(sums)[..., None]
        max_deep[np.broadcast_to(spare < 0, max_deep.shape)] = NO_ROOM
        if ask[deep]:
            np.minimum(max_deep, spare // ask[deep], out=max_deep, where=spare >= 0, casting="unsafe")


class _Filling:
    """Fill the GPUs of many nodes, one GPU after another.

    The axes of the state are the number of whole GPUs taken, then the places of each role with slices, except
    the deep role.
    """

    def __init__(self, asks: Asks, max_members: Ints, axes: Counts, deep: int) -> None:
        self._asks, self._axes, self._deep = asks, axes, asks[deep].units
        self._sizes = tuple(int(max_members[r]) + 1 for r in axes)
        self._sliced = [i for i, r in enumerate(axes) if asks[r].units]
        self._units = tuple(asks[axes[i]].units for i in self._sliced)
        self._whole_gpus = [0 if asks[r].units else asks[r].gpus for r in axes]
        # Members of several GPUs have one slice on each of them. So the number of members bounds their slices
        # on one GPU.
        self._several = [i for i in self._sliced if asks[axes[i]].gpus > 1]

    @property
    def cells(self) -> int:
        """The cells of the table for one node."""
        return prod(self._sizes)

    def work(self, units: int, gpus: int) -> int:
        """Return the steps for one node that has `gpus` GPUs of `units` units."""
        filling_count = prod(units // of_slice + 1 for of_slice in self._units)
        times = prod(self._sizes[i] for i in self._several)
        return max(self.cells, times * gpus * filling_count * prod(self._state(self._sizes, gpus)))

    def max_deep(self, units: Ints, is_whole: Bools) -> Small:
        """Return [count of each other role …, node] int16: the most members of the deep role."""
        max_members = np.full((*self._sizes, units.shape[1]), NO_ROOM, np.int16)
        for several in product(*(range(self._sizes[i]) for i in self._several)):
            on_several = dict(zip(self._several, several, strict=True))
            sizes = tuple(
                on_several[i] + 1 if i in on_several else size for i, size in enumerate(self._sizes)
            )
            state = self._fill_gpus(units, is_whole, sizes, on_several)
            counts = np.ix_(*(np.arange(on_several.get(i, 0), n) for i, n in enumerate(sizes)))
            whole_gpus = sum(
                (n * gpus for n, gpus in zip(counts, self._whole_gpus, strict=True)), np.int64(0)
            )
            whole_gpus = np.broadcast_to(whole_gpus, np.broadcast_shapes(*(n.shape for n in counts)))
            places = (counts[i] * self._asks[self._axes[i]].gpus for i in self._sliced)
            cells = state[(np.minimum(whole_gpus, len(state) - 1), *places)]
            max_members[counts] = np.where((whole_gpus < len(state))[..., None], cells, NO_ROOM)
        return max_members

    def _state(self, sizes: Counts, gpus: int) -> tuple[int, ...]:
        max_whole_gpus = sum(
            (size - 1) * gpus_each for size, gpus_each in zip(sizes, self._whole_gpus, strict=True)
        )
        places = ((sizes[i] - 1) * self._asks[self._axes[i]].gpus + 1 for i in self._sliced)
        return (min(gpus, max_whole_gpus) + 1, *places)

    def _fill_gpus(self, units: Ints, is_whole: Bools, sizes: Counts, on_several: dict[int, int]) -> Small:
        shape = self._state(sizes, len(units))
        on_one = tuple(on_several.get(i, sizes[i] - 1) for i in self._sliced)
        state = np.full((*shape, units.shape[1]), NO_ROOM, np.int16)
        state[(0,) * len(shape)] = 0
        for memory, free in zip(units, is_whole, strict=True):
            grown = np.maximum(state + (memory // self._deep).astype(np.int16), NO_ROOM)
            for way, gain in self._fillings(memory, on_one):
                _grow(grown, state, (0, *way), gain)
            if shape[0] > 1 and free.any():
                _grow(
                    grown, state, (1, *(0 for _ in self._sliced)), np.where(free, 0, NO_ROOM).astype(np.int16)
                )
            state = np.maximum(grown, NO_ROOM)
        return state

    def _fillings(self, memory: Ints, on_one: Counts) -> Iterator[tuple[Counts, Small]]:
        """Yield the ways to put slices of the other roles on one GPU of each node.

        With each way comes [node] int16: how many slices of the deep role still fit on that GPU.
        """
        for way in every_filling(int(memory.max(initial=0)), self._units, on_one):
            if any(way):
                spare = memory - sum(n * of_slice for n, of_slice in zip(way, self._units, strict=True))
                yield way, np.where(spare >= 0, spare // self._deep, NO_ROOM).astype(np.int16)


def _grow(grown: Small, state: Small, step: Counts, gain: Small) -> None:
    """Improve the cells of `grown` that are `step` further than cells of `state`."""
    if any(n >= size for n, size in zip(step, state.shape, strict=False)):
        return
    target = grown[tuple(slice(n, None) for n in step)]
    source = state[tuple(slice(0, size - n) for n, size in zip(step, state.shape, strict=False))]
    np.maximum(target, source + gain, out=target)
