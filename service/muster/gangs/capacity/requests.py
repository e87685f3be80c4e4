"""Turn a gang's members into a Request: roles of equal pods in a fixed order, and its running members.

Pods state the names of their roles. If pods with different requests state the same name, or no name, a number
is added: role-1, role-2, the most GPUs first. A single role without a name gets no name. Bound members count
for the numbers, so that a role keeps its name while its members come and go. Equal members give equal
requests, in whatever order their pods were seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from muster.domain.causes.too_little import MembersToCome
from muster.domain.constraints import Subgroup
from muster.domain.decision import Decision, MemberPlacement, Unplaceable
from muster.domain.levels import FABRIC
from muster.domain.node import Resources
from muster.domain.pod import GROUP, Pod
from muster.domain.quorums import CountByRole, Leaf, Quorum, members_of, of_roles
from muster.domain.request import (
    Member,
    NodeRules,
    Request,
    Role,
    RolePreference,
    RunningMember,
    Scope,
    Segment,
    Slice,
)
from muster.domain.words import list_names, plural
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.membership.group import PREFIX, Group, stated_roles
from muster.gangs.peers.constraints import MemberKind, Peers
from muster.gangs.peers.existing_pods import PeerInterest
from muster.placement.gang.blocks import first_by_rank, key_by_rank

_DeviceRequests = tuple[tuple[int, ...], tuple[str, ...], bool, str, tuple[str, ...]]
"""Requests by claims: the alternative numbers of GPUs, the attributes on which the GPUs agree, whether
several claims have GPUs, the ComputeDomain, and the claims of the PodGroup."""
_RoleKey = tuple[
    str,
    int,
    str,
    tuple[Slice | None, Resources, NodeRules, str | None, tuple[Segment, ...], _DeviceRequests, MemberKind],
]
"""The facts that all pods of one role share: the stated name, requests, scopes, and constraints between pods.
"""

_Sharers = tuple[frozenset[str], frozenset[str]]
"""Roles of the holders of the same claims of a PodGroup, and of the other pods that share these claims."""

Names = Mapping[str, Sequence[str]]
"""Role that pods state → names of its roles in the request: several names if its pods differ."""

PodRequests = tuple[str, Resources, int, str, Slice | None, NodeRules, _DeviceRequests, tuple[object, ...]]
"""A pod's requests to a node, with the role name that the pod states."""


def request(group: Group, ledger: Ledger) -> Request:
    """Return the request for the members that are not bound yet, and for followers.

    Bound members count as placed, so only the other members must fit.
    """
    with ledger.existing_pods.hide([pod.uid for pod in group.unbound]):
        return _request(group, ledger)


def without_followers(request: Request) -> Request:
    """Return the request without followers."""
    followers = _count_followers(request)
    return _drop_followers(request, followers) if followers else request


def _count_followers(request: Request) -> Counter[str]:
    """Return the number of followers of each role."""
    return Counter(role.name for role in request.roles for member in role.members if _is_follower(member))


def _drop_followers(request: Request, followers: Counter[str]) -> Request:
    """Return the request without followers. `followers`: how many each role has."""
    roles = (
        replace(role, members=tuple(m for m in role.members if not _is_follower(m))) for role in request.roles
    )
    return replace(
        request,
        roles=tuple(role for role in roles if role.members),
        min_member=max(1, request.min_member - _count_required_followers(request, followers)),
        quorum=request.quorum.without_members(followers) if request.quorum is not None else None,
    )


def _count_required_followers(request: Request, followers: CountByRole) -> int:
    """Return how many of the followers must fit."""
    if request.quorum is None:
        return sum(followers.values())
    return sum(min(leaf.min_members, leaf.count_in(followers)) for leaf in request.quorum.leaves())


def without_followers_in_answer(decision: Decision, request: Request) -> tuple[Decision, Request]:
    """Return the decision and its request without followers.

    A refusal names the roles of the followers.
    """
    followers = _count_followers(request)
    if not followers:
        return decision, request
    request_now = _drop_followers(request, followers)
    if isinstance(decision, Unplaceable):
        cause = MembersToCome(_count_required_followers(request, followers), tuple(followers))
        return replace(decision, causes=(*decision.causes, cause)), request_now
    members = tuple(member for member in decision.members if not _is_follower(member))
    nodes = {member.node for member in members}
    return replace(
        decision,
        members=members,
        coming=len(decision.members) - len(members),
        unknown_links=tuple(node for node in decision.unknown_links if node in nodes),
        unknown_indices=tuple(node for node in decision.unknown_indices if node in nodes),
    ), request_now


def _is_follower(member: Member | MemberPlacement) -> bool:
    return member.uid.startswith(PREFIX)


def least_of(request: Request) -> Request:
    """Return the request for the fewest members with which the gang starts. All of them must fit.

    These are the first members by rank: as many as each role needs, then more of the earlier roles. If some
    subgroups are enough, the planner decides which subgroups start, and no others start. If the gang needs no
    more members, the request is for one.
    """
    counts = request.fewest_members()
    if counts is None:
        return request
    quorum = request.quorum
    if quorum is not None and not quorum.leaves_no_choice and not quorum.starts({}):
        counts = of_roles(
            ((leaf, leaf.next_startable(0)) for leaf in quorum.leaves()), request.waiting_by_role
        )
        return replace(request, roles=_cut_roles(request, counts), quorum=quorum.with_exact_minimum())
    return replace(request, roles=_cut_roles(request, counts), min_member=sum(counts.values()), quorum=None)


def _cut_roles(request: Request, counts: CountByRole) -> tuple[Role, ...]:
    return tuple(first_by_rank(role, counts[role.name]) for role in request.roles)


def asks_for_less(least: Request, request: Request) -> bool:
    """Return whether the first of two requests for a gang is for fewer members, or for fewer subgroups."""
    return least.size < request.size or least.quorum != request.quorum


def peer_interest(group: Group, ledger: Ledger) -> PeerInterest | None:
    """Return the changes, apart from free capacity, that may help the gang if it does not fit; None if no
    such change can help."""
    with ledger.existing_pods.hide([pod.uid for pod in group.unbound]):
        return Peers(group.members, ledger.existing_pods, ledger.nodes).interest


def _request(group: Group, ledger: Ledger) -> Request:
    topology_request = group.unbound[0].topology_request
    placeholders = group.placeholders
    replicas = Replicas(group)
    members = (*replicas.with_start_ranks(), *placeholders)
    peers = Peers(members, ledger.existing_pods, ledger.nodes)
    roles = _pods_by_role(members, peers)
    waiting = {name: pods[0] for name, pods in roles.items() if not all(pod.node for pod in pods)}
    names_by_stated = _names_by_stated_role(roles)
    followers = group.least_followers(placeholders)
    quorum = _quorum(group, replicas, names_by_stated, waiting, followers)
    request_roles = tuple(_roles_to_place(roles))
    least = _min_member(group, request_roles, quorum, sum(followers.values()))
    counts = _count_members(request_roles)
    if least == sum(counts.values()) and (quorum is None or quorum.starts(counts)):
        quorum = None  # all members must fit, and all are enough
    elif sharers := tuple(_sharers_by_holders(roles, counts)):
        whole_gang = Quorum(1, (Leaf(frozenset(counts), least),))
        quorum = _with_holders(quorum or whole_gang, sharers, counts)
    return Request(
        gang=group.gang,
        roles=request_roles,
        min_member=least,
        required_scope=topology_request.required_scope,
        preferred_scopes=topology_request.preferred_scopes,
        per_scope=topology_request.per_scope,
        running=tuple(_running_members(roles, ledger)),
        terms=ledger.policies.terms(topology_request.policies),
        subgroups=(*_subgroups(group, names_by_stated), *_sharers_of_claims(roles)),
        role_preferences=tuple(_role_preferences(group, roles, names_by_stated)),
        constraints=peers.constraints(waiting),
        quorum=quorum,
        priority=group.priority,
        created=group.since,
    )


def _names_by_stated_role(by_role: Mapping[str, list[Pod]]) -> Names:
    """Return role that pods state → names of its roles in the request."""
    names: dict[str, list[str]] = {}
    for name, pods in by_role.items():
        names.setdefault(pods[0].topology_request.role, []).append(name)
    return names


def _quorum(
    group: Group, replicas: Replicas, names: Names, waiting: Collection[str], followers: CountByRole
) -> Quorum | None:
    """Return how many subgroups and members must start, by the names that roles have in the request.

    Bound members and followers count. Return None if only the number of members matters, and not their roles.
    """
    if group.quorum is None:
        return None

    def leaf_for_waiting(leaf: Leaf) -> Leaf:
        roles = _names_of(names, leaf.roles)
        return replicas.leaf_for_waiting(
            leaf, roles.intersection(waiting) or roles, leaf.min_members + leaf.count_in(followers)
        )

    quorum = group.quorum.without_members(stated_roles(group.bound)).map_leaves(leaf_for_waiting)
    adds_nothing = quorum.leaves_no_choice and all(
        leaf.min_members == 0 and leaf.unit == 1 for leaf in quorum.leaves()
    )
    return None if adds_nothing else quorum


def _min_member(group: Group, roles: Iterable[Role], quorum: Quorum | None, followers: int) -> int:
    """Return the fewest members that must fit at once. `followers`: the followers among them."""
    least = min(len(group.unbound), max(1, group.needed - len(group.bound))) + followers
    if quorum is None:
        return least
    fewest = quorum.fewest_members(_count_members(roles), some=True)
    return len(group.unbound) + followers if fewest is None else max(least, members_of(fewest))


def _count_members(roles: Iterable[Role]) -> CountByRole:
    return {role.name: len(role.members) for role in roles}


def _subgroups(group: Group, names: Names) -> Iterator[Subgroup]:
    """Yield the scopes that several roles share, by the names of the roles in the request."""
    for subgroup in group.subgroups:
        yield replace(subgroup, roles=_names_of(names, subgroup.roles))


def _sharers_of_claims(by_role: Mapping[str, list[Pod]]) -> Iterator[Subgroup]:
    """Yield the scopes of pods that share claims of their PodGroup: devices serve the pods of one node."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, pods in by_role.items():
        if pods[0].group_claims:
            names.setdefault(pods[0].group_claims, []).append(name)
    for claims, roles in names.items():
        if sum(len(by_role[role]) for role in roles) > 1:
            title = f"{plural('ResourceClaim', len(claims))} {list_names(claims)}"
            yield Subgroup(title, Scope.NODE, frozenset(roles))


def _sharers_by_holders(by_role: Mapping[str, list[Pod]], waiting: CountByRole) -> Iterator[_Sharers]:
    """Yield the waiting roles that share claims of their PodGroup and need the claims' holders.

    Once a pod with a claim is bound, the holder is a bound pod, so no role of the holder waits.
    """
    roles_by_claims: dict[tuple[str, ...], set[str]] = {}
    for name in waiting:
        if claims := by_role[name][0].group_claims:
            roles_by_claims.setdefault(claims, set()).add(name)
    for roles in roles_by_claims.values():
        holders = frozenset(name for name in roles if by_role[name][0].fewest_gpus)
        if holders and holders != roles:
            yield holders, frozenset(roles - holders)


def _with_holders(part: Quorum | Leaf, sharers: Collection[_Sharers], waiting: CountByRole) -> Quorum:
    """Return the quorum in which no pod that shares a claim of its PodGroup starts without the holder."""
    if isinstance(part, Leaf):
        return _leaf_with_holders(part, sharers, waiting)
    parts, min_parts = list[Quorum | Leaf](), part.min_parts
    for child in part.parts:
        if isinstance(child, Leaf) and not any(holders <= child.roles for holders, _ in sharers):
            parts.append(child)
            continue
        changed_child = _with_holders(child, sharers, waiting)
        if part.leaves_no_choice and changed_child.leaves_no_choice:
            parts += changed_child.parts
            min_parts += len(changed_child.parts) - 1
        else:
            parts.append(changed_child)
    return Quorum(min_parts, tuple(parts), part.only)


def _leaf_with_holders(leaf: Leaf, sharers: Collection[_Sharers], waiting: CountByRole) -> Quorum:
    """Return the leaf as a quorum. If it needs several members, all its holders are among them. If one member
    is enough, pods without a claim of the PodGroup may start without the holders."""
    of_leaf = [(holders, roles) for holders, roles in sharers if holders <= leaf.roles]
    holder_leaves = [Leaf(holders, sum(waiting[name] for name in holders)) for holders, _ in of_leaf]
    other_roles = leaf.roles.intersection(waiting).difference(*(holders for holders, _ in of_leaf))
    if leaf.min_members > 1:
        least_others = max(0, leaf.min_members - sum(holder.min_members for holder in holder_leaves))
        return Quorum(len(of_leaf) + 1, (*holder_leaves, Leaf(other_roles, least_others)))
    sharing = [
        Quorum(2, (holder, Leaf(roles, 0))) for holder, (_, roles) in zip(holder_leaves, of_leaf, strict=True)
    ]
    without_claims = other_roles.difference(*(roles for _, roles in of_leaf))
    if len(sharing) == 1 == leaf.min_members and not without_claims:
        return sharing[0]
    return Quorum(leaf.min_members, (*sharing, *([Leaf(without_claims, 1)] if without_claims else ())))


def _role_preferences(
    group: Group, by_role: Mapping[str, list[Pod]], names: Names
) -> Iterator[RolePreference]:
    """Yield the preferences of several roles together, then those of each role and of each ComputeDomain."""
    for preference in group.role_preferences:
        if present := _names_of(names, preference.roles):
            yield replace(preference, roles=present)
    topology_requests = {pods[0].topology_request.role: pods[0].topology_request for pods in by_role.values()}
    for role, topology_request in topology_requests.items():
        if topology_request.role_preferred:
            title = f"role {role}" if role else "the role"
            yield RolePreference(title, topology_request.role_preferred, frozenset(names[role]))
    yield from _compute_domain_preferences(by_role)


def _compute_domain_preferences(by_role: Mapping[str, list[Pod]]) -> Iterator[RolePreference]:
    """Yield preferences for ComputeDomains: the members of each lie in one NVLink clique, or at least in one
    NVLink fabric.

    The driver allows members in several cliques, but memory is shared only inside a clique.
    """
    roles: dict[str, list[str]] = {}
    for name, pods in by_role.items():
        if domain := _compute_domain(pods[0]):
            roles.setdefault(domain, []).append(name)
    for names in roles.values():
        if sum(len(by_role[name]) for name in names) > 1:
            suffix = "" if len(roles) == 1 else f" of {list_names(names)}"
            title = f"the members of the ComputeDomain{suffix}"
            yield RolePreference(title, (Scope.NVLINK_DOMAIN, FABRIC), frozenset(names))


def _names_of(names: Names, stated: Iterable[str]) -> frozenset[str]:
    """Return the roles of the request whose pods state one of these role names."""
    return frozenset(name for role in stated for name in names.get(role, ()))


def pod_requests(pod: Pod) -> PodRequests:
    """Return the pod's requests, which are equal for all pods of one role, whatever its present name."""
    peers = pod.peers
    rules = (peers.affinity, peers.anti_affinity, peers.spread, peers.host_ports, peers.volume_claims)
    facts = (
        pod.topology_request.role,
        pod.resources,
        pod.fewest_gpus,
        pod.gpu_resource,
        pod.slice,
        pod.rules,
    )
    return (*facts, _device_requests(pod), rules)


def _device_requests(pod: Pod) -> _DeviceRequests:
    """Return what the pod's claims request, apart from the fewest GPUs and their resource."""
    return (
        pod.gpu_counts,
        pod.match_attributes,
        pod.several_claims,
        _compute_domain(pod),
        pod.group_claims,
    )


def _compute_domain(pod: Pod) -> str:
    """Return the pod's ComputeDomain; "" if the pod has none, or states a scope or segments of its role."""
    topology_request = pod.topology_request
    return (
        ""
        if topology_request.role_scope or topology_request.role_preferred or topology_request.segments
        else pod.compute_domain
    )


def _pods_by_role(pods: Iterable[Pod], peers: Peers) -> dict[str, list[Pod]]:
    """Return role → its members, in the order of their ranks."""
    pods_by_key: dict[_RoleKey, list[Pod]] = {}
    for pod in pods:
        topology_request = pod.topology_request
        scopes = (topology_request.role_scope, topology_request.segments)
        key = (pod.slice, pod.resources, pod.rules, *scopes, _device_requests(pod), peers.kind(pod))
        pods_by_key.setdefault((topology_request.role, -pod.fewest_gpus, pod.gpu_resource, key), []).append(
            pod
        )
    # The last element is sorted by its repr, because any fixed order will do.
    keys = sorted(pods_by_key, key=lambda key: (*key[:3], repr(key[3])))
    names = names_of_roles([key[0] for key in keys])
    return {
        name: sorted(pods_by_key[key], key=lambda pod: key_by_rank(pod.rank, pod.name, pod.uid))
        for name, key in zip(names, keys, strict=True)
    }


def names_of_roles(stated: list[str]) -> list[str]:
    """Return a name for each role: the stated name if it is unique, else a name with a number."""
    if len(stated) == 1:
        return stated
    times = Counter(stated)
    used_names = {name for name in stated if name and times[name] == 1}
    numbers = {name: count(1) for name in stated}
    names = []
    for name in stated:
        if name and times[name] == 1:
            names.append(name)
            continue
        numbered = (f"{name or 'role'}-{number}" for number in numbers[name])
        names.append(next(candidate for candidate in numbered if candidate not in used_names))
        used_names.add(names[-1])
    return names


def _roles_to_place(by_role: dict[str, list[Pod]]) -> Iterator[Role]:
    """Yield the roles with members that are to be placed."""
    for name, pods in by_role.items():
        members = tuple([Member(pod.uid, pod.name, pod.rank) for pod in pods if not pod.node])
        if members:
            first, topology_request = pods[0], pods[0].topology_request
            yield Role(
                name,
                members,
                first.resources,
                first.fewest_gpus,
                first.gpu_resource,
                first.rules,
                topology_request.role_scope,
                topology_request.segments,
                first.slice,
                match_attributes=first.match_attributes,
                several_claims=first.several_claims,
                gpu_counts=first.gpu_counts,
            )


def _running_members(by_role: dict[str, list[Pod]], ledger: Ledger) -> Iterator[RunningMember]:
    """Yield the bound members on nodes that exist: no place is near to a node that is gone."""
    for name, pods in by_role.items():
        for pod in pods:
            if pod.node in ledger.nodes:
                gpus, usage = ledger.gpus_of(pod.uid), ledger.usage(pod.uid)
                if usage is not None and usage.gpus != gpus:
                    usage = replace(usage, gpus=0, unindexed_gpus=usage.gpus.bit_count())
                yield RunningMember(Member(pod.uid, pod.name, pod.rank), name, pod.node, gpus, usage)


_AFTER = 1 << 61
"""Larger than any rank: added to the ranks of members that start after others."""

_Hosts = Mapping[str, list[int | None]]
"""Role → the ranks of its hosts."""


class Replicas:
    """The running and the waiting replicas of a gang, for roles whose members start in groups of `Leaf.unit`.

    A host is a member of such a role; its rank tells its replica. A host may start if its replica runs
    already, or if all hosts of its replica wait.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        leaves = [leaf for leaf in group.quorum.leaves() if leaf.unit > 1] if group.quorum is not None else []
        self._leaf_by_role = {role: leaf for leaf in leaves for role in leaf.roles}
        running, waiting = self._hosts(group.bound), self._hosts(group.unbound)
        self._counts_by_roles = {
            leaf.roles: (_count_hosts(running, leaf), _count_hosts(waiting, leaf)) for leaf in leaves
        }
        """Roles of a leaf → hosts by replica, running and waiting."""

    def leaf_for_waiting(self, leaf: Leaf, roles: frozenset[str], least: int) -> Leaf:
        """Return the leaf for the waiting members. `least` of them must start.

        Hosts of a running replica may come back one by one. Other replicas start only with all their hosts.
        `roles` are the waiting roles of the leaf, by their names in the request. With several roles,
        returning hosts are not told from others.
        """
        running, waiting = self._counts_by_roles.get(leaf.roles, (None, None))
        if running is None or waiting is None:
            return Leaf(roles, least, leaf.unit, leaf.begun % leaf.unit)
        returning_hosts = sum(hosts for replica, hosts in waiting.items() if replica in running)
        whole_replicas = sum(
            replica not in running and hosts >= leaf.unit for replica, hosts in waiting.items()
        )
        max_members = returning_hosts + whole_replicas * leaf.unit
        if len(roles) > 1:
            return Leaf(roles, least, 1 if returning_hosts else leaf.unit, max_members=max_members)
        return Leaf(roles, least, leaf.unit, -returning_hosts % leaf.unit, returning_hosts, max_members)

    def with_start_ranks(self) -> Iterator[Pod]:
        """Yield all members, with the ranks of waiting hosts in the order in which hosts start.

        Hosts that come back start first, then complete replicas, then others.
        """
        for pod in self._group.members:
            leaf = self._leaf_by_role.get(pod.topology_request.role) if not pod.node else None
            running, waiting = self._counts_by_roles[leaf.roles] if leaf is not None else (None, None)
            if leaf is None or running is None or waiting is None or pod.rank is None:
                yield pod
                continue
            replica = pod.rank // GROUP
            turn = 0 if replica in running else 1 if waiting[replica] >= leaf.unit else 2
            yield replace(pod, rank=pod.rank + turn * _AFTER) if turn else pod

    def _hosts(self, pods: Iterable[Pod]) -> _Hosts:
        """Return the hosts among these pods."""
        hosts = defaultdict[str, list[int | None]](list)
        for pod in pods if self._leaf_by_role else ():
            if (role := pod.topology_request.role) in self._leaf_by_role:
                hosts[role].append(pod.rank)
        return hosts


def _count_hosts(hosts: _Hosts, leaf: Leaf) -> Counter[int] | None:
    """Return replica → number of its hosts; None if the replica of a host is not known.

    If a replica would have more hosts than its size, the ranks are not trusted: users can set any rank.
    """
    ranks = [rank for role in leaf.roles for rank in hosts.get(role, ())]
    counts = Counter(rank // GROUP for rank in ranks if rank is not None)
    return None if None in ranks or max(counts.values(), default=0) > leaf.unit else counts
