"""Find what would help: changes that remove one cause each, tried on the whole gang and the real cluster.

The cheapest come first: what costs nothing, then a little that others have, then what the gang must give up,
and last much that others have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.node import is_state
from muster.domain.relaxations import (
    DropSelector,
    FewerMembers,
    Relaxation,
    Tolerate,
    WiderScope,
)
from muster.domain.request import Request, Role
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.domains import is_nowhere
from muster.placement.explain.findings import findings_of, wider_scopes
from muster.placement.explain.freeing import is_little, more_free
from muster.placement.explain.uncordoning import uncordoned
from muster.placement.gang.constraints import CONSTRAINTS

LISTED = 3
"""The most relaxations that are reported. The search ends when they are found."""

SAY_MIN_MEMBER = frozenset({"annotations", "koordinator", "ack-pod-group"})
"""The dialects in which users say how many members must fit."""

TAINT = "taint "
SELECTORS = ("selector ", "affinity ")


def relaxations(conflict: Conflict) -> tuple[Relaxation, ...]:
    """Return a few relaxations that work, cheapest first."""
    return tuple(islice(_that_work(_on_whole_gpus(conflict)), LISTED))


def _on_whole_gpus(conflict: Conflict) -> Conflict:
    """Return the conflict in a cluster that hides nodes with parts of GPUs from members that link GPUs.

    The planner counts a MIG device, or a share of a GPU, as the device plugin counts it: as a GPU. But no
    process can use several.
    """
    assumptions = conflict.assumptions
    view = assumptions.view
    offering = np.array([profile.offers_parts for profile in view.profiles], bool)[view.profile]
    nodes = [view.names[row] for row in np.flatnonzero(offering).tolist()]
    roles = [role for role in assumptions.roles if _links_gpus(assumptions.request, role)] if nodes else []
    if not roles:
        return conflict
    closed = {(role.name, node): "parts of GPUs" for role in roles for node in nodes}
    return replace(conflict, assumptions=assumptions.excluding(closed))


def _links_gpus(request: Request, role: Role) -> bool:
    inside = request.required_scope in INSIDE or role.required_scope in INSIDE
    return role.gpus > 1 or (role.gpus == 1 and inside)


def _that_work(conflict: Conflict) -> Iterator[Relaxation]:
    freed = more_free(conflict)
    if (uncordon := uncordoned(conflict)) is not None:
        yield uncordon
    if freed is not None and is_little(freed):
        yield freed
    yield from _wider(conflict)
    findings = findings_of(conflict)
    for constraint in CONSTRAINTS:
        for told in conflict.told(constraint):
            yield from constraint.relaxations(findings, told.role, told.what)
    yield from _admitting(conflict)
    yield from _fewer(conflict)
    if freed is not None and not is_little(freed):
        yield freed


def _admitting(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield changes of a role with which more nodes admit it. A node's state is not to be tolerated."""
    assumptions = conflict.assumptions
    for told in conflict.told(Kind.REFUSED):
        taint = told.what.removeprefix(TAINT) if told.what.startswith(TAINT) else ""
        if is_state(taint) or not (taint or told.what.startswith(SELECTORS)):
            continue
        world = assumptions.world(assumptions.all - {told})
        if conflict.oracle.enough(world) is True:
            rows = world.admitted[told.role] & ~conflict.as_it_is.admitted[told.role]
            nodes = int(np.count_nonzero(rows & (world.room[told.role] > 0)))
            yield Tolerate(told.role, taint, nodes) if taint else DropSelector(told.role, told.what, nodes)


def _wider(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield the narrowest wider scope of the gang that works, unless a label is missing on all nodes."""
    scope, view = conflict.assumptions.request.required_scope, conflict.assumptions.view
    if not conflict.told(Kind.SCOPE) or is_nowhere(view, str(scope)):
        return
    for other in wider_scopes(view, str(scope)):
        world = conflict.as_it_is.within(other)
        if conflict.oracle.enough(world) is True:
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
