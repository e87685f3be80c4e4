"""Answer whether enough members of a gang fit in a world. All explanations ask this oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import World
from muster.placement.explain.bounds import by_sums
from muster.placement.explain.joint import Fit, most_together
from muster.placement.explain.one_role_in_segments import most_in_segments
from muster.placement.gang.instance import Instance
from muster.placement.gang.member_subsets import MAX_TRIES, begun, fewer_fit, shared_out, ways_to_cut
from muster.placement.limits import Budget
from muster.placement.search.max_members import most
from muster.placement.search.regions import regions

MAX_COUNTED = 64
"""The most members for which it is counted how many fit next to begun segments. Each
count tried is a solve.
"""


class Oracle:
    """The oracle of all explanations: it answers how many members fit, and remembers its answers."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._most: dict[World, Fit] = {}
        self._reached: dict[World, Fit] = {}

    def enough(self, world: World) -> bool | None:
        """Return whether `world.wanted` members fit; None if that was not decided."""
        if not world.wanted:
            return True
        found = self.reached(world)
        if found.members >= world.wanted:
            return True
        return False if found.proven else None

    def reached(self, world: World) -> Fit:
        """Return how many members fit, at most as many as are wanted, and in which part of the required
        scope.
        """
        if world in self._most:
            return self._most[world]
        if world not in self._reached:
            self._reached[world] = self._found(world, world.wanted)
        return self._reached[world]

    def most(self, world: World) -> Fit:
        """Return the most members that fit, and in which part of the required scope."""
        if world not in self._most:
            self._most[world] = self._found(world, None)
        return self._most[world]

    def members(self, world: World) -> int | None:
        """Return the most members that fit; None if that was not decided."""
        found = self.most(world)
        return found.members if found.proven else None

    def _found(self, world: World, wanted: int | None) -> Fit:
        if self.budget.late:  # counting takes time too, and there are many worlds
            return Fit(0, "", False)
        instance = world.instance
        if any(role.segments for role in world.request.roles):
            return self._in_segments(world, instance, wanted)
        return self._of(world, instance, wanted)

    def _of(self, world: World, instance: Instance, wanted: int | None) -> Fit:
        """Return the most members of the instance that fit."""
        scope = world.request.required_scope
        if scope in (*INSIDE, Scope.NODE):
            found = most(instance, world.scopes, instance.need, self.budget)
            return Fit(found.members, found.part, found.proven)
        part = (
            regions(instance, world.scopes, instance.need)
            if instance.existing
            else world.view.topology.regions(scope)
        )
        return most_together(instance, scope, part, instance.need, self.budget, wanted)

    def _in_segments(self, world: World, instance: Instance, wanted: int | None) -> Fit:
        """Return the most members that fit, over all numbers of members that segments make a problem of its
        own.
        """
        if begun(world.request):
            return self._beside_begun(world, instance, wanted)
        scope, topology = world.request.required_scope, world.view.topology
        inside = scope in (*INSIDE, Scope.NODE)
        counted = None if inside else most_in_segments(instance, topology.regions(scope))
        if counted is not None:
            members, row = counted
            return Fit(members, topology.part(row, scope) if scope and row >= 0 else "", True)
        best, proven = Fit(0, "", True), True
        for tries, kept in enumerate(ways_to_cut(world.request)):
            if tries == MAX_TRIES or self.budget.late:
                proven = False
                break
            if sum(kept.values()) <= best.members or (wanted and best.members >= wanted):
                continue
            found = self._of(world, instance.keeping(kept), wanted)
            best, proven = max(best, found, key=lambda fit: fit.members), proven and found.proven
        return replace(best, proven=proven)

    def _beside_begun(self, world: World, instance: Instance, wanted: int | None) -> Fit:
        """Return the most members that fit if some segments have existing members.

        Each number of members is then a problem of its own. Usually one member can always be left out, so
        the interval of numbers is halved. Otherwise each number is tried, the largest first.
        """
        best, proven = Fit(0, "", True), True
        if wanted is None and world.request.size > MAX_COUNTED:
            return replace(best, proven=False)
        if not fewer_fit(world.request):
            for total in range(world.request.size, (wanted or 1) - 1, -1):
                found = self._exactly(world, instance, total)
                proven &= found.proven
                if found.members == total:
                    return replace(found, proven=proven)
            return replace(best, proven=proven)
        low, high = (wanted, wanted) if wanted else (1, world.request.size)
        while low <= high:
            middle = (low + high + 1) // 2
            found = self._exactly(world, instance, middle)
            if found.members == middle:
                best, low = found, middle + 1
            else:
                proven &= found.proven
                high = middle - 1
        return replace(best, proven=proven)

    def _exactly(self, world: World, instance: Instance, total: int) -> Fit:
        """Return whether `total` members fit, shared among the roles in any way; of each role the first by
        rank.
        """
        roles = world.request.roles
        nobody = Fit(0, "", True)
        for tries, counts in enumerate(shared_out(total, tuple(len(role.members) for role in roles))):
            if tries == MAX_TRIES or self.budget.late:
                return replace(nobody, proven=False)
            all_of_them = total == world.request.size
            kept = {role.name: n for role, n in zip(roles, counts, strict=True)}
            found = self._of(world, instance if all_of_them else instance.keeping(kept), total)
            if found.members == total:
                return found
            nobody = replace(nobody, proven=nobody.proven and found.proven)
        return nobody


def too_small(instance: Instance, scope: str | None) -> bool:
    """Return whether sums of capacities show that no part of the scope holds all members."""
    part = instance.columns.topology.regions(scope)
    rows = np.flatnonzero((part >= 0) & (instance.room > 0).any(axis=0))
    return not len(rows) or int(by_sums(instance, rows, part[rows], instance.need).max()) < sum(instance.need)
