"""What would help: changes that take away one cause each, tried on the whole gang and the real cluster.

Cheapest first: what costs nobody anything, a little that others have, then what the gang must give up, and
much that others have last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.relaxations import (
    DropConstraint,
    DropSelector,
    FewerMembers,
    MorePerPart,
    Relaxation,
    SmallerSegments,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.domain.request import Request, Role, Scope, Segment
from muster.placement.explain.assumptions import DROP, Assumption, Kind, World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.freeing import is_little, more_free

LISTED = 3
"""Relaxations told; the search for them ends there."""

SAYS_MIN_MEMBER = "annotations"
"""The dialect in which gangs say how many members must fit."""

CORDONED, TAINT = "cordoned", "taint "
SELECTORS = ("selector ", "affinity ")
NARROW = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value)


def relaxations(conflict: Conflict) -> tuple[Relaxation, ...]:
    """A few that work, cheapest first."""
    return tuple(islice(_that_work(conflict), LISTED))


def _that_work(conflict: Conflict) -> Iterator[Relaxation]:
    freed = more_free(conflict)
    yield from _admitting(conflict, lambda by: by == CORDONED, _uncordon)
    if freed is not None and is_little(freed):
        yield freed
    yield from _wider(conflict)
    for told in conflict.told(Kind.SEGMENTS):
        yield from _smaller_segments(conflict, told.role)
    for told in conflict.told(Kind.MAX_PER):
        yield from _more_per_part(conflict, told.what)
    for told in conflict.told(Kind.CONSTRAINT):
        yield from _without_constraint(conflict, told)
    yield from _admitting(conflict, lambda by: by.startswith((TAINT, *SELECTORS)), _without)
    yield from _fewer(conflict)
    if freed is not None and not is_little(freed):
        yield freed


def _as_it_is(conflict: Conflict) -> World:
    return conflict.assumptions.world(conflict.assumptions.all)


def _works(conflict: Conflict, request: Request) -> bool:
    """Whether the gang fits when it asks for this."""
    return conflict.oracle.enough(replace(_as_it_is(conflict), request=request)) is True


def _admitting(
    conflict: Conflict,
    chosen: Callable[[str], bool],
    made: Callable[[Assumption, int], Relaxation],
) -> Iterator[Relaxation]:
    """Nodes admit a role, or, where they were cordoned, all of them."""
    assumptions, seen = conflict.assumptions, set[Relaxation]()
    for told in conflict.told(Kind.REFUSED):
        if not chosen(told.what):
            continue
        dropped = (
            {told} if told.what != CORDONED else {each for each in assumptions.all if each.what == CORDONED}
        )
        world = assumptions.world(assumptions.all - dropped)
        if conflict.oracle.enough(world) is True:
            rows = world.admitted[told.role] & ~_as_it_is(conflict).admitted[told.role]
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
    """The narrowest wider scope that does: the gang's, and each role's own."""
    request, view = conflict.assumptions.request, conflict.assumptions.view
    wider = (*NARROW, *reversed(view.topology.scopes))
    for scope in [request.required_scope] if conflict.told(Kind.SCOPE) else []:
        for other in (*(wider[wider.index(scope) + 1 :] if scope in wider else ()), None):
            world = _as_it_is(conflict).within(other)
            if conflict.oracle.enough(world):
                part = conflict.oracle.reached(world).part
                yield WiderScope(str(scope), other or "", part, world.wanted)
                break
    for told in conflict.told(Kind.ROLE_SCOPE):
        role = _role(request, told.role)
        scope = str(role.required_scope)
        for other in (*(wider[wider.index(scope) + 1 :] if scope in wider else ()), None):
            changed = _with(request, replace(role, required_scope=other))
            if _works(conflict, changed):
                yield WiderScope(scope, other or "", "", _as_it_is(conflict).wanted, told.role)
                break


def _smaller_segments(conflict: Conflict, name: str) -> Iterator[Relaxation]:
    """Half of the size, a quarter …, as long as nested sizes stay multiples; else none."""
    request = conflict.assumptions.request
    role = _role(request, name)
    sizes = [segment.size for segment in role.segments]
    tried: list[tuple[Segment, ...]] = []
    while sizes and all(size % 2 == 0 for size in sizes) and sizes[-1] > 2:
        sizes = [size // 2 for size in sizes]
        tried.append(tuple(Segment(size, old.scope) for size, old in zip(sizes, role.segments, strict=True)))
    for segments in (*tried, ()):
        if _works(conflict, _with(request, replace(role, segments=segments))):
            yield SmallerSegments(name, tuple((segment.size, segment.scope) for segment in segments))
            return


def _more_per_part(conflict: Conflict, scope: str) -> Iterator[Relaxation]:
    """The least that does: twice as many more each time, then by halving."""
    request = conflict.assumptions.request
    before = next(rule.members for rule in request.max_per if rule.scope == scope)

    def works(members: int) -> bool:
        rules = tuple(
            replace(rule, members=members) if rule.scope == scope else rule for rule in request.max_per
        )
        return _works(conflict, replace(request, max_per=rules))

    low, step, most = before, 1, request.size + len(request.running)
    while low < most and not works(high := min(before + step, most)):
        low, step = high, 2 * step
    if low >= most:
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    yield MorePerPart(scope, high, before)


def _without_constraint(conflict: Conflict, told: Assumption) -> Iterator[DropConstraint]:
    """The gang goes without the constraint."""
    if _works(conflict, DROP[told.kind](conflict.assumptions.request, told)):
        yield DropConstraint(told.what)


def _fewer(conflict: Conflict) -> Iterator[Relaxation]:
    """As many as fit, where a number that the user sets says how many must: other dialects count exactly,
    a gang that runs in part has started, and of several roles nobody could tell which to do without."""
    world, request = _as_it_is(conflict), conflict.assumptions.request
    if request.gang.dialect != SAYS_MIN_MEMBER or len(request.roles) > 1 or request.running:
        return
    fit = conflict.oracle.most(world).members
    if 0 < fit < world.wanted:
        yield FewerMembers(fit, world.wanted)


def _role(request: Request, name: str) -> Role:
    return next(role for role in request.roles if role.name == name)


def _with(request: Request, changed: Role) -> Request:
    return replace(
        request, roles=tuple(changed if role.name == changed.name else role for role in request.roles)
    )
