"""Limit how many members each part of a scope holds, and how many members of a role single nodes hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from muster.domain.causes.out_of_place import NoSuchDomain
from muster.domain.constraints import MaxPer, MorePerPart, PerScope, RoomTooSmall, TooFewParts
from muster.domain.reasons import Cause
from muster.domain.request import Request, Scope
from muster.placement.cluster.columns import LARGEST, Bools
from muster.placement.cluster.topology import own_part_if_none
from muster.placement.gang.constraints.constraint import ByScope, OfRoles, RefusalFacts, role_of
from muster.placement.gang.rules import BlockIndices, Rules
from muster.placement.gang.running import RunningMembers
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import takes_gpus
from muster.placement.model.build import LinearExpr, Variables
from muster.placement.model.problem import Ints, PartLimits, Problem, Rule, capacity_of_classes


@dataclass(frozen=True, slots=True, eq=False)
class MaxPerPart(Rule):
    """Limit the members of these roles in each part to `max_members` [part]."""

    in_numbers: ClassVar[bool] = True

    def add(self, variables: Variables, name: str) -> None:
        """Add one inequality for each part to the model."""
        for part, counts in variables.by_part(self.part, self.roles).items():
            if part >= 0:
                max_members = int(self.max_members[part])
                variables.model.add(LinearExpr.sum(counts) <= max_members).with_name(f"{name}/{part}")

    def limits(self, problem: Problem) -> PartLimits:
        """Return the limits of each part for the bound."""
        low, part = np.zeros(len(self.max_members), np.int64), self.part[problem.cell]
        room = self.max_members - self.max_members % problem.unit_of(self.roles)
        return PartLimits(self.roles, part, low, room, room, capacity_of_classes(problem, self.roles))


class _MaxPer(ByScope):
    kind, order = MaxPer, 40

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        for rule in self.by_scope(request).values():
            if rule.scope != Scope.GPU:  # a GPU never holds two members that take it whole
                _add_max_per(rules, rule, running)

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        rule = self.by_scope(findings.request)[key]
        yield TooFewParts(rule.scope, rule.members, *findings.fit(), findings.even_empty, findings.running)
        if isinstance(nowhere := findings.no_such(rule.scope), NoSuchDomain):
            yield nowhere

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[MorePerPart]:
        """Yield the smallest number that works. The step is doubled until a number works, then the interval
        is halved.
        """
        request, limit = findings.request, self.by_scope(findings.request)[key].members

        def works(members: int) -> bool:
            return findings.works(self.request_with(request, key, MaxPer(key, members)))

        low, step, gang_size = limit, 1, request.size + len(request.running)
        while low < gang_size and not works(high := min(limit + step, gang_size)):
            low, step = high, 2 * step
        if low >= gang_size:
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if works(middle) else (middle, high)
        yield MorePerPart(key, high, limit)


MAX_PER = _MaxPer()


def _add_max_per(rules: Rules, rule: PerScope, running: RunningMembers) -> None:
    by_nvlink_domain = rule.scope == Scope.NVLINK_DOMAIN
    if not by_nvlink_domain:  # a node cannot hold more than its part
        rules.max_per_node = _smaller_limit(rules.max_per_node, rule.members)
        if rule.scope == Scope.NODE:
            return
    elif not rules.sliced:
        rules.max_per_domain = _smaller_limit(rules.max_per_domain, rule.members)
    codes = rules.codes(rule.scope)
    roles = rules.blocks.roles
    blocks = tuple(b for b, role in enumerate(roles) if takes_gpus(role) or not by_nvlink_domain)
    rules.gang_on_node_checks.append(partial(_may_hold_all, rules, rule, blocks, len(running.members)))
    if not by_nvlink_domain:
        codes = own_part_if_none(codes)
    elif (codes < 0).all():
        return
    members_by_part = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
    for member in running.members:
        if codes[member.row] >= 0 and (member.has_gpus or not by_nvlink_domain):
            members_by_part[codes[member.row]] += 1
    room: Ints = np.maximum(0, rule.members - members_by_part)
    rules.add_rule(f"max-per {rule.scope}", codes, lambda part: MaxPerPart(part, blocks, max_members=room))


def _smaller_limit(max_members: int, members: int) -> int:
    return members if max_members < 0 else min(max_members, members)


def _may_hold_all(rules: Rules, rule: PerScope, blocks: BlockIndices, running: int, packing: Counts) -> Bools:
    """Return [row] bool: whether the node may hold the whole gang. The node's rule checks domains inside."""
    checked_in_node = rule.scope == Scope.NVLINK_DOMAIN and not rules.sliced
    spared = ~rules.columns.topology.in_wide if checked_in_node else np.zeros(len(rules.columns.names), bool)
    return np.asarray(spared | (sum(packing[block] for block in blocks) + running <= rule.members))


class _Room(OfRoles):
    field, nothing, order, binds = "room", MappingProxyType[str, int]({}), 60, False

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        """Limit all blocks of a role together, because they share its room."""
        for name in dict.fromkeys(rules.blocks.roles[block].name for block in rules.active):
            blocks = rules.blocks_of([name])
            room, row = rules.blocks.roles[blocks[0]].room, rules.columns.row
            most_by_row = {row[node]: max_members for node, max_members in room.items() if node in row}
            if most_by_row:
                max_members = np.full(len(rules.columns.names), LARGEST, np.int64)
                max_members[list(most_by_row)] = list(most_by_row.values())
                rules.cap_together(blocks, max_members)

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[RoomTooSmall]:
        """Yield how many members the nodes that admit the role can hold, as far as known."""
        asking = role_of(findings.request, role)
        members = len(asking.members)
        room = sum(min(asking.room.get(node, members), members) for node in findings.nodes_admitting(asking))
        yield RoomTooSmall(role, min(room, members), members, *findings.fit(), findings.even_empty)


ROOM = _Room()
