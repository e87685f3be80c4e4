"""What is refused rather than answered wrongly: rules inside a node, for gangs of which some share GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.reasons import NotSupported
from muster.domain.request import Request
from muster.placement.cluster.fabric import INSIDE


def unsupported(request: Request) -> NotSupported | None:
    """The first rule of the request that is not decided; None where all are."""
    if not any(role.slice and role.members for role in request.roles):
        return None
    return next((NotSupported(rule, scope) for rule, scope in _rules(request) if scope in INSIDE), None)


def _rules(request: Request) -> Iterator[tuple[str, str]]:
    for rule in request.max_per:
        yield "max-per", rule.scope
    for role in request.roles:
        yield from (("segment-scope", segment.scope) for segment in role.segments)
        if role.required_scope:
            yield "role-scope", role.required_scope
