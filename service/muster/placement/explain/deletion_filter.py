"""The deletion filter: of assumptions that contradict each other, some that still do, none of them idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def irreducible(groups: Iterable[Sequence[T]], forbids: Callable[[frozenset[T]], bool]) -> frozenset[T]:
    """An irreducible subset that still forbids.

    `forbids(kept)`: whether these assumptions leave no plan; all of them together do, and more never forbid
    less. Groups, and what is in them, are left out in the order given where they can be, so what is wanted
    in the answer comes last. A group that goes at once costs one call; each one that stays, log of its size.
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
            cut = len(group) - (len(group) + 3) // 4  # those at the end are the likelier to stay
            reduce(group[:cut], False)
            reduce(group[cut:], kept.isdisjoint(group[:cut]))

    for group in groups:
        reduce(group, False)
    return kept
