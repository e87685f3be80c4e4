"""Refuse what would be answered wrongly: some rules inside a node."""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.causes.not_planned import NotSupported
from muster.domain.request import Request, Role, Scope
from muster.placement.cluster.attributes import attributes_of
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.instance import Instance


def unsupported(instance: Instance, scopes: tuple[str, ...] = ()) -> NotSupported | None:
    """Return the first rule of the request that is not supported; None if all are.

    `scopes` are preferred ones that are tried for the whole gang.

    Of gangs that share GPUs, a rule by NVLink domain is supported if no node that it binds has several such
    domains. Where GPUs must agree on attributes, their groups stand in the place of NVLink domains.
    """
    request = instance.request
    if named := attributes_of(request):
        return _with_attributes(instance, named, scopes)
    if not instance.sliced:
        return None
    several = (instance.columns.topology.whole_nodes() < 0) & (instance.columns.gpu_total > 0)
    for annotation, scope, roles in _scopes(request):
        bound = any((instance.admitted[role.name] & several).any() for role in roles)
        if scope == Scope.GPU or (scope == Scope.NVLINK_DOMAIN and bound):
            return NotSupported(annotation, scope)
    return None


def _with_attributes(
    instance: Instance, named: list[tuple[str, ...]], scopes: tuple[str, ...]
) -> NotSupported | None:
    request, (first, *others) = instance.request, map(" and ".join, named)
    if instance.sliced:
        return NotSupported("matchAttribute", first)
    if others:
        return NotSupported("matchAttribute", others[0], first)
    rules = [("scope", scope) for scope in (request.required_scope, *scopes) if scope]
    rules += [(rule, scope) for rule, scope, _ in _scopes(request)]
    found = next((each for each in rules if each[1] == Scope.NVLINK_DOMAIN), None)
    return NotSupported(*found, first) if found is not None else None


def _scopes(request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    for constraint in CONSTRAINTS:
        yield from constraint.scopes(request)
