"""Where members lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from muster.domain.decision import MemberPlacement
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot


class Spot(NamedTuple):
    """Where a member lies, placed or running, or all members on one node. `gpus` is a bit mask; `known` is
    false where a running member has GPUs of unknown index."""

    role: str
    state: NodeState
    gpus: int
    known: bool = True


Spots = Mapping[str, Spot]
"""By the members' uids, or by nodes' names."""

Groups = Mapping[str, Sequence[MemberPlacement]]
"""The members of a plan by node."""


def by_node(members: Iterable[MemberPlacement]) -> Groups:
    """The members of a plan by node, in their order."""
    found: dict[str, list[MemberPlacement]] = {}
    for member in members:
        found.setdefault(member.node, []).append(member)
    return found


def touched(snapshot: Snapshot, groups: Groups) -> Spots:
    """A spot for each node of the plan."""
    return {name: _spot(snapshot.nodes[name], "", members) for name, members in groups.items()}


def placed(snapshot: Snapshot, members: Iterable[MemberPlacement]) -> Spots:
    """A spot for each member of the plan."""
    return {member.uid: _spot(snapshot.nodes[member.node], member.role, (member,)) for member in members}


def running(snapshot: Snapshot, request: Request) -> Spots:
    """A spot for each running member; those on nodes that are gone count for nothing."""
    asks = {role.name: role.gpus or role.slice for role in request.roles}
    found = {}
    for r in request.running:
        if r.node in snapshot.nodes:
            known = r.gpus > 0 or not asks.get(r.role)
            found[r.member.uid] = Spot(r.role, snapshot.nodes[r.node], r.gpus, known)
    return found


def together(spots: Iterable[Spot]) -> Spots:
    """One spot a node for all of these."""
    found: dict[str, Spot] = {}
    for spot in spots:
        name = spot.state.node.name
        one = found.get(name)
        found[name] = Spot("", spot.state, spot.gpus | one.gpus, spot.known and one.known) if one else spot
    return found


def _spot(state: NodeState, role: str, members: Iterable[MemberPlacement]) -> Spot:
    """Indices that the node does not have are left out: `capacity` reports them."""
    mask = 0
    for member in members:
        for gpu in member.gpus:
            mask |= 1 << gpu if gpu >= 0 else 0
    return Spot(role, state, mask & ((1 << state.node.topology.gpu_count) - 1))
