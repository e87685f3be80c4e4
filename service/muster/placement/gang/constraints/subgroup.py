"""Keep all members of several roles in one part of a scope."""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.constraints import Subgroup, SubgroupScope
from muster.domain.reasons import Cause
from muster.domain.relaxations import Relaxation
from muster.domain.request import Request, Role
from muster.placement.gang.blocks import Together
from muster.placement.gang.constraints.constraint import ByName, Findings
from muster.placement.gang.constraints.role_scope import in_one_part
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules


class _Subgroup(ByName):
    field, order = "subgroups", 30

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for group in request.subgroups:
            roles = tuple(role for role in request.roles if role.members and role.name in group.roles)
            if roles:
                yield group.name, group.scope, roles

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        for group in request.subgroups:
            running = tuple(one for one in request.running if one.role in group.roles)
            in_one_part(rules, Together(group.scope, rules.blocks_of(group.roles), running), existing)

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[Cause]:
        group = _named(findings.request, what)
        yield SubgroupScope(what, group.scope, *findings.fit(), findings.even_empty)
        yield from findings.joining(group.scope, *group.roles)
        if (nowhere := findings.no_such(group.scope)) is not None:
            yield nowhere

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[Relaxation]:
        if not findings.is_nowhere(_named(findings.request, what).scope):
            yield from super().relaxations(findings, role, what)


SUBGROUP = _Subgroup()


def _named(request: Request, name: str) -> Subgroup:
    return next(group for group in request.subgroups if group.name == name)
