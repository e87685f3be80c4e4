"""Level 4b counted again: what stays free on the plan's nodes, and what opening nodes takes from domains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from muster.domain.decision import Placed
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.labels import NVLINK, Labels
from muster.placement.verify.spots import PLANNED_GPUS, Groups

_EIGHTHS = 8
_FEWEST, _MOST = 16, 64
"""The size of the largest domain of a scope, as it counts."""


def best_fit(snapshot: Snapshot, request: Request, placed: Placed, groups: Groups) -> list[str]:
    """Return what is wrong with the claimed best fit."""
    asks = {role.name: role for role in request.roles}
    in_memory = any(m.role in asks and asks[m.role].slice for members in groups.values() for m in members)
    total, opened = 0, list[NodeState]()
    for name, members in groups.items():
        state, roles = snapshot.nodes[name], [asks[m.role] for m in members if m.role in asks]
        total += _gpus_left(state, roles, in_memory)
        left = state.free.cpu_milli - sum(role.resources.cpu_milli for role in roles)
        total += _share(left, state.node.allocatable.cpu_milli)
        if _wholly_free(state) and any(role.gpus or role.slice for role in roles):
            opened.append(state)
    total += sum(_opening(snapshot, scope, opened) for scope in _scopes(snapshot) if opened)
    claimed = placed.objective.best_fit
    return [f"the best fit is {total}, not {claimed}"] if total != claimed else []


def _gpus_left(state: NodeState, roles: Sequence[Role], in_memory: bool) -> int:
    """Return the share of the GPUs that members of these roles leave free; of their memory if members share
    GPUs."""
    whole = sum(role.gpus for role in roles)
    memory, count = sum(state.node.gpu_memory), state.node.topology.gpu_count
    if not (in_memory and memory):
        return _share(_free(state) - whole, count)
    units = sum(role.slice.gpus * role.slice.units for role in roles if role.slice)
    return _share(sum(state.free_memory) - units - memory // count * whole, memory)


def _share(left: int, every: int) -> int:
    return _EIGHTHS * left // every if left > 0 and every > 0 else 0


def _scopes(snapshot: Snapshot) -> list[str]:
    return [*(level.scope for level in snapshot.levels), NVLINK[0]]


def _opening(snapshot: Snapshot, scope: str, opened: Sequence[NodeState]) -> int:
    """Return what it costs to open these nodes, by the domains of one scope that they lie in."""
    with_gpus = [state for state in snapshot.nodes.values() if state.node.topology.gpu_count]
    part = Labels(snapshot).parts(scope, [state.node for state in with_gpus])
    nodes = Counter(part[state.node.name] for state in with_gpus)
    free = Counter(part[state.node.name] for state in with_gpus if _wholly_free(state))
    domains = filter(None, (part[state.node.name] for state in opened))
    largest = max((count for domain, count in nodes.items() if domain), default=1)
    counted = min(_MOST, max(_FEWEST, largest))
    return sum(-(-counted * free[domain] // largest) for domain in domains)


def _wholly_free(state: NodeState) -> bool:
    """Whether a gang of whole nodes could have the node."""
    node = state.node
    return node.ready and not node.unschedulable and 0 < node.topology.gpu_count == _free(state)


def _free(state: NodeState) -> int:
    """Return how many wholly free GPUs the plan may take."""
    planned = state.free_gpus & ((1 << PLANNED_GPUS) - 1)
    return min(planned.bit_count(), state.free_gpu_count)
