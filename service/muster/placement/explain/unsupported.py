"""Refuse what would be answered wrongly: some rules inside a node."""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.reasons import NotSupported
from muster.domain.request import Request, Role, Scope
from muster.placement.cluster.attributes import attributes_of
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.instance import Instance


def unsupported(instance: Instance) -> NotSupported | None:
    """Return the first rule of the request that is not supported; None if all are.

    Of gangs that share GPUs, a rule by NVLink domain is supported if no node that it binds has several such
    domains. Where GPUs must agree on attributes, their groups stand in the place of NVLink domains.
    """
    request = instance.request
    if named := attributes_of(request):
        return _beside_attributes(request, named)
    if not instance.sliced:
        return None
    several = (instance.columns.topology.whole_nodes() < 0) & (instance.columns.gpu_total > 0)
    for annotation, scope, roles in _scopes(request):
        bound = any((instance.admitted[role.name] & several).any() for role in roles)
        if scope == Scope.GPU or (scope == Scope.NVLINK_DOMAIN and bound):
            return NotSupported(annotation, scope)
    return None


def _beside_attributes(request: Request, named: list[tuple[str, ...]]) -> NotSupported | None:
    first, *others = map(" and ".join, named)
    if others:
        return NotSupported("matchAttribute", others[0], first)
    gang = [("scope", request.required_scope)]
    for annotation, scope in (*gang, *((annotation, scope) for annotation, scope, _ in _scopes(request))):
        if scope == Scope.NVLINK_DOMAIN:
            return NotSupported(annotation, scope, first)
    return None


def _scopes(request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    for constraint in CONSTRAINTS:
        yield from constraint.scopes(request)
