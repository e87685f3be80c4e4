"""Compute bounds without a solver: sorted capacities under a few prices of the members.

A price gives each member of a role a value. At any price, the k nodes (racks, zones) with the largest value
hold at least as much as any k others. So the fewest that reach the value of all members are a bound. For one
role the bound is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.model.problem import FREE, Problem
from muster.placement.model.shares import PartShare, shares

Price = tuple[float, ...]
"""The value of a member, by role."""

RATIOS = 16
"""Steps between the price of one role alone and that of another role alone."""

MOST_OF_PAIRS = 512
"""About the most prices of pairs of roles: all ratios for eight roles, then fewer ratios, then fewer pairs.

Each price costs time on every node, and any choice of prices is a bound.
"""


def prices(instance: Instance, need: Counts) -> tuple[Price, ...]:
    """Return the prices to try: each role alone, all equal, by GPUs, and pairs of roles at ratios of their
    needs.

    With many roles only some of these are tried.
    """
    active = [r for r, count in enumerate(need) if count]
    found = [tuple(float(r == role) for r in range(len(need))) for role in active]
    if len(active) > 1:
        found += [tuple(float(n > 0) for n in need), tuple(float(role.gpus) for role in instance.roles)]
        found += [tuple(float(ask.units * ask.gpus) for ask in instance.asks)]
    pairs = comb(len(active), 2)
    steps = max(1, min(RATIOS - 1, MOST_OF_PAIRS // max(1, pairs)))
    every = -(-pairs // MOST_OF_PAIRS)
    for a, b in islice(combinations(active, 2), 0, None, max(1, every)):
        for step in range(1, steps + 1):
            share = step / (steps + 1)
            price = [0.0] * len(need)
            price[a], price[b] = share / need[a], (1 - share) / need[b]
            found.append(tuple(price))
    return tuple(price for price in dict.fromkeys(found) if any(price))


def values(problem: Problem, by_price: tuple[Price, ...]) -> NDArray[np.float64]:
    """Return [price, class] the most that one node of each class can take."""
    if not problem.classes or not by_price:
        return np.zeros((len(by_price), problem.classes))
    counts = problem.patterns.counts.astype(float)  # 0 if there is no pattern
    worth = np.stack([(counts @ np.array(price)).max(axis=1, initial=0.0) for price in by_price])
    return np.asarray(worth[:, problem.kind])


def fewest_parts(problem: Problem, part: Ints, by_price: tuple[Price, ...], need: Counts) -> int | None:
    """Return a lower bound of the parts that hold the gang; None if all parts do not hold it.

    `part` is [class]. Classes of part FREE need no part. For one role without further rules the bound is
    exact.
    """
    every = list(shares(problem))
    if problem.spared:  # members without a price touch no part
        priced = {role for price in by_price for role, value in enumerate(price) if value}
        every = [share for share in every if priced.issuperset(share.roles)]
    least = max((share.fewest_parts(part) for share in every), default=0)
    for price, by_class in zip(by_price, values(problem, by_price), strict=True):
        held = _held(by_class * problem.size, part, price, every)
        wanted = float(np.dot(price, need)) * (1 - 1e-9) - held[FREE]
        found = fewest(held[:FREE], wanted)
        if found is None:
            return None
        least = max(least, found)
    return least


def _held(
    capacity: NDArray[np.float64], part: Ints, price: Price, every: Sequence[PartShare]
) -> NDArray[np.float64]:
    """Return [part] what each part holds at a price, at most what rules allow. The last entry is for FREE."""
    count = int(part.max(initial=FREE)) + 2
    of = np.where(part == FREE, count - 1, part)
    held = np.bincount(of, capacity, count).astype(float)
    priced = {role for role, value in enumerate(price) if value}
    for share in every:
        if priced <= set(share.roles):
            limits = np.append(share.high * max(price), np.inf)
            code = of * len(limits) + np.where(share.part < 0, len(limits) - 1, share.part)
            both = np.bincount(code, capacity, count * len(limits)).reshape(count, len(limits))
            held = np.minimum(held, np.minimum(both, limits).sum(axis=1))
    return held


def fewest(capacities: NDArray[np.float64], wanted: float) -> int | None:
    """Return how many of the largest capacities reach what is wanted; None if all do not."""
    if wanted <= 0:
        return 0
    reached = np.cumsum(np.sort(capacities)[::-1])
    if not len(reached) or reached[-1] < wanted:
        return None
    return int(np.searchsorted(reached, wanted)) + 1


def parts_that_hold(problem: Problem, part: Ints, by_price: tuple[Price, ...], need: Counts) -> Ints:
    """Return the parts whose capacity suffices at each price. No other part can hold the whole gang."""
    holds, every = np.ones(int(part.max(initial=-1)) + 1, bool), list(shares(problem))
    for price, by_class in zip(by_price, values(problem, by_price), strict=True):
        wanted = float(np.dot(price, need)) * (1 - 1e-9)
        holds &= _held(by_class * problem.size, part, price, every)[:FREE] >= wanted
    return np.flatnonzero(holds)


def in_fullest(problem: Problem, scope: str, by_class: NDArray[np.float64], count: int) -> Bools:
    """Return [class] bool: whether the class is in one of the `count` fullest parts of a scope, or in no
    part.

    `by_class` [class] is what one node holds.
    """
    part = problem.part(scope)
    inside = part != FREE
    capacity = np.bincount(part[inside], (by_class * problem.size)[inside])
    fullest = np.argsort(-capacity, kind="stable")[:count]
    return np.asarray(~inside | np.isin(part, fullest))
