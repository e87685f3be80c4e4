"""The earmark: what comes free in the best domain of the gang that has waited longest is kept for it, so that
smaller gangs do not pass it for ever. There is one at a time, and it ends.

A held place is sure, this is a hope: nobody knows when the pods that run there end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from muster.domain.levels import part_of
from muster.domain.node import Resources, Usage
from muster.domain.request import Request, Role, Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.cluster.candidates import refusal
from muster.placement.cluster.fabric import place_of

_NOTHING = Resources(pods=0)
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Earmark:
    """The nodes on which what is free, and comes free, is kept for this gang until then."""

    gang: str
    nodes: frozenset[str]
    until: float

    def __str__(self) -> str:
        names = sorted(self.nodes)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"What comes free on {', '.join(names[:_NAMED])}{more} is kept for it for a while"


def hidden_by(earmark: Earmark, snapshot: Snapshot) -> Snapshot:
    """The cluster as the other gangs may use it: whole GPUs of these nodes look taken."""
    states = (snapshot.nodes[name] for name in sorted(earmark.nodes) if name in snapshot.nodes)
    return snapshot.taking(
        Usage(f"kept for {earmark.gang}", state.node.name, _NOTHING, gpus=state.free_gpus)
        for state in states
        if state.free_gpus
    )


def best_domain(request: Request, snapshot: Snapshot) -> frozenset[str]:
    """The nodes of one part of the required scope that could take as many members as are needed if nothing
    ran there, with the fewest GPUs that must still come free; no nodes where no part is large enough.

    Members are counted by whole GPUs, the largest first, onto the nodes with most free: a good guess, since
    the planner decides once enough has come free.
    """
    parts: dict[str, list[NodeState]] = {}
    for state in snapshot.nodes.values():
        parts.setdefault(_part(state, request.required_scope, snapshot), []).append(state)
    parts.pop("", None)
    if request.required_scope is not None and request.running:
        there = (snapshot.nodes[member.node] for member in request.running)
        running = {_part(state, request.required_scope, snapshot) for state in there}
        parts = {part: states for part, states in parts.items() if part in running}
    found = [
        (missing, sorted(used)) for states in parts.values() for missing, used in _filled(request, states)
    ]
    return frozenset(min(found)[1]) if found else frozenset()


def _part(state: NodeState, scope: str | None, snapshot: Snapshot) -> str:
    if scope is None:
        return "all"
    if scope in (Scope.NODE, Scope.GPU):
        return state.node.name
    if scope == Scope.NVLINK_DOMAIN:
        return place_of(state, snapshot.levels).wide or state.node.name
    return part_of(state.node, scope, snapshot.levels)


def _filled(request: Request, states: Iterable[NodeState]) -> Iterable[tuple[int, set[str]]]:
    """(GPUs that must still come free, nodes used), once where the part is large enough."""
    open_nodes = sorted(states, key=lambda state: (-state.free_gpu_count, state.node.name))
    taken: Counter[str] = Counter()
    for role, count in _needed(request):
        left = count
        for state in open_nodes:
            room = _room(state, role, taken[state.node.name]) if left and role.gpus else 0
            taken[state.node.name] += min(room, left) * role.gpus
            left -= min(room, left)
        if left and role.gpus:
            return
    free = {state.node.name: state.free_gpu_count for state in open_nodes}
    used = {name for name, gpus in taken.items() if gpus}
    if used:
        yield sum(max(0, taken[name] - free[name]) for name in used), used


def _needed(request: Request) -> list[tuple[Role, int]]:
    """How many members of each role must fit, the largest role first: as few large ones as will do."""
    needed, left = [], request.min_member
    for role in sorted(request.roles, key=lambda role: role.gpus):
        needed.append((role, min(left, len(role.members))))
        left -= needed[-1][1]
    return needed[::-1]


def _room(state: NodeState, role: Role, taken: int) -> int:
    """How many members of the role the node could take beside `taken` GPUs, if nothing ran on it."""
    if role.gpu_resource not in state.node.gpu_resources:
        return 0
    healthy = state.node.topology.gpu_count - state.node.unhealthy.bit_count()
    room = (healthy - taken) // role.gpus
    return room if room and refusal(state.node, role) is None else 0
