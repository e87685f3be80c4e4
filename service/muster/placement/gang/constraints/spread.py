"""Keep the skew small: how many more matching pods a domain with a member has than the emptiest eligible
domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from muster.domain.constraints import SkewTooLarge, Spread
from muster.domain.request import Role
from muster.placement.cluster.candidates import holding, tolerated
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.constraints.max_per import MaxPerPart
from muster.placement.gang.rules import Counts, PartsByRow, Rules, one_node_each
from muster.placement.model.problem import Problem
from muster.placement.model.rule import Rule
from muster.placement.model.shares import PartShare, capacity
from muster.placement.model.variables import LinearExpr, Variables


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Skew(Rule):
    """Limit each part with a member of `roles` to `most` more pods than the emptiest `eligible` part has.

    The pods that count are `there` [part] int64, the matching pods that run, and the members of `others`. A
    member counts in the part `counts` [row, later cell] int64 of its node; −1 means that it does not count.
    The number of pods in the emptiest part lies between `lowest` and `highest`.
    """

    counts: Ints
    there: Ints
    eligible: Bools
    most: int
    lowest: int
    highest: int

    @property
    def told_by(self) -> tuple[Ints, ...]:
        """Return [cell] arrays that tell apart nodes for which this rule makes a difference."""
        counts = (self.counts >= 0).astype(np.int64)
        return (self.of_part(self.there), self.of_part(self.eligible.astype(np.int64)), counts)

    def share(self, problem: Problem) -> PartShare | None:
        """Return limits for each part that hold in every plan, for the bound.

        The emptiest part limits the fullest one, and the members that must be placed raise the emptiest one.
        """
        if set(self.roles) != set(self.others):
            return None
        part, held_by = self.counts[problem.cell], capacity(problem, self.roles)
        unit = problem.unit_of(self.roles)
        parts, inside = len(self.there), part >= 0
        held = np.bincount(part[inside], held_by[inside], parts).astype(np.int64)
        reached = self.there + held
        highest = min([self.highest, *reached[self.eligible].tolist()])

        def most(least: int) -> Ints:
            return np.where(self.eligible, np.clip(least + self.most - self.there, 0, held) // unit * unit, 0)

        lowest, need = self.lowest, sum(problem.need[role] for role in self.roles)
        elsewhere = ((self.part[problem.cell] >= 0) & ~inside & (held_by > 0)).any()
        if not problem.partial and not elsewhere:
            while lowest < highest and int(most(lowest).sum()) < need:
                lowest += 1
        low = np.where(self.eligible, -(np.minimum(0, self.there - lowest) // unit * unit), 0)
        return PartShare(self.roles, part, low, most(highest), most(lowest), held_by)

    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model, with one variable for the number of pods in the emptiest part."""
        problem, model = variables.problem, variables.model
        counted = variables.by_part(self.counts, self.others)
        total = {
            part: LinearExpr.sum([int(self.there[part]), *counted.get(part, [])])
            for part in range(len(self.there))
            if self.eligible[part]
        }
        absent = [int(self.there[part]) for part in total if part not in counted]
        least = model.new_int_var(
            self.lowest, max(self.lowest, min([self.highest, *absent])), f"{name}/least"
        )
        for part, members in total.items():
            if self.highest > self.lowest and part in counted:
                model.add(least <= members).with_name(f"{name}/{part}/least")
        need = sum(problem.need[role] for role in self.roles)
        same = set(self.roles) == set(self.others)
        for part, placed in variables.by_part(self.part, self.roles).items():
            if part not in total:
                continue  # no pod counts there
            within = total[part] <= least + self.most
            if same and self.there[part] <= self.lowest + self.most:
                model.add(within).with_name(f"{name}/{part}")
                continue
            receives = model.new_bool_var(f"{name}/{part}/receives")
            model.add(LinearExpr.sum(placed) <= need * receives).with_name(f"{name}/{part}/receives")
            model.add(within).only_enforce_if(receives).with_name(f"{name}/{part}")


def cause(rule: Spread, fit: int | None, needed: int, even_empty: bool) -> SkewTooLarge:
    """Return the cause that says why the gang does not fit."""
    return SkewTooLarge(rule.name, rule.topology_key, rule.max_skew, fit, needed, even_empty)


def add(rules: Rules, rule: Spread, name: str) -> None:
    """Add one spread constraint of the request to the rules.

    Members are kept off nodes where the skew would be too large for any plan. For the other nodes, the model
    or limits for each node keep the skew small.
    """
    domains = rules.view.topology.by_label(rule.topology_key)
    mine, counted = rules.blocks_of(rule.roles), rules.blocks_of(rule.counted)
    rules.refuse(mine, domains < 0)
    alike: dict[object, Counts] = {}
    for block in mine:
        admission = rules.blocks.roles[block].rules if rule.honor_affinity or rule.honor_taints else None
        alike[admission] = (*alike.get(admission, ()), block)
    for i, blocks in enumerate(alike.values()):
        counts = np.where(eligible_to(rules.view, rule, rules.blocks.roles[blocks[0]]), domains, -1)
        _spread_of(rules, rule, f"{name}/{i}", domains, counts, blocks, counted)


def eligible_to(view: Columns, rule: Spread, role: Role) -> Bools:
    """Return [row] bool: whether the node is eligible for the spread of this role.

    Whether the node has the topology key of the constraint itself is not checked.
    """
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
    rules: Rules,
    rule: Spread,
    name: str,
    domains: PartsByRow,
    counts: PartsByRow,
    mine: Counts,
    counted: Counts,
) -> None:
    """Add the rule for blocks that have the same eligible nodes.

    `domains` [row] is the domain of each node. `counts` [row] is the same on eligible nodes, and −1 on
    others.
    """
    parts = int(domains.max(initial=0)) + 1
    eligible, there = np.zeros(parts, bool), np.zeros(parts, np.int64)
    eligible[counts[counts >= 0]] = True
    for node, pods in rule.existing.items():
        row = rules.view.row.get(node)
        if row is not None and counts[row] >= 0:
            there[counts[row]] += pods
    need = sum(len(rules.blocks.roles[block].members) for block in counted)
    few = int(eligible.sum()) < rule.min_domains or not eligible.any()
    lowest, highest = (0, 0) if few else _least(there[eligible], need)
    most = rule.max_skew
    if not counted or lowest == highest:  # then the number of pods in the emptiest part is known
        left = np.where(eligible, lowest + most - there, LARGEST)
        rules.refuse(mine, (domains >= 0) & (left[np.maximum(domains, 0)] < 0))
        if not counted:
            return
        if set(mine) == set(counted):
            left = np.maximum(0, left)
            _known_least(rules, name, counts, left, mine)
            return
    rules.cells[name], rules.cells[f"{name} counted"] = domains, counts
    skew = partial(
        Skew,
        roles=mine,
        others=counted,
        there=there,
        eligible=eligible,
        most=most,
        lowest=lowest,
        highest=highest,
    )
    rules.model.append(lambda parts: skew(parts[name], counts=parts[f"{name} counted"]))

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

    rules.whole.append(may_hold)


def _least(there: Ints, need: int) -> tuple[int, int]:
    """Return the number of pods in the emptiest domain: now, and the largest possible after `need` more are
    placed.
    """
    low, ordered = int(there.min()), np.sort(there)
    # By n: the pods that raise the first n domains to the n-th.
    filled = np.arange(1, len(ordered) + 1) * ordered - np.cumsum(ordered)
    last = int(np.searchsorted(filled, need, side="right"))
    return low, int(ordered[last - 1] + (need - filled[last - 1]) // last)


def _known_least(rules: Rules, name: str, counts: PartsByRow, left: Ints, blocks: Counts) -> None:
    """Give each domain room for `left` [domain] int64 members of these blocks."""
    by_row = np.where(counts >= 0, left[np.maximum(counts, 0)], LARGEST)
    if one_node_each(counts):
        rules.at_most(blocks, by_row)
        return
    for block in blocks:
        rules.cap(block, by_row)
    rules.bind(name, counts, lambda part: MaxPerPart(part, blocks, left=left))

    def may_hold(packing: Counts) -> Bools:
        return np.asarray(by_row >= sum(packing[block] for block in blocks))

    rules.whole.append(may_hold)
