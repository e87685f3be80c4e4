"""Represent where members lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from muster.domain.decision import MemberPlacement
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot


class Spot(NamedTuple):
    """Where one member lies, placed or existing, or all members on one node.

    `gpus` is a bit mask. `known` is false if an existing member has GPUs whose indices are unknown.
    """

    role: str
    state: NodeState
    gpus: int
    known: bool = True


Spots = Mapping[str, Spot]
"""Spots by the members' uids, or by the nodes' names."""

PLANNED_GPUS = 62
"""Of a node with more GPUs, the first ones alone are planned on."""

Groups = Mapping[str, Sequence[MemberPlacement]]
"""The members of a plan by node."""


def by_node(members: Iterable[MemberPlacement]) -> Groups:
    """Return the members of a plan by node, in their order."""
    found: dict[str, list[MemberPlacement]] = {}
    for member in members:
        found.setdefault(member.node, []).append(member)
    return found


def touched(snapshot: Snapshot, groups: Groups) -> Spots:
    """Return a spot for each node of the plan."""
    return {name: _spot(snapshot.nodes[name], "", members) for name, members in groups.items()}


def placed(snapshot: Snapshot, members: Iterable[MemberPlacement]) -> Spots:
    """Return a spot for each member of the plan."""
    return {member.uid: _spot(snapshot.nodes[member.node], member.role, (member,)) for member in members}


def running(snapshot: Snapshot, request: Request) -> Spots:
    """Return a spot for each existing member. Members on nodes that are gone are left out."""
    asks = {role.name: role.gpus or role.slice for role in request.roles}
    found = {}
    for r in request.running:
        if r.node in snapshot.nodes:
            counted = r.usage.unindexed_gpus if r.usage is not None else 0
            known = r.gpus > 0 or not (counted or asks.get(r.role))
            found[r.member.uid] = Spot(r.role, snapshot.nodes[r.node], r.gpus, known)
    return found


def together(spots: Iterable[Spot]) -> Spots:
    """Return one spot for each node, for all of these spots."""
    found: dict[str, Spot] = {}
    for spot in spots:
        name = spot.state.node.name
        one = found.get(name)
        found[name] = Spot("", spot.state, spot.gpus | one.gpus, spot.known and one.known) if one else spot
    return found


def _spot(state: NodeState, role: str, members: Iterable[MemberPlacement]) -> Spot:
    """Return the spot of these members. Indices that the node does not have are left out: `capacity` reports
    them.
    """
    mask = 0
    for member in members:
        for gpu in member.gpus:
            mask |= 1 << gpu if gpu >= 0 else 0
    return Spot(role, state, mask & ((1 << state.node.topology.gpu_count) - 1))
