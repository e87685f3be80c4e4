"""Filter contradicting assumptions: drop each that is not needed for the contradiction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def irreducible(groups: Iterable[Sequence[T]], forbids: Callable[[frozenset[T]], bool]) -> frozenset[T]:
    """Return an irreducible subset that still forbids.

    `forbids(kept)` returns whether these assumptions leave no plan. All of them together forbid, and more
    never forbid less. Groups and their elements are dropped in the given order if possible, so the preferred
    ones come last. A group that can be dropped as a whole costs one call. Each element that stays costs the
    logarithm of its group's size.
    """
    groups = list(groups)
    kept = frozenset(each for group in groups for each in group)

    def reduce(group: Sequence[T], one_stays: bool) -> None:
        nonlocal kept
        if not group or (one_stays and len(group) == 1):
            return
        if not one_stays and forbids(kept - set(group)):
            kept -= set(group)
            return
        if len(group) > 1:
            cut = len(group) - (len(group) + 3) // 4  # the last ones are more likely to stay
            reduce(group[:cut], False)
            reduce(group[cut:], kept.isdisjoint(group[:cut]))

    for group in groups:
        reduce(group, False)
    return kept
