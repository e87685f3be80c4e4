"""Find where a single member of a plan could go instead, while the other members stay in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, islice
from math import comb
from types import MappingProxyType

import numpy as np

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.cluster.candidates import admits, refusal
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.matching import view_of
from muster.placement.cluster.topology import Place
from muster.placement.evaluate import (
    Held,
    objective,
    spots_of,
    unknown_indices,
    unknown_links,
    used_gpus,
)
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.existing import existing_of
from muster.placement.gang.instance import room_of
from muster.placement.gpus.choices import choices
from muster.placement.gpus.costs import SHARING_COSTS, Cost, On
from muster.placement.gpus.gpusets import best_sets, rank, value_of
from muster.placement.gpus.node_rules import InNode
from muster.placement.gpus.slices import NodeGpus, ask_of
from muster.placement.limits import member_room
from muster.placement.verify import verify

NONE: Mapping[tuple[str, str], str] = MappingProxyType({})
"""No pair is excluded."""

MOST_SETS = 7_000
"""The most sets of GPUs that are compared one by one: all of a node with 16 GPUs."""


def alternates(
    snapshot: Snapshot,
    request: Request,
    placed: Placed,
    limit: int = 8,
    *,
    excluded: Mapping[tuple[str, str], str] = NONE,
) -> tuple[tuple[str, ...], ...]:
    """Return for each member, in the plan's order, the nodes where it may go: the planned one first, `limit`
    in all.

    The others are in the same part of the required scope and have room next to the rest of the plan. Nearest
    nodes come first: same rack, same zone, then the least room. `snapshot` is the cluster without this gang.
    `excluded` are (role, node) pairs that a plugin refused, as in Limits.
    """
    # then the whole gang is planned again
    if any(constraint.binds for constraint, *_ in constraints_of(request)):
        return tuple((member.node,) for member in placed.members)
    view = view_of(snapshot, request)
    snapshot = view.snapshot
    full = snapshot.taking(_usage(request, member) for member in placed.members)
    after = {view.row[member.node]: full.nodes[member.node] for member in placed.members}
    free = view.free_count.copy()
    for row, state in after.items():
        free[row] = state.free_gpu_count
    inside = _same_part(view, request, placed)
    levels = [view.topology.index(level.scope) for level in view.levels[::-1]]
    memo: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    open_to: dict[str, Ints] = {}
    found = []
    for member in placed.members:
        home = view.row[member.node]
        near = tuple(int(codes[home]) for codes in levels)
        if member.role not in open_to:
            role = next(role for role in request.roles if role.name == member.role)
            room = room_of(view, role) > 0
            for row, state in after.items():
                room[row] = _fits(state, role)
            room[_full(view, role, placed)] = False
            open_to[member.role] = np.flatnonzero(inside & room & admits(view, role, excluded))
        rows = open_to[member.role]
        if (member.role, near) not in memo:
            apart = [
                (codes[rows] != code) | (codes[rows] < 0) for codes, code in zip(levels, near, strict=True)
            ]
            order = np.lexsort((rows, free[rows], *apart[::-1]))[:limit]
            memo[member.role, near] = rows[order].tolist()
        others = (view.names[row] for row in memo[member.role, near] if row != home)
        found.append((member.node, *islice(others, limit - 1)))
    return tuple(found)


def move(
    snapshot: Snapshot,
    request: Request,
    placed: Placed,
    uid: str,
    node: str,
    *,
    excluded: Mapping[tuple[str, str], str] = NONE,
) -> Placed | None:
    """Return the plan with this one member on `node`, on the best GPUs there; None if that breaks a rule.

    The GPUs are best together with the gang's others on the node. The plan is verified, but no longer proven
    optimal. `snapshot` is the cluster without this gang. `excluded` is as in `alternates`.
    """
    member = next((m for m in placed.members if m.uid == uid), None)
    if member is None or node not in snapshot.nodes:
        return None
    if member.node == node:
        return placed
    view = view_of(snapshot, request)
    snapshot = view.snapshot
    role = next(role for role in request.roles if role.name == member.role)
    rest = tuple(m for m in placed.members if m.uid != uid)
    after = snapshot.taking(_usage(request, m) for m in rest)
    if (
        (role.name, node) in excluded
        or refusal(snapshot.nodes[node].node, role)
        or not _fits(after.nodes[node], role)
    ):
        return None
    place = view.place(view.row[node])
    free = after.nodes[node].free_gpus
    allowed = place.all_gpus
    if request.required_scope is not None:
        allowed = _inside(view, place, request.required_scope, rest)
    there = mask_of([gpu for m in rest if m.node == node for gpu in m.gpus])
    if role.slice:
        chosen = _best_shared(place, after.nodes[node], allowed, there, role)
    else:
        chosen = _best_beside(place, free, allowed, there, role.gpus)
    if chosen is None:
        return None
    moved = replace(member, node=node, gpus=tuple(bits(chosen)))
    members = tuple(moved if m.uid == uid else m for m in placed.members)
    value, scope, part = objective(request, members, view)
    plan = replace(
        placed,
        members=members,
        objective=value,
        scope_reached=scope,
        domain=part,
        optimal=False,
        gap=None,
        unproven=None,
        steps=(),
        unknown_links=unknown_links(request, members, view),
        unknown_indices=unknown_indices(members, view),
    )
    return None if verify(snapshot, request, plan) else plan


def _best_beside(place: Place, free: int, allowed: int, there: int, size: int) -> int | None:
    """Return the mask of the free and allowed GPUs that are best together with `there`; None if too few are
    free.

    `there` masks the GPUs that the gang already has on the node. Where sets are too many, as on nodes with
    more than 16 GPUs, the GPUs are best by themselves.
    """
    gpus = tuple(bits(free & allowed))
    if not there or comb(len(gpus), size) > MOST_SETS:
        best = best_sets(place.shape, free, size, allowed)
        return best[0].mask if best else None

    def order(extra: int) -> tuple[int, ...]:
        return *rank(value_of(place.shape, free | there, there | extra)), extra

    return min(map(mask_of, combinations(gpus, size)), key=order, default=None)


def _best_shared(place: Place, state: NodeState, allowed: int, there: int, role: Role) -> int | None:
    """Return the mask of the GPUs for one member's slices that are best with the gang's others; None without
    room.
    """
    rule = InNode((0,), (1,), (0,), (-1,), there=there)
    node = NodeGpus(place.shape, state.free_gpus, state.free_memory, allowed)
    found = choices(
        (ask_of(role),), ((1,),), node, On((Cost.NVLINK_DOMAINS, *SHARING_COSTS), bool(place.wide), rule)
    )
    return int(found.masks[0]) if len(found.masks) else None


def _inside(view: Columns, place: Place, scope: str, rest: tuple[MemberPlacement, ...]) -> int:
    """Return the mask of the node's GPUs in parts of the scope that hold the rest of the gang."""
    common: set[str] | None = None
    for member in rest:
        parts = view.topology.parts(view.row[member.node], scope)
        inside = {name for name, mask in parts if mask_of(member.gpus) & ~mask == 0}
        common = inside if common is None else common & inside
    reach = 0
    for name, mask in view.topology.parts(view.row[place.name], scope):
        if common is None or name in common:
            reach |= mask
    return reach


def _same_part(view: Columns, request: Request, placed: Placed) -> Bools:
    """Return [row] bool: whether the node is in the part of the required scope that holds the plan and
    existing members.
    """
    inside = np.ones(len(view.names), bool)
    scope = request.required_scope
    if scope is None:
        return inside
    held = Held(view, spots_of(view, used_gpus(placed.members)), existing_of(view, request))
    if not held.common(scope) or not placed.members:
        return ~inside
    row = view.row[placed.members[0].node]
    domain = view.topology.regions(scope)
    return np.asarray(domain == domain[row])


def _full(view: Columns, role: Role, placed: Placed) -> list[int]:
    """Return the rows of nodes that cannot hold another member of the role next to those of the plan."""
    there = Counter(member.node for member in placed.members if member.role == role.name)
    return [view.row[node] for node, most in role.room.items() if node in view.row and there[node] >= most]


def _fits(state: NodeState, role: Role) -> bool:
    room = member_room(role.resources, state.free) > 0 and state.free_gpu_count >= role.gpus
    if not role.slice:
        return room
    return room and sum(left >= role.slice.units for left in state.free_memory) >= role.slice.gpus


def _usage(request: Request, member: MemberPlacement) -> Usage:
    resources = next(role.resources for role in request.roles if role.name == member.role)
    return Usage(member.uid, member.node, resources, gpus=mask_of(member.gpus), units=member.units)
