"""Check that nodes and their GPUs have room for the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from muster.domain.decision import MemberPlacement
from muster.domain.node import Resources
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.placement.verify.spots import Groups, Spot, Spots


def capacities(request: Request, groups: Groups, touched: Spots) -> list[str]:
    """Return a sentence for each resource if the plan takes more of it than is free."""
    wrong = []
    asks = {role.name: role.resources for role in request.roles}
    totals: dict[tuple[str, ...], Resources] = {}
    falling = _falling(chain.from_iterable(groups.values()))
    for name, members in groups.items():
        spot, roles = touched[name], tuple([member.role for member in members])
        if roles not in totals:
            totals[roles] = sum([asks[role] for role in roles if role in asks], Resources(pods=0))
        wrong += _short(name, spot.state.free, totals[roles])
        if falling:
            wrong += [
                f"the GPUs of member {member.name} do not rise"
                for member in members
                if member.gpus in falling
            ]
        if not _all_free(spot, members):
            wrong += _gpus(spot.state, members)
    return wrong


def _falling(members: Iterable[MemberPlacement]) -> set[tuple[int, ...]]:
    """Return the indices that members have and that do not rise."""
    indices = {member.gpus for member in members}
    return {gpus for gpus in indices if any(gpu >= following for gpu, following in pairwise(gpus))}


def _short(name: str, free: Resources, total: Resources) -> list[str]:
    """Return a sentence for each resource that the plan takes more of than the node has free."""
    amounts = [
        ("cpu", total.cpu_milli, free.cpu_milli),
        ("memory", total.memory_bytes, free.memory_bytes),
        ("pods", total.pods, free.pods),
    ]
    amounts += [(resource, amount, free.other(resource)) for resource, amount in total.others]
    return [
        f"node {name} has {there} of {resource} free, the plan takes {asked}"
        for resource, asked, there in amounts
        if asked > 0 and asked > there
    ]


def _all_free(spot: Spot, members: Sequence[MemberPlacement]) -> bool:
    """Return whether each member has free GPUs of its own. This is a quick test that most nodes pass."""
    taken = sum([len(member.gpus) for member in members])
    return (
        not any(member.units for member in members)
        and taken == spot.gpus.bit_count() <= spot.state.free_gpu_count
        and not spot.gpus & ~spot.state.free_gpus
    )


def _gpus(state: NodeState, members: Sequence[MemberPlacement]) -> list[str]:
    """Return what is wrong with the GPUs of one node.

    Each GPU must go to one member whole, or to several members for which it has the memory.
    """
    wrong, name = [], state.node.name
    taken: set[int] = set()
    shared: Counter[int] = Counter()
    for member in members:
        for gpu in member.gpus:
            if gpu in taken or (not member.units and gpu in shared):
                wrong.append(f"GPU {gpu} of node {name} is given twice")
            if member.units:
                shared[gpu] += member.units
                continue
            if gpu < 0 or not state.free_gpus >> gpu & 1:
                wrong.append(f"GPU {gpu} of node {name} is not free")
            taken.add(gpu)
    room = max(0, state.free_gpus.bit_count() - state.unindexed_gpus)
    if len(taken) > room:
        wrong.append(f"node {name} has {room} GPUs free, the plan takes {len(taken)}")
    memory = state.free_memory
    for gpu, units in sorted(shared.items()):
        left = memory[gpu] if 0 <= gpu < len(memory) else 0
        if units > left:
            wrong.append(f"GPU {gpu} of node {name} has {left} units left, the plan takes {units}")
    return wrong
