"""Find what would help: changes that remove one cause each, tried on the whole gang and the real cluster.

The cheapest come first: what costs nothing, then a little that others have, then what the gang must give up,
and last much that others have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from muster.domain.relaxations import (
    DropSelector,
    FewerMembers,
    Relaxation,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.placement.explain.assumptions import Assumption, Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.domains import is_nowhere
from muster.placement.explain.findings import findings_of, wider_scopes
from muster.placement.explain.freeing import is_little, more_free
from muster.placement.gang.constraints import CONSTRAINTS

LISTED = 3
"""The most relaxations that are reported. The search ends when they are found."""

SAY_MIN_MEMBER = frozenset({"annotations", "koordinator", "ack-pod-group"})
"""The dialects in which users say how many members must fit."""

CORDONED, TAINT = "cordoned", "taint "
SELECTORS = ("selector ", "affinity ")


def relaxations(conflict: Conflict) -> tuple[Relaxation, ...]:
    """Return a few relaxations that work, cheapest first."""
    return tuple(islice(_that_work(conflict), LISTED))


def _that_work(conflict: Conflict) -> Iterator[Relaxation]:
    freed = more_free(conflict)
    yield from _admitting(conflict, lambda by: by == CORDONED, _uncordon)
    if freed is not None and is_little(freed):
        yield freed
    yield from _wider(conflict)
    findings = findings_of(conflict)
    for constraint in CONSTRAINTS:
        for told in conflict.told(constraint):
            yield from constraint.relaxations(findings, told.role, told.what)
    yield from _admitting(conflict, lambda by: by.startswith((TAINT, *SELECTORS)), _without)
    yield from _fewer(conflict)
    if freed is not None and not is_little(freed):
        yield freed


def _admitting(
    conflict: Conflict,
    chosen: Callable[[str], bool],
    made: Callable[[Assumption, int], Relaxation],
) -> Iterator[Relaxation]:
    """Yield relaxations that make nodes admit a role. Uncordoning makes them admit all roles."""
    assumptions, seen = conflict.assumptions, set[Relaxation]()
    for told in conflict.told(Kind.REFUSED):
        if not chosen(told.what):
            continue
        dropped = (
            {told} if told.what != CORDONED else {each for each in assumptions.all if each.what == CORDONED}
        )
        world = assumptions.world(assumptions.all - dropped)
        if conflict.oracle.enough(world) is True:
            rows = world.admitted[told.role] & ~conflict.as_it_is.admitted[told.role]
            role = next(role for role in assumptions.roles if role.name == told.role)
            relaxation = made(told, int(np.count_nonzero(rows & (world.room[role.name] > 0))))
            if relaxation not in seen:
                seen.add(relaxation)
                yield relaxation


def _uncordon(_: Assumption, nodes: int) -> Relaxation:
    return Uncordon(nodes)


def _without(told: Assumption, nodes: int) -> Relaxation:
    if told.what.startswith(TAINT):
        return Tolerate(told.role, told.what.removeprefix(TAINT), nodes)
    return DropSelector(told.role, told.what, nodes)


def _wider(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield the narrowest wider scope of the gang that works, unless a label is missing on all nodes."""
    scope, view = conflict.assumptions.request.required_scope, conflict.assumptions.view
    if not conflict.told(Kind.SCOPE) or is_nowhere(view, str(scope)):
        return
    for other in wider_scopes(view, str(scope)):
        world = conflict.as_it_is.within(other)
        if conflict.oracle.enough(world):
            yield WiderScope(str(scope), other or "", conflict.oracle.reached(world).part, world.wanted)
            return


def _fewer(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield that fewer members are required, if the user says how many must fit.

    Other dialects count exactly. A gang with existing members has started already. And of several roles,
    nothing says which one the user can do without.
    """
    world, request = conflict.as_it_is, conflict.assumptions.request
    if request.gang.dialect not in SAY_MIN_MEMBER or len(request.roles) > 1 or request.running:
        return
    fit = conflict.oracle.most(world).members
    if 0 < fit < world.wanted:
        yield FewerMembers(fit, world.wanted)
