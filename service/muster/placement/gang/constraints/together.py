"""Keep members together: all of a role, a subgroup or a segment lie in one part of a scope.

Also keep each member that names attributes on GPUs that agree on these attributes (a group).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.domain.causes.out_of_place import RoleScope as RoleScopeTooSmall
from muster.domain.causes.out_of_place import SegmentsTooLarge
from muster.domain.constraints import AttributesDiffer, DropConstraint, Subgroup, SubgroupScope
from muster.domain.decision import SmallerSegments, WiderScope
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import Request, Role, Scope, Segment
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.cluster.topology import own_part_if_none
from muster.placement.gang.blocks import Together
from muster.placement.gang.constraints.constraint import ByName, OfRoles, RefusalFacts, role_of
from muster.placement.gang.rules import Rules
from muster.placement.gang.running import RunningMembers, common_parts
from muster.placement.model.build import LinearExpr, Variables
from muster.placement.model.problem import Rule


@dataclass(frozen=True, slots=True, eq=False)
class RoleScopeRule(Rule):
    """Keep all members of these roles in one part, and off nodes whose `part` is −1."""

    in_one_part: ClassVar[bool] = True

    def add(self, variables: Variables, name: str) -> None:
        """Add a choice of one part to the model."""
        choices, model = [], variables.model
        need = sum(variables.problem.need[role] for role in self.roles)
        for part, counts in variables.by_part(self.part, self.roles).items():
            is_chosen = model.new_bool_var(f"{name}/{part}") if part >= 0 else model.new_constant(0)
            model.add(LinearExpr.sum(counts) <= need * is_chosen).with_name(f"{name}/{part}")
            choices.append(is_chosen)
        if choices:
            model.add_at_most_one(choices).with_name(name)


class _RoleScope(OfRoles):
    field, nothing, order = "required_scope", None, 10

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for role in request.roles:
            if role.members and role.required_scope:
                yield "role-scope", role.required_scope, (role,)

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        for together in rules.blocks.together:
            keep_in_one_part(rules, together, running)

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        asking = role_of(findings.request, role)
        scope = str(asking.required_scope)
        if (nowhere := findings.no_such(scope, asking)) is not None:
            yield nowhere
            return
        yield RoleScopeTooSmall(role, scope, *findings.best_part(asking, scope), findings.even_empty)
        yield from findings.causes_of_running_members(scope, role)

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[WiderScope]:
        scope = str(role_of(findings.request, role).required_scope)
        for wider in () if findings.is_nowhere(scope) else findings.wider_scopes(scope):
            if findings.works(self.request_with(findings.request, role, wider)):
                yield WiderScope(scope, wider or "", "", findings.request.min_member, role)
                return


ROLE_SCOPE = _RoleScope()


def outside_single_gpus(rules: Rules, block: int, *, several: bool) -> Bools:
    """Return [row] bool: whether no GPU of the node can hold a member of the block (or `several` members).

    A GPU holds any number of members that take no GPU. A GPU with an unknown index holds no member.
    """
    columns, gpus = rules.columns, rules.blocks.roles[block].gpus
    if gpus > 1 or (gpus and several):
        return np.ones(len(columns.names), bool)
    promised = [shape.topology.gpu_count > 0 and not shape.hidden for shape in columns.shapes]
    return ~np.array(promised, bool)[columns.shape]


def outside_domains(rules: Rules, codes: Ints) -> Bools:
    """Return [row] bool: whether the node lies in no NVLink domain that can be promised.

    `codes` [row] is the domain over several nodes, -1 for none. A node without GPUs has no domain inside.
    """
    columns = rules.columns
    has_gpus = np.array([shape.topology.gpu_count > 0 for shape in columns.shapes], bool)[columns.shape]
    return np.asarray((codes < 0) & ~(columns.promised & has_gpus))


def keep_in_one_part(rules: Rules, together: Together, running: RunningMembers) -> None:
    """Keep these blocks in one part.

    If running members decide the part, all nodes outside it are excluded.
    """
    columns, scope, blocks = rules.columns, together.scope, together.blocks
    running_inside = [member for member in running.members if member.running in together.running]
    pinned = common_parts(columns, scope, running_inside)
    codes = rules.codes(scope)
    inner = scope == Scope.NVLINK_DOMAIN and not rules.sliced
    if inner:
        small = codes < 0  # not in a wide domain, so its NVLink domains lie inside the node
        refused = outside_domains(rules, codes)
        rules.one_domain_blocks += [blocks] if small.any() else []
        codes = own_part_if_none(codes)
    else:
        refused = codes < 0
    if pinned is not None:
        allowed = np.zeros(len(codes), bool)
        if inner:
            for row in {member.row for member in running_inside}:
                _pin(rules, row, pinned, blocks)
                allowed |= codes == codes[row]
        else:
            allowed = np.isin(codes, [codes[member.row] for member in running_inside])
        refused = refused | ~allowed if pinned else np.ones(len(codes), bool)
    rules.exclude(blocks, refused)
    if scope == Scope.GPU:
        for block in blocks:
            several = any(member.has_gpus for member in running_inside)
            rules.excluded[block] |= outside_single_gpus(rules, block, several=several)
        taking = tuple(block for block in blocks if rules.blocks.roles[block].gpus)
        rules.limits += [(np.ones(len(codes), np.int64), taking)] if taking else []
    members = sum(len(rules.blocks.roles[block].members) for block in blocks)
    if pinned is None and members > 1:
        name = f"together {blocks} {scope}"
        rules.add_rule(name, np.where(refused, -1, codes), lambda part: RoleScopeRule(part, blocks))
        rules.together.append((name, blocks))


def _pin(rules: Rules, row: int, parts: frozenset[str], blocks: tuple[int, ...]) -> None:
    """Bind these blocks to the NVLink domain of this node that holds the running members.

    Running members without GPUs lie in several domains. Then each of these domains is allowed, and no block
    is bound.
    """
    topology = rules.columns.topology
    if topology.in_wide[row]:
        return
    domains = [domain for domain, (name, _) in enumerate(topology.nvlink_domains(row)) if name in parts]
    if len(domains) == 1:
        pins = rules.pinned.setdefault(row, {})
        for block in blocks:
            rules.excluded[block, row] |= pins.setdefault(block, domains[0]) != domains[0]


class _Subgroup(ByName):
    field, order = "subgroups", 30

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for group in request.subgroups:
            roles = tuple(role for role in request.roles if role.members and role.name in group.roles)
            if roles:
                yield group.name, group.scope, roles

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        for group in request.subgroups:
            members = tuple(member for member in request.running if member.role in group.roles)
            keep_in_one_part(rules, Together(group.scope, rules.blocks_of(group.roles), members), running)

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        group = _find_subgroup(findings.request, key)
        yield SubgroupScope(key, group.scope, *findings.fit(), findings.even_empty)
        yield from findings.causes_of_running_members(group.scope, *group.roles)
        if (nowhere := findings.no_such(group.scope)) is not None:
            yield nowhere

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Relaxation]:
        if not findings.is_nowhere(_find_subgroup(findings.request, key).scope):
            yield from super().relaxations(findings, role, key)


SUBGROUP = _Subgroup()


def _find_subgroup(request: Request, name: str) -> Subgroup:
    return next(group for group in request.subgroups if group.name == name)


@dataclass(frozen=True, slots=True, eq=False)
class WholeSegments(Rule):
    """Let each part have a multiple of `step` members of the one role."""

    in_numbers: ClassVar[bool] = True

    def add(self, variables: Variables, name: str) -> None:
        """Add one equation for each part to the model."""
        model, (role,) = variables.model, self.roles
        for part, counts in variables.by_part(self.part, self.roles).items():
            if part >= 0:
                max_segments = variables.problem.need[role] // self.step
                number = model.new_int_var(0, max_segments, f"{name}/{part}")
                model.add(LinearExpr.sum(counts) == self.step * number).with_name(f"{name}/{part}")


class _Segments(OfRoles):
    field, nothing, order = "segments", (), 20

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for role in request.roles:
            if role.members:
                yield from (("segment-scope", segment.scope, (role,)) for segment in role.segments)

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        for block in range(len(rules.blocks.roles)):
            rules.order.append(tuple(_add_segments(rules, block)))

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        asking = role_of(findings.request, role)
        for segment in asking.segments:
            if (nowhere := findings.no_such(segment.scope, asking)) is not None:
                yield nowhere
                return
        yield SegmentsTooLarge(role, _sizes(asking.segments), *findings.fit(), findings.even_empty)
        yield from findings.begun_segment(asking)

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[SmallerSegments]:
        """Yield the first change that works: half of the sizes, a quarter of them, …, no segments.

        Nested sizes stay multiples of each other.
        """
        segments = role_of(findings.request, role).segments
        if any(findings.is_nowhere(segment.scope) for segment in segments):
            return
        sizes, tried = [segment.size for segment in segments], list[tuple[Segment, ...]]()
        while sizes and all(size % 2 == 0 for size in sizes) and sizes[-1] > 2:
            sizes = [size // 2 for size in sizes]
            tried.append(tuple(Segment(size, old.scope) for size, old in zip(sizes, segments, strict=True)))
        for smaller in (*tried, ()):
            if findings.works(self.request_with(findings.request, role, smaller)):
                yield SmallerSegments(role, _sizes(smaller))
                return


SEGMENTS = _Segments()


def _sizes(segments: tuple[Segment, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((segment.size, segment.scope) for segment in segments)


def _add_segments(rules: Rules, block: int) -> Iterator[str]:
    """Add the segments of a block. Yield the name in `Rules.cells` of each segment's parts, widest first."""
    columns = rules.columns
    nested = np.zeros(len(columns.names), np.int64)
    for segment in rules.blocks.roles[block].segments:
        size, scope = segment.size, segment.scope
        if scope == Scope.GPU:
            rules.excluded[block] |= outside_single_gpus(rules, block, several=size > 1)
        if scope in (Scope.NODE, Scope.GPU):
            rules.unit[block] = max(rules.unit[block], size)
            continue
        codes = rules.codes(scope)
        if scope == Scope.NVLINK_DOMAIN and not rules.sliced:
            rules.domain_unit[block] = size
            rules.excluded[block] |= outside_domains(rules, codes)
        else:
            rules.excluded[block] |= codes < 0
        if (codes < 0).all():
            continue
        inner = nested * (int(codes.max(initial=0)) + 1) + codes
        part = np.where((codes < 0) | (nested < 0), -1, inner)
        name = f"segment {block} {scope}"
        _bind(rules, name, part, block, size)
        yield name
        nested = np.where(part < 0, nested, np.unique(part, return_inverse=True)[1])


def _bind(rules: Rules, name: str, part: Ints, block: int, size: int) -> None:
    rules.add_rule(name, part, lambda by_cell: WholeSegments(by_cell, (block,), step=size))


class _Attributes(OfRoles):
    field, nothing, order = "match_attributes", (), 25

    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        """Keep each member inside one group of its node. See `cluster.matching`."""
        columns = rules.columns
        has_groups = np.array([bool(shape.topology.groups) for shape in columns.shapes], bool)
        for block in rules.active:
            if rules.blocks.roles[block].match_attributes:
                rules.domain_unit[block] = 1
                rules.excluded[block] |= ~has_groups[columns.shape]

    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[AttributesDiffer]:
        """Yield the cause that too few GPUs agree."""
        asking = role_of(findings.request, role)
        fit, must_fit = findings.fit()
        nodes, even_empty = findings.count_agreeing_nodes(asking), findings.even_empty
        yield AttributesDiffer(role, asking.match_attributes, asking.gpus, nodes, fit, must_fit, even_empty)

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[DropConstraint]:
        """Yield the relaxation that drops the constraint, if the gang then fits."""
        if findings.works(self.request_without(findings.request, role, key)):
            attributes = " and ".join(role_of(findings.request, role).match_attributes)
            yield DropConstraint(f"matchAttribute {attributes}")


ATTRIBUTES = _Attributes()
