"""Answer what constraints ask about a conflict to report their causes and what would help."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from muster.domain.request import Role, Scope
from muster.placement.cluster.columns import Columns
from muster.placement.explain.assumptions import Assumption, Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.domains import is_nowhere, no_such
from muster.placement.explain.running import begun_segment, existing, joining, where_they_run
from muster.placement.gang.constraints.constraint import Findings

NARROW = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value)


def findings_of(conflict: Conflict) -> Findings:
    """Return the answers for one conflict."""
    request, view = conflict.assumptions.request, conflict.assumptions.view

    def admitting(role: Role) -> list[int]:
        rows: list[int] = np.flatnonzero(conflict.seen().admitted[role.name]).tolist()
        return rows

    return Findings(
        request,
        conflict.even_empty,
        len(request.running) if conflict.told(Kind.RUNNING) else 0,
        fit=lambda: (conflict.oracle.members(conflict.seen()), conflict.seen().wanted),
        best_part=partial(_best_part, conflict),
        no_such=partial(no_such, conflict),
        is_nowhere=partial(is_nowhere, view),
        joining=partial(joining, conflict),
        begun_segment=partial(begun_segment, conflict),
        admitting=lambda role: (view.names[row] for row in admitting(role)),
        agreeing=lambda role: sum(bool(view.states[row].node.topology.groups) for row in admitting(role)),
        wider=partial(wider_scopes, view),
        works=lambda asked: conflict.oracle.enough(replace(conflict.as_it_is, request=asked)) is True,
    )


def wider_scopes(view: Columns, scope: str) -> tuple[str | None, ...]:
    """Return the scopes that are wider than this one, the narrowest first. The last is None: no scope."""
    every = (*NARROW, *reversed(view.topology.scopes))
    return (*(every[every.index(scope) + 1 :] if scope in every else ()), None)


def _best_part(conflict: Conflict, role: Role, scope: str) -> tuple[str, int | None, int]:
    alone = replace(conflict, roles=frozenset((Assumption(Kind.ROLE, role.name),)))
    stays, world = existing(conflict, role.name), alone.seen().within(scope)
    own = tuple(one for one in world.request.running if one.role == role.name)
    world = replace(world, request=replace(world.request, running=own))
    found = conflict.oracle.most(world)
    fit = min(found.members, world.wanted) if found.proven else None
    return where_they_run(conflict, scope, stays) if stays else found.part, fit, world.wanted
