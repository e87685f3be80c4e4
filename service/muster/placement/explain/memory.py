"""Find the least memory of shared GPUs that must become free so that a gang of slices fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from muster.domain.relaxations import MoreFree
from muster.domain.request import Role, Slice
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, Kind, World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.offers import Offers, cheapest
from muster.placement.gang.instance import room_of

MOST = 16
"""The most further members that are looked for on one node."""

Freed = dict[int, Ints]
"""row → [GPU] int64 units to free."""


def more_memory(conflict: Conflict, role: Role, ask: Slice) -> MoreFree | None:
    """Return how much memory must become free for a conflict of one role with slices.

    The result is None if free memory alone does not help.
    """
    assumptions, world = conflict.assumptions, conflict.seen()
    if Assumption(Kind.TAKEN, what=GPU_MEMORY) not in conflict.kept:
        return None
    empty = assumptions.world(assumptions.all - {Assumption(Kind.TAKEN, what=GPU_MEMORY)}).view
    # If the indices of taken GPUs are unknown, these GPUs must become free, not their memory.
    named = assumptions.view.unindexed == 0
    empty = replace(empty, gpu_memory=np.where(named, empty.gpu_memory, world.view.gpu_memory))
    search = _inside_nodes if world.request.required_scope in INSIDE else _across_nodes
    freed = search(world, empty, role, ask)
    if freed is None:
        return None
    gang = assumptions.world(assumptions.all)
    memory = gang.view.gpu_memory.copy()
    for row, units in freed.items():
        memory[:, row] += units
    view = replace(gang.view, gpu_memory=memory)
    room = {each.name: room_of(view, each) for each in gang.request.roles}
    if conflict.oracle.enough(replace(gang, view=view, room=room)) is not True:
        return None
    nodes = tuple((world.view.names[row], int(units.sum())) for row, units in sorted(freed.items()))
    return MoreFree(GPU_MEMORY, sum(amount for _, amount in nodes), nodes)


def _across_nodes(world: World, empty: Columns, role: Role, ask: Slice) -> Freed | None:
    """Return the cheapest memory to free, member by member."""
    view, part = world.view, world.view.topology.regions(world.request.required_scope)
    usable = world.admitted[role.name] & (part >= 0)
    room = world.room[role.name]
    missing = world.wanted - np.bincount(part[usable], np.minimum(room[usable], world.wanted))
    others = room_of(view, replace(role, slice=None))
    rows = np.flatnonzero(usable & (others > room) & (empty.gpu_memory > view.gpu_memory).any(axis=0))
    left, all_of_it, hosted = view.gpu_memory[:, rows], empty.gpu_memory[:, rows], room[rows]
    price, before = [np.zeros(len(rows), np.int64)], np.zeros(len(rows), np.int64)
    possible: list[Bools] = []
    for more in range(1, 1 + min(MOST, world.wanted)):
        cost = _price(left, all_of_it, ask, hosted + more)
        possible.append((hosted + more <= others[rows]) & (cost < LARGEST))
        price.append(np.maximum(price[-1], np.where(possible[-1], cost - before, 0)))
        before = cost
    offered = np.concatenate(possible).astype(np.int64)
    offers = Offers(np.tile(rows, len(possible)), np.concatenate(price[1:]), offered)
    chosen = cheapest(offers, part, missing.astype(np.int64))
    if not chosen:
        return None
    members: dict[int, int] = {}
    for i, taken in chosen:
        members[int(offers.row[i])] = members.get(int(offers.row[i]), 0) + taken
    return {
        row: _units(view.gpu_memory[:, row], empty.gpu_memory[:, row], ask, int(room[row]) + more)
        for row, more in members.items()
    }


def _inside_nodes(world: World, empty: Columns, role: Role, ask: Slice) -> Freed | None:
    """Return the memory to free in the part of a node that lacks least for all members."""
    best: tuple[int, int, int] | None = None
    for rows, mask in _parts(world, role):
        of_part = mask >> np.arange(len(empty.gpu_memory))[:, None] & 1
        left, all_of_it = world.view.gpu_memory[:, rows] * of_part, empty.gpu_memory[:, rows] * of_part
        price = _price(left, all_of_it, ask, np.full(len(rows), world.wanted))
        at = int(price.argmin())
        if price[at] < LARGEST:
            found = (int(price[at]), int(rows[at]), mask)
            best = found if best is None else min(best, found)
    if best is None:
        return None
    _, row, mask = best
    of_part = mask >> np.arange(len(empty.gpu_memory)) & 1
    left, all_of_it = world.view.gpu_memory[:, row] * of_part, empty.gpu_memory[:, row] * of_part
    return {row: _units(left, all_of_it, ask, world.wanted)}


def _parts(world: World, role: Role) -> Iterator[tuple[Ints, int]]:
    """Yield equal nodes that could hold all members, and a part of them as a mask of GPUs."""
    view = world.view
    usable = world.admitted[role.name] & view.promised & ~view.topology.in_wide
    usable &= room_of(view, replace(role, slice=None)) >= world.wanted
    for shape in np.unique(view.shape[usable]).tolist():
        rows = np.flatnonzero(usable & (view.shape == shape))
        for _, mask in view.topology.parts(int(rows[0]), str(world.request.required_scope)):
            yield rows, mask


def _price(left: Ints, all_of_it: Ints, ask: Slice, members: Ints) -> Ints:
    """Return [node] the units that must become free so that the node holds `members` [node]; LARGEST if it
    never can.

    `left` and `all_of_it` are [GPU, node]. Each member needs `gpus` places on different GPUs. The next place
    on a GPU is cheaper by what is left over there. Each later place costs all its units.
    """
    places = np.minimum(left // ask.units, members)
    further = np.minimum(all_of_it // ask.units, members) - places
    missing = np.maximum(0, members * ask.gpus - places.sum(axis=0))
    first = np.sort(np.where(further > 0, ask.units - left % ask.units, LARGEST), axis=0)
    firsts = np.minimum(missing, (further > 0).sum(axis=0))
    chosen = np.arange(len(left))[:, None] < firsts
    price = np.where(chosen, first, 0).sum(axis=0) + (missing - firsts) * ask.units
    return np.where(missing <= further.sum(axis=0), price, LARGEST)


def _units(left: Ints, all_of_it: Ints, ask: Slice, members: int) -> Ints:
    """Return [GPU] the units that must become free on one node."""
    freed = np.zeros_like(left)
    places = np.minimum(left // ask.units, members)
    while places.sum() < members * ask.gpus:
        lacks = (places + 1) * ask.units - left - freed
        open_to = (places < members) & ((places + 1) * ask.units <= all_of_it)
        gpu = int(np.where(open_to, lacks, LARGEST).argmin())
        freed[gpu] += lacks[gpu]
        places[gpu] += 1
    return freed
