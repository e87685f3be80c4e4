"""Aggregate roles that ask for multiples of each other into one role of the smallest size.

Counts and all levels below are the same for the aggregated role, and often the gang then has one role only.
At the end the members are assigned. If each size divides the next, a node that holds the sum holds the
members too. Wherever the larger members go, the same is left for the smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from muster.placement.gang.instance import Counts, Instance
from muster.placement.limits import Budget
from muster.placement.model.objective import Level
from muster.placement.search.methods import (
    Answer,
    Counted,
    Decide,
    Declined,
    Infeasible,
    Partial,
    Solved,
    Start,
)
from muster.placement.search.plan import Share, Value


@dataclass(frozen=True, slots=True)
class RoleAggregation:
    """Decide the gang as one role of the smallest size, then assign the members."""

    decide: Decide
    name: ClassVar = "role-aggregation"
    given: ClassVar = (Start,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide all levels if the members can be assigned to the best plan of units."""
        if plan.likely is not None:
            return Declined("the members are units of several roles")
        with budget.phase("scan"):
            alike = aggregated_roles(plan.instance, plan.need)
        if isinstance(alike, Declined):
            return alike
        units, gap = self.decide(replace(plan, need=alike.units, likely=alike.likely), incumbent, budget)
        if units is None:
            return Declined("no plan of units was found") if gap else Infeasible()
        shares = alike.dealt(plan.instance, units.shares())
        if not shares:
            return Declined("the members can't be dealt out to the plan of units")
        steps = tuple(replace(step, method=f"{self.name}, {step.method}") for step in units.steps)
        return Solved((replace(plan.complete(shares, units.value), steps=steps),), gap)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Members by role, `need`, and their `sizes` as members of the role `unit`; 0 for roles that are not
    aggregated.
    """

    need: Counts
    sizes: Counts
    unit: int

    @property
    def units(self) -> Counts:
        """The same members, with the aggregated ones as members of one role."""
        alone = [0 if size else count for count, size in zip(self.need, self.sizes, strict=True)]
        alone[self.unit] = self._units(1)
        return tuple(alone)

    def _units(self, least: int) -> int:
        """Return how many units the members of at least this size are."""
        sized = zip(self.need, self.sizes, strict=True)
        return sum(count * size for count, size in sized if size >= least)

    def likely(self, counted: Counted) -> bool:
        """Return whether the nodes of the solution, filled up, hold the members.

        The nodes of the best plan are nearly full too, so this is a good guess.
        """
        problem = counted.problem
        full = [
            (int(problem.patterns.counts[problem.kind[c], p, self.unit]), nodes)
            for (c, p), nodes in counted.use.items()
        ]
        return all(
            sum(units // size * size * nodes for units, nodes in full) >= self._units(size)
            for size in filter(None, self.sizes)
        )

    def dealt(self, instance: Instance, shares: Iterable[Share]) -> tuple[Share, ...]:
        """Return shares of units as shares of members; () if they do not hold the members.

        The largest members are assigned first, along the fabric, so that each role stays together.
        """
        levels = [instance.columns.topology.index(level) for level in instance.levels]
        roles = sorted(np.flatnonzero(self.sizes).tolist(), key=lambda role: -self.sizes[role])
        left, found = list(self.need), []
        for share in sorted(shares, key=lambda share: (*(codes[share.row] for codes in levels), share.row)):
            room, counts = share.counts[self.unit], list(share.counts)
            for role in roles:
                counts[role] = min(left[role], room // self.sizes[role])
                left[role] -= counts[role]
                room -= counts[role] * self.sizes[role]
            found.append(Share(share.row, tuple(counts), share.gpus, share.spread, share.shared))
        return () if any(left[role] for role in roles) else tuple(found)


def aggregated_roles(instance: Instance, need: Counts) -> Aggregation | Declined:
    """Return the roles aggregated by size, or why that does not apply."""
    active = [role for role, count in enumerate(need) if count and instance.roles[role].gpus]
    capped = instance.rules.caps is not None or instance.penalty is not None
    if len(active) < 2:
        return Declined("fewer than two roles with GPUs")
    if not instance.plain or instance.costs or capped:
        return Declined("rules, policies, slices or preferences")
    unit = min(active, key=lambda role: instance.roles[role].gpus)
    sizes = tuple(_size(instance, role, unit) if role in active else 0 for role in range(len(need)))
    known = sorted(filter(None, sizes))
    if len(known) < 2 or any(larger % smaller for smaller, larger in pairwise(known)):
        return Declined("the requests are not multiples of one another")
    # Many small members need more pods than few large ones. So no node may be short of pods.
    others = [np.minimum(room, need[role]) for role, room in enumerate(instance.room) if not sizes[role]]
    members = instance.columns.free_count // instance.roles[unit].gpus + sum(others)
    pods = max(1, *(role.resources.pods for role in instance.roles))
    short = instance.columns.pods < members * pods
    if (short & (instance.room[unit] > 0)).any():
        return Declined("pods per node are scarce")
    return Aggregation(need, sizes, unit)


def _size(instance: Instance, role: int, unit: int) -> int:
    """Return how many members of `unit` one member of the role counts as on every node; 0 if it is no
    multiple.
    """
    large, small = instance.roles[role], instance.roles[unit]
    size = large.gpus // small.gpus
    asked, every = large.resources, small.resources.times(size)
    multiple = (
        large.gpus == size * small.gpus
        and asked.cpu_milli == every.cpu_milli
        and asked.memory_bytes == every.memory_bytes
        and asked.others == every.others
        and np.array_equal(instance.room[role], instance.room[unit] // size)
    )
    return size if multiple else 0
