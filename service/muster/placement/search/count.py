"""Count how many members of a gang fit. The search and all explanations ask this counter.

One role is counted by sums. With several roles, each region gets an upper bound of its members: first by sums
of resources, then by the packings of its nodes. Regions are examined in descending order of their bounds.
CP-SAT is called only for regions that may hold more members than the best region so far. With segments, each
number of members is a separate problem, and several numbers are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from muster.domain.request import Role, Scope
from muster.placement.cluster.columns import LARGEST, Ints, gpu_counts
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.blocks import (
    MAX_TRIES,
    fewer_fit,
    has_begun_segment,
    ways_to_cut,
    ways_to_divide,
)
from muster.placement.gang.constraints import constraints_of
from muster.placement.gang.constraints.together import SEGMENTS
from muster.placement.gang.instance import Instance, amounts_of, room_of
from muster.placement.gang.packings import packings_on
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget
from muster.placement.model.build import QuorumRule
from muster.placement.model.problem import Floats, Problem
from muster.placement.model.solve import any_solution, most_members
from muster.placement.model.solver import SolveStatus
from muster.placement.search.classes import REGION, coarse_problem
from muster.placement.search.regions import NOWHERE, regions
from muster.placement.search.single_node import masks_of_parts

MAX_COUNTED = 64
"""Larger gangs are not counted if a segment has existing members, because each number tried is a solve."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How many `members` fit in `part`, and whether it is `proven` that no more members fit.

    The part is "" for the whole cluster. The parts of several scopes are joined by " in ". `counts` has the
    members of each role of the request; () if only the sum over roles was counted.
    """

    members: int
    part: str
    proven: bool
    counts: Counts = ()


NO_FIT = Fit(0, "", True)
"""No member fits."""


def count(
    instance: Instance,
    scopes: tuple[str, ...],
    budget: Budget,
    target: int | None = None,
    *,
    roles_in_order: bool = False,
) -> Fit:
    """Return the most members that one part of all the scopes holds.

    With a `target`, counting ends as soon as it is known whether this number fits. With `roles_in_order`, the
    members of each role are counted too. Between equal sums, the result has the most members of the earlier
    roles.
    """
    return _FitCounter(scopes, budget, target, roles_in_order).largest_fit(instance)


def no_part_holds(instance: Instance, scope: str | None) -> bool:
    """Return whether sums of capacities show that no part of the scope holds all members."""
    part = instance.columns.topology.regions(scope)
    rows = np.flatnonzero((part >= 0) & (instance.room > 0).any(axis=0))
    return not len(rows) or int(upper_bounds_by_sums(instance, rows, part[rows], instance.need).max()) < sum(
        instance.need
    )


@dataclass(frozen=True, slots=True)
class _FitCounter:
    """One call of `count`."""

    scopes: tuple[str, ...]
    budget: Budget
    target: int | None
    roles_in_order: bool

    def largest_fit(self, instance: Instance) -> Fit:
        """Return the most members that fit.

        With segments, each number of members is a separate problem, because the last segment may be shorter.
        So the problems are solved one by one.
        """
        request = instance.request
        if not any(role.segments for role in request.roles):
            return self._largest_in_part(instance)
        if has_begun_segment(request):
            return self._largest_with_begun_segments(instance)
        fit = count_in_segments(instance, self.scopes)
        if fit is not None:
            return fit
        largest, proven = NO_FIT, True
        for tries, members in enumerate(ways_to_cut(request)):
            if tries == MAX_TRIES or self.budget.late:
                proven = False
                break
            is_enough = self.target is not None and largest.members >= self.target
            if is_enough or sum(members.values()) < largest.members + (not self.roles_in_order):
                continue
            fit = self._largest_in_part(instance.with_first_members(members))
            largest, proven = max(largest, fit, key=self._sort_key), proven and fit.proven
        return replace(largest, proven=proven)

    def _sort_key(self, fit: Fit) -> tuple[int, Counts]:
        return fit.members, fit.counts if self.roles_in_order else ()

    def _largest_with_begun_segments(self, instance: Instance) -> Fit:
        """Return the most members that fit if some segments have running members.

        Each number of members is then a separate problem. If one member can always be left out, the numbers
        are searched by bisection. Otherwise each number is tried, the largest first.
        """
        largest, proven, size = NO_FIT, True, instance.request.size
        if self.target is None and size > MAX_COUNTED:
            return replace(largest, proven=False)
        if not fewer_fit(instance.request):
            for total in range(size, (self.target or 1) - 1, -1):
                fit = self._fit_exactly(instance, total)
                proven &= fit.proven
                if fit.members == total:
                    return replace(fit, proven=proven)
            return replace(largest, proven=proven)
        low, high = (self.target, self.target) if self.target else (1, size)
        while low <= high:
            middle = (low + high + 1) // 2
            fit = self._fit_exactly(instance, middle)
            if fit.members == middle:
                largest, low = fit, middle + 1
            else:
                proven &= fit.proven
                high = middle - 1
        return replace(largest, proven=proven)

    def _fit_exactly(self, instance: Instance, total: int) -> Fit:
        """Return a fit of `total` members, divided among the roles in any way; if there is none, NO_FIT.

        Of each role, the first members by rank are placed.
        """
        roles, proven = instance.request.roles, True
        counter = replace(self, target=total)
        for tries, counts in enumerate(ways_to_divide(total, tuple(len(role.members) for role in roles))):
            if tries == MAX_TRIES or self.budget.late:
                return replace(NO_FIT, proven=False)
            members = {role.name: n for role, n in zip(roles, counts, strict=True)}
            is_whole_gang = total == instance.request.size
            fit = counter._largest_in_part(
                instance if is_whole_gang else instance.with_first_members(members)
            )
            if fit.members == total:
                return fit
            proven &= fit.proven
        return replace(NO_FIT, proven=proven)

    def _largest_in_part(self, instance: Instance) -> Fit:
        """Return the most members that fit in one region, or in a node or a part of a node."""
        if not any(instance.need) or not len(instance.columns.names):
            return NO_FIT
        fit_inside = self._largest_inside_nodes(instance)
        fit_across = self._largest_in_regions(instance)
        fit = max(fit_inside, fit_across, key=self._sort_key)
        fit = replace(fit, proven=fit_inside.proven and fit_across.proven)
        return replace(fit, counts=tuple(instance.by_role(fit.counts).values())) if fit.counts else fit

    def _largest_in_regions(self, instance: Instance) -> Fit:
        """Return the most members that fit in one region: the regions are examined in descending order of
        their upper bounds.
        """
        bounds = _RegionBounds.of(instance, self.scopes)
        if bounds is None or int(bounds.upper.max()) < (self.target or 0):
            return NO_FIT
        if bounds.is_exact:
            fullest = int(bounds.upper.argmax())
            return bounds.fit(fullest, int(bounds.upper[fullest]))
        if not self.roles_in_order:
            bounds = bounds.with_lower_bounds()
        largest, proven, target_members = NO_FIT, True, self.target or sum(bounds.need)
        region_bounds, complete = bounds.by_upper_bound(max(1, self.target or 0))
        for bound in region_bounds:
            if not bound.upper or bound.upper < max(self.target or 0, largest.members):
                break
            if bound.upper == largest.members and not (
                self.roles_in_order and bounds.max_by_role(bound.region) > largest.counts
            ):
                continue
            if bound.problem is None:
                largest = bounds.fit(bound.region, bound.upper)
            elif bounds.lower[bound.region] >= target_members:
                largest = bounds.fit(bound.region, int(bounds.lower[bound.region]))
            elif self.budget.spent:
                proven = False
            else:
                counts, is_most = self._solve_region(bound, bounds.quorum)
                proven &= is_most
                largest = max(largest, bounds.fit(bound.region, sum(counts), counts), key=self._sort_key)
            if largest.members >= target_members:
                break
        return replace(largest, proven=proven and (complete or largest.members >= target_members))

    def _solve_region(self, region: _RegionBound, quorum: QuorumRule | None) -> tuple[Counts, bool]:
        """Return how many members of each role the region holds, and whether that is proven.

        If the target is the whole gang, the result is all members or none.
        """
        problem = region.problem
        assert problem is not None
        problem, _ = problem.narrow_to(problem.open & (problem.part(REGION) == region.part)[:, None])
        if self.target == sum(problem.need):  # any solution for the whole gang will do
            status = any_solution(problem, self.budget).status
            counts = problem.need if status is SolveStatus.SOLVED else ()
            return counts, status is not SolveStatus.UNKNOWN
        problem = replace(problem, partial=True)
        return most_members(problem, self.budget, quorum, roles_in_order=self.roles_in_order)

    def _largest_inside_nodes(self, instance: Instance) -> Fit:
        """Return the most members that fit in a node, or in a part of a node, if a scope asks for that."""
        rows, masks = _parts_inside_nodes(instance, self.scopes)
        if not len(rows):
            return NO_FIT
        need, quorum = instance.need, instance.request.quorum
        packings = packings_on(instance, rows, need, masks)
        nobody = (0,) * len(need)
        gang_checks = instance.rules.gang_on_node_checks
        by_kind = [
            {nobody, *(p.all if gang_checks or quorum else map(tuple, p.maximal.tolist()))}
            for p in packings.lists
        ]
        all_packings = set[Counts]().union(*by_kind)
        starting = filter(instance.starts, all_packings) if quorum else all_packings
        for counts in sorted(starting, key=lambda counts: (sum(counts), counts), reverse=True):
            holds = np.array([counts in packings_of_kind for packings_of_kind in by_kind])[packings.index]
            for may_hold in gang_checks:
                holds &= may_hold(counts)[rows]
            if holds.any():
                break
        else:
            return replace(NO_FIT, proven=packings.complete)
        holding = np.flatnonzero(holds)
        first_part = int(holding[np.lexsort((masks[holding], rows[holding]))[0]])
        name = _name_of_part(instance, self.scopes, int(rows[first_part]), int(masks[first_part]))
        return Fit(sum(counts), name, packings.complete, counts)


def _parts_inside_nodes(instance: Instance, scopes: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return [part] the row and the GPU mask of each part of the scopes that is a node or lies in a node."""
    columns = instance.columns
    inner_scopes = [scope for scope in scopes if scope in INSIDE]
    rows, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if inner_scopes or Scope.NODE in scopes:
        usable = np.asarray((instance.room > 0).any(axis=0))
        if instance.running:
            hosts = list(instance.running.masks)
            usable &= np.isin(np.arange(len(usable)), hosts) & (len(hosts) == 1)
        for scope in scopes:
            if scope not in (*INSIDE, Scope.NODE):
                usable &= columns.topology.index(scope) >= 0
        if Scope.NODE not in scopes and Scope.GPU not in scopes:
            usable &= ~columns.topology.in_wide  # wide domains are regions
        for shape in np.unique(columns.shape[usable]).tolist():
            rows_of_shape = np.flatnonzero(usable & (columns.shape == shape))
            for mask in masks_of_parts(instance, int(rows_of_shape[0]), inner_scopes):
                rows.append(rows_of_shape)
                masks.append(np.full(len(rows_of_shape), mask))
    return np.concatenate(rows), np.concatenate(masks)


def _name_of_part(instance: Instance, scopes: tuple[str, ...], row: int, mask: int = -1) -> str:
    """Return the names of the parts of the scopes in which this node lies, or the GPUs of `mask` on it; the
    narrowest part first.
    """
    topology = instance.columns.topology
    names = [
        next((name for name, part in topology.parts(row, scope) if mask == -1 or mask & ~part == 0), "")
        for scope in scopes
    ]
    return " in ".join(names[::-1])


def _quorum_rule(instance: Instance) -> QuorumRule | None:
    """Return the rule that enough subgroups start, for the model; None if the gang has no quorum.

    Roles with equal requests and equal room on all nodes are counted as one role, if no rule distinguishes
    them.
    """
    if instance.request.quorum is None:
        return None
    representatives, first_by_ask = list(range(len(instance.roles))), dict[object, int]()
    for r, role in enumerate(instance.roles if instance.binds_only_by_scopes else ()):
        ask = (role.resources, role.gpus, role.gpu_resource, role.slice, instance.room[r].tobytes())
        representatives[r] = first_by_ask.setdefault(ask, r)
    names = tuple(role.name for role in instance.roles)
    return QuorumRule(instance.request.quorum, names, instance.need, tuple(representatives))


class _RegionBound(NamedTuple):
    """A region and a close upper bound of the members that the region holds.

    Without a `problem`, the region holds exactly `upper` members. With a problem, the solver decides. `part`
    is the region's index among the parts of the problem.
    """

    region: int
    upper: int
    problem: Problem | None = None
    part: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _RegionBounds:
    """The regions of an instance, with bounds of the number of members that each region holds."""

    instance: Instance
    scopes: tuple[str, ...]
    need: Counts
    """The members of each role."""
    quorum: QuorumRule | None
    rows: Ints
    """[node] The row of the node."""
    region: Ints
    """[node] The region of the node."""
    upper: Ints
    """[region] An upper bound of the members of the region, by sums."""
    lower: Ints
    """[region] A lower bound of the members of the region."""

    @classmethod
    def of(cls, instance: Instance, scopes: tuple[str, ...]) -> _RegionBounds | None:
        """Return the regions of an instance; None if no region has a node that may host members."""
        need = instance.need
        region_of_row = regions(instance, scopes, need)
        rows = np.flatnonzero(region_of_row != NOWHERE)
        if not len(rows):
            return None
        region = region_of_row[rows]
        upper = upper_bounds_by_sums(instance, rows, region, need)
        return cls(instance, scopes, need, _quorum_rule(instance), rows, region, upper, np.zeros_like(upper))

    def with_lower_bounds(self) -> _RegionBounds:
        """Return the same regions, with lower bounds if no rule binds members to each other."""
        if not self.instance.binds_only_by_scopes or self.instance.sliced or self.quorum is not None:
            return self
        return replace(self, lower=lower_bounds_by_filling(self.instance, self.rows, self.region, self.need))

    @property
    def active(self) -> list[int]:
        """The roles with members."""
        return [r for r, members in enumerate(self.need) if members]

    @property
    def is_exact(self) -> bool:
        """Whether each region holds exactly `upper` members."""
        return len(self.active) == 1 and not self.instance.rules.model and self.quorum is None

    def fit(self, region: int, members: int, counts: Counts | None = None) -> Fit:
        """Return the fit of these members in this region. Without `counts`, they are known for one role."""
        if counts is None:
            active = self.active
            counts = tuple(members * (r in active) for r in range(len(self.need))) if len(active) == 1 else ()
        row = int(self.rows[self.region == region][0])
        return Fit(members, _name_of_part(self.instance, self.scopes, row), True, counts)

    def max_by_role(self, region: int) -> Counts:
        """Return the most members of each role alone that the region holds."""
        room = self.instance.room[:, self.rows[self.region == region]].sum(axis=1)
        return tuple(np.minimum(room, self.need).tolist())

    def by_upper_bound(self, min_upper: int) -> tuple[list[_RegionBound], bool]:
        """Return the regions that may hold `min_upper` members, in descending order of their upper bounds,
        and whether all packings were considered.

        If a region's bounds by sums differ, a closer upper bound comes from the packings of the nodes.
        Between equal bounds, the region with the lower index comes first.
        """
        decided = self.upper == self.lower
        order = np.argsort(-self.upper, kind="stable")
        # No region after the first decided region holds more members.
        order = order[: 1 + int(np.append(decided[order], True).argmax())]
        promising = order[self.upper[order] >= max(min_upper, int(self.lower.max()))]
        by_region = {
            region: _RegionBound(region, int(self.upper[region]))
            for region in promising[decided[promising]].tolist()
        }
        undecided = promising[~decided[promising]]
        if not len(undecided):
            return [*by_region.values()], True
        is_undecided = np.isin(self.region, undecided)
        need = self.need if self.quorum is None else self.quorum.need_in_model
        problem, complete = coarse_problem(
            self.instance, self.rows[is_undecided], need, (), self.region[is_undecided]
        )
        if problem.classes:
            upper, exact = upper_bounds_by_packings(problem, self.instance.common_unit(self.active[0]))
            exact &= self.quorum is None
            # Regions are sorted by index, as the parts of the problem are.
            present = np.unique(self.region[np.searchsorted(self.rows, problem.rows)])
            for part, (region, max_members) in enumerate(zip(present.tolist(), upper.tolist(), strict=True)):
                by_region[region] = _RegionBound(region, max_members)
                if not exact and max_members > self.lower[region]:
                    by_region[region] = _RegionBound(region, max_members, problem, part)
        return sorted(by_region.values(), key=lambda bound: (-bound.upper, bound.region)), complete


# Bounds without a solver, of all parts at once


DISCOUNTS = (0.0, 0.5, 0.75, 0.875, 1.0)
"""The discounts (`upper_bounds_by_packings`) tried for each of up to three roles, if no rule binds them.

A large discount suits small members that all fit anyway. Then the bound depends on members that are four to
eight times as large.
"""

DISCOUNTS_UNDER_RULES = (0.0, 1.0)
"""The discounts that are tried if rules bind members, or if there are four to six roles. With more roles, no
discounts are tried.
"""

ROUNDING_ERROR = 1e-9
"""Sums of bytes over thousands of nodes are inexact as floats. So bounds grow by this before they are rounded
down.
"""


def upper_bounds_by_sums(instance: Instance, rows: Ints, part: Ints, need: Counts) -> Ints:
    """Return [part] an upper bound of the members that the part holds. `part` is the part of each row.

    Two bounds are combined: the room for each role alone, and how many members each resource covers, smallest
    members first. For one role that no model rule binds, the bound is exact.
    """
    parts, active = int(part.max()) + 1, [r for r, members in enumerate(need) if members]
    needed = np.array(need)[active, None]
    caps = np.minimum(instance.room[active][:, rows], needed).astype(np.float64)
    max_members = np.minimum([np.bincount(part, cap, parts) for cap in caps], needed)
    upper = max_members.sum(axis=0)
    for amount, free in _resource_amounts(instance, rows, active) if len(active) > 1 else ():
        usable = np.minimum(np.maximum(0, free), amount @ caps)
        spare = np.bincount(part, usable, parts) * (1 + ROUNDING_ERROR)
        members = np.zeros(parts)
        for r in np.argsort(amount, kind="stable").tolist():
            added_members = np.minimum(max_members[r], spare // amount[r]) if amount[r] else max_members[r]
            members, spare = members + added_members, spare - added_members * amount[r]
        upper = np.minimum(upper, members)
    return np.asarray(upper, np.int64)


def lower_bounds_by_filling(instance: Instance, rows: Ints, part: Ints, need: Counts) -> Ints:
    """Return [part] a lower bound of the members that the part holds, if no rule binds them to each other.

    Nodes are filled one after another, with the roles with most GPUs first.
    """
    order = np.argsort(part, kind="stable")
    rows, part = rows[order], part[order]
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    nodes_of_part = np.diff([*begins, len(part)])
    active = [r for r, members in enumerate(need) if members]
    active.sort(key=lambda r: (-instance.roles[r].gpus, -instance.roles[r].resources.cpu_milli))
    resources = _resource_amounts(instance, rows, active)
    lower = np.zeros(int(part.max()) + 1, np.int64)
    for i, r in enumerate(active):
        room = np.minimum(instance.room[r][rows], need[r])
        for amount, free in resources:
            if amount[i]:
                room = np.minimum(room, np.maximum(0, free) // int(amount[i]))
        room_before = np.cumsum(room) - room
        room_before -= np.repeat(room_before[begins], nodes_of_part)
        members = np.clip(need[r] - room_before, 0, room)
        resources = [(amount, free - members * int(amount[i])) for amount, free in resources]
        lower[part[begins]] += np.add.reduceat(members, begins)
    return lower


def _resource_amounts(instance: Instance, rows: Ints, active: Sequence[int]) -> list[tuple[Ints, Ints]]:
    """Return for each resource the amount that a member of each of these roles takes, and the free amount by
    row.

    The number of members that rules allow on a node counts as a resource.
    """
    roles = [instance.roles[r] for r in active]
    amounts = [amounts_of(role.resources, role.gpus) for role in roles]
    resources = [
        (
            [min(amounts_of_role.get(name, 0), LARGEST) for amounts_of_role in amounts],
            instance.columns.free_amount(name),
        )
        for name in sorted(set[str]().union(*amounts))
    ]
    max_by_rule = np.array(
        [
            LARGEST if rule is None or rule.max_members < 0 else rule.max_members
            for rule in instance.rules.node_rules
        ]
    )
    if max_by_rule.min() < LARGEST:
        resources.append(([1] * len(roles), max_by_rule[instance.rules.in_node]))
    return [(np.array(amount, np.int64), free[rows]) for amount, free in resources]


def upper_bounds_by_packings(problem: Problem, unit: int) -> tuple[Ints, bool]:
    """Return [part of REGION] an upper bound of the members in the part, and whether the bound is exact.

    The bound uses the packings of the nodes, within the limits of the rules. Members of a single role come in
    multiples of `unit` on any node. The value 1 of a member is divided into a discount and a price. A part
    gets the discounts of all members at once, and from each node the price of its best packing. This sum is a
    bound for any discounts, and the least sum is taken.
    """
    need, counts = np.array(problem.need), problem.patterns.counts
    active = np.flatnonzero(need)
    is_one_role = len(active) == 1
    upper, exact = np.zeros(int(problem.parts[REGION].max()) + 1), is_one_role
    for r in active.tolist():
        members, all_rules = _members_by_region(
            problem, counts.max(axis=1)[:, [r]], (r,), np.ones(1), unit if is_one_role else 1
        )
        upper, exact = upper + np.minimum(members[:, 0], need[r]), exact and all_rules
    if not is_one_role:
        steps = (
            DISCOUNTS
            if len(active) <= 3 and not problem.rules
            else DISCOUNTS_UNDER_RULES
            if len(active) <= 6
            else (0.0,)
        )
        worth = np.zeros((len(steps) ** len(active), len(need)))
        worth[:, active] = 1 - np.array(list(product(steps, repeat=len(active))))
        packings: Floats = np.tensordot(counts, worth.T, axes=1).max(axis=1)
        values, _ = _members_by_region(problem, packings, tuple(active.tolist()), worth.max(axis=1), 1)
        upper = np.minimum(upper, (values + (need.sum() - worth @ need)).min(axis=1))
    return np.floor(upper + ROUNDING_ERROR).astype(np.int64), exact


def _members_by_region(
    problem: Problem, members_by_kind: Floats, roles: tuple[int, ...], price: Floats, unit: int
) -> tuple[Floats, bool]:
    """Return [part of REGION, i] the members that the nodes of the part hold, and whether all rules were
    applied.

    `members_by_kind` [kind, i] is the members that a node of each kind holds, and `price` [i] the largest
    value of one member. Rules are applied from the narrowest to the widest scope. A rule is skipped if it
    limits more than member counts, or if a part of a narrower scope lies in several of its parts.
    """
    cells, cell_of_class = np.unique(problem.cell, return_inverse=True)
    region, values = problem.parts[REGION][cells], np.zeros((len(cells), len(price)))
    np.add.at(values, cell_of_class, members_by_kind[problem.kind] * problem.size[:, None])
    group = first = np.arange(len(cells))
    binding = [rule for rule in problem.rules if not set(roles).isdisjoint(rule.bound_roles)]
    rules = [rule for rule in binding if rule.in_numbers or rule.in_one_part]
    all_rules = len(rules) == len(binding)
    for rule in sorted(rules, key=lambda rule: (-len(np.unique(rule.part)), rule.step)):
        part = rule.part[cells]
        if not set(roles) <= set(rule.bound_roles) or (part != part[first][group]).any():
            all_rules = False
            continue
        part_or_group = np.where(part < 0, int(part.max(initial=0)) + 1 + group, part)
        code = region * (int(part_or_group.max()) + 1) + part_or_group
        _, narrowest, wider = np.unique(code, return_index=True, return_inverse=True)
        sums = np.zeros((len(narrowest), len(price)))
        np.add.at(sums, wider[first], values)
        group, first, values = wider, narrowest, sums
        in_part = part[first] >= 0
        if rule.in_one_part:
            all_rules = False
            _, first_of_region, group = np.unique(region, return_index=True, return_inverse=True)
            largest_values = np.zeros((len(first_of_region), len(price)))
            np.maximum.at(largest_values, group[first[in_part]], values[in_part])
            first, values = first_of_region, largest_values
            continue
        if len(rule.max_members):
            limits = rule.max_members[part[first][in_part]][:, None] * price
            values[in_part] = np.minimum(values[in_part], limits)
        if len(roles) == 1:
            unit = max(unit, rule.step)
            values[in_part] -= values[in_part] % unit
    by_region = np.zeros((int(problem.parts[REGION].max()) + 1, len(price)))
    np.add.at(by_region, region[first], values)
    return by_region - (by_region % unit if len(roles) == 1 else 0), all_rules


def count_in_segments(instance: Instance, scopes: tuple[str, ...]) -> Fit | None:
    """Return how many members of a single role with nested segments fit in one part of the scope.

    Full segments of inner parts add up. Of shorter segments only the longest counts, because only the last
    segment of a role may be shorter. The result is None if other rules bind the members too, or if the parts
    of the segments' scopes are not nested.
    """
    role, scope = _role_in_segments(instance), next(iter(scopes), None)
    if role is None or len(scopes) > 1 or scope in (*INSIDE, Scope.NODE):
        return None
    topology = instance.columns.topology
    region = topology.regions(scope)
    rows = np.flatnonzero(instance.admits_without_rules[role.name] & (region >= 0))
    for segment in role.segments:
        if segment.scope == Scope.NVLINK_DOMAIN:
            rows = rows[instance.columns.promised[rows]]
        elif segment.scope != Scope.NODE:
            rows = rows[topology.index(segment.scope)[rows] >= 0]
    if not len(rows):
        return NO_FIT
    in_full, in_short, size = _segments_on_nodes(instance, role, rows)
    wider = [(rows, size)]
    for segment in reversed(role.segments):
        if segment.scope != Scope.NVLINK_DOMAIN:
            code = rows if segment.scope == Scope.NODE else topology.index(segment.scope)[rows]
            wider.append((code, segment.size))
    part = np.arange(len(rows))
    for code, step in (*wider, (region[rows], wider[-1][1])):
        outer_part = np.unique(code, return_inverse=True)[1]
        _, first = np.unique(part, return_index=True)
        # A node may have smaller segments than its NVLink domains.
        if step % size or (outer_part != outer_part[first][part]).any():
            return None
        members = np.bincount(outer_part[first], in_full).astype(np.int64)
        longest = np.zeros_like(members)
        np.maximum.at(longest, outer_part[first], in_short)
        in_full, in_short, part, size = members - members % step, members % step + longest, outer_part, step
    max_members = np.minimum(in_full + in_short, len(role.members))
    fullest = int(max_members.argmax())
    counts = tuple(min(int(max_members[fullest]), len(role.members)) for role in instance.request.roles)
    row = int(rows[part == fullest][0])
    return Fit(int(max_members[fullest]), topology.part(row, scope) if scope else "", True, counts)


def _role_in_segments(instance: Instance) -> Role | None:
    """Return the only role with members, if no rule but its segments binds them; else None."""
    request = instance.request
    active = [role for role in request.roles if role.members]
    if len(active) != 1 or request.quorum is not None or instance.running or instance.sliced:
        return None
    (role,), scopes = active, {segment.scope for segment in active[0].segments}
    if any(constraint is not SEGMENTS for constraint, _, _ in constraints_of(request)) or Scope.GPU in scopes:
        return None
    has_wide_domains = Scope.NVLINK_DOMAIN in scopes and instance.columns.topology.in_wide.any()
    return None if has_wide_domains or not role.gpus else role


def _segments_on_nodes(instance: Instance, role: Role, rows: Ints) -> tuple[Ints, Ints, int]:
    """Return by node the members in full segments, the members in the longest short segment, and the segment
    size.

    The segments are the role's segments by NVLink domain, else segments of one member.
    """
    columns, room = instance.columns, room_of(instance.columns, role)[rows]
    in_full, in_short = np.zeros_like(room), np.zeros_like(room)
    size = next((segment.size for segment in role.segments if segment.scope == Scope.NVLINK_DOMAIN), 0)
    if not size:
        return room, in_short, 1
    for code in np.unique(columns.shape[rows]).tolist():
        nodes = np.flatnonzero(columns.shape[rows] == code)
        for domain in columns.shapes[code].domains:
            members = gpu_counts(columns.free_gpus[rows[nodes]] & domain) // role.gpus
            in_full[nodes] += members - members % size
            in_short[nodes] = np.maximum(in_short[nodes], members % size)
    fit = np.minimum(in_full, room - room % size)
    # If cpu, memory or another resource limits the node (fit < in_full), its NVLink domains still have free
    # GPUs. So the short segment may have up to size − 1 members.
    in_short = np.where(fit < in_full, size - 1, in_short)
    return fit, np.minimum(in_short, room - fit), size
