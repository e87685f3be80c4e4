"""Count how many members of a single role in nested segments fit, without a solver.

From the narrowest scope to the widest, each part holds a number of whole segments, and then a shorter one.
Whole segments of inner parts add up. Of the shorter ones only the longest stays, because just the last
segment of a role may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.domain.request import Role, Scope
from muster.placement.cluster.columns import Ints, gpus_in
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.constraints.segments import SEGMENTS
from muster.placement.gang.instance import Instance, room_of


def most_in_segments(instance: Instance, region: Ints) -> tuple[int, int] | None:
    """Return how many members fit in one region, and a row of it; −1 for the row if none fits.

    `region` [row] int64 is −1 for none. The result is None if more than the segments of one role binds the
    members, or if the parts of their scopes are not nested.
    """
    role = _alone(instance)
    if role is None:
        return None
    topology, rows = instance.columns.topology, np.flatnonzero(instance.admitted[role.name] & (region >= 0))
    for segment in role.segments:
        if segment.scope == Scope.NVLINK_DOMAIN:
            rows = rows[instance.columns.promised[rows]]
        elif segment.scope != Scope.NODE:
            rows = rows[topology.index(segment.scope)[rows] >= 0]
    if not len(rows):
        return 0, -1
    held: _Held | None = _on_nodes(instance, role, rows)
    for segment in reversed(role.segments):
        if held is not None and segment.scope != Scope.NVLINK_DOMAIN:
            code = rows if segment.scope == Scope.NODE else topology.index(segment.scope)[rows]
            held = held.within(code, segment.size)
    held = held and held.within(region[rows], held.size)
    if held is None:
        return None
    members = np.minimum(held.whole * held.size + held.rest, len(role.members))
    best = int(members.argmax())
    return int(members[best]), int(rows[held.part == best][0])


def _alone(instance: Instance) -> Role | None:
    """Return the only role with members, if nothing but its segments binds them; else None."""
    request = instance.request
    active = [role for role in request.roles if role.members]
    if len(active) != 1 or request.quorum is not None or instance.existing or instance.sliced:
        return None
    (role,), scopes = active, {segment.scope for segment in active[0].segments}
    if any(constraint is not SEGMENTS for constraint, _, _ in constraints_of(request)) or Scope.GPU in scopes:
        return None
    wide = Scope.NVLINK_DOMAIN in scopes and instance.columns.topology.in_wide.any()
    return None if wide or not role.gpus else role


@dataclass(frozen=True, slots=True)
class _Held:
    """What parts of one scope hold: `whole` [part] int64 segments of `size` members, and one of `rest`.

    `part` [row] int64 is the part of each row, from 0.
    """

    part: Ints
    whole: Ints
    rest: Ints
    size: int

    def within(self, code: Ints, size: int) -> _Held | None:
        """Return what the parts of a wider scope hold, by `code` [row] int64.

        The result is None if the parts do not nest, or the segments: a node may have smaller ones than its
        NVLink domains.
        """
        _, first = np.unique(self.part, return_index=True)
        wider = np.unique(code, return_inverse=True)[1]
        of_part = wider[first]
        if size % self.size or (wider != of_part[self.part]).any():
            return None
        times, rest = size // self.size, np.zeros(int(wider.max()) + 1, np.int64)
        inner = np.bincount(of_part, self.whole).astype(np.int64)
        np.maximum.at(rest, of_part, self.rest)
        return _Held(wider, inner // times, inner % times * self.size + rest, size)


def _on_nodes(instance: Instance, role: Role, rows: Ints) -> _Held:
    """Return what single nodes hold, in segments by NVLink domain if the role has such."""
    view, room, every = instance.columns, room_of(instance.columns, role)[rows], np.arange(len(rows))
    size = next((each.size for each in role.segments if each.scope == Scope.NVLINK_DOMAIN), 0)
    if not size:
        return _Held(every, room, np.zeros_like(room), 1)
    whole, rest = np.zeros_like(room), np.zeros_like(room)
    for code in np.unique(view.shape[rows]).tolist():
        of_shape = np.flatnonzero(view.shape[rows] == code)
        for domain in view.shapes[code].domains:
            members = gpus_in(view.free_gpus[rows[of_shape]], domain) // role.gpus
            whole[of_shape] += members // size
            rest[of_shape] = np.maximum(rest[of_shape], members % size)
    fit = np.minimum(whole, room // size)
    # Where something else is short, a domain has room for one more segment.
    rest = np.where(fit < whole, size - 1, rest)
    return _Held(every, fit, np.minimum(rest, room - fit * size), size)
