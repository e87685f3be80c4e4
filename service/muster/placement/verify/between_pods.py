"""Check constraints between pods, domain by domain, and how many members a node can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from muster.domain.constraints import NODE, Affinity, AntiAffinity, Spread
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Node
from muster.domain.request import Request, Role
from muster.domain.snapshot import Snapshot
from muster.placement.verify.admission import selected, tolerates

Members = Sequence[MemberPlacement]


def between_pods(snapshot: Snapshot, request: Request, placed: Placed) -> Iterator[str]:
    """Yield what the plan breaks of the request's constraints and of the room of its roles."""
    yield from _room(request, placed.members)
    for rule in request.constraints:
        match rule:
            case AntiAffinity():
                yield from _anti_affinity(snapshot, rule, placed.members)
            case Affinity():
                yield from _affinity(snapshot, rule, placed.members)
            case Spread():
                yield from _spread(snapshot, request, rule, placed.members)


def preferences(request: Request, placed: Placed) -> list[str]:
    """Return what is wrong with the claimed value of the preferences."""
    scores = {role.name: role.scores for role in request.roles if role.members}
    counted = None
    if any(scores.values()):
        reached = (scores.get(member.role, {}).get(member.node, 0) for member in placed.members)
        counted = sum(100 - min(100, max(0, score)) for score in reached)
    claimed = placed.objective.preference_penalty
    return [] if counted == claimed else [f"the preferences are missed by {counted}, not {claimed}"]


def _room(request: Request, members: Members) -> Iterator[str]:
    limits = {(role.name, node): room for role in request.roles for node, room in role.room.items()}
    if limits:
        for (role, node), count in sorted(Counter((m.role, m.node) for m in members).items()):
            room = limits.get((role, node), count)
            if count > room:
                yield f"node {node} can hold {room} members of role {role}, the plan puts {count} there"


def _domain(node: Node, key: str) -> str | None:
    return node.name if key == NODE else node.labels.get(key)


def _by_domain(
    snapshot: Snapshot, key: str, members: Iterable[MemberPlacement], roles: frozenset[str]
) -> dict[str, set[str]]:
    """Return the uids of the members of these roles in each domain."""
    found: dict[str, set[str]] = {}
    for member in members:
        domain = _domain(snapshot.nodes[member.node].node, key)
        if member.role in roles and domain is not None:
            found.setdefault(domain, set()).add(member.uid)
    return found


def _holding(snapshot: Snapshot, key: str, nodes: Iterable[str]) -> set[str]:
    """Return the domains of these nodes."""
    there = (_domain(snapshot.nodes[name].node, key) for name in nodes if name in snapshot.nodes)
    return {domain for domain in there if domain is not None}


def _anti_affinity(snapshot: Snapshot, rule: AntiAffinity, members: Members) -> Iterator[str]:
    mine = _by_domain(snapshot, rule.topology_key, members, rule.roles)
    others = _by_domain(snapshot, rule.topology_key, members, rule.others)
    taken = _holding(snapshot, rule.topology_key, rule.existing)
    for domain, uids in sorted(mine.items()):
        repelling = others.get(domain, set())
        if repelling and len(uids | repelling) > 1:
            yield f"{rule.name}: {len(uids | repelling)} members lie in {rule.topology_key} {domain}"
        if domain in taken:
            yield f"{rule.name}: members lie in {rule.topology_key} {domain}, where a pod repels them"


def _affinity(snapshot: Snapshot, rule: Affinity, members: Members) -> Iterator[str]:
    key = rule.topology_key
    bare = sorted({m.node for m in members if m.role in rule.roles and _bare(snapshot, m, key)})
    for node in bare:
        yield f"{rule.name}: node {node} has no label {key}"
    mine = _by_domain(snapshot, key, members, rule.roles)
    opened = {*_by_domain(snapshot, key, members, rule.others - rule.roles)}
    opened |= _holding(snapshot, key, rule.existing)
    unmatched = sorted(mine.keys() - opened)
    themselves = _by_domain(snapshot, key, members, rule.roles & rule.others)
    if unmatched and not rule.existing and unmatched[0] in themselves:
        unmatched = unmatched[1:]  # the first member may open one domain
    for domain in unmatched:
        yield f"{rule.name}: {key} {domain} holds members and no pod that they need there"


def _bare(snapshot: Snapshot, member: MemberPlacement, key: str) -> bool:
    return _domain(snapshot.nodes[member.node].node, key) is None


def _spread(snapshot: Snapshot, request: Request, rule: Spread, members: Members) -> Iterator[str]:
    key = rule.topology_key
    for role in request.roles:
        mine = [member for member in members if member.role == role.name and role.name in rule.roles]
        if not mine:
            continue
        for node in sorted({member.node for member in mine if _bare(snapshot, member, key)}):
            yield f"{rule.name}: node {node} has no label {key}"
        counts: dict[str, int] = {}
        eligible: set[str] = set()
        for name, state in snapshot.nodes.items():
            domain = _domain(state.node, key)
            if domain is not None and _eligible(state.node, rule, role):
                eligible.add(name)
                counts[domain] = counts.get(domain, 0) + rule.existing.get(name, 0)
        for member in members:
            if member.role in rule.counted and member.node in eligible:
                counts[str(_domain(snapshot.nodes[member.node].node, key))] += 1
        least = 0 if len(counts) < rule.min_domains else min(counts.values(), default=0)
        for domain in sorted(_by_domain(snapshot, key, mine, rule.roles)):
            if counts.get(domain, 0) - least > rule.max_skew:
                yield (
                    f"{rule.name}: {key} {domain} holds {counts[domain]} pods, "
                    f"another one {least}; they may differ by {rule.max_skew}"
                )


def _eligible(node: Node, rule: Spread, role: Role) -> bool:
    return (
        rule.required_keys <= node.labels.keys()
        and (not rule.honor_affinity or not selected(node, role))
        and (not rule.honor_taints or not tolerates(node, role))
    )
