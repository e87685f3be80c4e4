"""Find where existing members force other members to lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from muster.domain.causes.out_of_place import RunningElsewhere
from muster.domain.request import Role, Scope
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.gang.blocks import Together, blocks_of
from muster.placement.gang.existing import BoundMember, common_parts, existing_of
from muster.placement.gpus.slices import ask_of, slice_room


def existing(conflict: Conflict, *roles: str) -> tuple[BoundMember, ...]:
    """Return the existing members of these roles, or of all roles; () if the conflict does not depend on
    them.
    """
    if not conflict.told(Kind.RUNNING):
        return ()
    members = existing_of(conflict.assumptions.view, conflict.assumptions.request).members
    return tuple(stay for stay in members if not roles or stay.running.role in roles)


def where_they_run(conflict: Conflict, scope: str, stays: Sequence[BoundMember]) -> str:
    """Return the part of a scope that holds all these members; "" if there is none, or none is known."""
    return min(common_parts(conflict.assumptions.view, scope, stays) or ("",))


def joining(conflict: Conflict, scope: str, *roles: str) -> Iterator[RunningElsewhere]:
    """Yield the cause that other members must join the existing members of these roles, or of all roles."""
    stays = existing(conflict, *roles)
    if stays:
        yield RunningElsewhere(scope, where_they_run(conflict, scope, stays), len(stays))


def begun_segment(conflict: Conflict, role: Role) -> Iterator[RunningElsewhere]:
    """Yield the cause of the first begun segment whose part has too little room for the rest of it."""
    stays = {stay.running: stay for stay in existing(conflict, role.name)}
    if not stays:
        return
    roles = (replace(role, required_scope=None),)
    request = replace(conflict.assumptions.request, roles=roles, running=tuple(stays))
    blocks = blocks_of(request)
    begun = []
    for together in blocks.together:
        if together.running:
            here = [stays[one] for one in together.running]
            part = where_they_run(conflict, together.scope, here)
            short = _missing(blocks.roles, together) - _room(conflict, role, together.scope, part)
            begun.append((short, RunningElsewhere(together.scope, part, len(here))))
    yield from [cause for short, cause in begun if short > 0][:1] or [cause for _, cause in begun][:1]


def _missing(blocks: Sequence[Role], together: Together) -> int:
    return sum(len(blocks[block].members) for block in together.blocks)


def _room(conflict: Conflict, role: Role, scope: str, part: str) -> int:
    """Return how many members the part has room for, if there were no others."""
    world = conflict.seen()
    view, room = world.view, np.where(world.admitted[role.name], world.room[role.name], 0)
    if not part:
        return 0
    if scope == Scope.NODE:
        return int(room[view.row[part]])
    if scope not in INSIDE:
        domains = view.topology.domains(scope)
        return int(room[domains.codes == domains.index[part]].sum())
    rooms = 0
    for row in np.flatnonzero(room).tolist():
        for name, mask in view.topology.parts(row, scope):
            if name == part:
                free = (int(view.free_gpus[row]) & mask).bit_count()
                fit = free // role.gpus if role.gpus else int(room[row])
                if role.slice:
                    memory = view.gpu_memory[:, row] * (mask >> np.arange(len(view.gpu_memory)) & 1)
                    fit = int(slice_room(memory[:, None], ask_of(role))[0])
                rooms += min(int(room[row]), fit)
    return rooms
