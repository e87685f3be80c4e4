"""Why nothing fits: an irreducible set of assumptions that forbid the gang, told as typed causes.

Irreducible: with these assumptions alone, all others dropped, nothing fits; with any one of them dropped too,
enough members do. That holds as far as the budget reached: what was not decided is not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from muster.domain.constraints import Affinity, AntiAffinity, Spread
from muster.domain.decision import Unplaceable
from muster.domain.reasons import (
    AffinityUnsatisfied,
    AntiAffinityLimits,
    Cause,
    NodesExcluded,
    NoSuchDomain,
    NotDecided,
    RoleScope,
    RoomTooSmall,
    RunningElsewhere,
    SegmentsTooLarge,
    SkewTooLarge,
    TooFewParts,
)
from muster.domain.request import Role
from muster.placement.explain.assumptions import Assumption, Assumptions, Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.deletion_filter import irreducible
from muster.placement.explain.domains import domain_cause, no_such
from muster.placement.explain.feasibility import Oracle
from muster.placement.explain.refusals import resource_missing
from muster.placement.explain.relaxations import relaxations
from muster.placement.explain.running import begun_segment, existing, where_they_run
from muster.placement.explain.shortage import RULES, shortage
from muster.placement.gang.instance import Instance
from muster.placement.limits import Budget, Limits

Forbids = Callable[[Collection[Assumption]], bool]


def explained(instance: Instance, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """The causes that forbid the gang, and what would help; called only when no plan was found."""
    gang, spare = instance.request.gang, Budget(limits)  # explaining has as much time as searching had
    assumptions = Assumptions(instance, limits.excluded)
    conflict = conflict_of(assumptions, Oracle(spare), proven)
    if conflict is None:
        return Unplaceable(gang, (NotDecided(budget.truncated or spare.truncated),))
    return Unplaceable(gang, tuple(_causes(conflict)), relaxations(conflict))


def conflict_of(assumptions: Assumptions, oracle: Oracle, proven: bool) -> Conflict | None:
    """An irreducible conflict; None where it is not `proven` that nothing fits, nor seen here."""

    def forbids(kept: Collection[Assumption]) -> bool:
        return oracle.enough(assumptions.world(kept)) is False

    if not proven and not forbids(assumptions.all):
        return None
    roles = _roles(assumptions, forbids)
    kept = irreducible(assumptions.groups, lambda some: forbids(some | roles))
    return Conflict(assumptions, roles, kept, oracle)


def _roles(assumptions: Assumptions, forbids: Forbids) -> frozenset[Assumption]:
    """The roles that are enough to explain it: one if one alone does not fit, which is quickly seen."""
    needed = assumptions.needed
    others = assumptions.all - set(needed)
    if len(needed) > 1:
        for role in needed:
            if forbids({role, *others}):
                return frozenset((role,))
    if len(needed) > 2:
        return irreducible([(role,) for role in needed], lambda roles: forbids(roles | others))
    return frozenset(needed)


def _causes(conflict: Conflict) -> Iterator[Cause]:
    """What is short first, then what makes it so short."""
    assumptions = conflict.assumptions
    roles = {role.name: role for role in assumptions.roles}
    if conflict.told(Kind.SCOPE):
        scope = str(assumptions.request.required_scope)
        yield domain_cause(conflict, scope)
        yield from _joining(conflict, scope)
    elif not any(conflict.told(kind) for kind in RULES):
        cause = shortage(conflict)
        if cause is not None:
            yield cause
    for told in conflict.told(Kind.ROLE_SCOPE):
        yield from _role_scope(conflict, roles[told.role])
    for told in conflict.told(Kind.SEGMENTS):
        yield from _segments(conflict, roles[told.role])
    for told in conflict.told(Kind.MAX_PER):
        rule = next(rule for rule in assumptions.request.max_per if rule.scope == told.what)
        counted = len(assumptions.request.running) if conflict.told(Kind.RUNNING) else 0
        yield TooFewParts(rule.scope, rule.members, *_fit(conflict), conflict.even_empty, counted)
        if no_such(conflict, rule.scope):
            yield NoSuchDomain(rule.scope)
    for told in conflict.told(Kind.CONSTRAINT):
        yield _constraint(conflict, told.what)
    for told in conflict.told(Kind.ROOM):
        yield _room(conflict, roles[told.role])
    for told in conflict.told(Kind.REFUSED):
        yield _excluded(conflict, roles[told.role], told.what)
    for role in conflict.members_of:
        missing = assumptions.refused[role.name].get(resource_missing(role))
        if missing is not None and missing.all():
            yield NodesExcluded(role.name, resource_missing(role), len(missing))


def _fit(conflict: Conflict) -> tuple[int | None, int]:
    """Members that fit as it is, and how many must."""
    world = conflict.seen()
    return conflict.oracle.members(world), world.wanted


def _joining(conflict: Conflict, scope: str, role: str | None = None) -> Iterator[Cause]:
    """That others must join those that run, of this role or of all."""
    stays = existing(conflict, role)
    if stays:
        yield RunningElsewhere(scope, where_they_run(conflict, scope, stays), len(stays))


def _role_scope(conflict: Conflict, role: Role) -> Iterator[Cause]:
    """The best part for the role alone."""
    scope = str(role.required_scope)
    if no_such(conflict, scope, role):
        yield NoSuchDomain(scope, role.name)
        return
    alone = Conflict(
        conflict.assumptions, frozenset((Assumption(Kind.ROLE, role.name),)), conflict.kept, conflict.oracle
    )
    stays, world = existing(conflict, role.name), alone.seen().within(scope)
    own = tuple(one for one in world.request.running if one.role == role.name)
    world = replace(world, request=replace(world.request, running=own))
    found = conflict.oracle.most(world)
    fit = min(found.members, world.wanted) if found.proven else None
    best = where_they_run(conflict, scope, stays) if stays else found.part
    yield RoleScope(role.name, scope, best, fit, world.wanted, conflict.even_empty)
    yield from _joining(conflict, scope, role.name)


def _segments(conflict: Conflict, role: Role) -> Iterator[Cause]:
    for segment in role.segments:
        if no_such(conflict, segment.scope, role):
            yield NoSuchDomain(segment.scope, role.name)
            return
    segments = tuple((segment.size, segment.scope) for segment in role.segments)
    yield SegmentsTooLarge(role.name, segments, *_fit(conflict), conflict.even_empty)
    yield from begun_segment(conflict, role)


def _constraint(conflict: Conflict, name: str) -> Cause:
    """What the constraint of this name says."""
    rule = next(rule for rule in conflict.assumptions.request.constraints if rule.name == name)
    said = (*_fit(conflict), conflict.even_empty)
    match rule:
        case AntiAffinity():
            return AntiAffinityLimits(name, rule.topology_key, *said)
        case Affinity():
            return AffinityUnsatisfied(name, rule.topology_key, *said)
        case Spread():
            return SkewTooLarge(name, rule.topology_key, rule.max_skew, *said)


def _room(conflict: Conflict, role: Role) -> RoomTooSmall:
    """How many members of the role nodes can hold that admit it, as far as anybody says."""
    view, admitted = conflict.assumptions.view, conflict.seen().admitted[role.name]
    rows = np.flatnonzero(admitted).tolist()
    room = sum(min(role.room.get(view.names[row], len(role.members)), len(role.members)) for row in rows)
    room = min(room, len(role.members))
    return RoomTooSmall(role.name, room, len(role.members), *_fit(conflict), conflict.even_empty)


def _excluded(conflict: Conflict, role: Role, by: str) -> NodesExcluded:
    """Nodes that have room and refuse for this reason, and offer what is asked for."""
    refused = conflict.assumptions.refused[role.name]
    rows = refused[by] & (conflict.seen().room[role.name] > 0)
    if resource_missing(role) in refused:
        rows &= ~refused[resource_missing(role)]
    return NodesExcluded(role.name, by, int(np.count_nonzero(rows)))
