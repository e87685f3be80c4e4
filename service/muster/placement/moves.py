"""Find where a single member of a plan could go instead, while the other members stay in place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.request import Request, Role, RunningMember
from muster.domain.snapshot import Snapshot
from muster.domain.topology import mask_of
from muster.placement.cluster.candidates import Excluded, admits
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.matching import GangCluster
from muster.placement.cluster.topology import INSIDE
from muster.placement.evaluate import TouchedParts, evaluate, used_gpus
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.instance import fits_at_once, instance_of, room_of
from muster.placement.gang.running import running_members_of
from muster.placement.limits import Budget, Limits
from muster.placement.naming import place_members
from muster.placement.search.single_node import find_best_node
from muster.placement.verify import verify


def alternates(
    snapshot: Snapshot, request: Request, plan: Placed, limit: int = 8, *, excluded: Excluded | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return for each member, in the plan's order, the nodes where the member may go: the planned node first,
    `limit` in all.

    The other nodes are in the same part of the required scope and have room next to the plan's members. The
    nearest nodes come first: same rack, same zone, then the least room. `snapshot` is the cluster without
    this gang. `excluded` are nodes that plugins refuse, by role, as in Limits.
    """
    # If a constraint binds members to each other, no member moves alone: the whole gang is planned again.
    if any(constraint.binds for constraint, *_ in constraints_of(request)):
        return tuple((member.node,) for member in plan.members)
    full = snapshot.with_usages(_usage_of(request, member) for member in plan.members)
    columns = GangCluster(full, request).columns
    in_part = _in_same_part(columns, request, plan)
    levels = [columns.topology.index(level.scope) for level in columns.levels[::-1]]
    memo: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    open_to: dict[str, Ints] = {}
    alternate_nodes = []
    for member in plan.members:
        home = columns.row[member.node]
        home_domains = tuple(int(codes[home]) for codes in levels)
        if member.role not in open_to:
            role = next(role for role in request.roles if role.name == member.role)
            room = room_of(columns, role) > 0
            room[_full_rows(columns, role, plan)] = False
            open_to[member.role] = np.flatnonzero(in_part & room & admits(columns, role, excluded or {}))
        rows = open_to[member.role]
        if (member.role, home_domains) not in memo:
            differs_by_level = [
                (codes[rows] != code) | (codes[rows] < 0)
                for codes, code in zip(levels, home_domains, strict=True)
            ]
            order = np.lexsort((rows, columns.free_count[rows], *differs_by_level[::-1]))[:limit]
            memo[member.role, home_domains] = rows[order].tolist()
        other_nodes = (columns.names[row] for row in memo[member.role, home_domains] if row != home)
        alternate_nodes.append((member.node, *islice(other_nodes, limit - 1)))
    return tuple(alternate_nodes)


def move(snapshot: Snapshot, request: Request, plan: Placed, uid: str, node: str) -> Placed | None:
    """Return the plan with this one member on `node`, on the best GPUs there; None if that breaks a rule.

    The GPUs are best together with those of the gang's other members on the node. The plan is verified, but
    no longer proven optimal. `snapshot` is the cluster without this gang. The caller must know that no plugin
    refuses the node.
    """
    member = next((m for m in plan.members if m.uid == uid), None)
    if member is None or node not in snapshot.nodes:
        return None
    if member.node == node:
        return plan
    with_others = snapshot.with_usages(
        _usage_of(request, place) for place in plan.members if place is not member
    )
    instance = instance_of(GangCluster(with_others, _request_of_one(request, plan, member, node)), {})
    rows, scope = np.array([instance.columns.row[node]]), request.required_scope
    if not fits_at_once(instance, instance.need)[rows].any():
        return None
    inner_scopes = [scope] if scope in INSIDE else []
    best_node, _ = find_best_node(instance, rows, instance.need, inner_scopes, Budget(Limits()))
    if best_node is None:
        return None
    (moved,) = place_members(instance, (best_node.plan,))
    members = tuple(moved if place.uid == uid else place for place in plan.members)
    moved_plan = evaluate(GangCluster(snapshot, request), members)
    moved_plan = replace(moved_plan, truncated=plan.truncated, coming=plan.coming)
    return None if verify(snapshot, request, moved_plan) else moved_plan


def _request_of_one(request: Request, plan: Placed, member: MemberPlacement, node: str) -> Request:
    """Return the request for this member alone. The gang's other members on the node count as running."""
    members = {waiting.uid: waiting for role in request.roles for waiting in role.members}
    roles = tuple(
        replace(role, members=(members[member.uid],) if role.name == member.role else ())
        for role in request.roles
    )
    running = [pod for pod in request.running if pod.node == node]
    for place in plan.members:
        if place.node == node:
            running.append(RunningMember(members[place.uid], place.role, node, mask_of(place.gpus)))
    return replace(request, roles=roles, min_member=1, quorum=None, running=tuple(running))


def _in_same_part(columns: Columns, request: Request, plan: Placed) -> Bools:
    """Return [row] bool: whether the node is in the gang's part of the required scope."""
    in_part = np.ones(len(columns.names), bool)
    scope = request.required_scope
    if scope is None:
        return in_part
    held_members = TouchedParts(
        columns, *used_gpus(columns, plan.members), running_members_of(columns, request)
    )
    if not held_members.common_parts(scope) or not plan.members:
        return ~in_part
    row = columns.row[plan.members[0].node]
    domain = columns.topology.regions(scope)
    return np.asarray(domain == domain[row])


def _full_rows(columns: Columns, role: Role, plan: Placed) -> list[int]:
    """Return the rows of nodes that cannot hold another member of the role next to the plan's members."""
    counts = Counter(member.node for member in plan.members if member.role == role.name)
    return [
        columns.row[node]
        for node, max_members in role.room.items()
        if node in columns.row and counts[node] >= max_members
    ]


def _usage_of(request: Request, member: MemberPlacement) -> Usage:
    resources = next(role.resources for role in request.roles if role.name == member.role)
    return Usage(member.uid, member.node, resources, gpus=mask_of(member.gpus), units=member.units)
