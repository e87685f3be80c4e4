"""Keep each segment, which is consecutive members of a role, in one part of a scope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.domain.causes.out_of_place import SegmentsTooLarge
from muster.domain.reasons import Cause
from muster.domain.relaxations import SmallerSegments
from muster.domain.request import Request, Role, Scope, Segment
from muster.placement.gang.constraints.constraint import Findings, OfRoles, role_of
from muster.placement.gang.constraints.role_scope import outside_domains, outside_gpus
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules
from muster.placement.model.problem import Ints
from muster.placement.model.rule import Rule
from muster.placement.model.variables import LinearExpr, Variables


@dataclass(frozen=True, slots=True, eq=False)
class WholeSegments(Rule):
    """Let each part have a multiple of `step` members of the one role."""

    in_numbers: ClassVar[bool] = True

    def add(self, variables: Variables, name: str) -> None:
        """Add one equation for each part to the model."""
        model, (role,) = variables.model, self.roles
        for part, placed in variables.by_part(self.part, self.roles).items():
            if part >= 0:
                most = variables.problem.need[role] // self.step
                number = model.new_int_var(0, most, f"{name}/{part}")
                model.add(LinearExpr.sum(placed) == self.step * number).with_name(f"{name}/{part}")


class _Segments(OfRoles):
    field, nothing, order = "segments", (), 20

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        for role in request.roles:
            if role.members:
                yield from (("segment-scope", segment.scope, (role,)) for segment in role.segments)

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        for block in range(len(rules.blocks.roles)):
            rules.order.append(tuple(_add(rules, block)))

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[Cause]:
        asking = role_of(findings.request, role)
        for segment in asking.segments:
            if (nowhere := findings.no_such(segment.scope, asking)) is not None:
                yield nowhere
                return
        yield SegmentsTooLarge(role, _sizes(asking.segments), *findings.fit(), findings.even_empty)
        yield from findings.begun_segment(asking)

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[SmallerSegments]:
        """Yield the first of these that works: half of the sizes, a quarter …, no segments.

        Nested sizes stay multiples of each other.
        """
        before = role_of(findings.request, role).segments
        if any(findings.is_nowhere(segment.scope) for segment in before):
            return
        sizes, tried = [segment.size for segment in before], list[tuple[Segment, ...]]()
        while sizes and all(size % 2 == 0 for size in sizes) and sizes[-1] > 2:
            sizes = [size // 2 for size in sizes]
            tried.append(tuple(Segment(size, old.scope) for size, old in zip(sizes, before, strict=True)))
        for segments in (*tried, ()):
            if findings.works(self.changed(findings.request, role, segments)):
                yield SmallerSegments(role, _sizes(segments))
                return


SEGMENTS = _Segments()


def _sizes(segments: tuple[Segment, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((segment.size, segment.scope) for segment in segments)


def _add(rules: Rules, block: int) -> Iterator[str]:
    """Add the segments of a block, and yield the names of the parts by which they are cut, widest first."""
    view = rules.view
    nested = np.zeros(len(view.names), np.int64)
    for segment in rules.blocks.roles[block].segments:
        size, scope = segment.size, segment.scope
        if scope == Scope.GPU:
            rules.refused[block] |= outside_gpus(rules, block, several=size > 1)
        if scope in (Scope.NODE, Scope.GPU):
            rules.unit[block] = max(rules.unit[block], size)
            continue
        codes = rules.codes(scope)
        if scope == Scope.NVLINK_DOMAIN and not rules.sliced:
            rules.domain_unit[block] = size
            rules.refused[block] |= outside_domains(rules, codes)
        else:
            rules.refused[block] |= codes < 0
        if (codes < 0).all():
            continue
        inner = nested * (int(codes.max(initial=0)) + 1) + codes
        part = np.where((codes < 0) | (nested < 0), -1, inner)
        name = f"segment {block} {scope}"
        _bind(rules, name, part, block, size)
        yield name
        nested = np.where(part < 0, nested, np.unique(part, return_inverse=True)[1])


def _bind(rules: Rules, name: str, part: Ints, block: int, size: int) -> None:
    rules.bind(name, part, lambda by_cell: WholeSegments(by_cell, (block,), step=size))
