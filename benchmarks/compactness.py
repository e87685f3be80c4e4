"""How compact a plan is, and whether it is one: counted the same way for us and for every peer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.fabric import Assignment, asks
from muster.domain.levels import part_of
from muster.domain.request import Member, Request, Role, Scope
from muster.domain.snapshot import Snapshot
from muster.placement.limits import takes_gpus


@dataclass(frozen=True, slots=True, order=True)
class Compactness:
    """Parts that a plan touches; fewer is better, in this order. `zones` is 1 where there are none."""

    zones: int
    racks: int
    nodes: int


def compactness(snapshot: Snapshot, request: Request, assignment: Assignment) -> Compactness:
    """The parts that members with GPUs touch; all members, if none has GPUs."""
    with_gpus = {member.uid for role in request.roles if takes_gpus(role) for member in role.members}
    nodes = {node for uid, node in assignment.items() if uid in with_gpus or not with_gpus}
    zones, racks = (
        {part_of(snapshot.nodes[name].node, scope, snapshot.levels) for name in nodes}
        for scope in (Scope.ZONE, Scope.RACK)
    )
    return Compactness(len(zones), len(racks), len(nodes))


def holds(snapshot: Snapshot, request: Request, assignment: Assignment) -> bool:
    """Whether the assignment places all members within capacities and scopes. Peers assign no GPUs: segments
    within NVLink domains count as placed where the node's domains have room for all of them."""
    return (
        set(assignment) == {member.uid for role in request.roles for member in role.members}
        and _capacities_hold(snapshot, request, assignment)
        and _scopes_hold(snapshot, request, assignment)
        and all(_domains_hold(snapshot, role, assignment) for role in request.roles)
    )


def _capacities_hold(snapshot: Snapshot, request: Request, assignment: Assignment) -> bool:
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for role in request.roles:
        request_values = asks(role).tolist()
        for member in role.members:
            total = totals[assignment[member.uid]]
            for column, amount in enumerate(request_values):
                total[column] += amount
    for name, (gpus, cpu, memory, pods) in totals.items():
        state = snapshot.nodes[name]
        free = state.free
        if gpus > state.free_gpu_count or cpu > free.cpu_milli or memory > free.memory_bytes:
            return False
        if pods > free.pods:
            return False
    return True


def _scopes_hold(snapshot: Snapshot, request: Request, assignment: Assignment) -> bool:
    def together(members: Sequence[Member], scope: str | None) -> bool:
        if scope is None:
            return True
        parts = {_part(snapshot, assignment[member.uid], scope) for member in members}
        return len(parts) == 1 and "" not in parts

    everyone = [member for role in request.roles for member in role.members]
    return together(everyone, request.required_scope) and all(
        together(role.members, role.required_scope)
        and all(
            together(role.members[i : i + segment.size], segment.scope)
            for segment in role.segments
            for i in range(0, len(role.members), segment.size)
        )
        for role in request.roles
    )


def _domains_hold(snapshot: Snapshot, role: Role, assignment: Assignment) -> bool:
    for segment in role.segments:
        if segment.scope == Scope.NVLINK_DOMAIN:
            firsts = role.members[:: segment.size]
            for name, count in Counter(assignment[member.uid] for member in firsts).items():
                state, size = snapshot.nodes[name], segment.size * role.gpus
                islands = state.node.topology.islands
                if sum((island & state.free_gpus).bit_count() // size for island in islands) < count:
                    return False
    return True


def _part(snapshot: Snapshot, node: str, scope: str) -> str:
    if scope in (Scope.NODE, Scope.NVLINK_DOMAIN, Scope.GPU):
        return node
    return part_of(snapshot.nodes[node].node, scope, snapshot.levels)
