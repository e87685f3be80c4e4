"""Check that members have GPUs that match their claims. Values are counted with these GPUs alone."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot


def matching(request: Request, placed: Placed) -> list[str]:
    """Return a sentence for each member with a GPU that does not match."""
    allowed = {role.name: role.matching for role in request.roles if role.matching}
    return [
        f"GPU {gpu} of node {member.node} does not match what member {member.name} asks for"
        for member in (placed.members if allowed else ())
        for gpu in member.gpus
        if not allowed.get(member.role, {}).get(member.node, -1) >> gpu & 1
    ]


def seen_by(request: Request, snapshot: Snapshot) -> Snapshot:
    """Return the cluster as the gang's values are counted: GPUs that do not match are unhealthy.

    So are all GPUs of a node where roles match different ones.
    """
    roles = [role for role in request.roles if role.gpus and role.members]
    if not any(role.matching for role in roles):
        return snapshot
    nodes = {}
    for name, state in snapshot.nodes.items():
        gpus = range(state.node.topology.gpu_count)
        by_role = {tuple(role.matching.get(name, -1) >> gpu & 1 for gpu in gpus) for role in roles}
        matched = next(iter(by_role)) if len(by_role) == 1 else (0,) * len(gpus)
        hidden = sum(1 << gpu for gpu in gpus if not matched[gpu])
        nodes[name] = _without(state, hidden) if hidden else state
    return replace(snapshot, nodes=nodes)


def _without(state: NodeState, gpus: int) -> NodeState:
    node = replace(state.node, unhealthy=state.node.unhealthy | gpus)
    return replace(state, node=node, free_gpus=state.free_gpus & ~gpus)
