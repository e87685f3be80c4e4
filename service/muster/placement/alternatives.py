"""Find out where else a gang could have gone, domain by domain, and compare each place with the gang's own.

Only people ask for alternatives; no decision uses them. `place` decides each domain, with the gang's request
restricted to the nodes of the domain. The gang's own place and each alternative are counted by the same code,
on the same snapshot without the gang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.domain.alternatives import (
    NOTE,
    Alternative,
    Alternatives,
    Question,
    Than,
    Value,
    domains_in_words,
    fewer_fit,
    others_in_words,
)
from muster.domain.causes.not_planned import Ended, NotDecided, TooManyRoles
from muster.domain.decision import Decision, MemberPlacement, Placed
from muster.domain.printable import printable
from muster.domain.request import Request, Scope, SelectorTerm
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.candidates import NODE_NAME, admits
from muster.placement.cluster.columns import Bools, Columns, Ints, columns_of
from muster.placement.cluster.matching import GangCluster
from muster.placement.evaluate import worths
from muster.placement.limits import Limits, asks_gpus
from muster.placement.model.objective import Worth
from muster.placement.place import PlacementDefect, place

MAX_ALTERNATIVES = 8
"""Alternatives that are computed for one gang."""


def alternatives(snapshot: Snapshot, question: Question, limits: Limits | None = None) -> Alternatives:
    """Return the alternatives of the gang's place: at most `MAX_ALTERNATIVES`, the best first.

    `snapshot` is without the gang. The gang's own domain is tried first, and listed if a better place has
    become free there. The best place outside of this domain is next. Then come the domains with just enough
    free GPUs, then the domains with too few.
    """
    limits = limits or Limits()
    columns = GangCluster(snapshot, question.request).columns
    own_rows = sorted({columns.row[member.node] for member in question.members})
    places = _Places.of(columns, question, own_rows, limits)
    own_worths = worths(question.request, question.members, columns)
    compared_by_domains: dict[tuple[int, ...], tuple[list[float], Alternative]] = {}
    late = False
    for part in places.parts_to_try():
        late = limits.seconds_left is not None and limits.seconds_left() <= 0
        if late or len(compared_by_domains) == MAX_ALTERNATIVES:
            break
        if part is not None and (part,) in compared_by_domains:
            continue
        decision = _decide_on(snapshot, question.request, places.rows_of(part), limits)
        members = decision.members if isinstance(decision, Placed) else ()
        parts = places.parts_of(members) if part is None else (part,)
        if decision is not None and parts:
            proven, free = _is_proven(decision), places.free_on(parts)
            worths_there = worths(question.request, members, columns) if members else []
            compared = _compare_with_own(places.name_of(parts), free, proven, own_worths, worths_there)
            if set(parts) != places.own_parts or compared[1].than is Than.BETTER:
                compared_by_domains[parts] = compared
    tried = tuple(
        alternative for _, alternative in sorted(compared_by_domains.values(), key=lambda pair: pair[0])
    )
    left_out = sum((part,) not in compared_by_domains for part in places.other_parts)
    return Alternatives(
        printable(places.own_name),
        printable(places.scope),
        tried,
        left_out,
        places.shut_count,
        late,
        others=others_in_words(places.scope, left_out, places.shut_count, late),
        note=NOTE,
        why_not="",
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """The domains of the narrowest scope that has the whole gang in one domain, else of the widest scope."""

    columns: Columns
    scope: str
    part: Ints
    """[row] The domain of each node. A node without a domain is a domain of its own."""
    own_parts: frozenset[int]
    """The domains that the gang is in: one domain, unless no scope holds the whole gang."""
    open: Bools
    """[row] Whether the node admits some members."""
    free: Ints
    """[row] Free GPUs, or free processor time if the gang asks for no GPU; 0 where the node is shut."""
    amount_asked: int

    @classmethod
    def of(cls, columns: Columns, question: Question, own_rows: Sequence[int], limits: Limits) -> _Places:
        request, topology = question.request, columns.topology
        scope = _scope_holding(columns, own_rows)
        part = topology.index_or_own(scope)
        roles = [role for role in request.roles if role.members]
        admitted = np.logical_or.reduce([admits(columns, role, limits.excluded) for role in roles])
        free, amounts = columns.cpu, [role.resources.cpu_milli for role in roles]
        if asks_gpus(request):
            free = columns.free_count
            amounts = [role.gpus or (role.slice.gpus if role.slice else 0) for role in roles]
        amount_asked = sum(amount * len(role.members) for amount, role in zip(amounts, roles, strict=True))
        own_parts = frozenset(int(part[row]) for row in own_rows)
        return cls(columns, scope, part, own_parts, admitted, np.where(admitted, free, 0), amount_asked)

    @property
    def own_name(self) -> str:
        return self.name_of(sorted(self.own_parts))

    @property
    def other_parts(self) -> list[int]:
        """The domains without the gang in which a node admits some members."""
        return sorted(set(self.part[self.open].tolist()) - self.own_parts)

    @property
    def shut_count(self) -> int:
        """How many domains without the gang have no node that admits a member."""
        return len(set(self.part.tolist()) - set(self.part[self.open].tolist()) - self.own_parts)

    def parts_to_try(self) -> Iterator[int | None]:
        """Yield the domains in the order in which they are tried; None stands for all domains that the gang
        is not in.

        The gang's own domain comes first, because a better place may have become free there. If the gang is
        in several domains, each of them is tried too. Then come the domains with just enough free, then the
        domains with too little.
        """
        several = sorted(self.own_parts)
        if len(several) == 1:
            yield several.pop()
        if self.other_parts:
            yield None
        free_by_part = np.bincount(self.part, weights=self.free).tolist()

        def sort_key(part: int) -> tuple[bool, float, int]:
            free = free_by_part[part]
            has_too_little = free < self.amount_asked
            return has_too_little, -free if has_too_little else free, part

        yield from sorted([*self.other_parts, *several], key=sort_key)

    def rows_of(self, part: int | None) -> Ints:
        """Return the rows of a domain; None stands for all domains that the gang is not in."""
        in_part = ~np.isin(self.part, list(self.own_parts)) if part is None else self.part == part
        return np.flatnonzero(in_part & self.open)

    def parts_of(self, members: Sequence[MemberPlacement]) -> tuple[int, ...]:
        """Return the domains that these members are in."""
        return tuple(sorted({int(self.part[self.columns.row[member.node]]) for member in members}))

    def free_on(self, parts: Sequence[int]) -> tuple[int, int]:
        """Return the free GPUs of these domains, on nodes that admit members, and the most on one node."""
        free = self.columns.free_count[np.isin(self.part, parts) & self.open]
        return int(free.sum()), int(free.max(initial=0))

    def name_of(self, parts: Sequence[int]) -> str:
        names = self.columns.topology.domains(self.scope).names
        if all(part < len(names) for part in parts):
            return domains_in_words(self.scope, [names[part] for part in parts])
        nodes = [self.columns.names[int(np.flatnonzero(self.part == part)[0])] for part in parts]
        return domains_in_words(Scope.NODE.value, nodes)


def _scope_holding(columns: Columns, own_rows: Sequence[int]) -> str:
    """Return the narrowest scope, the node or wider, with all these rows in one domain.

    If there is no such scope, return the widest scope.
    """
    if len(own_rows) == 1:
        return Scope.NODE.value
    scopes = (*columns.topology.scopes, Scope.NVLINK_DOMAIN.value)[::-1]
    for scope in scopes:
        parts = {int(columns.topology.index(scope)[row]) for row in own_rows}
        if len(parts) == 1 and min(parts) >= 0:
            return scope
    return next(iter(columns.topology.scopes), Scope.NODE.value)


def _decide_on(snapshot: Snapshot, request: Request, rows: Ints, limits: Limits) -> Decision | None:
    """Return the decision for these nodes alone, with as many members as fit; None after a defect."""
    names = columns_of(snapshot).names
    node_term = SelectorTerm(NODE_NAME, "In", tuple(names[row] for row in rows.tolist()))
    roles = tuple(
        replace(role, rules=replace(role.rules, required=(*role.rules.required, node_term)))
        for role in request.roles
    )
    try:
        return place(snapshot, replace(request, roles=roles, min_member=1, quorum=None), limits)
    except PlacementDefect:
        return None


def _is_proven(decision: Decision) -> bool:
    if isinstance(decision, Placed):
        return decision.optimal
    return not any(isinstance(cause, Ended | NotDecided | TooManyRoles) for cause in decision.causes)


def _compare_with_own(
    domain: str, free: tuple[int, int], proven: bool, own_worths: list[Worth], other_worths: list[Worth]
) -> tuple[list[float], Alternative]:
    """Return an alternative, and its sort key among alternatives: the costs of its levels.

    `free` is the number of free GPUs in `domain`, and the largest number on one node there. `proven` is
    whether the alternative is proven best in its domain.
    """
    order = [worth.cost for worth in other_worths] or [math.inf]
    fit, size = (int(-levels[0].cost) if levels else 0 for levels in (other_worths, own_worths))
    level, than, says = "", Than.EQUAL, "as good at each level"
    value: Value = None
    own_value: Value = None
    if fit < size:
        level, than, value, own_value = "members", Than.FEWER, fit, size
        says = fewer_fit(fit, size, *free)
    else:
        pairs = zip(own_worths, other_worths, strict=True)
        differ = next(((ours, theirs) for ours, theirs in pairs if ours.cost != theirs.cost), None)
        if differ is not None:
            ours, theirs = differ
            than = Than.WORSE if theirs.cost > ours.cost else Than.BETTER
            level, value, own_value, says = ours.level, theirs.value, ours.value, theirs.instead_of(ours)
            says = f"better now: {says}" if than is Than.BETTER else says
    proviso = "" if proven else "as far as was searched: "
    says = printable(proviso + says)
    domain = printable(domain)
    return order, Alternative(domain, fit, size, than, level, value, own_value, proven, *free, says)
