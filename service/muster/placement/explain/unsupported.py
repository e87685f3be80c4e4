"""Refuse what would be answered wrongly: rules inside a node, for gangs with members that share GPUs."""

from __future__ import annotations

from muster.domain.reasons import NotSupported
from muster.domain.request import Scope
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.instance import Instance


def unsupported(instance: Instance) -> NotSupported | None:
    """Return the first rule of the request that is not supported; None if all are.

    A rule by NVLink domain is supported if no node that it binds has several such domains.
    """
    if not instance.sliced:
        return None
    several = (instance.columns.topology.whole_nodes() < 0) & (instance.columns.gpu_total > 0)
    for constraint in CONSTRAINTS:
        for annotation, scope, roles in constraint.scopes(instance.request):
            bound = any((instance.admitted[role.name] & several).any() for role in roles)
            if scope == Scope.GPU or (scope == Scope.NVLINK_DOMAIN and bound):
                return NotSupported(annotation, scope)
    return None
