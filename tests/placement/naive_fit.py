"""The best fit by its definition, as brute force (`naive.py`) counts it."""

from __future__ import annotations

from collections.abc import Mapping

from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from tests.placement.naive_parts import label


def best_fit(snapshot: Snapshot, request: Request, counts: Mapping[str, tuple[int, ...]]) -> int:
    """The best fit of these numbers of members by node and role."""
    members_placed = map(sum, zip(*counts.values(), strict=True))
    shares = any(n and role.slice for n, role in zip(members_placed, request.roles, strict=True))
    nodes = snapshot.nodes
    return sum(
        _fit_on_node(snapshot, request, nodes[name], by_role, shares) for name, by_role in counts.items()
    )


def _fit_on_node(
    snapshot: Snapshot, request: Request, state: NodeState, by_role: tuple[int, ...], shares: bool
) -> int:
    pairs = list(zip(by_role, request.roles, strict=True))
    cores, every, memory = state.node.allocatable.cpu_milli, state.node.topology.gpu_count, 0
    cpu = state.free.cpu_milli - sum(n * role.resources.cpu_milli for n, role in pairs)
    free = state.free_gpu_count - sum(n * role.gpus for n, role in pairs)
    if shares:
        memory = sum(state.node.gpu_memory)
    if memory:
        free = sum(state.free_memory) - memory // every * sum(n * role.gpus for n, role in pairs)
        free -= sum(n * role.slice.units * role.slice.gpus for n, role in pairs if role.slice)
        every = memory
    fit = 8 * max(0, free) // every if every else 0
    fit += 8 * max(0, cpu) // cores if cores else 0
    if _is_empty(state) and any(n and (role.gpus or role.slice) for n, role in pairs):
        fit += sum(_free_in_domain(snapshot, state, scope) for scope in (*_levels(snapshot), "nvlink-domain"))
    return fit


def _free_in_domain(snapshot: Snapshot, state: NodeState, scope: str) -> int:
    """How many nodes of the node's domain are wholly free, scaled as if the largest domain had 16 nodes with
    GPUs at least; the worlds are too small to have more than 64."""
    domain_here = label(snapshot, state, scope)
    with_gpus = [node_state for node_state in snapshot.nodes.values() if node_state.node.topology.gpu_count]
    domains = [label(snapshot, gpu_state, scope) for gpu_state in with_gpus]
    free = [
        _is_empty(gpu_state)
        for gpu_state, domain in zip(with_gpus, domains, strict=True)
        if domain == domain_here
    ]
    largest = max((domains.count(name) for name in domains if name), default=0)
    return -(-max(16, largest) * sum(free) // largest) if domain_here else 0


def _levels(snapshot: Snapshot) -> list[str]:
    return [level.scope for level in snapshot.levels]


def _is_empty(state: NodeState) -> bool:
    """Whether pods may come to the node and none of its GPUs is taken."""
    node = state.node
    return node.ready and not node.unschedulable and 0 < node.topology.gpu_count == state.free_gpu_count
