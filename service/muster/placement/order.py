"""Find an order of members in which kube-scheduler's in-tree plugins accept each of them.

These plugins see one pod after another. Anti-affinity is symmetric, so any order will do. Affinity needs the
matching pod first. A pod that matches itself may open a domain only while no matching pod runs. A spread
constraint counts the pods that run when a pod is scheduled. If the whole plan keeps the constraint, the
plugin accepts all members that come round by round over the domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from muster.domain.constraints import Affinity, TopologySpread
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.columns import Columns, columns_of
from muster.placement.gang.constraints.between_pods import eligible_to

MAX_SEARCH_STEPS = 20_000
"""The most steps of the search for an order, if the first try finds none."""


def scheduling_order(request: Request, plan: Placed, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the uids of the placed members in an order in which the in-tree plugins accept each member.

    `snapshot` is the cluster without the gang. With several constraints there may be no such order, or the
    search does not find it in MAX_SEARCH_STEPS. Then the members that are not accepted come last, in the
    order of the plan. Without constraints the order is that of the request.
    """
    if not request.constraints:
        placed_uids = {member.uid for member in plan.members}
        return tuple(
            member.uid for role in request.roles for member in role.members if member.uid in placed_uids
        )
    columns, roles = columns_of(snapshot), {role.name: role for role in request.roles}
    plugins: list[_Plugin] = []
    for rule in request.constraints:
        if isinstance(rule, Affinity):
            plugins.append(_AffinityPlugin(columns, rule, plan.members))
        elif isinstance(rule, TopologySpread):
            present = dict.fromkeys(member.role for member in plan.members)
            plugins += [
                _SpreadPlugin(columns, rule, roles[name].name, request)
                for name in present
                if name in rule.roles
            ]
    if not plugins:
        return tuple(member.uid for member in plan.members)
    queue = _sort_by_rounds(plan.members, plugins)
    order = _order_in_passes(queue, plugins)
    if len(order) < len(queue):
        for member in reversed(order):
            for plugin in plugins:
                plugin.add(member, -1)
        order = _find_order(queue, plugins) or order
    done = {member.uid for member in order}
    unordered = [member for member in plan.members if member.uid not in done]
    return tuple(member.uid for member in (*order, *unordered))


class _Plugin(Protocol):
    """A constraint as the in-tree plugin applies it, given the members that were added so far."""

    def accepts(self, member: MemberPlacement) -> bool:
        """Return whether the plugin accepts the member now."""

    def add(self, member: MemberPlacement, times: int = 1) -> None:
        """Count the member, or no longer count it if `times` is −1."""

    def urgency(self, member: MemberPlacement) -> int:
        """Return a sort key: the member with the smallest number should come next."""


class _AffinityPlugin:
    """Pod affinity. Source: interpodaffinity/filtering.go, satisfyPodAffinity."""

    def __init__(self, columns: Columns, rule: Affinity, members: Sequence[MemberPlacement]) -> None:
        self._rule, self._row, self._domains = rule, columns.row, columns.topology.by_label(rule.topology_key)
        rows = [columns.row[node] for node in rule.existing if node in columns.row]
        self._domains_of_pods = {int(self._domains[row]) for row in rows} - {-1}
        self._matching: Counter[int] = Counter()
        opened_by_others = {
            self._domain_of(member) for member in members if member.role in rule.other_roles - rule.roles
        }
        self._open_later = opened_by_others | self._domains_of_pods

    def _domain_of(self, member: MemberPlacement) -> int:
        return int(self._domains[self._row[member.node]])

    def accepts(self, member: MemberPlacement) -> bool:
        if member.role not in self._rule.roles:
            return True
        domain = self._domain_of(member)
        if domain < 0:
            return False
        first = (
            not self._rule.existing and not self._matching.total() and member.role in self._rule.other_roles
        )
        return first or domain in self._domains_of_pods or self._matching[domain] > 0

    def add(self, member: MemberPlacement, times: int = 1) -> None:
        domain = self._domain_of(member)
        if member.role in self._rule.other_roles and domain >= 0:
            self._matching[domain] += times

    def urgency(self, member: MemberPlacement) -> int:
        """Return −2 for a member that opens a domain, −1 for a member that others need, else 0."""
        if member.role not in self._rule.roles:
            return -1 if member.role in self._rule.other_roles else 0
        opens = member.role in self._rule.other_roles and self._domain_of(member) not in self._open_later
        return -2 if opens else 0


class _SpreadPlugin:
    """The spread of one role over domains. Source: podtopologyspread/filtering.go, Filter."""

    def __init__(self, columns: Columns, rule: TopologySpread, role: str, request: Request) -> None:
        self._rule, self._role, self._row = rule, role, columns.row
        self._domains = columns.topology.by_label(rule.topology_key)
        eligible = eligible_to(columns, rule, next(asking for asking in request.roles if asking.name == role))
        self._eligible = eligible & (self._domains >= 0)
        self._count = dict.fromkeys(self._domains[self._eligible].tolist(), 0)
        for node, pods in rule.existing.items():
            if node in columns.row and self._eligible[columns.row[node]]:
                self._count[int(self._domains[columns.row[node]])] += pods
        self._few = len(self._count) < max(1, rule.min_domains)
        self._levels = Counter(self._count.values())

    def accepts(self, member: MemberPlacement) -> bool:
        if member.role != self._role:
            return True
        domain = int(self._domains[self._row[member.node]])
        least = 0 if self._few else min(self._levels)
        counts_itself = member.role in self._rule.counted_roles
        return domain >= 0 and self._count.get(domain, 0) + counts_itself - least <= self._rule.max_skew

    def add(self, member: MemberPlacement, times: int = 1) -> None:
        row = self._row[member.node]
        if member.role in self._rule.counted_roles and self._eligible[row]:
            members = self._count[int(self._domains[row])]
            self._levels[members] -= 1
            if not self._levels[members]:
                del self._levels[members]
            self._count[int(self._domains[row])] = members + times
            self._levels[members + times] += 1

    def urgency(self, member: MemberPlacement) -> int:
        """Return how many matching pods the member's domain has. Members that do not count come last."""
        row = self._row[member.node]
        if member.role in self._rule.counted_roles:
            return self._count[int(self._domains[row])] if self._eligible[row] else 0
        return 1 << 30 if member.role == self._role else 0


def _sort_by_rounds(members: Sequence[MemberPlacement], plugins: Sequence[_Plugin]) -> list[MemberPlacement]:
    """Return the members in an order: first those that others need, then round by round over the domains."""
    ranked = []
    first = sorted(members, key=lambda member: min(0, *(plugin.urgency(member) for plugin in plugins)))
    for i, member in enumerate(first):
        urgencies = [plugin.urgency(member) for plugin in plugins]
        ranked.append((min(0, *urgencies), max(0, *urgencies), i, member))
        for plugin in plugins:
            plugin.add(member)
    for member in members:
        for plugin in plugins:
            plugin.add(member, -1)
    return [member for *_, member in sorted(ranked, key=lambda entry: entry[:3])]


def _order_in_passes(queue: Sequence[MemberPlacement], plugins: Sequence[_Plugin]) -> list[MemberPlacement]:
    """Return the members in the order in which they are accepted, pass after pass through the queue."""
    order, remaining = list[MemberPlacement](), list(queue)
    while remaining:
        waiting = []
        for member in remaining:
            if all(plugin.accepts(member) for plugin in plugins):
                order.append(member)
                for plugin in plugins:
                    plugin.add(member)
            else:
                waiting.append(member)
        if len(waiting) == len(remaining):
            break
        remaining = waiting
    return order


def _find_order(queue: Sequence[MemberPlacement], plugins: Sequence[_Plugin]) -> list[MemberPlacement] | None:
    """Return an order of all members, found by backtracking; None if the search finds no order.

    Members of one role and node are of one kind. They are equivalent, so at each position of the order, one
    member of each kind is tried.
    """
    kinds = Counter((member.role, member.node) for member in queue)
    example = {(member.role, member.node): member for member in reversed(queue)}
    path, untried = list[tuple[str, str]](), [iter(example)]
    dead = set[frozenset[tuple[tuple[str, str], int]]]()
    for _ in range(MAX_SEARCH_STEPS):
        kind = next(untried[-1], None)
        if kind is None:
            dead.add(frozenset((+kinds).items()))
            untried.pop()
            if not path:
                return None
            kind = path.pop()
            kinds[kind] += 1
            for plugin in plugins:
                plugin.add(example[kind], -1)
        elif kinds[kind] and all(plugin.accepts(example[kind]) for plugin in plugins):
            path.append(kind)
            kinds[kind] -= 1
            for plugin in plugins:
                plugin.add(example[kind])
            if len(path) == len(queue):
                return _members_of(queue, path)
            is_dead = dead and frozenset((+kinds).items()) in dead
            untried.append(iter(()) if is_dead else iter(example))
    return None


def _members_of(queue: Sequence[MemberPlacement], path: Sequence[tuple[str, str]]) -> list[MemberPlacement]:
    """Return the members in this order of kinds. Members of one kind keep their order in the queue."""
    members_by_kind: dict[tuple[str, str], list[MemberPlacement]] = {}
    for member in reversed(queue):
        members_by_kind.setdefault((member.role, member.node), []).append(member)
    return [members_by_kind[kind].pop() for kind in path]
