"""Describe running members: their nodes, and the parts that the gang already touches because of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_

from muster.domain.request import Request, RunningMember, Scope
from muster.placement.cluster.columns import Columns
from muster.placement.cluster.topology import INSIDE
from muster.placement.gpus.node_rules import NodeRule
from muster.placement.limits import takes_gpus


@dataclass(frozen=True, slots=True)
class RunningMemberOnNode:
    """A running member on a node of the snapshot."""

    row: int
    running: RunningMember
    has_gpus: bool

    @property
    def has_unknown_gpus(self) -> bool:
        """Whether the member has GPUs whose indices are unknown."""
        return self.has_gpus and not self.running.gpus


@dataclass(frozen=True, eq=False)
class RunningMembers:
    """All running members of a gang."""

    members: tuple[RunningMemberOnNode, ...]

    @cached_property
    def by_row(self) -> Mapping[int, list[RunningMemberOnNode]]:
        """The members on each node, by row."""
        by_row = dict[int, list[RunningMemberOnNode]]()
        for member in self.members:
            by_row.setdefault(member.row, []).append(member)
        return by_row

    @cached_property
    def masks(self) -> Mapping[int, int]:
        """The GPUs of the members by row, as bit masks."""
        gpus = {row: [member.running.gpus for member in members] for row, members in self.by_row.items()}
        return {row: reduce(or_, masks) for row, masks in gpus.items()}

    def __bool__(self) -> bool:
        return bool(self.members)

    def parts(self, columns: Columns, scope: str) -> frozenset[str] | None:
        """Return the parts of a scope that hold all running members; None if there are none."""
        return common_parts(columns, scope, self.members)

    def touched_rows(self, scope: str, *, gpus: bool) -> frozenset[int]:
        """Return the rows of the nodes whose part of the scope the gang touches.

        Members without GPUs touch no NVLink domain. In a gang with `gpus`, they touch no part at all.
        """
        return self.with_gpus if gpus or scope == Scope.NVLINK_DOMAIN else frozenset(self.masks)

    @cached_property
    def with_gpus(self) -> frozenset[int]:
        """The rows of the nodes where members with GPUs are."""
        return frozenset(member.row for member in self.members if member.has_gpus)

    def rule_for_new_members(self, columns: Columns, row: int, rule: NodeRule) -> NodeRule:
        """Return the rule for new members on the node: the limits of `rule`, minus the part that running
        members already use.
        """
        members_here = self.by_row.get(row)
        if members_here is None:
            return rule
        domains = columns.shapes[columns.shape[row]].domains
        touching = [
            sum(
                bool(member.running.gpus & domain) or (member.has_unknown_gpus and len(domains) == 1)
                for member in members_here
            )
            for domain in domains
        ]
        return replace(
            rule,
            max_members=rule.max_members
            if rule.max_members < 0
            else max(0, rule.max_members - len(members_here)),
            max_by_domain=tuple(
                max(0, max_in_domain - members_touching)
                for max_in_domain, members_touching in zip(rule.max_by_domain, touching, strict=False)
            ),
            running_mask=self.masks[row],
            running_domains=sum(domain for domain, count in zip(domains, touching, strict=True) if count),
        )


def running_members_of(columns: Columns, request: Request) -> RunningMembers:
    """Return the running members of a request. A member whose node is gone is left out."""
    asks = {role.name: takes_gpus(role) for role in request.roles}
    members = (
        RunningMemberOnNode(
            columns.row[running.node], running, running.has_gpus or asks.get(running.role, False)
        )
        for running in request.running
        if running.node in columns.row
    )
    return RunningMembers(tuple(members))


def common_parts(
    columns: Columns, scope: str, members: Iterable[RunningMemberOnNode]
) -> frozenset[str] | None:
    """Return the parts of a scope that hold all these members; None if there are no members."""
    common: frozenset[str] | None = None
    for member in members:
        holding_parts = frozenset(parts_holding(columns, scope, member))
        common = holding_parts if common is None else common & holding_parts
    return common


def parts_holding(columns: Columns, scope: str, member: RunningMemberOnNode) -> list[str]:
    """Return the parts of a scope that hold a running member.

    A member whose GPU indices are unknown lies in a domain only if the domain is its whole node.
    """
    topology = columns.topology
    parts = topology.parts(member.row, scope)
    nvlink = Scope.NVLINK_DOMAIN
    if scope in INSIDE and member.has_unknown_gpus and len(topology.parts(member.row, nvlink)) != 1:
        return []
    return [name for name, gpus in parts if member.running.gpus & ~gpus == 0]
