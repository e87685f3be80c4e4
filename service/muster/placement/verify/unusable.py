"""Count again how many GPUs members without GPUs make unusable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from muster.domain.decision import Placed
from muster.domain.node import Resources
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState
from muster.placement.verify.spots import PLANNED_GPUS, Groups, Spots

_GPU, _SLACK, _MIB = 1000, 125, 2**20


def unusable(request: Request, placed: Placed, groups: Groups, touched: Spots, old: Spots) -> list[str]:
    """Return what is wrong with the claimed number of GPUs that members without GPUs make unusable."""
    claimed, total = placed.objective.unusable_gpus, 0
    asks = {role.name: role for role in request.roles}
    idle = {name for name, role in asks.items() if not (role.gpus or role.slice)}
    if not idle or not any(member.role in idle for member in placed.members):
        return [] if claimed is None else [f"all members have GPUs, so {claimed} can't be made unusable"]
    with_gpus = {spot.state.node.name for spot in old.values() if spot.gpus or not spot.known}
    for name, members in groups.items():
        roles = [asks[m.role] for m in members if m.role in asks]
        others = [role for role in roles if role.gpus or role.slice]
        if len(others) < len(roles):
            state = touched[name].state
            total += _now(state, roles, others)
            total += _later(state, roles, others, beside=bool(others) or name in with_gpus)
    return [f"members without GPUs make {total} GPUs unusable, not {claimed}"] if total != claimed else []


def _now(state: NodeState, roles: Sequence[Role], others: Sequence[Role]) -> int:
    """Return how many of the free GPUs lose more than the slack of their share."""
    planned = state.free_gpus & ((1 << PLANNED_GPUS) - 1)
    free = min(planned.bit_count(), state.free_gpu_count) - sum(role.gpus for role in others)
    before, after = (
        min(
            _GPU * free,
            *(
                share
                for share, _ in _shares(state, [a - b for a, b in zip(left, _asked(those), strict=True)])
            ),
        )
        for left, those in ((_amounts(state.free), others), (_amounts(state.free), roles))
    )
    return -((after - before + _SLACK) // _GPU)


def _later(state: NodeState, roles: Sequence[Role], others: Sequence[Role], *, beside: bool) -> int:
    """Return how many shares members without GPUs take beyond those of the gang's own GPUs."""
    own = sum(role.gpus for role in others)
    excess = max(
        max(0, mine - _GPU * own) - max(0, theirs - _GPU * own)
        for (_, mine), (_, theirs) in zip(
            _shares(state, _asked(roles)), _shares(state, _asked(others)), strict=True
        )
    )
    rounded = -((_SLACK - excess) // _GPU) if beside else max(1, -(-excess // _GPU))
    return min(rounded, state.node.topology.gpu_count - own)


def _shares(state: NodeState, amounts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield for cpu and memory how many GPUs have their share in the amount, as what is left and as what is
    taken: a resource that the node does not state is enough for all, and no member takes any.
    """
    gpus = state.node.topology.gpu_count * _GPU
    for amount, total, unit in zip(amounts, _amounts(state.node.allocatable), (1, _MIB), strict=True):
        every = total // unit
        share = max(0, amount // unit) * gpus // every if every else 0
        yield (share if every else gpus), share


def _asked(roles: Iterable[Role]) -> tuple[int, int]:
    cpu, memory = 0, 0
    for role in roles:
        cpu, memory = cpu + role.resources.cpu_milli, memory + role.resources.memory_bytes
    return cpu, memory


def _amounts(resources: Resources) -> tuple[int, int]:
    return resources.cpu_milli, resources.memory_bytes
