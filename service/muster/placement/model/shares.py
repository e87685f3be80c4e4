"""Derive from rules how many members of some roles each part takes, at least and at most.

These are bounds that hold in every plan. They end searches early that the rules make hopeless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.placement.model.problem import FREE, Bools, Ints, Problem


@dataclass(frozen=True, slots=True, eq=False)
class PartShare:
    """How many members of `roles` each part takes.

    `part` [class] is −1 for none. Each part takes `low` [part] to `high` [part] members. The rule allows all
    numbers from `low` to `even` [part] at once. `capacity` [class] is the most of these roles that the
    class's nodes take, rules aside.
    """

    roles: tuple[int, ...]
    part: Ints
    low: Ints
    high: Ints
    even: Ints
    capacity: Ints

    def fewest_nodes(self, problem: Problem) -> dict[int, int]:
        """Return the fewest nodes that hold its members, for each part that must take members."""
        found = {}
        for one in np.flatnonzero(self.low > 0).tolist():
            inside = self.part == one
            size = problem.size[inside]
            each = np.repeat(self.capacity[inside] // np.maximum(1, size), size)
            found[one] = _fewest(each, int(self.low[one]))
        return found

    def fewest_parts(self, other: Ints) -> int:
        """Return the fewest parts of another scope, given by `other` [class], that hold what each part must
        take.
        """
        total, least = 0, 0
        codes = np.unique(np.stack([other, self.part]), axis=1)
        codes = codes[:, (codes >= 0).all(axis=0)]
        nested = len(np.unique(codes[0])) == codes.shape[1]
        for one in np.flatnonzero(self.low > 0).tolist():
            inside = self.part == one
            free = int(self.capacity[inside & (other == FREE)].sum())
            counted = inside & (other != FREE)
            held = np.bincount(other[counted], self.capacity[counted]) if counted.any() else np.zeros(1)
            count = _fewest(held.astype(np.int64), int(self.low[one]) - free)
            total, least = total + count, max(least, count)
        return total if nested else least

    def in_fullest(self, other: Ints) -> Bools:
        """Return [class] bool: the classes in the fullest parts of another scope, given by `other` [class].

        For each part as many of them are taken as hold what the part may take. Classes that lie in no part
        are always included.
        """
        found = np.asarray((other == FREE) | (self.part < 0))
        for one in np.flatnonzero(self.high > 0).tolist():
            inside = (self.part == one) & (other != FREE)
            if inside.any():
                held = np.bincount(other[inside], self.capacity[inside]).astype(np.int64)
                fullest = np.argsort(-held, kind="stable")[: _fewest(held, int(self.high[one]))]
                found |= inside & np.isin(other, fullest)
        return found


def shares(problem: Problem) -> Iterator[PartShare]:
    """Yield the limits of the problem's rules."""
    for rule in problem.rules:
        share = rule.share(problem)
        if share is not None:
            yield share


def capacity(problem: Problem, roles: tuple[int, ...]) -> Ints:
    """Return [class] the most members of the roles that the class's nodes take."""
    counts = problem.patterns.counts[:, :, list(roles)].sum(axis=2)
    return np.asarray(np.where(problem.open, counts[problem.kind], 0).max(axis=1, initial=0) * problem.size)


def _fewest(held: Ints, wanted: int) -> int:
    """Return how many of the largest entries reach `wanted`; one more than there are if
    all do not reach it.
    """
    if wanted <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(np.sort(held)[::-1]), wanted)) + 1
