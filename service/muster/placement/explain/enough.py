"""Whether enough members of a gang fit in a world: the oracle of all that is explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import Ints
from muster.placement.cluster.fabric import INSIDE
from muster.placement.explain.assumptions import World, bound
from muster.placement.explain.joint import most_together
from muster.placement.gang.site import Site
from muster.placement.limits import Budget
from muster.placement.search.most import Most, most

MAX_TRIES = 64
"""Ways to leave members out that are tried where segments make each a problem of its own."""

MAX_COUNTED = 64
"""Members up to which it is counted how many fit in segments: each count tried is a solve."""


class Oracle:
    """Says how many members fit. What it was asked before costs nothing."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._most: dict[World, Most] = {}
        self._reached: dict[World, Most] = {}

    def enough(self, world: World) -> bool | None:
        """Whether `world.wanted` members fit; None if that was not decided."""
        if not world.wanted:
            return True
        found = self.reached(world)
        if found.members >= world.wanted:
            return True
        return False if found.proven else None

    def reached(self, world: World) -> Most:
        """Members that fit, no more looked for than are wanted, and the part of the required scope where they
        do."""
        if world in self._most:
            return self._most[world]
        if world not in self._reached:
            self._reached[world] = self._found(world, world.wanted)
        return self._reached[world]

    def most(self, world: World) -> Most:
        """The most members that fit, and the part of the required scope where they do."""
        if world not in self._most:
            self._most[world] = self._found(world, None)
        return self._most[world]

    def members(self, world: World) -> int | None:
        """The most members that fit; None if that was not decided."""
        found = self.most(world)
        return found.members if found.proven else None

    def _found(self, world: World, wanted: int | None) -> Most:
        site = world.site
        if any(role.segments for role in world.request.roles):
            return self._in_segments(world, site, wanted)
        several = sum(map(bool, site.need)) > 1
        if several and not bound(world.request) and world.request.required_scope not in (*INSIDE, Scope.NODE):
            return most_together(site, world.scopes, site.need, self.budget, wanted)
        return most(site, world.scopes, site.need, self.budget)

    def _in_segments(self, world: World, site: Site, wanted: int | None) -> Most:
        """Who is left out changes what the rest may do, so each number of members is a problem of its own.
        The last of those that fit can always be left out: so numbers are halved."""
        best, proven = Most((), "", True), True
        if wanted is None and world.request.size > MAX_COUNTED:
            return replace(best, proven=False)
        low, high = (wanted, wanted) if wanted else (1, world.request.size)
        while low <= high:
            middle = (low + high + 1) // 2
            found = self._exactly(world, site, middle)
            if found.members == middle:
                best, low = found, middle + 1
            else:
                proven &= found.proven
                high = middle - 1
        return replace(best, proven=proven)

    def _exactly(self, world: World, site: Site, total: int) -> Most:
        """So many members, whoever they are; the first of their roles by rank."""
        roles = world.request.roles
        nobody = Most((), "", True)
        for tries, counts in enumerate(_shared_out(total, [len(role.members) for role in roles])):
            if tries == MAX_TRIES:
                return replace(nobody, proven=False)
            kept = site.keeping({role.name: n for role, n in zip(roles, counts, strict=True)})
            found = most(kept, world.scopes, kept.need, self.budget)
            if found.members == total:
                return found
            nobody = replace(nobody, proven=nobody.proven and found.proven)
        return nobody


def _shared_out(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """So many members shared out to roles of these sizes, most of the earlier roles first."""
    if not sizes:
        yield ()
        return
    first, *others = sizes
    for count in range(min(first, total), max(0, total - sum(others)) - 1, -1):
        for rest in _shared_out(total - count, others):
            yield (count, *rest)


def parts_of(world: World) -> Ints:
    """The part of the required scope by row, −1 for none; a node where it lies inside one."""
    view, scope = world.view, world.request.required_scope
    own: Ints = np.arange(len(view.names), dtype=np.int64)
    if scope is None:
        return np.zeros(len(own), np.int64)
    if scope in (Scope.NODE, Scope.GPU):
        return own
    if scope == Scope.NVLINK_DOMAIN:
        return np.where(view.wide >= 0, view.wide.astype(np.int64), len(view.wide_names) + own)
    return view.part(scope).codes.astype(np.int64)
