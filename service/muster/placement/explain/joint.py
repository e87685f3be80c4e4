"""Count the most members of a gang in one part of a scope, by bounds first and then by CP-SAT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from muster.placement.cluster.columns import Ints
from muster.placement.explain.bounds import by_filling, by_packings, by_sums
from muster.placement.gang.instance import Counts, Instance
from muster.placement.limits import Budget
from muster.placement.model.most_members import most_in_all
from muster.placement.model.problem import Problem
from muster.placement.model.solve import feasible
from muster.placement.model.solver import Status
from muster.placement.search.classes import REGION, coarse

CHUNK = 8
"""How many parts are examined closely at first. Later chunks have twice as many."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How many `members` fit in `part` ("" for the whole cluster), and whether it is `proven` that no more
    do.
    """

    members: int
    part: str
    proven: bool


def most_together(
    instance: Instance, scope: str | None, part: Ints, need: Counts, budget: Budget, wanted: int | None = None
) -> Fit:
    """Return the most members of `need` in one part. `part` [row] is −1 for none.

    With `wanted`, the search ends as soon as it is known whether this number fits. The parts with the largest
    upper bound come first. Therefore only few of them are examined closely.
    """
    best, proven, enough = Fit(0, "", True), True, wanted or sum(need)
    active = [r for r, count in enumerate(need) if count]
    rows = np.flatnonzero((part >= 0) & (instance.room[active] > 0).any(axis=0))
    if not len(rows):
        return best
    part = part[rows]

    def found(one: int, members: int) -> Fit:
        name = instance.columns.topology.part(int(rows[part == one][0]), scope) if scope else ""
        return Fit(members, name, proven)

    sums = by_sums(instance, rows, part, need)
    if len(active) == 1 and not instance.rules.model:
        one = int(sums.argmax())
        return found(one, int(sums[one]))
    if int(sums.max()) < (wanted or 0):
        return best
    least = (
        by_filling(instance, rows, part, need)
        if instance.plain and not instance.sliced
        else np.zeros_like(sums)
    )
    for closer in _Parts(instance, need, rows, part, sums, least).by_promise():
        if closer.upper <= best.members or closer.upper < (wanted or 0):
            break
        proven &= closer.complete
        if closer.problem is None:
            best = found(closer.part, closer.upper)
        elif least[closer.part] >= enough:
            best = found(closer.part, int(least[closer.part]))
        else:
            members, decided = _solved(closer.problem, closer.region, wanted, budget)
            proven &= decided
            if members > best.members:
                best = found(closer.part, members)
        if best.members >= enough:
            break
    return replace(best, proven=proven)


class _Closer(NamedTuple):
    """A part that was examined closely: it holds at most `upper` members.

    Without a `problem` it holds exactly this number. Otherwise the problem decides it, in its `region`.
    `complete` is whether all packings were considered.
    """

    part: int
    upper: int
    complete: bool = True
    problem: Problem | None = None
    region: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The part of each of these rows. By part: upper bounds by `sums`, and lower bounds `least`, of its
    members.
    """

    instance: Instance
    need: Counts
    rows: Ints
    part: Ints
    sums: Ints
    least: Ints

    def by_promise(self) -> Iterator[_Closer]:
        """Yield the parts in the order of their upper bounds, the first one between equals.

        A part is examined closely only when it comes first by its sums and its bounds differ.
        """
        waiting = [one for one in np.argsort(-self.sums, kind="stable").tolist() if self.sums[one]]
        known: list[tuple[int, int, _Closer]] = []
        size = CHUNK
        while waiting or known:
            while waiting and (not known or (-self.sums[waiting[0]], waiting[0]) < known[0][:2]):
                if self.sums[waiting[0]] == self.least[waiting[0]]:
                    one = waiting.pop(0)
                    found = [_Closer(one, int(self.sums[one]))]
                else:
                    found = self._closer(waiting[:size])
                    waiting, size = waiting[size:], 2 * size
                for closer in found:
                    heappush(known, (-closer.upper, closer.part, closer))
            if known:
                yield heappop(known)[2]

    def _closer(self, parts: list[int]) -> list[_Closer]:
        """Return closer upper bounds of these parts, from the packings of their nodes."""
        inside = np.isin(self.part, parts)
        problem, complete = coarse(self.instance, self.rows[inside], self.need, (), self.part[inside])
        if not problem.classes:
            return []
        role = next(r for r, count in enumerate(self.need) if count)
        upper, exact = by_packings(problem, self.instance.common_unit(role))
        there = np.unique(self.part[np.searchsorted(self.rows, problem.rows)])  # the regions, in their order
        return [
            _Closer(one, most, complete)
            if exact or most == self.least[one]
            else _Closer(one, most, complete, problem, region)
            for region, (one, most) in enumerate(zip(there.tolist(), upper.tolist(), strict=True))
        ]


def _solved(problem: Problem, region: int, wanted: int | None, budget: Budget) -> tuple[int, bool]:
    """Return how many members the region holds, and whether that is proven.

    If all members are wanted, the answer is all or none.
    """
    problem, _ = problem.narrowed(problem.open & (problem.part(REGION) == region)[:, None])
    if wanted == sum(problem.need):  # then any solution will do
        status = feasible(problem, budget).status
        return (wanted if status is Status.SOLVED else 0), status is not Status.UNKNOWN
    return most_in_all(replace(problem, partial=True), budget)
