"""Find the fewest cordoned nodes that must admit pods again so that a gang fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.relaxations import Uncordon
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.explain.assumptions import Kind, World, bound
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.deletion_filter import irreducible

CORDONED = "cordoned"
ALONE = 8
"""Nodes that are tried one by one, each as if it were the only one to be uncordoned."""
PARTS = 4
"""Parts of the required scope whose nodes are tried: those where the fewest nodes should be enough."""
MANY = 64
"""If more nodes are needed than this, it is not tried whether one can be left out."""

Works = Callable[[Sequence[int]], bool]
"""Return whether the gang fits if these rows admit pods again."""


def uncordoned(conflict: Conflict) -> Uncordon | None:
    """Return the nodes to uncordon; None if that does not help. None of them can be left out."""
    cordons = {each for each in conflict.assumptions.all if each.what == CORDONED}
    if not any(each.what == CORDONED for each in conflict.told(Kind.REFUSED)):
        return None
    world, oracle = conflict.as_it_is, conflict.oracle
    opened = conflict.assumptions.world(conflict.assumptions.all - cordons)
    if oracle.enough(opened) is not True:
        return None
    rows = _most_useful_first(world, opened)
    if not rows:
        return None
    alike = len(world.request.roles) == 1 and not bound(world.request)
    chosen = _fewest(rows, alike, lambda some: oracle.enough(_admitting(world, opened, some)) is True)
    return Uncordon(tuple(sorted(world.view.names[row] for row in chosen)))


def _admitting(world: World, opened: World, rows: Sequence[int]) -> World:
    """Return the world in which these rows admit what they admit in `opened`."""
    there = np.zeros(len(world.view.names), np.bool_)
    there[list(rows)] = True
    admitted = {name: np.where(there, opened.admitted[name], rows) for name, rows in world.admitted.items()}
    return replace(world, admitted=admitted)


def _fewest(parts: Sequence[Sequence[int]], alike: bool, works: Works) -> Sequence[int]:
    """Return as few rows as are found in a bounded number of tries. None of them can be left out.

    `alike`: all members are, and nothing binds them. Then the first rows that work are the fewest.
    """
    every = [row for part in parts for row in part]
    for row in every[:ALONE]:
        if works((row,)):
            return (row,)
    chosen = min(
        (_prefix(part, works) for part in islice(parts, PARTS)), key=lambda some: len(some) or len(every)
    )
    chosen = chosen or _prefix(every, works) or every
    if alike or len(chosen) > MANY:
        return chosen
    return sorted(irreducible([tuple(reversed(chosen))], lambda some: works(sorted(some))))


def _prefix(rows: Sequence[int], works: Works) -> Sequence[int]:
    """Return the fewest first rows that work; () if all together do not."""
    if not works(rows):
        return ()
    low, high = 1, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if works(rows[:middle]) else (middle + 1, high)
    return rows[:high]


def _most_useful_first(world: World, opened: World) -> list[list[int]]:
    """Return the rows that admit members only if uncordoned, by part of the required scope.

    The part comes first where the fewest of them should be enough, and in it the row with most room.
    """
    now, then = (_room(each) for each in (world, opened))
    part = world.view.topology.regions(world.request.required_scope)
    rows = np.flatnonzero((then > now) & (part >= 0))
    here = part >= 0
    missing = world.wanted - np.bincount(part[here], now[here])
    by_part: list[tuple[int, list[int]]] = []
    for each in np.unique(part[rows]).tolist():
        inside = rows[part[rows] == each]
        inside = inside[np.argsort(now[inside] - then[inside], kind="stable")]
        needed = int(np.searchsorted(np.cumsum((then - now)[inside]), missing[each])) + 1
        by_part.append((needed if needed <= len(inside) else len(then), inside.tolist()))
    by_part.sort(key=lambda each: each[0])
    return [inside for _, inside in by_part]


def _room(world: World) -> Ints:
    """Return [row] int64: for how many members the row has room, each role counted alone."""
    rooms = [
        _of_role(world.admitted[r.name], world.room[r.name], len(r.members)) for r in world.request.roles
    ]
    return np.asarray(np.sum(rooms, axis=0), np.int64)


def _of_role(admitted: Bools, room: Ints, members: int) -> Ints:
    return np.where(admitted, np.clip(room, 0, members), 0)
