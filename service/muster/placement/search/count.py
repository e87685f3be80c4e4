"""Count how many members of a gang fit. The search and all explanations ask this counter.

One role is counted by sums. Otherwise each part has an upper bound of its members, first by sums of resources
and then by the packings of its nodes. Parts are looked at in the order of these bounds, and CP-SAT decides
those that no bound excludes. Where segments make each number of members a problem of its own, several numbers
are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.blocks import (
    MAX_TRIES,
    begun,
    by_role,
    fewer_fit,
    shared_out,
    ways_to_cut,
)
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.packings import packings_on
from muster.placement.limits import Budget
from muster.placement.model.problem import Problem
from muster.placement.model.quorum import QuorumRule
from muster.placement.model.solve import feasible, most_members
from muster.placement.model.solver import Status
from muster.placement.search.classes import REGION, coarse
from muster.placement.search.count_bounds import by_filling, by_packings, by_sums, most_in_segments
from muster.placement.search.regions import NOWHERE, regions
from muster.placement.search.single_node import parts_inside

MAX_COUNTED = 64
"""The most members that are counted next to begun segments. Each number tried is a solve."""

CHUNK = 8
"""How many parts get the closer bound at first. Later chunks have twice as many."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How many `members` fit in `part`, and whether it is `proven` that no more do.

    The part is "" for the whole cluster. The parts of several scopes are joined by " in ". `counts` has the
    members of each role of the request; it is () if only their sum was counted.
    """

    members: int
    part: str
    proven: bool
    counts: Counts = ()


NOTHING = Fit(0, "", True)
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
    members of each role are counted too. Of equal sums, that with most of the earlier roles counts.
    """
    return _Counter(scopes, budget, target, roles_in_order).most(instance)


def too_small(instance: Instance, scope: str | None) -> bool:
    """Return whether sums of capacities show that no part of the scope holds all members."""
    part = instance.columns.topology.regions(scope)
    rows = np.flatnonzero((part >= 0) & (instance.room > 0).any(axis=0))
    return not len(rows) or int(by_sums(instance, rows, part[rows], instance.need).max()) < sum(instance.need)


@dataclass(frozen=True, slots=True)
class _Counter:
    """One call of `count`."""

    scopes: tuple[str, ...]
    budget: Budget
    target: int | None
    roles_in_order: bool

    def most(self, instance: Instance) -> Fit:
        """Return the most members that fit, over all numbers that segments make a problem of its own."""
        request = instance.request
        if not any(role.segments for role in request.roles):
            return self._together(instance)
        if begun(request):
            return self._next_to_begun(instance)
        fit = self._of_one_role_in_segments(instance)
        if fit is not None:
            return fit
        most, proven = NOTHING, True
        for tries, members in enumerate(ways_to_cut(request)):
            if tries == MAX_TRIES or self.budget.late:
                proven = False
                break
            if sum(members.values()) < most.members + (not self.roles_in_order) or self._is_enough(most):
                continue
            fit = self._together(instance.keeping(members))
            most, proven = max(most, fit, key=self._rank), proven and fit.proven
        return replace(most, proven=proven)

    def _rank(self, fit: Fit) -> tuple[int, Counts]:
        return fit.members, fit.counts if self.roles_in_order else ()

    def _is_enough(self, fit: Fit) -> bool:
        return self.target is not None and fit.members >= self.target

    def _of_one_role_in_segments(self, instance: Instance) -> Fit | None:
        """Return what fits if a closed form says so; None if more than the segments of one role matters."""
        if len(self.scopes) > 1 or any(scope in (*INSIDE, Scope.NODE) for scope in self.scopes):
            return None
        topology, scope = instance.columns.topology, next(iter(self.scopes), None)
        members_and_row = most_in_segments(instance, topology.regions(scope))
        if members_and_row is None:
            return None
        members, row = members_and_row
        counts = tuple(min(members, len(role.members)) for role in instance.request.roles)
        return Fit(members, topology.part(row, scope) if scope and row >= 0 else "", True, counts)

    def _next_to_begun(self, instance: Instance) -> Fit:
        """Return the most members that fit if some segments have existing members.

        Each number of members is then a problem of its own. Usually one member can always be left out, so
        the interval of numbers is halved. Otherwise each number is tried, the largest first.
        """
        most, proven, size = NOTHING, True, instance.request.size
        if self.target is None and size > MAX_COUNTED:
            return replace(most, proven=False)
        if not fewer_fit(instance.request):
            for total in range(size, (self.target or 1) - 1, -1):
                fit = self._exactly(instance, total)
                proven &= fit.proven
                if fit.members == total:
                    return replace(fit, proven=proven)
            return replace(most, proven=proven)
        low, high = (self.target, self.target) if self.target else (1, size)
        while low <= high:
            middle = (low + high + 1) // 2
            fit = self._exactly(instance, middle)
            if fit.members == middle:
                most, low = fit, middle + 1
            else:
                proven &= fit.proven
                high = middle - 1
        return replace(most, proven=proven)

    def _exactly(self, instance: Instance, total: int) -> Fit:
        """Return a fit of `total` members, shared among the roles in any way; else one of fewer members.

        Of each role, the first members by rank are placed.
        """
        roles, proven = instance.request.roles, True
        counter = replace(self, target=total)
        for tries, counts in enumerate(shared_out(total, tuple(len(role.members) for role in roles))):
            if tries == MAX_TRIES or self.budget.late:
                return replace(NOTHING, proven=False)
            members = {role.name: n for role, n in zip(roles, counts, strict=True)}
            whole = total == instance.request.size
            fit = counter._together(instance if whole else instance.keeping(members))
            if fit.members == total:
                return fit
            proven &= fit.proven
        return replace(NOTHING, proven=proven)

    def _together(self, instance: Instance) -> Fit:
        """Return the most members that fit inside a node, if a scope asks for that, or in one region."""
        if not any(instance.need) or not len(instance.columns.names):
            return NOTHING
        inside = self._inside_nodes(instance)
        across = self._in_regions(instance)
        fit = max(inside, across, key=self._rank)
        fit = replace(fit, proven=inside.proven and across.proven)
        return replace(fit, counts=by_role(instance, fit.counts)) if fit.counts else fit

    def _in_regions(self, instance: Instance) -> Fit:
        """Return the most members that fit in one region, the most promising regions first."""
        parts = _Regions.of(instance, self.scopes)
        if parts is None or int(parts.upper.max()) < (self.target or 0):
            return NOTHING
        if parts.is_exact:
            fullest = int(parts.upper.argmax())
            return parts.fit(fullest, int(parts.upper[fullest]))
        if not self.roles_in_order:
            parts = parts.with_lower()
        most, proven, enough = NOTHING, True, self.target or sum(parts.need)
        for region in parts.by_promise():
            if not region.upper or region.upper < max(self.target or 0, most.members):
                break
            if region.upper == most.members and not (
                self.roles_in_order and parts.caps(region.code) > most.counts
            ):
                continue
            proven &= region.complete
            if region.problem is None:
                most = parts.fit(region.code, region.upper)
            elif parts.lower[region.code] >= enough:
                most = parts.fit(region.code, int(parts.lower[region.code]))
            elif self.budget.spent:
                proven = False
            else:
                counts, is_most = self._solved(region, parts.quorum)
                proven &= is_most
                most = max(most, parts.fit(region.code, sum(counts), counts), key=self._rank)
            if most.members >= enough:
                break
        return replace(most, proven=proven)

    def _solved(self, region: _Region, quorum: QuorumRule | None) -> tuple[Counts, bool]:
        """Return how many members of each role the region holds, and whether that is proven.

        If the target is all members, the answer is all or none.
        """
        problem = region.problem
        assert problem is not None
        problem, _ = problem.narrowed(problem.open & (problem.part(REGION) == region.part)[:, None])
        if self.target == sum(problem.need):  # then any solution will do
            status = feasible(problem, self.budget).status
            counts = problem.need if status is Status.SOLVED else ()
            return counts, status is not Status.UNKNOWN
        problem = replace(problem, partial=True)
        return most_members(problem, self.budget, quorum, roles_in_order=self.roles_in_order)

    def _inside_nodes(self, instance: Instance) -> Fit:
        """Return the most members that fit on a node, or in a part inside one, if a scope asks for that."""
        rows, masks = _parts_inside(instance, self.scopes)
        if not len(rows):
            return NOTHING
        need, quorum = instance.need, instance.request.quorum
        index, packings = packings_on(instance, rows, need, masks)
        complete = all(packing.complete for packing in packings)
        nobody = (0,) * len(need)
        whole = instance.rules.whole
        by_kind = [{nobody, *(p.all if whole or quorum else p.largest)} for p in packings]
        every = set[Counts]().union(*by_kind)
        starting = filter(instance.starts, every) if quorum else every
        for counts in sorted(starting, key=lambda counts: (sum(counts), counts), reverse=True):
            holds = np.array([counts in of_kind for of_kind in by_kind])[index]
            for may_hold in whole:
                holds &= may_hold(counts)[rows]
            if holds.any():
                break
        else:
            return replace(NOTHING, proven=complete)
        at = np.flatnonzero(holds)
        first = int(at[np.lexsort((masks[at], rows[at]))[0]])
        name = _name(instance, self.scopes, int(rows[first]), int(masks[first]))
        return Fit(sum(counts), name, complete, counts)


def _parts_inside(instance: Instance, scopes: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return the parts of the scopes that are nodes or lie inside nodes: [part] the row, and the GPU mask."""
    view = instance.columns
    narrow = [scope for scope in scopes if scope in INSIDE]
    rows, masks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if narrow or Scope.NODE in scopes:
        usable = np.asarray((instance.room > 0).any(axis=0))
        if instance.existing:
            hosts = list(instance.existing.masks)
            usable &= np.isin(np.arange(len(usable)), hosts) & (len(hosts) == 1)
        for scope in scopes:
            if scope not in (*INSIDE, Scope.NODE):
                usable &= view.topology.index(scope) >= 0
        if Scope.NODE not in scopes and Scope.GPU not in scopes:
            usable &= ~view.topology.in_wide  # wide domains are regions
        for shape in np.unique(view.shape[usable]).tolist():
            of_shape = np.flatnonzero(usable & (view.shape == shape))
            for mask in parts_inside(instance, int(of_shape[0]), narrow):
                rows.append(of_shape)
                masks.append(np.full(len(of_shape), mask))
    return np.concatenate(rows), np.concatenate(masks)


def _name(instance: Instance, scopes: tuple[str, ...], row: int, mask: int = -1) -> str:
    """Return the parts of the scopes in which this node, or these GPUs of it, lie, narrowest first."""
    topology = instance.columns.topology
    names = [
        next((name for name, part in topology.parts(row, scope) if mask == -1 or mask & ~part == 0), "")
        for scope in scopes
    ]
    return " in ".join(names[::-1])


def _quorum(instance: Instance) -> QuorumRule | None:
    """Return the rule that enough subgroups start, if some are enough.

    Roles that ask for the same, on the same nodes, are counted as one role if nothing else tells them apart.
    """
    if instance.request.quorum is None:
        return None
    alike, first = list(range(len(instance.roles))), dict[object, int]()
    for r, role in enumerate(instance.roles if instance.plain else ()):
        ask = (role.resources, role.gpus, role.gpu_resource, role.slice, instance.room[r].tobytes())
        alike[r] = first.setdefault(ask, r)
    names = tuple(role.name for role in instance.roles)
    return QuorumRule(instance.request.quorum, names, instance.need, tuple(alike))


class _Region(NamedTuple):
    """A region that holds at most `upper` members, by a close bound.

    Without a `problem`, the region holds exactly this number. Otherwise a solver decides, in the problem's
    own `part`.
    `complete` is whether all packings were considered.
    """

    code: int
    upper: int
    complete: bool = True
    problem: Problem | None = None
    part: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Regions:
    """The regions of an instance: `code` [row looked at] is the region of each of these rows.

    By code: bounds `upper`, by sums, and `lower` of the region's members.
    """

    instance: Instance
    scopes: tuple[str, ...]
    quorum: QuorumRule | None
    rows: Ints
    code: Ints
    upper: Ints
    lower: Ints

    @classmethod
    def of(cls, instance: Instance, scopes: tuple[str, ...]) -> _Regions | None:
        """Return the regions; None if no node that may host members lies in any."""
        region = regions(instance, scopes, instance.need)
        rows = np.flatnonzero(region != NOWHERE)
        if not len(rows):
            return None
        code = region[rows]
        upper = by_sums(instance, rows, code, instance.need)
        return cls(instance, scopes, _quorum(instance), rows, code, upper, np.zeros_like(upper))

    def with_lower(self) -> _Regions:
        """Return the regions with lower bounds, if nothing binds their members to each other."""
        if not self.instance.plain or self.instance.sliced or self.quorum is not None:
            return self
        return replace(self, lower=by_filling(self.instance, self.rows, self.code, self.need))

    @property
    def need(self) -> Counts:
        """The members of each role."""
        return self.instance.need

    @property
    def active(self) -> list[int]:
        """The roles with members."""
        return [r for r, members in enumerate(self.need) if members]

    @property
    def is_exact(self) -> bool:
        """Whether each region holds as many members as its sums say."""
        return len(self.active) == 1 and not self.instance.rules.model and self.quorum is None

    def fit(self, code: int, members: int, counts: Counts | None = None) -> Fit:
        """Return that this region holds these members. Without `counts`, they may be of a single role."""
        if counts is None:
            counts = tuple(members * (r == self.active[0]) for r in range(len(self.need)))
            counts = counts if len(self.active) == 1 else ()
        row = int(self.rows[self.code == code][0])
        return Fit(members, _name(self.instance, self.scopes, row), True, counts)

    def caps(self, code: int) -> Counts:
        """Return the most members of each role alone that the region holds."""
        room = self.instance.room[:, self.rows[self.code == code]].sum(axis=1)
        return tuple(np.minimum(room, self.need).tolist())

    def by_promise(self) -> Iterator[_Region]:
        """Yield the regions in the order of their upper bounds, the first one between equals.

        A region gets the closer bound only when it comes first by its sums and its bounds differ.
        """
        waiting = [code for code in np.argsort(-self.upper, kind="stable").tolist() if self.upper[code]]
        ready: list[tuple[int, int, _Region]] = []
        size = CHUNK
        while waiting or ready:
            while waiting and (not ready or (-self.upper[waiting[0]], waiting[0]) < ready[0][:2]):
                if self.upper[waiting[0]] == self.lower[waiting[0]]:
                    code = waiting.pop(0)
                    closer = [_Region(code, int(self.upper[code]))]
                else:
                    closer = self._closer(waiting[:size])
                    waiting, size = waiting[size:], 2 * size
                for region in closer:
                    heappush(ready, (-region.upper, region.code, region))
            if ready:
                yield heappop(ready)[2]

    def _closer(self, codes: list[int]) -> list[_Region]:
        """Return closer upper bounds of these regions, from the packings of their nodes."""
        inside = np.isin(self.code, codes)
        need = self.need if self.quorum is None else self.quorum.counted
        problem, complete = coarse(self.instance, self.rows[inside], need, (), self.code[inside])
        if not problem.classes:
            return []
        upper, exact = by_packings(problem, self.instance.common_unit(self.active[0]))
        exact &= self.quorum is None
        present = np.unique(self.code[np.searchsorted(self.rows, problem.rows)])  # in the order of the parts
        return [
            _Region(code, most, complete)
            if exact or most == self.lower[code]
            else _Region(code, most, complete, problem, part)
            for part, (code, most) in enumerate(zip(present.tolist(), upper.tolist(), strict=True))
        ]
