"""Say which hosts of replicas start: those that come back to a replica that runs, and whole replicas.

A rank tells a host's replica (`GROUP`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from muster.domain.pod import GROUP, Pod
from muster.domain.quorums import Leaf
from muster.gangs.membership.group import Group

_AFTER = 1 << 61
"""More than any rank: what is added to ranks of members that come after others."""

_Hosts = Mapping[str, list[int | None]]
"""Role → the ranks of its members."""


class Replicas:
    """The replicas of a gang: those that run, and those that wait. Each pod is read once."""

    def __init__(self, group: Group) -> None:
        self._group = group
        leaves = [leaf for leaf in group.quorum.leaves() if leaf.unit > 1] if group.quorum is not None else []
        self._leaf_of = {role: leaf for leaf in leaves for role in leaf.roles}
        running, waiting = self._hosts(group.bound), self._hosts(group.unbound)
        self._hosts_of = {leaf.roles: (_replicas(running, leaf), _replicas(waiting, leaf)) for leaf in leaves}

    def asked(self, leaf: Leaf, roles: frozenset[str], least: int) -> Leaf:
        """Return the leaf for the members that wait. `least` of them must start.

        Hosts of a replica that runs may come back one by one. Otherwise replicas start that have all their
        hosts. `roles` are its names in the request that wait. If they are several, hosts are not told apart.
        """
        running, waiting = self._hosts_of.get(leaf.roles, (None, None))
        if running is None or waiting is None:
            return Leaf(roles, least, leaf.unit, leaf.begun % leaf.unit)
        back = sum(hosts for replica, hosts in waiting.items() if replica in running)
        whole = sum(replica not in running and hosts >= leaf.unit for replica, hosts in waiting.items())
        most = back + whole * leaf.unit
        if len(roles) > 1:
            return Leaf(roles, least, 1 if back else leaf.unit, most=most)
        return Leaf(roles, least, leaf.unit, -back % leaf.unit, back, most)

    def in_turn(self) -> Iterator[Pod]:
        """Yield the members with ranks by which they start: hosts that come back, whole replicas, others."""
        for pod in self._group.members:
            leaf = self._leaf_of.get(_role(pod)) if not pod.node else None
            running, waiting = self._hosts_of[leaf.roles] if leaf is not None else (None, None)
            if leaf is None or running is None or waiting is None or pod.rank is None:
                yield pod
                continue
            replica = pod.rank // GROUP
            turn = 0 if replica in running else 1 if waiting[replica] >= leaf.unit else 2
            yield replace(pod, rank=pod.rank + turn * _AFTER) if turn else pod

    def _hosts(self, pods: Iterable[Pod]) -> _Hosts:
        hosts = defaultdict[str, list[int | None]](list)
        for pod in pods if self._leaf_of else ():
            if (role := _role(pod)) in self._leaf_of:
                hosts[role].append(pod.rank)
        return hosts


def _replicas(hosts: _Hosts, leaf: Leaf) -> Counter[int] | None:
    """Return the hosts of each replica; None if a host does not tell its replica.

    Ranks that give a replica more hosts than it has do not tell it either: users can set any.
    """
    ranks = [rank for role in leaf.roles for rank in hosts.get(role, ())]
    hosts_of = Counter(rank // GROUP for rank in ranks if rank is not None)
    return None if None in ranks or max(hosts_of.values(), default=0) > leaf.unit else hosts_of


def _role(pod: Pod) -> str:
    return pod.claim.wishes.role if pod.claim is not None else ""
