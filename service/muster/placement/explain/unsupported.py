"""What is refused rather than answered wrongly: rules inside a node, for gangs of which some share GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.reasons import NotSupported
from muster.domain.request import Request, Role, Scope
from muster.placement.gang.instance import Instance
from muster.placement.limits import takes_gpus


def unsupported(instance: Instance) -> NotSupported | None:
    """The first rule of the request that is not decided; None where all are. One by NVLink domain is, where
    no node that it binds has several."""
    if not instance.sliced:
        return None
    several = (instance.columns.topology.whole_nodes() < 0) & (instance.columns.gpu_total > 0)
    for rule, scope, roles in _rules(instance.request):
        bound = any((instance.admitted[role.name] & several).any() for role in roles)
        if scope == Scope.GPU or (scope == Scope.NVLINK_DOMAIN and bound):
            return NotSupported(rule, scope)
    return None


def _rules(request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    """The rules that members are bound by, their scopes, and the roles of these members."""
    asking = tuple(role for role in request.roles if role.members)
    for rule in request.max_per:
        yield "max-per", rule.scope, tuple(filter(takes_gpus, asking))
    for role in asking:
        yield from (("segment-scope", segment.scope, (role,)) for segment in role.segments)
        if role.required_scope:
            yield "role-scope", role.required_scope, (role,)
