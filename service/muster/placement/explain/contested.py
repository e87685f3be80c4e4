"""Find the nodes whose GPUs the gang lacks because other pods have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from muster.domain.causes.out_of_place import DomainTooSmall, RoleScope
from muster.domain.reasons import Cause
from muster.domain.request import Scope
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.counterfactual import GPU

MANY = 1024
"""The most nodes that are named: who has their GPUs is looked up node by node."""


def contested(conflict: Conflict, causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return `Unplaceable.contested`."""
    if Assumption(Kind.TAKEN, what=GPU) not in conflict.kept:
        return ()
    view, world = conflict.assumptions.view, conflict.seen()
    rows = np.zeros(len(view.names), np.bool_)
    for role in conflict.members_of:
        if role.members:
            refused = conflict.assumptions.refused[role.name].values()
            rows |= world.admitted[role.name] & ~np.logical_or.reduce([np.zeros_like(rows), *refused])
    for cause in causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            row = view.row.get(cause.best.rpartition("/")[0] if cause.scope in INSIDE else cause.best)
            if row is not None and cause.scope in (*INSIDE, Scope.NODE):
                rows &= np.arange(len(rows)) == row
            else:
                domains = view.topology.domains(cause.scope)
                rows &= domains.codes == domains.index.get(cause.best, len(domains.names))
    nodes = np.flatnonzero(rows & (view.gpu_total > view.free_count))
    return tuple(view.names[row] for row in nodes) if len(nodes) <= MANY else ()
