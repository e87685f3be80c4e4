"""Keep all members of a role in one part of the scope that the role requires.

The same code keeps the members of a subgroup together, and those of a segment that has existing members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.domain.causes.out_of_place import RoleScope as RoleScopeTooSmall
from muster.domain.reasons import Cause
from muster.domain.relaxations import WiderScope
from muster.domain.request import Request, Role, Scope
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.cluster.topology import own
from muster.placement.gang.blocks import Together
from muster.placement.gang.constraints.constraint import Findings, OfRoles, role_of
from muster.placement.gang.existing import ExistingMembers, common_parts
from muster.placement.gang.rules import Rules
from muster.placement.model.rule import Rule
from muster.placement.model.variables import LinearExpr, Variables


@dataclass(frozen=True, slots=True, eq=False)
class RoleScope(Rule):
    """Keep all members of these roles in one part, and off nodes whose `part` is −1."""

    in_one_part: ClassVar[bool] = True

    def add(self, variables: Variables, name: str) -> None:
        """Add a choice of one part to the model."""
        chosen, model = [], variables.model
        need = sum(variables.problem.need[role] for role in self.roles)
        for part, placed in variables.by_part(self.part, self.roles).items():
            here = model.new_bool_var(f"{name}/{part}") if part >= 0 else model.new_constant(0)
            model.add(LinearExpr.sum(placed) <= need * here).with_name(f"{name}/{part}")
            chosen.append(here)
        if chosen:
            model.add_at_most_one(chosen).with_name(name)


class _RoleScope(OfRoles):
    field, nothing, order = "required_scope", None, 10

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for role in request.roles:
            if role.members and role.required_scope:
                yield "role-scope", role.required_scope, (role,)

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        for together in rules.blocks.together:
            in_one_part(rules, together, existing)

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[Cause]:
        asking = role_of(findings.request, role)
        scope = str(asking.required_scope)
        if (nowhere := findings.no_such(scope, asking)) is not None:
            yield nowhere
            return
        yield RoleScopeTooSmall(role, scope, *findings.best_part(asking, scope), findings.even_empty)
        yield from findings.joining(scope, role)

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[WiderScope]:
        scope = str(role_of(findings.request, role).required_scope)
        for wider in () if findings.is_nowhere(scope) else findings.wider(scope):
            if findings.works(self.changed(findings.request, role, wider)):
                yield WiderScope(scope, wider or "", "", findings.request.min_member, role)
                return


ROLE_SCOPE = _RoleScope()


def outside_gpus(rules: Rules, block: int, *, several: bool) -> Bools:
    """Return [row] bool: whether no GPU of the node can hold one member of the block, or `several`.

    A GPU holds any number of members that take no GPU. If its index is unknown, a GPU holds no member.
    """
    view, gpus = rules.view, rules.blocks.roles[block].gpus
    if gpus > 1 or (gpus and several):
        return np.ones(len(view.names), bool)
    promised = [shape.topology.gpu_count > 0 and not shape.hidden for shape in view.shapes]
    return ~np.array(promised, bool)[view.shape]


def outside_domains(rules: Rules, codes: Ints) -> Bools:
    """Return [row] bool: whether the node lies in no NVLink domain that can be promised.

    `codes` [row] is the domain over several nodes, -1 for none. A node without GPUs has no domain inside.
    """
    view = rules.view
    inside = np.array([shape.topology.gpu_count > 0 for shape in view.shapes], bool)[view.shape]
    return np.asarray((codes < 0) & ~(view.promised & inside))


def in_one_part(rules: Rules, together: Together, existing: ExistingMembers) -> None:
    """Keep these blocks in one part.

    If existing members decide which part that is, all nodes outside it are refused.
    """
    view, scope, blocks = rules.view, together.scope, together.blocks
    staying = [stay for stay in existing.members if stay.running in together.running]
    pinned = common_parts(view, scope, staying)
    codes = rules.codes(scope)
    inner = scope == Scope.NVLINK_DOMAIN and not rules.sliced
    if inner:
        small = codes < 0  # not in a wide domain, so its NVLink domains lie inside the node
        refused = outside_domains(rules, codes)
        rules.single += [blocks] if small.any() else []
        codes = own(codes)
    else:
        refused = codes < 0
    if pinned is not None:
        allowed = np.zeros(len(codes), bool)
        if inner:
            for row in {stay.row for stay in staying}:
                _pin(rules, row, pinned, blocks)
                allowed |= codes == codes[row]
        else:
            allowed = np.isin(codes, [codes[stay.row] for stay in staying])
        refused = refused | ~allowed if pinned else np.ones(len(codes), bool)
    rules.refuse(blocks, refused)
    if scope == Scope.GPU:
        for block in blocks:
            several = any(stay.has_gpus for stay in staying)
            rules.refused[block] |= outside_gpus(rules, block, several=several)
        taking = tuple(block for block in blocks if rules.blocks.roles[block].gpus)
        rules.limits += [(np.ones(len(codes), np.int64), taking)] if taking else []
    members = sum(len(rules.blocks.roles[block].members) for block in blocks)
    if pinned is None and members > 1:
        name = f"together {blocks} {scope}"
        rules.bind(name, np.where(refused, -1, codes), lambda part: RoleScope(part, blocks))
        rules.together.append((name, blocks))


def _pin(rules: Rules, row: int, parts: frozenset[str], blocks: tuple[int, ...]) -> None:
    """Bind these blocks to the NVLink domain of this node that holds the existing members.

    Existing members without GPUs lie in several domains. Then any of these domains will do, and nothing is
    bound.
    """
    topology = rules.view.topology
    if topology.in_wide[row]:
        return
    left = [domain for domain, (name, _) in enumerate(topology.nvlink_domains(row)) if name in parts]
    if len(left) == 1:
        pins = rules.pinned.setdefault(row, {})
        for block in blocks:
            rules.refused[block, row] |= pins.setdefault(block, left[0]) != left[0]
