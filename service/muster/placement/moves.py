"""Find where a single member of a plan could go instead, while the other members stay in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.cluster.candidates import Excluded, admits, refusal
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.fabric import MAX_RING_GPUS
from muster.placement.cluster.matching import ClusterView
from muster.placement.cluster.topology import Place
from muster.placement.evaluate import Held, evaluated, spots_of, used_gpus
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.existing import existing_of
from muster.placement.gang.instance import room_of
from muster.placement.gpus.choices import choices
from muster.placement.gpus.costs import SHARING_COSTS, Cost, On
from muster.placement.gpus.node_rules import InNode, sets_under
from muster.placement.gpus.slices import NodeGpus, ask_of
from muster.placement.limits import member_room
from muster.placement.verify import verify


def alternates(
    snapshot: Snapshot,
    request: Request,
    plan: Placed,
    limit: int = 8,
    *,
    excluded: Excluded | None = None,
) -> tuple[tuple[str, ...], ...]:
    """Return for each member, in the plan's order, the nodes where it may go: the planned one first, `limit`
    in all.

    The others are in the same part of the required scope and have room next to the rest of the plan. Nearest
    nodes come first: same rack, same zone, then the least room. `snapshot` is the cluster without this gang.
    `excluded` are nodes that plugins refuse, by role, as in Limits.
    """
    # then the whole gang is planned again
    if any(constraint.binds for constraint, *_ in constraints_of(request)):
        return tuple((member.node,) for member in plan.members)
    view = ClusterView(snapshot, request).columns
    snapshot = view.snapshot
    full = snapshot.taking(_usage(request, member) for member in plan.members)
    after = {view.row[member.node]: full.nodes[member.node] for member in plan.members}
    free = view.free_count.copy()
    for row, state in after.items():
        free[row] = state.free_gpu_count
    inside = _same_part(view, request, plan)
    levels = [view.topology.index(level.scope) for level in view.levels[::-1]]
    memo: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    open_to: dict[str, Ints] = {}
    alternate_nodes = []
    for member in plan.members:
        home = view.row[member.node]
        near = tuple(int(codes[home]) for codes in levels)
        if member.role not in open_to:
            role = next(role for role in request.roles if role.name == member.role)
            room = room_of(view, role) > 0
            for row, state in after.items():
                room[row] = _fits(state, role)
            room[_full(view, role, plan)] = False
            open_to[member.role] = np.flatnonzero(inside & room & admits(view, role, excluded or {}))
        rows = open_to[member.role]
        if (member.role, near) not in memo:
            apart = [
                (codes[rows] != code) | (codes[rows] < 0) for codes, code in zip(levels, near, strict=True)
            ]
            order = np.lexsort((rows, free[rows], *apart[::-1]))[:limit]
            memo[member.role, near] = rows[order].tolist()
        other_nodes = (view.names[row] for row in memo[member.role, near] if row != home)
        alternate_nodes.append((member.node, *islice(other_nodes, limit - 1)))
    return tuple(alternate_nodes)


def move(snapshot: Snapshot, request: Request, plan: Placed, uid: str, node: str) -> Placed | None:
    """Return the plan with this one member on `node`, on the best GPUs there; None if that breaks a rule.

    The GPUs are best together with the gang's others on the node. The plan is verified, but no longer proven
    optimal. `snapshot` is the cluster without this gang. That no plugin refuses the node is for the caller to
    know.
    """
    member = next((m for m in plan.members if m.uid == uid), None)
    if member is None or node not in snapshot.nodes:
        return None
    if member.node == node:
        return plan
    cluster = ClusterView(snapshot, request)
    view = cluster.columns
    snapshot = view.snapshot
    role = next(role for role in request.roles if role.name == member.role)
    staying = tuple(m for m in plan.members if m.uid != uid)
    after = snapshot.taking(_usage(request, m) for m in staying)
    if refusal(snapshot.nodes[node].node, role) or not _fits(after.nodes[node], role):
        return None
    place = view.place(view.row[node])
    free = after.nodes[node].free_gpus
    allowed = place.all_gpus
    if request.required_scope is not None:
        allowed = _inside(view, place, request.required_scope, staying)
    gang_gpus = mask_of([gpu for m in staying if m.node == node for gpu in m.gpus])
    if role.slice:
        gpus = _best_shared(place, after.nodes[node], allowed, gang_gpus, role)
    else:
        gpus = _best_beside(place, free, allowed, gang_gpus, role.gpus)
    if gpus is None:
        return None
    moved = replace(member, node=node, gpus=tuple(bits(gpus)))
    members = tuple(moved if m.uid == uid else m for m in plan.members)
    moved_plan = replace(evaluated(cluster, members), truncated=plan.truncated, coming=plan.coming)
    return None if verify(snapshot, request, moved_plan) else moved_plan


def _best_beside(place: Place, free: int, allowed: int, gang_gpus: int, size: int) -> int | None:
    """Return the mask of the free and allowed GPUs that are best with `gang_gpus`; None if too few are free.

    `gang_gpus` masks the GPUs that the gang already has on the node. On nodes with too many GPUs for ring
    tables, the GPUs are best by themselves.
    """
    if place.shape.topology.gpu_count > MAX_RING_GPUS:
        gang_gpus = 0
    touched = sum(domain for domain in place.shape.domains if domain & gang_gpus)
    rule = InNode((size,), (1,), (0,), (-1,), there=gang_gpus, touched=touched)
    gpu_sets = sets_under(rule, place.shape, free, (1,), allowed)
    return gpu_sets[0][0].mask if gpu_sets else None


def _best_shared(place: Place, state: NodeState, allowed: int, gang_gpus: int, role: Role) -> int | None:
    """Return the mask of the GPUs for one member's slices that are best with the gang's others; None without
    room.
    """
    rule = InNode((0,), (1,), (0,), (-1,), there=gang_gpus)
    node = NodeGpus(place.shape, state.free_gpus, state.free_memory, allowed)
    ways = choices(
        (ask_of(role),), ((1,),), node, On((Cost.NVLINK_DOMAINS, *SHARING_COSTS), bool(place.wide), rule)
    )
    return int(ways.masks[0]) if len(ways.masks) else None


def _inside(view: Columns, place: Place, scope: str, staying: tuple[MemberPlacement, ...]) -> int:
    """Return the mask of the node's GPUs in parts of the scope that hold the rest of the gang."""
    common: set[str] | None = None
    for member in staying:
        parts = view.topology.parts(view.row[member.node], scope)
        inside = {name for name, mask in parts if mask_of(member.gpus) & ~mask == 0}
        common = inside if common is None else common & inside
    reach = 0
    for name, mask in view.topology.parts(view.row[place.name], scope):
        if common is None or name in common:
            reach |= mask
    return reach


def _same_part(view: Columns, request: Request, plan: Placed) -> Bools:
    """Return [row] bool: whether the node is in the part of the required scope that holds the plan and
    existing members.
    """
    inside = np.ones(len(view.names), bool)
    scope = request.required_scope
    if scope is None:
        return inside
    held_members = Held(view, spots_of(view, used_gpus(plan.members)), existing_of(view, request))
    if not held_members.common(scope) or not plan.members:
        return ~inside
    row = view.row[plan.members[0].node]
    domain = view.topology.regions(scope)
    return np.asarray(domain == domain[row])


def _full(view: Columns, role: Role, plan: Placed) -> list[int]:
    """Return the rows of nodes that cannot hold another member of the role next to those of the plan."""
    counts = Counter(member.node for member in plan.members if member.role == role.name)
    return [view.row[node] for node, most in role.room.items() if node in view.row and counts[node] >= most]


def _fits(state: NodeState, role: Role) -> bool:
    room = member_room(role.resources, state.free) > 0 and state.free_gpu_count >= role.gpus
    if not role.slice:
        return room
    return room and sum(units >= role.slice.units for units in state.free_memory) >= role.slice.gpus


def _usage(request: Request, member: MemberPlacement) -> Usage:
    resources = next(role.resources for role in request.roles if role.name == member.role)
    return Usage(member.uid, member.node, resources, gpus=mask_of(member.gpus), units=member.units)
