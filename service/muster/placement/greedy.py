"""A plan without a solver: the fullest node first, in one rack if one holds all, else rack by rack.

It is the incumbent of every search. For one role inside one rack it is already the fewest nodes.
"""

from __future__ import annotations

from muster.placement.bounds import group, worth
from muster.placement.model.objective import COARSE
from muster.placement.model.problem import Problem, Use

Indexed = list[int]
"""Indices of classes in the problem."""


def greedy(problem: Problem, price: tuple[int, ...]) -> Use | None:
    """A solution of the coarse problem, or None when this finds none. `price` says how members weigh."""
    index = {id(cls): c for c, cls in enumerate(problem.classes)}
    for key in (
        lambda cls: (cls.part, cls.zone, cls.rack),
        lambda cls: (cls.part, cls.zone),
        lambda cls: (cls.part,),
    ):
        found = []
        for classes in group(problem.classes, key).values():
            use = _fill_region(problem, [index[id(cls)] for cls in classes], price)
            if use is not None:
                found.append(use)
        if found:
            return min(found, key=lambda use: [level.value(problem, use) for level in COARSE])
    return None


def _fill_region(problem: Problem, classes: Indexed, price: tuple[int, ...]) -> Use | None:
    """Fill rack by rack: the one that completes the gang in the fewest nodes, else that takes most."""
    racks: dict[int, Indexed] = {}
    for c in classes:
        racks.setdefault(problem.classes[c].rack, []).append(c)
    left, use = list(problem.need), dict[tuple[int, int], int]()
    while any(left) and racks:
        best: tuple[tuple[int, int, int], int, Use, list[int]] | None = None
        for rack, inside in racks.items():
            taken, rest = _fill(problem, inside, left, price)
            key = (int(any(rest)), worth(price, tuple(rest)) if any(rest) else 0, sum(taken.values()))
            if best is None or key < best[0]:
                best = (key, rack, taken, rest)
        if best is None or best[3] == left:
            return None
        use.update(best[2])
        left = best[3]
        del racks[best[1]]
    return None if any(left) else use


def _fill(
    problem: Problem, classes: Indexed, need: list[int], price: tuple[int, ...]
) -> tuple[Use, list[int]]:
    """Take patterns of these classes, the most useful first, the least wasteful between equals."""
    left, use = list(need), dict[tuple[int, int], int]()
    room = {c: problem.classes[c].size for c in classes}
    while any(left):
        best: tuple[tuple[int, int], int, int] | None = None
        for c in classes:
            if not room[c]:
                continue
            for p, pattern in enumerate(problem.classes[c].patterns):
                useful = worth(price, tuple(map(min, pattern.counts, left)))
                key = (-useful, worth(price, pattern.counts))
                if useful and (best is None or key < best[0]):
                    best = (key, c, p)
        if best is None:
            break
        _, c, p = best
        counts = problem.classes[c].patterns[p].counts
        times = min([room[c], *(have // count for have, count in zip(left, counts, strict=True) if count)])
        times = max(1, times)
        use[c, p] = use.get((c, p), 0) + times
        room[c] -= times
        left = [max(0, have - times * count) for have, count in zip(left, counts, strict=True)]
    return use, left
