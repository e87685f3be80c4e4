"""Bound how many members each part of a scope holds: all parts at once, and without a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from muster.domain.request import Role, Scope
from muster.placement.cluster.columns import LARGEST, Ints, gpus_in
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.constraints.together import SEGMENTS
from muster.placement.gang.instance import Counts, Instance, room_of
from muster.placement.model.bound import Floats
from muster.placement.model.problem import Problem
from muster.placement.search.classes import REGION

STEPS = (0.0, 0.5, 0.75, 0.875, 1.0)
"""Discounts tried of each role, if there are at most three roles and no rule binds them.

Discounts help if all members of a role are placed anyway, while the others are four or eight times as large.
"""

CORNERS = (0.0, 1.0)
"""Discounts tried if rules bind members, or with four to six roles. With more roles there are none."""

SLACK = 1e-9
"""Sums of bytes over thousands of nodes are inexact as floats, so bounds are rounded to the safe side."""


def by_sums(instance: Instance, rows: Ints, part: Ints, need: Counts) -> Ints:
    """Return [part] an upper bound of the members that the part holds.

    Members are counted role by role, and resource by resource with the smallest first. For one role that no
    model rule binds, the bound is exact. `part` is the part of each of the rows.
    """
    parts, active = int(part.max()) + 1, [r for r, members in enumerate(need) if members]
    caps = np.minimum(instance.room[:, rows], np.array(need)[:, None])
    most = np.stack([np.minimum(np.bincount(part, caps[r], parts), need[r]) for r in active])
    upper = most.sum(axis=0)
    for amount, free in _resources(instance, rows, active) if len(active) > 1 else ():
        usable = np.minimum(np.maximum(0, free), amount @ caps[active].astype(np.float64))
        spare = np.bincount(part, usable, parts) * (1 + SLACK)
        members = np.zeros(parts)
        for r in np.argsort(amount, kind="stable").tolist():
            more = np.minimum(most[r], spare // amount[r]) if amount[r] else most[r]
            members, spare = members + more, spare - more * amount[r]
        upper = np.minimum(upper, members)
    return np.asarray(upper, np.int64)


def by_filling(instance: Instance, rows: Ints, part: Ints, need: Counts) -> Ints:
    """Return [part] a lower bound of the members that the part holds, if nothing binds them to each other.

    Roles with most GPUs are placed first, node after node.
    """
    order = np.argsort(part, kind="stable")
    rows, part = rows[order], part[order]
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    nodes_of_part = np.diff([*begins, len(part)])
    active = [r for r, members in enumerate(need) if members]
    active.sort(key=lambda r: (-instance.roles[r].gpus, -instance.roles[r].resources.cpu_milli))
    resources = _resources(instance, rows, active)
    lower = np.zeros(int(part.max()) + 1, np.int64)
    for i, r in enumerate(active):
        room = np.minimum(instance.room[r][rows], need[r])
        for amount, free in resources:
            if amount[i]:
                room = np.minimum(room, np.maximum(0, free) // int(amount[i]))
        before = np.cumsum(room) - room
        before -= np.repeat(before[begins], nodes_of_part)
        members = np.clip(need[r] - before, 0, room)
        resources = [(amount, free - members * int(amount[i])) for amount, free in resources]
        lower[part[begins]] += np.add.reduceat(members, begins)
    return lower


def _resources(instance: Instance, rows: Ints, active: Sequence[int]) -> list[tuple[Ints, Ints]]:
    """Return for each resource what a member of each of these roles takes, and what is free of it by row.

    The number of members that rules leave to a node counts as a resource.
    """
    view, roles = instance.columns, [instance.roles[r] for r in active]
    resources = [
        ([role.gpus for role in roles], view.free_count),
        ([min(role.resources.cpu_milli, LARGEST) for role in roles], view.cpu),
        ([min(role.resources.memory_bytes, LARGEST) for role in roles], view.memory),
        ([min(max(1, role.resources.pods), LARGEST) for role in roles], view.pods),
        *(([role.resources.other(name) for role in roles], view.other(name)) for name in instance.others),
    ]
    most = np.array(
        [LARGEST if rule is None or rule.most < 0 else rule.most for rule in instance.rules.node_rules]
    )
    if most.min() < LARGEST:
        resources.append(([1] * len(roles), most[instance.rules.in_node]))
    return [(np.array(amount, np.int64), free[rows]) for amount, free in resources if any(amount)]


def by_packings(problem: Problem, unit: int) -> tuple[Ints, bool]:
    """Return [part of REGION] an upper bound of the members that the part holds, and whether it is exact.

    The bound uses what the nodes take at once, and what rules leave of that. Members of a single role come in
    multiples of `unit` on any node. The bound holds for any discounts of the roles: the members are worth at
    most their discount, plus the best packing of each node at discounted prices.
    """
    need, counts = np.array(problem.need), problem.patterns.counts
    active = np.flatnonzero(need)
    alone = len(active) == 1
    upper, exact = np.zeros(int(problem.parts[REGION].max()) + 1), alone
    for r in active.tolist():
        members, all_rules = _by_part(
            problem, counts.max(axis=1)[:, [r]], (r,), np.ones(1), unit if alone else 1
        )
        upper, exact = upper + np.minimum(members[:, 0], need[r]), exact and all_rules
    if not alone:
        steps = STEPS if len(active) <= 3 and not problem.rules else CORNERS if len(active) <= 6 else (0.0,)
        worth = np.zeros((len(steps) ** len(active), len(need)))
        worth[:, active] = 1 - np.array(list(product(steps, repeat=len(active))))
        packings: Floats = np.tensordot(counts, worth.T, axes=1).max(axis=1)
        values, _ = _by_part(problem, packings, tuple(active.tolist()), worth.max(axis=1), 1)
        upper = np.minimum(upper, (values + (need.sum() - worth @ need)).min(axis=1))
    return np.floor(upper + SLACK).astype(np.int64), exact


def _by_part(
    problem: Problem, of_kind: Floats, roles: tuple[int, ...], price: Floats, unit: int
) -> tuple[Floats, bool]:
    """Return [part of REGION, i] what the nodes of the part hold, and whether all rules were applied.

    `of_kind` [kind, i] is what a node of each kind holds, and `price` [i] the most that one member counts.
    Rules are applied from the narrowest to the widest scope. A rule is left out if it limits more than
    numbers. It is also left out if parts of narrower scopes do not lie within single parts of its scope.
    """
    cells, of_class = np.unique(problem.cell, return_inverse=True)
    region, values = problem.parts[REGION][cells], np.zeros((len(cells), len(price)))
    np.add.at(values, of_class, of_kind[problem.kind] * problem.size[:, None])
    group = first = np.arange(len(cells))
    binding = [rule for rule in problem.rules if not set(roles).isdisjoint(rule.bound)]
    rules = [rule for rule in binding if rule.in_numbers or rule.in_one_part]
    all_rules = len(rules) == len(binding)
    for rule in sorted(rules, key=lambda rule: (-len(np.unique(rule.part)), rule.step)):
        part = rule.part[cells]
        if not set(roles) <= set(rule.bound) or (part != part[first][group]).any():
            all_rules = False
            continue
        part_or_group = np.where(part < 0, int(part.max(initial=0)) + 1 + group, part)
        code = region * (int(part_or_group.max()) + 1) + part_or_group
        _, narrowest, wider = np.unique(code, return_index=True, return_inverse=True)
        sums = np.zeros((len(narrowest), len(price)))
        np.add.at(sums, wider[first], values)
        group, first, values = wider, narrowest, sums
        inside = part[first] >= 0
        if rule.in_one_part:
            all_rules, (_, wide, group) = False, np.unique(region, return_index=True, return_inverse=True)
            most = np.zeros((len(wide), len(price)))
            np.maximum.at(most, group[first[inside]], values[inside])
            first, values = wide, most
            continue
        if len(rule.left):
            limits = rule.left[part[first][inside]][:, None] * price
            values[inside] = np.minimum(values[inside], limits)
        if len(roles) == 1:
            unit = max(unit, rule.step)
            values[inside] -= values[inside] % unit
    by_region = np.zeros((int(problem.parts[REGION].max()) + 1, len(price)))
    np.add.at(by_region, region[first], values)
    return by_region - (by_region % unit if len(roles) == 1 else 0), all_rules


def most_in_segments(instance: Instance, region: Ints) -> tuple[int, int] | None:
    """Return how many members of a single role in nested segments fit in one region, and a row of the region.

    The row is −1 if no member fits. `region` [row] int64 is −1 for none. The result is None if more than the
    segments of one role binds the members, or if the parts of their scopes are not nested.
    """
    role = _only_in_segments(instance)
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
    parts: _Segments | None = _on_nodes(instance, role, rows)
    for segment in reversed(role.segments):
        if parts is not None and segment.scope != Scope.NVLINK_DOMAIN:
            code = rows if segment.scope == Scope.NODE else topology.index(segment.scope)[rows]
            parts = parts.within(code, segment.size)
    parts = parts and parts.within(region[rows], parts.size)
    if parts is None:
        return None
    members = np.minimum(parts.whole * parts.size + parts.short, len(role.members))
    fullest = int(members.argmax())
    return int(members[fullest]), int(rows[parts.part == fullest][0])


def _only_in_segments(instance: Instance) -> Role | None:
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
class _Segments:
    """What parts of one scope hold: `whole` [part] int64 segments of `size` members, and one of `short`.

    `part` [row] int64 is the part of each row, from 0. Whole segments of inner parts add up. Of the shorter
    segments only the longest counts, because just the last segment of a role may be shorter.
    """

    part: Ints
    whole: Ints
    short: Ints
    size: int

    def within(self, code: Ints, size: int) -> _Segments | None:
        """Return what the parts of a wider scope hold, by `code` [row] int64.

        The result is None if the parts do not nest, or the segments: a node may have smaller ones than its
        NVLink domains.
        """
        _, first = np.unique(self.part, return_index=True)
        wider = np.unique(code, return_inverse=True)[1]
        of_part = wider[first]
        if size % self.size or (wider != of_part[self.part]).any():
            return None
        times, short = size // self.size, np.zeros(int(wider.max()) + 1, np.int64)
        inner = np.bincount(of_part, self.whole).astype(np.int64)
        np.maximum.at(short, of_part, self.short)
        return _Segments(wider, inner // times, inner % times * self.size + short, size)


def _on_nodes(instance: Instance, role: Role, rows: Ints) -> _Segments:
    """Return what single nodes hold, in segments by NVLink domain if the role has such."""
    view, room, row_index = instance.columns, room_of(instance.columns, role)[rows], np.arange(len(rows))
    size = next((segment.size for segment in role.segments if segment.scope == Scope.NVLINK_DOMAIN), 0)
    if not size:
        return _Segments(row_index, room, np.zeros_like(room), 1)
    whole, short = np.zeros_like(room), np.zeros_like(room)
    for code in np.unique(view.shape[rows]).tolist():
        of_shape = np.flatnonzero(view.shape[rows] == code)
        for domain in view.shapes[code].domains:
            members = gpus_in(view.free_gpus[rows[of_shape]], domain) // role.gpus
            whole[of_shape] += members // size
            short[of_shape] = np.maximum(short[of_shape], members % size)
    fit = np.minimum(whole, room // size)
    # Where something else is short, a domain has room for one more segment.
    short = np.where(fit < whole, size - 1, short)
    return _Segments(row_index, fit, np.minimum(short, room - fit * size), size)
