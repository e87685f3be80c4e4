"""Find a solution of the coarse problem without a solver, for when the solver runs out of time.

The fullest parts are used first, and in each the most useful patterns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.model.problem import FREE, Problem, Use
from muster.placement.model.shares import shares
from muster.placement.search.surrogate_bounds import Price, in_fullest, values


def greedy(problem: Problem, by_price: tuple[Price, ...]) -> Use | None:
    """Return a solution that touches at most the decided number of parts of each level.

    The result is None if none is found, for example because several rules bind members.
    """
    if problem.exact:
        return None  # it could place too many
    if problem.rules:
        return _shared_out(problem)
    for price, by_class in zip(by_price, values(problem, by_price), strict=True):
        chosen, inside = np.ones(problem.classes, bool), problem
        for name, most in problem.at_most.items():  # widest first
            if name in problem.parts:
                chosen &= in_fullest(problem, name, by_class * chosen, most)
                inside = replace(inside, open=inside.kept(chosen, name))
        use = _filled(inside, np.flatnonzero(inside.open.any(axis=1)), np.array(price))
        if use is not None:
            return use
    return None


def with_others(problem: Problem, use: Use) -> Use | None:
    """Return a solution with further members on patterns without GPUs, which touch no node of the gang's.

    The result is None if the nodes that `use` leaves do not hold them.
    """
    held, size = np.zeros(len(problem.need), np.int64), problem.size.copy()
    for (c, p), nodes in use.items():
        held += nodes * problem.patterns.counts[problem.kind[c], p]
        size[c] -= nodes
    idle = problem.open & (problem.patterns.gpus == 0)[problem.kind]
    missing = tuple(np.maximum(0, np.array(problem.need) - held).tolist())
    rest = replace(problem, need=missing, size=size, open=idle)
    more = _filled(rest, np.flatnonzero(idle.any(axis=1)), np.ones(len(missing), np.int64))
    return None if more is None else {**use, **more}


def _shared_out(problem: Problem) -> Use | None:
    """Return a solution for one role that one rule divides among parts.

    Each part uses its fullest narrower parts. It uses no more of them than its least members need, as long as
    other parts have room.
    """
    active, every = [role for role, need in enumerate(problem.need) if need], list(shares(problem))
    if len(active) != 1 or len(every) != 1 or len(problem.rules) != 1 or problem.exact:
        return None
    (share,), scope = (
        every,
        next((name for name in reversed([*problem.at_most]) if name in problem.parts), None),
    )
    if share.roles != tuple(active) or (problem.open.any(axis=1) & (share.part < 0)).any():
        return None
    if (share.low > share.even).any():  # no whole segments lie between
        return None
    other = problem.part(scope) if scope else np.zeros(problem.classes, np.int64)
    held = [_by_part(share.capacity, other, share.part == part) for part in range(len(share.low))]
    counts, left = share.low.copy(), problem.need[active[0]] - int(share.low.sum())
    for spare in (True, False):
        for part, (order, reached) in enumerate(held):
            most = int(share.even[part])
            if spare:
                enough = int(np.searchsorted(reached, counts[part])) if counts[part] else -1
                most = min(most, int(reached[enough])) if 0 <= enough < len(order) else int(counts[part])
            more = max(0, min(left, most - int(counts[part])))
            counts[part] += more
            left -= more
    use: Use = {}
    for part in np.flatnonzero(counts).tolist():
        order, reached = held[part]
        chosen = order[: int(np.searchsorted(reached, counts[part])) + 1]
        classes = np.flatnonzero((share.part == part) & np.isin(other, chosen))
        if not _fill(problem, classes, active[0], int(counts[part]), use):
            return None
    return None if left or not _within_decided(problem, use) else use


def _by_part(capacity: Ints, other: Ints, inside: Bools) -> tuple[Ints, Ints]:
    """Return the parts of another scope, the fullest first, and [n] what the first n of
    them hold together.
    """
    codes, index = np.unique(other[inside], return_inverse=True)
    held = np.bincount(index, capacity[inside], len(codes)).astype(np.int64)
    order = np.argsort(-held, kind="stable")
    return codes[order], np.cumsum(held[order])


def _fill(problem: Problem, classes: Ints, role: int, members: int, use: Use) -> bool:
    """Add the roomiest nodes of these classes to `use` until they hold the members.
    Return whether they do.
    """
    counts = np.where(problem.open[classes], problem.patterns.counts[problem.kind[classes], :, role], 0)
    most = counts.max(axis=1)
    for i in np.argsort(-most, kind="stable").tolist():
        if members <= 0 or not most[i]:
            break
        nodes = min(int(problem.size[classes[i]]), -(-members // int(most[i])))
        use[int(classes[i]), int(counts[i].argmax())] = nodes
        members -= nodes * int(most[i])
    return members <= 0


def _within_decided(problem: Problem, use: Use) -> bool:
    """Return whether the solution touches at most the decided number of parts."""
    used = [c for c, _ in use]
    for name, most in problem.at_most.items():
        if name in problem.parts and len({*problem.part(name)[used].tolist()} - {FREE}) > most:
            return False
    return True


def _filled(problem: Problem, classes: Ints, price: Ints) -> Use | None:
    """Return a solution on these classes: the most useful patterns first, the least
    wasteful between equals.
    """
    left = np.array(problem.need, np.int64)
    room = problem.size.copy()
    counts = problem.patterns.counts[problem.kind[classes]]
    whole = counts @ price
    use: Use = {}
    while left.any():
        useful = np.minimum(counts, left) @ price
        useful = np.where(problem.open[classes] & (room[classes] > 0)[:, None], useful, 0.0)
        most = useful.max(initial=0)
        if most <= 0:
            return None
        wasted = np.where(useful == most, whole - useful, np.inf)
        i, p = np.unravel_index(int(wasted.argmin()), useful.shape)
        c, taken = int(classes[i]), counts[i, p]
        times = min([int(room[c]), *(int(have // n) for have, n in zip(left, taken, strict=True) if n)])
        times = max(1, times)
        use[c, int(p)] = use.get((c, int(p)), 0) + times
        room[c] -= times
        left = np.maximum(0, left - times * taken)
    return use
