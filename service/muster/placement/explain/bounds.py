"""Bound how many members the parts of a scope hold, for all parts at once and without a solver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import LARGEST, Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.model.problem import Problem
from muster.placement.search.classes import REGION

Floats = NDArray[np.float64]

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

    It counts role by role, and resource by resource with the smallest members first. For one role that no
    model rule binds, it is exact. `part` is the part of each of the rows.
    """
    parts, active = int(part.max()) + 1, [r for r, count in enumerate(need) if count]
    caps = np.minimum(instance.room[:, rows], np.array(need)[:, None])
    most = np.stack([np.minimum(np.bincount(part, caps[r], parts), need[r]) for r in active])
    upper = most.sum(axis=0)
    for asked, free in _resources(instance, rows, active) if len(active) > 1 else ():
        usable = np.minimum(np.maximum(0, free), asked @ caps[active].astype(np.float64))
        left = np.bincount(part, usable, parts) * (1 + SLACK)
        held = np.zeros(parts)
        for r in np.argsort(asked, kind="stable").tolist():
            fit = np.minimum(most[r], left // asked[r]) if asked[r] else most[r]
            held, left = held + fit, left - fit * asked[r]
        upper = np.minimum(upper, held)
    return np.asarray(upper, np.int64)


def by_filling(instance: Instance, rows: Ints, part: Ints, need: Counts) -> Ints:
    """Return [part] a lower bound of the members that the part holds, if nothing binds them to each other.

    Roles with most GPUs are placed first, node after node.
    """
    order = np.argsort(part, kind="stable")
    rows, part = rows[order], part[order]
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    of_part = np.diff([*begins, len(part)])
    active = [r for r, count in enumerate(need) if count]
    active.sort(key=lambda r: (-instance.roles[r].gpus, -instance.roles[r].resources.cpu_milli))
    resources = _resources(instance, rows, active)
    placed = np.zeros(int(part.max()) + 1, np.int64)
    for i, r in enumerate(active):
        room = np.minimum(instance.room[r][rows], need[r])
        for asked, free in resources:
            if asked[i]:
                room = np.minimum(room, np.maximum(0, free) // int(asked[i]))
        reached = np.cumsum(room)
        before = reached - room
        before -= np.repeat(before[begins], of_part)
        taken = np.clip(need[r] - before, 0, room)
        resources = [(asked, free - taken * int(asked[i])) for asked, free in resources]
        placed[part[begins]] += np.add.reduceat(taken, begins)
    return placed


def _resources(instance: Instance, rows: Ints, active: Sequence[int]) -> list[tuple[Ints, Ints]]:
    """Return for each resource what a member of each of these roles takes, and what is free of it by row.

    The number of members that rules leave to a node counts as a resource.
    """
    view, roles = instance.columns, [instance.roles[r] for r in active]
    each = [
        ([role.gpus for role in roles], view.free_count),
        ([min(role.resources.cpu_milli, LARGEST) for role in roles], view.cpu),
        ([min(role.resources.memory_bytes, LARGEST) for role in roles], view.memory),
        ([min(max(1, role.resources.pods), LARGEST) for role in roles], view.pods),
        *(([role.resources.other(name) for role in roles], view.other(name)) for name in instance.others),
    ]
    left = np.array(
        [LARGEST if rule is None or rule.most < 0 else rule.most for rule in instance.rules.node_rules]
    )
    if left.min() < LARGEST:
        each.append(([1] * len(roles), left[instance.rules.in_node]))
    return [(np.array(asked, np.int64), free[rows]) for asked, free in each if any(asked)]


def by_packings(problem: Problem, unit: int) -> tuple[Ints, bool]:
    """Return [part of REGION] an upper bound of the members that the part holds, and whether it is exact.

    It uses what the nodes take at once, and what rules leave of that. Members of a single role come in
    multiples of `unit` on any node. The bound holds for any discounts of the roles: the members are worth at
    most their discount, plus the best packing of each node at discounted prices.
    """
    need, counts = np.array(problem.need), problem.patterns.counts
    active = np.flatnonzero(need)
    alone = len(active) == 1
    upper, exact = np.zeros(int(problem.parts[REGION].max()) + 1), alone
    for r in active.tolist():
        held, counted = _held(problem, counts.max(axis=1)[:, [r]], (r,), np.ones(1), unit if alone else 1)
        upper, exact = upper + np.minimum(held[:, 0], need[r]), exact and counted
    if not alone:
        steps = STEPS if len(active) <= 3 and not problem.rules else CORNERS if len(active) <= 6 else (0.0,)
        worth = np.zeros((len(steps) ** len(active), len(need)))
        worth[:, active] = 1 - np.array(list(product(steps, repeat=len(active))))
        best: Floats = np.tensordot(counts, worth.T, axes=1).max(axis=1)
        held, _ = _held(problem, best, tuple(active.tolist()), worth.max(axis=1), 1)
        upper = np.minimum(upper, (held + (need.sum() - worth @ need)).min(axis=1))
    return np.floor(upper + SLACK).astype(np.int64), exact


def _held(
    problem: Problem, of_kind: Floats, roles: tuple[int, ...], price: Floats, unit: int
) -> tuple[Floats, bool]:
    """Return [part of REGION, i] what the nodes of the part hold, and whether that is all that rules say.

    `of_kind` [kind, i] is what a node of each kind holds, and `price` [i] the most that one member counts.
    Rules are applied from the narrowest to the widest scope. They say all only if each part lies within one
    of the next scope. Rules that limit more than numbers are left out.
    """
    cells, of_class = np.unique(problem.cell, return_inverse=True)
    region, held = problem.parts[REGION][cells], np.zeros((len(cells), len(price)))
    np.add.at(held, of_class, of_kind[problem.kind] * problem.size[:, None])
    group = first = np.arange(len(cells))
    bound = [rule for rule in problem.rules if not set(roles).isdisjoint(rule.bound)]
    rules = [rule for rule in bound if rule.in_numbers or rule.in_one_part]
    told = len(rules) == len(bound)
    for rule in sorted(rules, key=lambda rule: (-len(np.unique(rule.part)), rule.step)):
        part = rule.part[cells]
        if not set(roles) <= set(rule.bound) or (part != part[first][group]).any():
            told = False
            continue
        named = np.where(part < 0, int(part.max(initial=0)) + 1 + group, part)
        code = region * (int(named.max()) + 1) + named
        _, narrowest, wider = np.unique(code, return_index=True, return_inverse=True)
        summed = np.zeros((len(narrowest), len(price)))
        np.add.at(summed, wider[first], held)
        group, first, held = wider, narrowest, summed
        inside = part[first] >= 0
        if rule.in_one_part:
            told, (_, wide, group) = False, np.unique(region, return_index=True, return_inverse=True)
            best = np.zeros((len(wide), len(price)))
            np.maximum.at(best, group[first[inside]], held[inside])
            first, held = wide, best
            continue
        if len(rule.left):
            held[inside] = np.minimum(held[inside], rule.left[part[first][inside]][:, None] * price)
        if len(roles) == 1:
            unit = max(unit, rule.step)
            held[inside] -= held[inside] % unit
    by_region = np.zeros((int(problem.parts[REGION].max()) + 1, len(price)))
    np.add.at(by_region, region[first], held)
    return by_region - (by_region % unit if len(roles) == 1 else 0), told
