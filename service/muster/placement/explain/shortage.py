"""Find which resource is short on the nodes that admit the members, and how much of it there is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from muster.domain.causes.too_little import (
    ClusterTooSmall,
    FreeApart,
    FreeInPieces,
    MemberTooLarge,
    NotEnoughFree,
)
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role
from muster.domain.words import GPU_MEMORY, gpus_with
from muster.placement.cluster.columns import Columns, Ints
from muster.placement.explain.assumptions import Kind, World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.counterfactual import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    RESOURCES,
    amount_of,
    emptied,
    free_of,
    in_one_piece,
    resources_of,
    taken_of,
)
from muster.placement.explain.deletion_filter import irreducible
from muster.placement.explain.not_offered import not_offered
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import room_of
from muster.placement.gpus.slices import ask_of, slice_room

RULES: tuple[Kind | Constraint, ...] = (Kind.SCOPE, Kind.RUNNING, *CONSTRAINTS)
"""The gang's own demands, besides room."""


def shortage(conflict: Conflict) -> Cause | None:
    """Return what all nodes together lack for the members.

    The result is None if no node admits the members and nothing else needs to be said.
    """
    world = conflict.seen(without=RULES)
    if conflict.nobody_admits and conflict.even_empty and conflict.told(Kind.REFUSED):
        return None
    rows = np.flatnonzero(np.logical_or.reduce([world.admitted[role.name] for role in conflict.members_of]))
    if not len(rows) and len(world.view.names):
        return None
    request = conflict.assumptions.request
    whole = emptied(world.view, replace(request, running=())) if request.running else world.view
    if conflict.even_empty and (cause := _too_large(conflict, replace(world, view=whole), rows)):
        return cause
    # Members that fit one by one may still break a rule, so then they are not counted.
    fit = None if request.required_scope or any(constraints_of(request)) else conflict.oracle.members(world)
    short, *others = _limits(conflict, world, rows)
    amounts = {what: _sum(free_of(world.view, what)[rows]) for what in resources_of(world.request.roles)}
    if others:
        free = tuple((_called(conflict, what), amounts[what]) for what in (short, *others))
        return FreeApart(conflict.name, free, fit, world.wanted, conflict.even_empty)
    name, needed = _called(conflict, short), _needed(world, short)
    if conflict.even_empty:
        there = _there(world.view, request, rows, short)
        waiting = [role.name for role in request.roles]
        names = {role.name for role in conflict.members_of} | {role for role, _ in there}
        roles = ", ".join((*sorted(names.difference(waiting)), *(name for name in waiting if name in names)))
        needed += sum(amount for _, amount in there)
        fit = fit if fit is None else fit + len(there)
        total, largest = _sum(free_of(whole, short)[rows]), _largest(whole, rows, short)
        wanted = world.wanted + len(there)
        return ClusterTooSmall(roles, name, total, needed, fit, wanted, *largest, conflict.nobody_admits)
    asked = (conflict.name, name, amounts[short], needed, fit, world.wanted)
    elsewhere = _sum(np.delete(free_of(world.view, short), rows))
    largest = _largest(world.view, rows, short)
    lacks = amounts[short] < needed
    return NotEnoughFree(*asked, elsewhere) if lacks else FreeInPieces(*asked, *largest, elsewhere)


def _there(view: Columns, request: Request, rows: Ints, what: str) -> list[tuple[str, int]]:
    """Return the role of each existing member on these nodes, and what it takes of a resource. The nodes'
    total includes that.
    """
    if not request.running:
        return []
    roles, here = {role.name: role for role in request.roles}, {view.names[row] for row in rows}
    there = [one for one in request.running if one.node in here]
    waiting = [(one.role, amount_of(roles[one.role], what)) for one in there if one.role in roles]
    others = [(one.role, taken_of(one.usage, what)) for one in there if one.role not in roles and one.usage]
    return others + waiting


def _limits(conflict: Conflict, world: World, rows: Ints) -> list[str]:
    """Return the resources that are short.

    If one resource is short by itself, it is the only one; one that other pods take is preferred. Otherwise
    they are an irreducible set of resources that are short only together.
    """
    asked = [
        what
        for what in resources_of(conflict.members_of)
        if any(amount_of(role, what) for role in conflict.members_of)
    ]
    taken = {each.what for each in conflict.told(Kind.TAKEN)}
    asked.sort(key=lambda what: what not in taken)
    covered = {what: _covered(conflict, world, rows, what) for what in asked}
    alone = [what for what in asked if covered[what] < 1]
    if alone:
        return [min(alone, key=lambda what: (what not in taken, covered[what]))]

    def forbids(some: frozenset[str]) -> bool:
        return conflict.oracle.enough(_asking(world, some)) is False

    short = irreducible([(what,) for what in reversed(asked)], forbids)
    return [what for what in asked if what in short]


def _asking(world: World, resources: Collection[str]) -> World:
    """Return the world in which members ask only for these resources, and for room for a pod."""

    def asking(role: Role) -> Role:
        cpu = role.resources.cpu_milli if CPU in resources else 0
        memory = role.resources.memory_bytes if MEMORY in resources else 0
        others = tuple(other for other in role.resources.others if other[0] in resources)
        of_pod = replace(role.resources, cpu_milli=cpu, memory_bytes=memory, others=others)
        part = role.slice if GPU_MEMORY in resources else None
        return replace(role, resources=of_pod, gpus=role.gpus if GPU in resources else 0, slice=part)

    roles = tuple(map(asking, world.request.roles))
    room = {role.name: room_of(world.view, role) for role in roles}
    return replace(world, request=replace(world.request, roles=roles), room=room)


def _too_large(conflict: Conflict, world: World, rows: Ints) -> Cause | None:
    """Return the cause that one member exceeds every node that admits it, even an empty one; None if none
    does.
    """
    for role in conflict.members_of:
        admitted = rows[world.admitted[role.name][rows]]
        if not len(admitted) or room_of(world.view, role)[admitted].any():
            continue
        for what in resources_of((role,)):
            node, largest = _largest(world.view, admitted, what)
            asked = role.slice.units if what == GPU_MEMORY and role.slice else amount_of(role, what)
            if asked > largest:
                name = _called(conflict, what)
                if not largest and what not in RESOURCES and not _is_offered(world.view, what):
                    return not_offered(world.view, role, what)
                return MemberTooLarge(role.name, name, asked, node, largest, conflict.nobody_admits)
        # Each resource alone is enough on some node. The node with most GPUs lacks another resource.
        best = admitted[int(_most_gpus(world.view, role)[admitted].argmax())]
        node = world.view.names[best]
        for what in (CPU, MEMORY, PODS, *(name for name, _ in role.resources.others), GPU):
            has = int(free_of(world.view, what)[best])
            if amount_of(role, what) > has:
                name = _called(conflict, what)
                return MemberTooLarge(
                    role.name, name, amount_of(role, what), node, has, conflict.nobody_admits
                )
        if role.slice:
            has, name = int(_most_gpus(world.view, role)[best]), gpus_with(role.slice.units)
            return MemberTooLarge(role.name, name, role.slice.gpus, node, has, conflict.nobody_admits)
    return None


def _is_offered(view: Columns, what: str) -> bool:
    return any(state.node.allocatable.other(what) for state in view.states)


def _most_gpus(view: Columns, role: Role) -> Ints:
    """Return [row] int64: the GPUs that could serve the role."""
    if role.slice is None:
        return free_of(view, GPU)
    return np.asarray((view.gpu_memory >= role.slice.units).sum(axis=0), np.int64)


def _covered(conflict: Conflict, world: World, rows: Ints, what: str) -> float:
    """Return which share of the need this resource covers. Below 1 it is short by itself.

    For one role members are counted node by node, else amounts are summed up.
    """
    free, needed = np.maximum(0, free_of(world.view, what)[rows]), _needed(world, what)
    if len(conflict.members_of) == 1 and what == GPU_MEMORY:
        room = slice_room(world.view.gpu_memory[:, rows], ask_of(conflict.members_of[0]))
        return int(np.minimum(room, world.wanted).sum()) / max(1, world.wanted)
    if len(conflict.members_of) == 1:
        each = amount_of(conflict.members_of[0], what)
        fit = sum(np.minimum(free // each, world.wanted).tolist()) if each else np.inf
        return fit / max(1, world.wanted)
    return _sum(free) / needed if needed else np.inf


def _needed(world: World, what: str) -> int:
    """Return how much of the resource the smallest members need, as many as must fit."""
    amounts = sorted((amount_of(role, what), len(role.members)) for role in world.request.roles)
    needed, left = 0, world.wanted
    for amount, members in amounts:
        needed += amount * min(left, members)
        left -= min(left, members)
    return needed


def _largest(view: Columns, rows: Ints, what: str) -> tuple[str, int]:
    """Return the node with most of a resource, and how much it has. GPU memory is that of one GPU."""
    if not len(rows):
        return "", 0
    free = in_one_piece(view, what)[rows]
    best = int(free.argmax())
    return view.names[rows[best]], max(0, int(free[best]))


def _sum(free: Ints) -> int:
    return sum(np.maximum(0, free).tolist())  # Python's integers do not overflow, however absurd an amount is


def _called(conflict: Conflict, what: str) -> str:
    """Return the name of a resource for messages: GPUs have the name of their resource."""
    names = [role.gpu_resource for role in conflict.members_of if role.gpus]
    return names[0] if what == GPU and names else what
