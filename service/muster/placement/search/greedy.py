"""A solution of the coarse problem without a solver, for when that ran out of time: the fullest parts first,
in each the most useful patterns first."""

from __future__ import annotations

import numpy as np

from muster.placement.cluster.columns import Ints
from muster.placement.model.problem import Problem, Use
from muster.placement.search.prices import Price, in_fullest, values


def greedy(problem: Problem, by_price: tuple[Price, ...]) -> Use | None:
    """A solution that touches no more parts of the levels than decided; None where this finds none, as where
    rules bind members."""
    if problem.rules:
        return None
    for price, by_class in zip(by_price, values(problem, by_price), strict=True):
        chosen = np.ones(problem.classes, bool)
        for name, most in problem.at_most.items():  # widest first
            if name in problem.parts:
                chosen &= in_fullest(problem, name, by_class * chosen, most)
        use = _filled(problem, np.flatnonzero(chosen), np.array(price))
        if use is not None:
            return use
    return None


def _filled(problem: Problem, classes: Ints, price: Ints) -> Use | None:
    """Take patterns of these classes, the most useful first, the least wasteful between equals."""
    left = np.array(problem.need, np.int64)
    room = problem.size.copy()
    counts = problem.patterns.counts[problem.kind[classes]]
    use: Use = {}
    while left.any():
        useful = np.minimum(counts, left) @ price
        useful = np.where(problem.open[classes] & (room[classes] > 0)[:, None], useful, 0.0)
        wasted = counts @ price - useful
        best = np.lexsort((wasted.ravel(), -useful.ravel()))[0]
        i, p = np.unravel_index(best, useful.shape)
        if useful[i, p] <= 0:
            return None
        c, taken = int(classes[i]), counts[i, p]
        times = min([int(room[c]), *(int(have // n) for have, n in zip(left, taken, strict=True) if n)])
        times = max(1, times)
        use[c, int(p)] = use.get((c, int(p)), 0) + times
        room[c] -= times
        left = np.maximum(0, left - times * taken)
    return use
