"""Damage to typical requests by its definition, as brute force (`naive.py`) counts it."""

from __future__ import annotations

from muster.domain.request import Request, TypicalRequest
from muster.domain.snapshot import NodeState, Snapshot


def is_priced(snapshot: Snapshot, request: Request) -> bool:
    """Whether damage is what the typical requests lose: for whole GPUs, and one slice alone."""
    slices = [role.slice for role in request.roles if role.slice and role.members]
    alone = request.size == 1 and not request.running
    return bool(snapshot.typical) and (not slices or (alone and slices[0].gpus == 1))


def damage(snapshot: Snapshot, state: NodeState, mask: int, units: tuple[int, ...], cpu: int) -> int:
    """What members take from typical requests: these GPUs of a node, or one GPU's units, and this cpu."""
    whole, memory = whole_gpus(state), list(state.free_memory)
    sliced = [gpu for gpu, losses in enumerate(units) if losses]
    gpus_gone = sliced or whole[len(whole) - mask.bit_count() :]
    for gpu in gpus_gone if memory else ():
        memory[gpu] = memory[gpu] - units[gpu] if sliced else 0
    gpus_left = [gpu for gpu in whole if gpu not in gpus_gone]
    losses = (
        worth
        * (
            usable(kind, state, *now(state))
            - usable(kind, state, state.free.cpu_milli - cpu, gpus_left, memory)
        )
        for kind, worth in prices(snapshot)
    )
    return 10 * round(round(sum(losses), 6) / 10)


def prices(snapshot: Snapshot) -> list[tuple[TypicalRequest, float]]:
    """What a thousandth is worth to each kind."""
    states = snapshot.nodes.values()
    sizes = [units for state in states for units in state.node.gpu_memory if units]
    free = sum(sum(thousandths(state, whole_gpus(state), list(state.free_memory))) for state in states)
    kind_prices = []
    for kind in snapshot.typical:
        supply = sum(usable(kind, state, *now(state)) for state in states)
        part = min(1.0, kind.units * len(sizes) / sum(sizes)) if kind.units and sizes else 1.0
        share = kind.share / sum(other_kind.share for other_kind in snapshot.typical)
        kind_prices.append((kind, share / (kind.gpus * part) * (free / max(supply, 1000)) ** 2))
    return kind_prices


def usable(kind: TypicalRequest, state: NodeState, cpu: int, whole: list[int], memory: list[int]) -> float:
    """GPU-thousandths that such requests can use of a node with this cpu and these GPUs left."""
    node = state.node
    if not node.ready or node.unschedulable or not (node.gpu_memory if kind.units else node.gpu_resources):
        return 0.0
    if any(node.labels.get(key) not in values for key, values in kind.labels):
        return 0.0
    free = [
        part
        for gpu, part in enumerate(thousandths(state, whole, memory))
        if (memory[gpu] >= kind.units if kind.units else gpu in whole)
    ]
    fitting = len(free) // kind.gpus
    if not fitting or cpu < max(1, kind.cpu_milli):
        return 0.0
    return sum(free) * min(1.0, cpu / max(1, kind.cpu_milli) / fitting)


def now(state: NodeState) -> tuple[int, list[int], list[int]]:
    """cpu, wholly free GPUs and units by GPU, before the plan."""
    return state.free.cpu_milli, whole_gpus(state), list(state.free_memory)


def thousandths(state: NodeState, whole: list[int], memory: list[int]) -> list[int]:
    """What is free of each GPU."""
    every = state.node.gpu_memory or (0,) * state.node.topology.gpu_count
    return [
        1000 if gpu in whole else 1000 * memory[gpu] // size if memory and size else 0
        for gpu, size in enumerate(every)
    ]


def whole_gpus(state: NodeState) -> list[int]:
    """The wholly free ones that somebody may have: of those that look free, the last are taken."""
    free = [gpu for gpu in range(state.node.topology.gpu_count) if state.free_gpus >> gpu & 1]
    return free[: state.free_gpu_count]
