"""Constraints between pods as rules of the planner: nodes refused, members on one node, parts of the model.

What concerns one node alone (host names, `NODE`) never reaches the model, so that it costs nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from muster.domain.constraints import Affinity, AntiAffinity, Spread
from muster.domain.request import Request, Role
from muster.placement.cluster.candidates import holding, tolerated
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.making import Counts, Making, PartsByRow
from muster.placement.model.problem import Apart, MaxPerPart, Near, Problem, RoleScope, Rule, Skew


def add_constraints(making: Making, request: Request) -> None:
    """Add the room of the roles and the constraints between pods of a request."""
    _room(making)
    for i, rule in enumerate(request.constraints):
        match rule:
            case AntiAffinity():
                _anti_affinity(making, rule, f"anti-affinity {i}")
            case Affinity():
                _affinity(making, rule, f"affinity {i}")
            case Spread():
                _spread(making, rule, f"spread {i}")


def _room(making: Making) -> None:
    """Blocks of one role share its room."""
    for blocks in _by_role(making).values():
        role = making.blocks.roles[blocks[0]]
        known = {making.view.row[node]: most for node, most in role.room.items() if node in making.view.row}
        if known:
            most = np.full(len(making.view.names), LARGEST, np.int64)
            most[list(known)] = list(known.values())
            _at_most(making, blocks, most)


def _by_role(making: Making) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for block in making.active:
        name = making.blocks.roles[block].name
        found[name] = (*found.get(name, ()), block)
    return found


def _at_most(making: Making, blocks: Counts, most: Ints) -> None:
    """Let each node [row] hold at most so many members of these blocks."""
    for block in blocks:
        making.cap(block, most)
    if len(blocks) > 1:
        making.limits.append((most, blocks))


def _blocks(making: Making, roles: Iterable[str]) -> Counts:
    names = set(roles)
    return tuple(block for block in making.active if making.blocks.roles[block].name in names)


def _one_node_each(domains: PartsByRow) -> bool:
    return int(np.bincount(domains[domains >= 0]).max(initial=0)) <= 1


def _where(view: Columns, nodes: Iterable[str]) -> Ints:
    return np.array([view.row[node] for node in nodes if node in view.row], np.int64)


def _refuse(making: Making, blocks: Counts, rows: Bools) -> None:
    for block in blocks:
        making.refused[block] |= rows


def _anti_affinity(making: Making, rule: AntiAffinity, name: str) -> None:
    domains = making.view.topology.by_label(rule.topology_key)
    mine, others = _blocks(making, rule.roles), _blocks(making, rule.others)
    taken = domains[_where(making.view, rule.existing)]
    _refuse(making, mine, (domains >= 0) & np.isin(domains, taken))
    if not mine or not others:
        return
    labelled = domains >= 0
    for block in set(mine) & set(others):
        making.cap(block, np.where(labelled, 1, LARGEST))
    if len({*mine, *others}) > 1:
        making.apart.append((labelled, mine, others))
    if _one_node_each(domains):
        return
    making.cells[name] = domains
    if set(mine) == set(others):
        left = np.ones(int(domains.max(initial=0)) + 1, np.int64)
        making.model.append(_made(name, lambda part: MaxPerPart(part, mine, left)))
    else:
        making.model.append(_made(name, lambda part: Apart(part, mine, others)))


def _made(name: str, rule: Callable[[Ints], Rule]) -> Callable[[Problem], Rule]:
    return lambda problem: rule(problem.parts[name])


def _affinity(making: Making, rule: Affinity, name: str) -> None:
    domains = making.view.topology.by_label(rule.topology_key)
    mine, others = _blocks(making, rule.roles), _blocks(making, rule.others)
    if not mine:
        return
    _refuse(making, mine, domains < 0)
    opened = np.zeros(int(domains.max(initial=0)) + 1, bool)
    there = domains[_where(making.view, rule.existing)]
    opened[there[there >= 0]] = True
    both, opening = set(mine) & set(others), set(others) - set(mine)
    first = bool(both) and not rule.existing
    if not opening and not first:
        _refuse(making, mine, (domains < 0) | ~opened[np.maximum(domains, 0)])
        return
    if not opening and both == set(mine):
        if sum(len(making.blocks.roles[block].members) for block in mine) > 1:
            making.cells[name] = domains
            making.model.append(_made(name, lambda part: RoleScope(part, mine)))
            making.together.append((name, mine))
        return
    making.cells[name] = domains
    making.model.append(_made(name, lambda part: Near(part, mine, others, opened, first)))

    def may_hold(packing: Counts) -> Bools:
        needed = any(packing[block] for block in mine)
        opens = any(packing[block] for block in opening) or (first and any(packing[block] for block in both))
        return np.asarray(opened[np.maximum(domains, 0)] | (opens or not needed))

    making.whole.append(may_hold)


def _spread(making: Making, rule: Spread, name: str) -> None:
    domains = making.view.topology.by_label(rule.topology_key)
    mine, counted = _blocks(making, rule.roles), _blocks(making, rule.counted)
    _refuse(making, mine, domains < 0)
    alike: dict[object, Counts] = {}
    for block in mine:
        rules = making.blocks.roles[block].rules if rule.honor_affinity or rule.honor_taints else None
        alike[rules] = (*alike.get(rules, ()), block)
    for i, blocks in enumerate(alike.values()):
        counts = np.where(eligible_to(making.view, rule, making.blocks.roles[blocks[0]]), domains, -1)
        _spread_of(making, rule, f"{name}/{i}", domains, counts, blocks, counted)


def eligible_to(view: Columns, rule: Spread, role: Role) -> Bools:
    """Return by row whether the node is eligible for the spread of this role, its own key aside."""
    eligible = np.ones(len(view.names), bool)
    for key in rule.required_keys:
        eligible &= view.label(key).codes >= 0
    if rule.honor_affinity:
        for term in role.rules.required:
            eligible &= holding(view, term)
        if role.rules.any_of:
            every = [[holding(view, term) for term in terms] for terms in role.rules.any_of if terms]
            eligible &= np.logical_or.reduce([np.logical_and.reduce(one) for one in every])
    if rule.honor_taints:
        clean = [
            all(
                taint.effect == "PreferNoSchedule" or tolerated(taint, role.rules.tolerations)
                for taint in profile.taints
            )
            for profile in view.profiles
        ]
        eligible &= np.array(clean, bool)[view.profile]
    return eligible


def _spread_of(
    making: Making,
    rule: Spread,
    name: str,
    domains: PartsByRow,
    counts: PartsByRow,
    mine: Counts,
    counted: Counts,
) -> None:
    """Add the rule for blocks to which the same nodes are eligible: `counts` is −1 on the others."""
    parts = int(domains.max(initial=0)) + 1
    eligible, there = np.zeros(parts, bool), np.zeros(parts, np.int64)
    eligible[counts[counts >= 0]] = True
    for node, pods in rule.existing.items():
        row = making.view.row.get(node)
        if row is not None and counts[row] >= 0:
            there[counts[row]] += pods
    need = sum(len(making.blocks.roles[block].members) for block in counted)
    few = int(eligible.sum()) < rule.min_domains or not eligible.any()
    lowest, highest = (0, 0) if few else _least(there[eligible], need)
    most = rule.max_skew
    if not counted or lowest == highest:  # the smallest number is known
        left = np.where(eligible, lowest + most - there, LARGEST)
        _refuse(making, mine, (domains >= 0) & (left[np.maximum(domains, 0)] < 0))
        if not counted:
            return
        if set(mine) == set(counted):
            left = np.maximum(0, left)
            _known_least(making, name, counts, left, mine)
            return
    making.cells[name], making.cells[f"{name} counted"] = domains, counts
    making.model.append(
        lambda problem: Skew(
            problem.parts[name],
            problem.parts[f"{name} counted"],
            mine,
            counted,
            there,
            eligible,
            most,
            lowest,
            highest,
        )
    )

    def may_hold(packing: Counts) -> Bools:
        if not any(packing[block] for block in mine):
            return np.ones(len(domains), bool)
        at, more = np.maximum(domains, 0), sum(packing[block] for block in counted)
        total = np.where(eligible[at], there[at] + np.where(counts >= 0, more, 0), 0)
        if few:
            return np.asarray(total <= most)
        smallest = np.partition(np.append(there[eligible], LARGEST), 1)[:2]
        alone = (there[at] == smallest[0]) & eligible[at]
        least = np.minimum(np.where(alone, smallest[1], smallest[0]), np.where(eligible[at], total, LARGEST))
        return np.asarray(total - least <= most)

    making.whole.append(may_hold)


def _least(there: Ints, need: int) -> tuple[int, int]:
    """Return the smallest number of pods in any domain before and, at most, after so many more are placed."""
    low, ordered = int(there.min()), np.sort(there)
    filled = np.arange(1, len(ordered) + 1) * ordered - np.cumsum(ordered)  # to raise the first ones to this
    last = int(np.searchsorted(filled, need, side="right"))
    return low, int(ordered[last - 1] + (need - filled[last - 1]) // last)


def _known_least(making: Making, name: str, counts: PartsByRow, left: Ints, blocks: Counts) -> None:
    """Each domain has room for so many members of these blocks."""
    by_row = np.where(counts >= 0, left[np.maximum(counts, 0)], LARGEST)
    if _one_node_each(counts):
        _at_most(making, blocks, by_row)
        return
    for block in blocks:
        making.cap(block, by_row)
    making.cells[name] = counts
    making.model.append(_made(name, lambda part: MaxPerPart(part, blocks, left)))

    def may_hold(packing: Counts) -> Bools:
        return np.asarray(by_row >= sum(packing[block] for block in blocks))

    making.whole.append(may_hold)
