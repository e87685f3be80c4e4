"""Check that members have GPUs that match their claims. Values are counted with these GPUs alone."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.decision import Placed
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.members import starts_with


def matching(request: Request, placed: Placed) -> list[str]:
    """Return a sentence for each member with GPUs that do not match, by any one of its subrequests."""
    allowed = {
        role.name: [(each.gpus, each.matching) for each in role.subrequests] or [(role.gpus, role.matching)]
        for role in request.roles
        if role.matching or role.subrequests
    }
    wrong = []
    for member in placed.members if allowed else ():
        choices = allowed.get(member.role, [])
        of_size = [matching for count, matching in choices if count == len(member.gpus)]
        unlike = [
            [gpu for gpu in member.gpus if not matching.get(member.node, -1) >> gpu & 1]
            for matching in of_size or [{}]
        ]
        if all(unlike):
            gpus = ", ".join(map(str, unlike[-1]))
            wrong.append(f"GPUs {gpus} of node {member.node} do not match what member {member.name} asks for")
    return wrong


def seen_by(request: Request, snapshot: Snapshot) -> Snapshot:
    """Return the cluster as the gang's values are counted: GPUs that no member may have are unhealthy.

    So are all GPUs of a node where roles that it can serve match different ones. Until a subrequest is chosen
    all GPUs count.
    """
    roles = [role for role in request.roles if (role.gpus or role.slice) and role.members]
    if any(role.subrequests for role in roles) or not any(role.matching for role in roles):
        return snapshot
    nodes = {}
    for name, state in snapshot.nodes.items():
        gpus = range(state.node.topology.gpu_count)
        served = [role for role in roles if _has(state, role)]
        if not served:
            nodes[name] = state
            continue
        by_role = {tuple(_may_have(state, role, gpu) for gpu in gpus) for role in served}
        allowed = next(iter(by_role)) if len(by_role) == 1 else (False,) * len(gpus)
        changed = any(allowed[gpu] == bool(state.node.tainted >> gpu & 1) for gpu in gpus)
        nodes[name] = _with(state, sum(1 << gpu for gpu in gpus if allowed[gpu])) if changed else state
    return replace(snapshot, nodes=nodes)


def _has(state: NodeState, role: Role) -> bool:
    """Return whether the node offers the GPUs or the shares that the role asks for, by their resource."""
    if role.gpus > 1 and state.node.partitions and not starts_with(state.node, role.gpus, role):
        return False
    shares = state.node.memory_resources if state.node.gpu_memory else ()
    return role.slice.resource in shares if role.slice else role.gpu_resource in state.node.gpu_resources


def _may_have(state: NodeState, role: Role, gpu: int) -> bool:
    """Return whether members of the role may have this GPU: one with a taint only if the role names it."""
    mask = role.matching.get(state.node.name, ~state.node.tainted)
    return bool(mask >> gpu & 1)


def _with(state: NodeState, allowed: int) -> NodeState:
    """Return the state with these GPUs alone, those with taints too."""
    sound = ~state.node.unhealthy | state.node.tainted
    bad = ((1 << state.node.topology.gpu_count) - 1) & ~(sound & allowed)
    free = (state.free_gpus | state.tainted) & allowed
    node = replace(state.node, unhealthy=bad, tainted=0)
    memory = tuple(0 if bad >> gpu & 1 else units for gpu, units in enumerate(state.memory))
    return replace(state, node=node, free_gpus=free, tainted=0, memory=memory)
