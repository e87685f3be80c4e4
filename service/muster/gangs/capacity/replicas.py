"""Say which hosts of replicas start: those that come back to a replica that runs, and whole replicas.

A rank tells a host's replica (`GROUP`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from muster.domain.pod import GROUP, Pod
from muster.domain.quorums import Leaf
from muster.gangs.membership.group import Group

_AFTER = 1 << 61
"""More than any rank: what is added to ranks of members that come after others."""


def asked(group: Group, leaf: Leaf, roles: frozenset[str], least: int) -> Leaf:
    """Return the leaf for the members that wait. `least` of them must start.

    Hosts of a replica that runs may come back one by one. Otherwise replicas start that have all their hosts.
    `roles` are its names in the request. If they are several, hosts are not told apart.
    """
    running, waiting = _replicas(group.bound, leaf), _replicas(group.unbound, leaf)
    if leaf.unit == 1 or running is None or waiting is None:
        return Leaf(roles, least, leaf.unit, leaf.begun % leaf.unit)
    back = sum(hosts for replica, hosts in waiting.items() if replica in running)
    if len(roles) > 1:
        return Leaf(roles, least, leaf.unit if not back else 1)
    whole = sum(replica not in running and hosts >= leaf.unit for replica, hosts in waiting.items())
    return Leaf(roles, least, leaf.unit, -back % leaf.unit, back, back + whole * leaf.unit)


def in_turn(group: Group) -> Iterator[Pod]:
    """Yield the members with ranks by which they start: hosts that come back, whole replicas, the others."""
    leaves = group.quorum.leaves() if group.quorum is not None else ()
    units = {role: leaf for leaf in leaves if leaf.unit > 1 for role in leaf.roles}
    facts = {leaf: (_replicas(group.bound, leaf), _replicas(group.unbound, leaf)) for leaf in units.values()}
    for pod in group.members:
        leaf = units.get(_role(pod)) if not pod.node else None
        running, waiting = facts[leaf] if leaf is not None else (None, None)
        if leaf is None or running is None or waiting is None or pod.rank is None:
            yield pod
            continue
        replica = pod.rank // GROUP
        turn = 0 if replica in running else 1 if waiting[replica] >= leaf.unit else 2
        yield replace(pod, rank=pod.rank + turn * _AFTER) if turn else pod


def _replicas(pods: tuple[Pod, ...], leaf: Leaf) -> Counter[int] | None:
    """Return the hosts of each replica among these pods; None if a host does not tell its replica."""
    ranks = [pod.rank for pod in pods if _role(pod) in leaf.roles]
    if None in ranks:
        return None
    return Counter(rank // GROUP for rank in ranks if rank is not None)


def _role(pod: Pod) -> str:
    return pod.claim.wishes.role if pod.claim is not None else ""
