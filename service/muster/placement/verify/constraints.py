"""Check where members lie: the gang's required and preferred scopes, and its constraints between pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from muster.domain.constraints import NODE, Affinity, AntiAffinity, MaxPer, TopologySpread
from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Node
from muster.domain.request import Request, Role
from muster.domain.snapshot import Snapshot
from muster.placement.verify.admission import unmet_selector, untolerated_taint
from muster.placement.verify.members import sort_by_rank
from muster.placement.verify.parts import Fabric, Spot, Spots, describes, spots_of_members


def check_scopes(fabric: Fabric, request: Request, plan: Placed, everyone: Spots) -> list[str]:
    """Return the errors in the required scope, and in the claimed preferred and narrowest scopes."""
    wrong, spots = [], everyone.values()
    if request.required_scope is not None and not fabric.common_parts(spots, request.required_scope):
        wrong.append(f"no one {request.required_scope} holds all members, although it is required")
    claimed = plan.objective.preferred_reached
    preferred = next((scope for scope in request.preferred_scopes if fabric.common_parts(spots, scope)), None)
    if claimed != preferred:
        wrong.append(f"the preferred scope that holds all members is {preferred}, not {claimed}")
    reached = plan.scope_reached
    if reached is not None and not any(
        describes(plan.domain, f"{reached} {part}") for part in fabric.common_parts(spots, reached)
    ):
        wrong.append(f"the members do not lie in {reached}, {plan.domain}")
    if reached is None and plan.domain:
        wrong.append(f"no scope is reached, but the plan lies in {plan.domain}")
    narrow_scopes = ["nvlink-domain", "node", *(level.scope for level in reversed(fabric.levels))]
    if any(spot.gpus for spot in spots):
        narrow_scopes.insert(0, "gpu")
    if reached is not None:  # a label key that is no level is not comparable with levels, only with the node
        narrow_scopes = narrow_scopes[: narrow_scopes.index(reached if reached in narrow_scopes else "node")]
    wrong += [
        f"one {scope} holds all members, not only {reached}"
        for scope in narrow_scopes
        if fabric.common_parts(spots, scope)
    ]
    return wrong


def check_by_scope(
    fabric: Fabric, snapshot: Snapshot, request: Request, plan: Placed, old: Spots
) -> Iterator[str]:
    """Yield a sentence for each constraint by scope that the plan breaks. Running members (`old`) count."""
    bound = any(role.segments or role.required_scope for role in request.roles)
    if bound or request.per_scope or request.subgroups or request.role_preferences:
        new = spots_of_members(snapshot, plan.members)
        yield from _check_common_parts(fabric, request, new, old)
        yield from _check_role_preferences(fabric, request, plan, (*new.values(), *old.values()))
        yield from _check_segments(fabric, request, new, old)
        yield from _check_max_per(fabric, request, new, old)


def _check_common_parts(fabric: Fabric, request: Request, new: Spots, old: Spots) -> Iterator[str]:
    """Yield a sentence for each role and subgroup whose members must lie in one part, and do not."""
    bound = [
        ({role.name}, role.required_scope, "", f"members of role {role.name}")
        for role in request.roles
        if role.required_scope is not None
    ]
    bound += [({*group.roles}, group.scope, f"{group.name}: ", "its members") for group in request.subgroups]
    for roles, scope, group_name, whose in bound:
        members = [spot for spot in (*new.values(), *old.values()) if spot.role in roles]
        if any(spot.role in roles for spot in new.values()) and not fabric.common_parts(members, scope):
            yield f"{group_name}no one {scope} holds all {whose}"


def _check_role_preferences(
    fabric: Fabric, request: Request, plan: Placed, members: Sequence[Spot]
) -> Iterator[str]:
    reached = []
    for preference in request.role_preferences:
        spots = [spot for spot in members if spot.role in preference.roles]
        scopes = (scope for scope in preference.scopes if fabric.common_parts(spots, scope))
        reached.append((preference.name, next(scopes, None)))
    stated = list(plan.objective.role_preferences)
    if stated != reached:
        yield f"the preferred scopes that hold roles are {reached}, not {stated}"


def _check_segments(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    """Return a sentence for each segment whose members do not lie in one part.

    A member that is left out of the plan keeps its position by rank, and lies nowhere.
    """
    wrong = []
    for role in request.roles:
        if not role.segments:
            continue
        stay = [r.member for r in request.running if r.role == role.name and r.member.uid in old]
        order = [member.uid for member in sort_by_rank([*role.members, *stay])]
        for segment in role.segments:
            for start in range(0, len(order), segment.size):
                uids = order[start : start + segment.size]
                new_spots = [new[uid] for uid in uids if uid in new]
                spots = [*new_spots, *(old[uid] for uid in uids if uid in old)]
                if new_spots and not fabric.common_parts(spots, segment.scope):
                    last = start + len(uids) - 1
                    wrong.append(
                        f"no one {segment.scope} holds members {start} to {last} by rank of role {role.name}"
                    )
    return wrong


def _check_max_per(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    wrong = []
    for rule in request.per_scope:
        if not isinstance(rule, MaxPer) or rule.scope == "gpu":
            continue  # a GPU never holds two members that take it whole
        counts, running = (fabric.count_by_part(spots.values(), rule.scope) for spots in (new, old))
        wrong += [
            f"{count + running[part]} members lie in {rule.scope} {''.join(part)}, at most {rule.members} may"
            for part, count in sorted(counts.items())
            if count + running[part] > rule.members
        ]
    return wrong


Members = Sequence[MemberPlacement]


def check_between_pods(snapshot: Snapshot, request: Request, plan: Placed) -> Iterator[str]:
    """Yield a sentence for each constraint, and each `room` of a role, that the plan breaks."""
    yield from _check_room(request, plan.members)
    for rule in request.constraints:
        match rule:
            case AntiAffinity():
                yield from _check_anti_affinity(snapshot, rule, plan.members)
            case Affinity():
                yield from _check_affinity(snapshot, rule, plan.members)
            case TopologySpread():
                yield from _check_spread(snapshot, request, rule, plan.members)


def _check_room(request: Request, members: Members) -> Iterator[str]:
    limits = {(role.name, node): room for role in request.roles for node, room in role.room.items()}
    if limits:
        for (role, node), count in sorted(Counter((m.role, m.node) for m in members).items()):
            room = limits.get((role, node), count)
            if count > room:
                yield f"node {node} can hold {room} members of role {role}, the plan puts {count} there"


def _domain_of(node: Node, key: str) -> str | None:
    return node.name if key == NODE else node.labels.get(key)


def _uids_by_domain(
    snapshot: Snapshot, key: str, members: Iterable[MemberPlacement], roles: frozenset[str]
) -> dict[str, set[str]]:
    """Return the uids of the members of these roles in each domain."""
    uids: dict[str, set[str]] = {}
    for member in members:
        domain = _domain_of(snapshot.nodes[member.node].node, key)
        if member.role in roles and domain is not None:
            uids.setdefault(domain, set()).add(member.uid)
    return uids


def _domains_of(snapshot: Snapshot, key: str, nodes: Iterable[str]) -> set[str]:
    """Return the domains of these nodes."""
    domains = (_domain_of(snapshot.nodes[name].node, key) for name in nodes if name in snapshot.nodes)
    return {domain for domain in domains if domain is not None}


def _check_anti_affinity(snapshot: Snapshot, rule: AntiAffinity, members: Members) -> Iterator[str]:
    bound = _uids_by_domain(snapshot, rule.topology_key, members, rule.roles)
    repelling_uids = _uids_by_domain(snapshot, rule.topology_key, members, rule.other_roles)
    repelling_domains = _domains_of(snapshot, rule.topology_key, rule.existing)
    for domain, uids in sorted(bound.items()):
        repelling = repelling_uids.get(domain, set())
        if repelling and len(uids | repelling) > 1:
            yield f"{rule.name}: {len(uids | repelling)} members lie in {rule.topology_key} {domain}"
        if domain in repelling_domains:
            yield f"{rule.name}: members lie in {rule.topology_key} {domain}, where a pod repels them"


def _check_affinity(snapshot: Snapshot, rule: Affinity, members: Members) -> Iterator[str]:
    key = rule.topology_key
    for node in sorted({m.node for m in members if m.role in rule.roles and _lacks_label(snapshot, m, key)}):
        yield f"{rule.name}: node {node} has no label {key}"
    bound = _uids_by_domain(snapshot, key, members, rule.roles)
    opened = {*_uids_by_domain(snapshot, key, members, rule.other_roles - rule.roles)}
    opened |= _domains_of(snapshot, key, rule.existing)
    unmatched = sorted(bound.keys() - opened)
    themselves = _uids_by_domain(snapshot, key, members, rule.roles & rule.other_roles)
    if unmatched and not rule.existing and unmatched[0] in themselves:
        unmatched = unmatched[1:]  # the first member may open one domain
    for domain in unmatched:
        yield f"{rule.name}: {key} {domain} holds members and no pod that they need there"


def _lacks_label(snapshot: Snapshot, member: MemberPlacement, key: str) -> bool:
    return _domain_of(snapshot.nodes[member.node].node, key) is None


def _check_spread(
    snapshot: Snapshot, request: Request, rule: TopologySpread, members: Members
) -> Iterator[str]:
    key = rule.topology_key
    for role in request.roles:
        own_members = [member for member in members if member.role == role.name and role.name in rule.roles]
        if not own_members:
            continue
        for node in sorted({member.node for member in own_members if _lacks_label(snapshot, member, key)}):
            yield f"{rule.name}: node {node} has no label {key}"
        counts: dict[str, int] = {}
        eligible: set[str] = set()
        for name, state in snapshot.nodes.items():
            domain = _domain_of(state.node, key)
            if domain is not None and _is_eligible(state.node, rule, role):
                eligible.add(name)
                counts[domain] = counts.get(domain, 0) + rule.existing.get(name, 0)
        for member in members:
            if member.role in rule.counted_roles and member.node in eligible:
                counts[str(_domain_of(snapshot.nodes[member.node].node, key))] += 1
        least = 0 if len(counts) < rule.min_domains else min(counts.values(), default=0)
        for domain in sorted(_uids_by_domain(snapshot, key, own_members, rule.roles)):
            if counts.get(domain, 0) - least > rule.max_skew:
                yield (
                    f"{rule.name}: {key} {domain} holds {counts[domain]} pods, "
                    f"another one {least}; they may differ by {rule.max_skew}"
                )


def _is_eligible(node: Node, rule: TopologySpread, role: Role) -> bool:
    return (
        rule.required_keys <= node.labels.keys()
        and (not rule.honor_affinity or not unmet_selector(node, role))
        and (not rule.honor_taints or not untolerated_taint(node, role))
    )
