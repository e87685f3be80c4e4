"""Find the fewest GPUs that must become free so that a gang fits, with everything else as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.domain.relaxations import MoreFree
from muster.domain.request import Role
from muster.domain.topology import bits, mask_of
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import ALL_GPUS, LARGEST, MASK_GPUS, Columns, gpus_in
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, Kind, World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.counterfactual import GPU
from muster.placement.explain.memory import more_memory
from muster.placement.explain.offers import Offers, cheapest
from muster.placement.gang.instance import room_of

FEW = 8
"""The most GPUs that count as little to set free: one node's."""

Freed = dict[int, int]
"""row → mask of the GPUs to free. If it is unknown which GPUs are taken, only their number matters."""


def more_free(conflict: Conflict) -> MoreFree | None:
    """Return which GPUs, or how much of their memory, must become free for a conflict of one role.

    The result is None if GPUs alone do not help.
    """
    roles = conflict.members_of
    if len(roles) == 1 and roles[0].slice:
        return more_memory(conflict, roles[0], roles[0].slice)
    if len(roles) > 1 or not roles[0].gpus or Assumption(Kind.TAKEN, what=GPU) not in conflict.kept:
        return None
    assumptions, world = conflict.assumptions, conflict.seen()
    empty = assumptions.world(assumptions.all - {Assumption(Kind.TAKEN, what=GPU)}).view
    freed = _inside_nodes(world, empty, roles[0]) if world.request.required_scope in INSIDE else None
    across = _across_nodes(world, empty, roles[0])
    if across is not None and (freed is None or _gpus(across) < _gpus(freed)):
        freed = across
    if freed is None:
        return None
    gang = assumptions.world(assumptions.all)
    view = _with_free(gang.view, freed)
    room = {role.name: room_of(view, role) for role in gang.request.roles}
    if conflict.oracle.enough(replace(gang, view=view, room=room)) is not True:
        return None
    nodes = tuple((world.view.names[row], mask.bit_count()) for row, mask in sorted(freed.items()))
    return MoreFree(roles[0].gpu_resource, _gpus(freed), nodes)


def is_little(freed: MoreFree) -> bool:
    """Return whether someone may well set this free: one node's GPUs, or memory on one node."""
    return len(freed.nodes) == 1 if freed.resource == GPU_MEMORY else freed.amount <= FEW


def _across_nodes(world: World, empty: Columns, role: Role) -> Freed | None:
    """Return the cheapest GPUs to free, member by member.

    On each node the first member costs least, because it uses what is left over there.
    """
    view, part = world.view, world.view.topology.regions(world.request.required_scope)
    usable = world.admitted[role.name] & (part >= 0)
    if world.request.required_scope in INSIDE:
        usable &= view.topology.in_wide
    rows = np.flatnonzero(usable)
    free = gpus_in(view.free_gpus[rows], ALL_GPUS) - view.unindexed[rows]
    others = room_of(view, replace(role, gpus=0))[rows]
    hosted = np.minimum(np.maximum(0, free) // role.gpus, others)
    more = np.minimum(empty.free_count[rows] // role.gpus, others) - hosted
    rows, free, hosted, more = rows[more > 0], free[more > 0], hosted[more > 0], more[more > 0]
    room = np.minimum(world.room[role.name][usable], world.wanted)
    missing = world.wanted - np.bincount(part[usable], room)
    first = role.gpus * (hosted + 1) - free
    # Each node offers one member at the first price, then others at the full price. A node with GPUs of
    # unknown index offers only one.
    row = np.concatenate([rows, rows])
    price = np.concatenate([first, np.full(len(rows), role.gpus)])
    offered = np.concatenate([np.ones_like(more), np.where(first > role.gpus, 0, more - 1)])
    chosen = cheapest(Offers(row, price, offered), part, missing.astype(np.int64))
    freed: Freed = {}
    for i, taken in chosen or ():
        freed[int(row[i])] = freed.get(int(row[i]), 0) + taken * int(price[i])
    if not freed:
        return None
    return {
        row: _lowest(int(empty.free_gpus[row]) & ~int(view.free_gpus[row]), gpus)
        for row, gpus in freed.items()
    }


def _inside_nodes(world: World, empty: Columns, role: Role) -> Freed | None:
    """Return the GPUs to free in the part of a node that lacks fewest."""
    view, needed = world.view, role.gpus * world.wanted
    usable = world.admitted[role.name] & view.promised & ~view.topology.in_wide
    usable &= room_of(view, replace(role, gpus=0)) >= world.wanted
    best: tuple[int, int, int] | None = None
    for shape in np.unique(view.shape[usable]).tolist():
        rows = np.flatnonzero(usable & (view.shape == shape))
        for _, mask in view.topology.parts(int(rows[0]), str(world.request.required_scope)):
            room = gpus_in(empty.free_gpus[rows], mask) >= needed
            lacks = needed - (gpus_in(view.free_gpus[rows], mask) - view.unindexed[rows])
            if room.any():
                at = int(np.where(room, lacks, LARGEST).argmin())
                found = (int(lacks[at]), int(rows[at]), mask)
                best = found if best is None else min(best, found)
    if best is None:
        return None
    lacks_least, row, mask = best
    return {row: _lowest(int(empty.free_gpus[row]) & ~int(view.free_gpus[row]) & mask, lacks_least)}


def _lowest(mask: int, gpus: int) -> int:
    """Return `gpus` bits of the mask. If it has too few, because indices are unknown, any other bits are
    added.
    """
    indices = [*bits(mask), *(i for i in range(MASK_GPUS) if not mask >> i & 1)]
    return mask_of(indices[:gpus])


def _with_free(view: Columns, freed: Freed) -> Columns:
    free = view.amounts.copy()
    for row, mask in freed.items():
        unknown = min(int(free[2, row]), mask.bit_count())
        known = mask_of(list(bits(mask & ~int(free[0, row])))[: mask.bit_count() - unknown])
        free[0, row] |= known
        free[2, row] -= unknown
        free[1, row] = max(0, int(free[0, row]).bit_count() - int(free[2, row]))
    return replace(view, amounts=free)


def _gpus(freed: Freed) -> int:
    return sum(mask.bit_count() for mask in freed.values())
