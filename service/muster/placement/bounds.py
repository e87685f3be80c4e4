"""Bounds that need no solver: sorted capacities under a few prices of the members.

A price values members by role. Whatever the price, the k nodes (racks, zones) of the largest value can't hold
less than any k others: so the fewest that reach the value of what is needed is a bound, and for one role the
bound is met inside one part. The later core replaces these few prices by the dual's (solver.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from muster.placement.model.problem import NodeClass, Problem
from muster.placement.site import Counts, Site

Price = tuple[int, ...]


def prices(site: Site) -> tuple[Price, ...]:
    """Each role alone, all members alike, and members by their GPUs."""
    roles = len(site.roles)
    units = [tuple(int(r == role) for r in range(roles)) for role in range(roles)]
    found = [*units, (1,) * roles, tuple(role.gpus for role in site.roles)]
    return tuple(price for price in dict.fromkeys(found) if any(price))


def worth(price: Price, counts: Counts) -> int:
    """The value of so many members."""
    return sum(p * c for p, c in zip(price, counts, strict=True))


def capacity(price: Price, cls: NodeClass) -> int:
    """The most that one node of the class can take."""
    return max((worth(price, pattern.counts) for pattern in cls.patterns), default=0)


def fewest(capacities: Iterable[int], need: int) -> int | None:
    """How many of the largest capacities reach `need`; None when all do not."""
    if need <= 0:
        return 0
    left = need
    for count, value in enumerate(sorted(capacities, reverse=True), start=1):
        left -= value
        if left <= 0:
            return count
    return None


def group(
    classes: Iterable[NodeClass], key: Callable[[NodeClass], tuple[int, ...]]
) -> dict[tuple[int, ...], list[NodeClass]]:
    """Classes by key, in order of first appearance."""
    groups: dict[tuple[int, ...], list[NodeClass]] = {}
    for cls in classes:
        groups.setdefault(key(cls), []).append(cls)
    return groups


def region_of(problem: Problem) -> Callable[[NodeClass], tuple[int, ...]]:
    """The smallest region known to hold the whole gang: a rack or zone when one is enough, else a part."""
    decided = dict(problem.at_most)
    one_zone, one_rack = decided.get("zones") == 1, decided.get("racks") == 1
    # A rack may lie in several zones, and does where racks are no level here.
    return lambda cls: (cls.part, cls.zone if one_zone else -1, cls.rack if one_rack else -1)


def floor(problem: Problem, unit: str, by_price: Sequence[Price]) -> int | None:
    """The fewest `unit`s ("zones", "racks", "nodes") that can hold the gang; None: it fits in no region."""
    least: int | None = None
    for classes in group(problem.classes, region_of(problem)).values():
        counts = [fewest(_capacities(classes, unit, price), worth(price, problem.need)) for price in by_price]
        if None in counts:
            continue
        bound = max(count for count in counts if count is not None)
        least = bound if least is None else min(least, bound)
    return None if least is None else max(1, least)


def _capacities(classes: list[NodeClass], unit: str, price: Price) -> list[int]:
    if unit == "nodes":
        return [value for cls in classes for value in [capacity(price, cls)] * cls.size]
    sums: dict[int, int] = {}
    for cls in classes:
        index = cls.zone if unit == "zones" else cls.rack
        sums[index] = sums.get(index, 0) + capacity(price, cls) * cls.size
    return list(sums.values())
