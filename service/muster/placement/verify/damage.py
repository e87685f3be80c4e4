"""Count the damage again: how much more of what stays free becomes unusable."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.placement.verify.labels import in_wide
from muster.placement.verify.spots import PLANNED_GPUS, Groups, Spots

_TYPICAL_GPUS = (1, 2, 4, 8)
"""Whole GPUs of the typical requests. All have equal weight."""

_TYPICAL_PARTS = (1, 2, 4)
"""Typical slices, as the divisor of a GPU's memory. All have equal weight."""


def is_priced(request: Request) -> bool:
    """Return whether typical requests price the gang's damage (`prices`), if the cluster lists any."""
    slices = [role.slice for role in request.roles if role.slice and role.members]
    alone = request.size == 1 and not request.running
    return not slices or (alone and slices[0].gpus == 1)


def damage(placed: Placed, groups: Groups, touched: Spots) -> list[str]:
    """Return a sentence if F after − F before, over the nodes that the plan touches, is
    not what it claims.
    """
    total = 0
    for name, (_, state, gpus, _) in touched.items():
        before = state.free_gpus & ((1 << PLANNED_GPUS) - 1)
        after = before & ~gpus
        if state.node.gpu_memory:
            total += _spoilt(state, after, groups[name]) - _spoilt(state, before, [])
        for pool in _pools(state):
            total += _wasted((after & pool).bit_count() - state.unindexed_gpus)
            total -= _wasted((before & pool).bit_count() - state.unindexed_gpus)
    claimed = placed.objective.damage
    return [f"the damage is {total}, not {claimed}"] if total != claimed else []


def _spoilt(state: NodeState, free: int, members: Iterable[MemberPlacement]) -> int:
    """Return F of the partly used GPUs after these members have theirs. `free` masks the wholly free GPUs."""
    node, total = state.node, 0
    for gpu, (every, left) in enumerate(zip(node.gpu_memory, state.free_memory, strict=True)):
        if free >> gpu & 1 or node.spread or not every:
            continue
        rest = left - sum(member.units or left for member in members if gpu in member.gpus)
        useless = sum(rest * parts < every for parts in _TYPICAL_PARTS)
        total += 1000 * rest * useless // (len(_TYPICAL_PARTS) * every)
        total += 1000 * rest // every if node.gpu_resources else 0
    return total


def _pools(state: NodeState) -> tuple[int, ...]:
    """Return masks of GPUs: a typical request must find all its GPUs in one pool.

    A pool is an island if the node has NVLink, else the node.
    """
    topology = state.node.topology
    if state.node.gpu_memory and not state.node.gpu_resources:
        return ()
    if state.unindexed_gpus or in_wide(state.node) or len(topology.islands) == topology.gpu_count:
        return (-1,)
    return topology.islands


@cache
def _wasted(free: int) -> int:
    """Return F of one pool with this many free GPUs: those that typical requests cannot use, in
    GPU-thousandths.
    """
    return sum(max(0, free) * 1000 // len(_TYPICAL_GPUS) for gpus in _TYPICAL_GPUS if gpus > free)
