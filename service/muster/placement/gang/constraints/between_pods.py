"""Translate the constraints between pods that are in the pods' own fields: anti-affinity, affinity, spread.

A constraint whose domains are single nodes becomes a limit of each node. So it adds nothing to the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from muster.domain.constraints import (
    Affinity,
    AffinityUnsatisfied,
    AntiAffinity,
    AntiAffinityLimits,
    SkewTooLarge,
    TopologySpread,
)
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role
from muster.placement.cluster.candidates import is_tolerated, meets_selectors
from muster.placement.cluster.columns import LARGEST, Bools, Columns, Ints
from muster.placement.gang.constraints.constraint import ByName, RefusalFacts
from muster.placement.gang.constraints.max_per import MaxPerPart
from muster.placement.gang.constraints.together import RoleScopeRule
from muster.placement.gang.rules import BlockIndices, PartsByRow, Rules, one_node_each
from muster.placement.gang.running import RunningMembers
from muster.placement.gpus.node_rules import Counts
from muster.placement.model.build import IntVar, LinearExpr, Variables
from muster.placement.model.problem import PartLimits, Problem, Rule, capacity_of_classes


@dataclass(frozen=True, slots=True, eq=False)
class AntiAffinityRule(Rule):
    """Let no part hold a member of `roles` and another member of `other_roles`.

    A role in both has at most one member in each part.
    """

    def add(self, variables: Variables, name: str) -> None:
        """Let each part have members of one side only, or a single member that is on both sides."""
        problem, model = variables.problem, variables.model
        on_both_sides = tuple(role for role in self.roles if role in self.other_roles)
        sides = (
            (tuple(role for role in self.roles if role not in on_both_sides), None),
            (tuple(role for role in self.other_roles if role not in on_both_sides), None),
            (on_both_sides, 1),
        )
        sides_by_part: dict[int, list[IntVar]] = {}
        for side, (roles, max_members) in enumerate(sides):
            need = sum(problem.need[role] for role in roles) if max_members is None else max_members
            for part, counts in variables.by_part(self.part, roles).items():
                if part >= 0:
                    has_members = model.new_bool_var(f"{name}/{part}/{side}")
                    model.add(LinearExpr.sum(counts) <= need * has_members).with_name(f"{name}/{part}/{side}")
                    sides_by_part.setdefault(part, []).append(has_members)
        for part, sides_here in sides_by_part.items():
            if len(sides_here) > 1:
                model.add_at_most_one(sides_here).with_name(f"{name}/{part}")


def _add_anti_affinity(rules: Rules, rule: AntiAffinity, name: str) -> None:
    """Add one anti-affinity constraint of the request to the rules.

    Members stay out of the domains of running pods that repel them, and out of each other's domains.
    """
    domains = rules.columns.topology.by_label(rule.topology_key)
    blocks, repelled = rules.blocks_of(rule.roles), rules.blocks_of(rule.other_roles)
    repelling_domains = domains[rules.rows_of(rule.existing)]
    rules.exclude(blocks, (domains >= 0) & np.isin(domains, repelling_domains))
    if not blocks or not repelled:
        return
    labelled = domains >= 0
    for block in set(blocks) & set(repelled):
        rules.cap_role(block, np.where(labelled, 1, LARGEST))
    if len({*blocks, *repelled}) > 1:
        rules.repulsions.append((labelled, blocks, repelled))
    if one_node_each(domains):
        return
    if set(blocks) == set(repelled):
        room = np.ones(int(domains.max(initial=0)) + 1, np.int64)
        rules.add_rule(name, domains, lambda part: MaxPerPart(part, blocks, max_members=room))
    else:
        rules.add_rule(name, domains, lambda part: AntiAffinityRule(part, blocks, repelled))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffinityRule(Rule):
    """Keep members of `roles` in opened parts. A member of `other_roles` opens its part.

    A member of a role in both may open a part only if `opens_first` is true, and then only one part.
    """

    opened: Bools
    """[part] Whether a running pod has opened the part."""
    opens_first: bool

    @property
    def distinguished_by(self) -> tuple[Ints, ...]:
        """Return [cell] arrays: the rule treats parts with equal arrays alike."""
        return (self.of_part(self.opened.astype(np.int64)),)

    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model, with a variable for each part that a member may open."""
        problem, model = variables.problem, variables.model
        need = sum(problem.need[role] for role in self.roles)
        other_openers = variables.by_part(self.part, set(self.other_roles) - set(self.roles))
        first_openers = (
            variables.by_part(self.part, set(self.other_roles) & set(self.roles)) if self.opens_first else {}
        )
        first = []
        for part, counts in variables.by_part(self.part, self.roles).items():
            if part < 0:
                model.add(LinearExpr.sum(counts) == 0).with_name(f"{name}/none")
                continue
            if self.opened[part]:
                continue
            openers = []
            for kind, members in (("others", other_openers.get(part)), ("first", first_openers.get(part))):
                if members:
                    opens = model.new_bool_var(f"{name}/{part}/{kind}")
                    model.add(opens <= LinearExpr.sum(members)).with_name(f"{name}/{part}/{kind}")
                    openers.append(opens)
                    first += [opens] if kind == "first" else []
            model.add(LinearExpr.sum(counts) <= need * LinearExpr.sum(openers)).with_name(f"{name}/{part}")
        if first:
            model.add_at_most_one(first).with_name(f"{name}/first")


def _add_affinity(rules: Rules, rule: Affinity, name: str) -> None:
    """Add one affinity constraint of the request to the rules.

    If no member can open a domain, members are only kept off nodes without a matching pod.
    """
    domains = rules.columns.topology.by_label(rule.topology_key)
    blocks, openers = rules.blocks_of(rule.roles), rules.blocks_of(rule.other_roles)
    if not blocks:
        return
    rules.exclude(blocks, domains < 0)
    opened = np.zeros(int(domains.max(initial=0)) + 1, bool)
    domains_of_pods = domains[rules.rows_of(rule.existing)]
    opened[domains_of_pods[domains_of_pods >= 0]] = True
    matching_themselves, opening = set(blocks) & set(openers), set(openers) - set(blocks)
    first = bool(matching_themselves) and not rule.existing
    if not opening and not first:
        rules.exclude(blocks, (domains < 0) | ~opened[np.maximum(domains, 0)])
        return
    if not opening and matching_themselves == set(blocks):
        if sum(len(rules.blocks.roles[block].members) for block in blocks) > 1:
            rules.add_rule(name, domains, lambda part: RoleScopeRule(part, blocks))
            rules.together.append((name, blocks))
        return
    rules.add_rule(
        name, domains, lambda part: AffinityRule(part, blocks, openers, opened=opened, opens_first=first)
    )

    def may_hold(packing: Counts) -> Bools:
        has_members = any(packing[block] for block in blocks)
        opens = any(packing[block] for block in opening) or (
            first and any(packing[block] for block in matching_themselves)
        )
        return np.asarray(opened[np.maximum(domains, 0)] | (opens or not has_members))

    rules.gang_on_node_checks.append(may_hold)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpreadRule(Rule):
    """Limit each part with a member of `roles` to at most `max_skew` pods more than the emptiest `eligible`
    part.

    The matching pods that run and the members of `other_roles` count. The number of pods in the emptiest part
    lies between `lowest` and `highest`.
    """

    counts: Ints
    """[cell] The part in which members on the cell count; −1 if they do not count."""
    running_pods: Ints
    """[part] The matching pods that run."""
    eligible: Bools
    """[part]"""
    max_skew: int
    lowest: int
    highest: int

    @property
    def distinguished_by(self) -> tuple[Ints, ...]:
        """Return [cell] arrays: the rule treats parts with equal arrays alike."""
        counts = (self.counts >= 0).astype(np.int64)
        return (self.of_part(self.running_pods), self.of_part(self.eligible.astype(np.int64)), counts)

    def limits(self, problem: Problem) -> PartLimits | None:
        """Return limits for each part that hold in every plan, for the bound.

        The emptiest part limits the fullest one, and the members that must be placed raise the emptiest one.
        """
        if set(self.roles) != set(self.other_roles):
            return None
        part, held_by = self.counts[problem.cell], capacity_of_classes(problem, self.roles)
        unit = problem.unit_of(self.roles)
        parts, in_part = len(self.running_pods), part >= 0
        room = np.bincount(part[in_part], held_by[in_part], parts).astype(np.int64)
        reached = self.running_pods + room
        highest = min([self.highest, *reached[self.eligible].tolist()])

        def members_at(least: int) -> Ints:
            return np.where(
                self.eligible, np.clip(least + self.max_skew - self.running_pods, 0, room) // unit * unit, 0
            )

        lowest, need = self.lowest, sum(problem.need[role] for role in self.roles)
        has_room_elsewhere = ((self.part[problem.cell] >= 0) & ~in_part & (held_by > 0)).any()
        if not problem.partial and not has_room_elsewhere:
            while lowest < highest and int(members_at(lowest).sum()) < need:
                lowest += 1
        low = np.where(self.eligible, -(np.minimum(0, self.running_pods - lowest) // unit * unit), 0)
        return PartLimits(self.roles, part, low, members_at(highest), members_at(lowest), held_by)

    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model, with one variable for the number of pods in the emptiest part."""
        problem, model = variables.problem, variables.model
        counts_by_part = variables.by_part(self.counts, self.other_roles)
        total = {
            part: LinearExpr.sum([int(self.running_pods[part]), *counts_by_part.get(part, [])])
            for part in range(len(self.running_pods))
            if self.eligible[part]
        }
        absent = [int(self.running_pods[part]) for part in total if part not in counts_by_part]
        least = model.new_int_var(
            self.lowest, max(self.lowest, min([self.highest, *absent])), f"{name}/least"
        )
        for part, members in total.items():
            if self.highest > self.lowest and part in counts_by_part:
                model.add(least <= members).with_name(f"{name}/{part}/least")
        need = sum(problem.need[role] for role in self.roles)
        same = set(self.roles) == set(self.other_roles)
        for part, counts in variables.by_part(self.part, self.roles).items():
            if part not in total:
                continue  # no pod counts in this part
            within = total[part] <= least + self.max_skew
            if same and self.running_pods[part] <= self.lowest + self.max_skew:
                model.add(within).with_name(f"{name}/{part}")
                continue
            receives = model.new_bool_var(f"{name}/{part}/receives")
            model.add(LinearExpr.sum(counts) <= need * receives).with_name(f"{name}/{part}/receives")
            model.add(within).only_enforce_if(receives).with_name(f"{name}/{part}")


def _add_spread(rules: Rules, rule: TopologySpread, name: str) -> None:
    """Add one spread constraint of the request to the rules.

    Members are kept off nodes where the skew would be too large for any plan. For the other nodes, the model
    or limits for each node keep the skew small.
    """
    domains = rules.columns.topology.by_label(rule.topology_key)
    blocks_bound, blocks_counted = rules.blocks_of(rule.roles), rules.blocks_of(rule.counted_roles)
    rules.exclude(blocks_bound, domains < 0)
    blocks_by_admission: dict[object, BlockIndices] = {}
    for block in blocks_bound:
        admission = rules.blocks.roles[block].rules if rule.honor_affinity or rule.honor_taints else None
        blocks_by_admission[admission] = (*blocks_by_admission.get(admission, ()), block)
    for i, blocks in enumerate(blocks_by_admission.values()):
        counts = np.where(eligible_to(rules.columns, rule, rules.blocks.roles[blocks[0]]), domains, -1)
        _add_spread_rule(rules, rule, f"{name}/{i}", domains, counts, blocks, blocks_counted)


def eligible_to(columns: Columns, rule: TopologySpread, role: Role) -> Bools:
    """Return [row] bool: whether the node is eligible for the spread of this role.

    Whether the node has the topology key of the constraint itself is not checked.
    """
    eligible = np.ones(len(columns.names), bool)
    for key in rule.required_keys:
        eligible &= columns.label(key).codes >= 0
    if rule.honor_affinity:
        eligible &= meets_selectors(columns, role)
    if rule.honor_taints:
        clean = [
            all(
                taint.effect == "PreferNoSchedule" or is_tolerated(taint, role.rules.tolerations)
                for taint in profile.taints
            )
            for profile in columns.profiles
        ]
        eligible &= np.array(clean, bool)[columns.profile]
    return eligible


def _add_spread_rule(
    rules: Rules,
    rule: TopologySpread,
    name: str,
    domains: PartsByRow,
    counts: PartsByRow,
    bound: BlockIndices,
    counted: BlockIndices,
) -> None:
    """Add the rule for blocks that have the same eligible nodes.

    `domains` [row] is the domain of each node. `counts` [row] is the same on eligible nodes, and −1 on
    others.
    """
    parts = int(domains.max(initial=0)) + 1
    eligible, pods_by_domain = np.zeros(parts, bool), np.zeros(parts, np.int64)
    eligible[counts[counts >= 0]] = True
    for node, pods in rule.existing.items():
        row = rules.columns.row.get(node)
        if row is not None and counts[row] >= 0:
            pods_by_domain[counts[row]] += pods
    need = sum(len(rules.blocks.roles[block].members) for block in counted)
    too_few_domains = int(eligible.sum()) < rule.min_domains or not eligible.any()
    lowest, highest = (0, 0) if too_few_domains else _pods_in_emptiest(pods_by_domain[eligible], need)
    max_skew = rule.max_skew
    if not counted or lowest == highest:  # then the number of pods in the emptiest part is known
        room = np.where(eligible, lowest + max_skew - pods_by_domain, LARGEST)
        rules.exclude(bound, (domains >= 0) & (room[np.maximum(domains, 0)] < 0))
        if not counted:
            return
        if set(bound) == set(counted):
            _add_fixed_limits(rules, name, counts, np.maximum(0, room), bound)
            return
    rules.cells[name], rules.cells[f"{name} counted"] = domains, counts
    skew = partial(
        SpreadRule,
        roles=bound,
        other_roles=counted,
        running_pods=pods_by_domain,
        eligible=eligible,
        max_skew=max_skew,
        lowest=lowest,
        highest=highest,
    )
    rules.model.append(lambda parts: skew(parts[name], counts=parts[f"{name} counted"]))

    def may_hold(packing: Counts) -> Bools:
        if not any(packing[block] for block in bound):
            return np.ones(len(domains), bool)
        domain, new_members = np.maximum(domains, 0), sum(packing[block] for block in counted)
        total = np.where(eligible[domain], pods_by_domain[domain] + np.where(counts >= 0, new_members, 0), 0)
        if too_few_domains:
            return np.asarray(total <= max_skew)
        smallest = np.partition(np.append(pods_by_domain[eligible], LARGEST), 1)[:2]
        is_emptiest = (pods_by_domain[domain] == smallest[0]) & eligible[domain]
        least_elsewhere = np.where(is_emptiest, smallest[1], smallest[0])
        least = np.minimum(least_elsewhere, np.where(eligible[domain], total, LARGEST))
        return np.asarray(total - least <= max_skew)

    rules.gang_on_node_checks.append(may_hold)


def _pods_in_emptiest(pods_by_domain: Ints, need: int) -> tuple[int, int]:
    """Return the number of pods in the emptiest domain: now, and the largest possible after `need` more are
    placed.
    """
    pods_now, ordered = int(pods_by_domain.min()), np.sort(pods_by_domain)
    # `filled[n]`: how many pods raise the n + 1 emptiest domains to the level of the fullest of them (water
    # filling).
    filled = np.arange(1, len(ordered) + 1) * ordered - np.cumsum(ordered)
    last = int(np.searchsorted(filled, need, side="right"))
    return pods_now, int(ordered[last - 1] + (need - filled[last - 1]) // last)


def _add_fixed_limits(rules: Rules, name: str, counts: PartsByRow, room: Ints, blocks: BlockIndices) -> None:
    """Let each domain hold `room` [domain] int64 members of these blocks."""
    by_row = np.where(counts >= 0, room[np.maximum(counts, 0)], LARGEST)
    if one_node_each(counts):
        rules.cap_together(blocks, by_row)
        return
    for block in blocks:
        rules.cap_role(block, by_row)
    rules.add_rule(name, counts, lambda part: MaxPerPart(part, blocks, max_members=room))

    def may_hold(packing: Counts) -> Bools:
        return np.asarray(by_row >= sum(packing[block] for block in blocks))

    rules.gang_on_node_checks.append(may_hold)


class _BetweenPods(ByName):
    field, order = "constraints", 50

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        for i, rule in enumerate(request.constraints):
            name = f"between pods {i}"
            match rule:
                case AntiAffinity():
                    _add_anti_affinity(rules, rule, name)
                case Affinity():
                    _add_affinity(rules, rule, name)
                case TopologySpread():
                    _add_spread(rules, rule, name)

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        rule = next(rule for rule in findings.request.constraints if rule.name == key)
        # "Even in an empty cluster" may be said only of affinity, or of a rule that no running pod affects.
        # The test for an empty cluster keeps the pods that affinity looks for.
        even_empty = findings.even_empty and (isinstance(rule, Affinity) or not rule.existing)
        numbers = (*findings.fit(), even_empty)
        match rule:
            case AntiAffinity():
                yield AntiAffinityLimits(rule.name, rule.topology_key, *numbers)
            case Affinity():
                yield AffinityUnsatisfied(rule.name, rule.topology_key, *numbers)
            case TopologySpread():
                yield SkewTooLarge(rule.name, rule.topology_key, rule.max_skew, *numbers)


BETWEEN_PODS = _BetweenPods()
