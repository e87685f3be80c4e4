"""How many GPUs members without GPUs make unusable, by the definition in docs/objective.md alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil

from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot


def unusable(
    snapshot: Snapshot, request: Request, counts: Mapping[str, tuple[int, ...]], running: Collection[str]
) -> int | None:
    """The sum over the nodes; None if every member has GPUs. `counts` are members by node and role, and
    members with GPUs run on the nodes `running`."""
    amounts = []
    for name, by_role in counts.items():
        cpu, memory, gpus = [0, 0], [0, 0], 0
        members = [0, 0]
        for n, role in zip(by_role, request.roles, strict=True):
            has = bool(role.gpus or role.slice)
            members[has] += n
            cpu[has] += n * role.resources.cpu_milli
            memory[has] += n * role.resources.memory_bytes
            gpus += n * role.gpus
        if members[False]:
            theirs = (cpu[True], memory[True] / 2**20)
            everyone = (sum(cpu), sum(memory) / 2**20)
            beside = members[True] > 0 or name in running
            amounts.append(unusable_on_node(snapshot.nodes[name], gpus, theirs, everyone, beside=beside))
    return sum(amounts) if amounts else None


def unusable_on_node(
    state: NodeState,
    gang_gpus: int,
    theirs: tuple[float, float],
    everyone: tuple[float, float],
    *,
    beside: bool,
) -> int:
    """Unusable GPUs on one node: `gang_gpus` are the gang's, `theirs` is what members with GPUs take."""
    count = state.node.topology.gpu_count
    if not count:
        return 0
    before = after = float(state.free_gpu_count - gang_gpus)
    excess = 0.0
    all_of, free = state.node.allocatable, state.free
    for every, amount, less, least in (
        (all_of.cpu_milli, free.cpu_milli, theirs[0], everyone[0]),
        (all_of.memory_bytes // 2**20, free.memory_bytes / 2**20, theirs[1], everyone[1]),
    ):
        if every:
            before, after = (
                min(n, _gpus(amount - x, every, count)) for n, x in ((before, less), (after, least))
            )
            over = [max(0, _gpus(x, every, count) - gang_gpus) for x in (least, less)]
            excess = max(excess, over[0] - over[1])
    now = ceil(round(before - after - 0.125, 6))
    later = ceil(round(excess - 0.125, 6)) if beside else max(1, ceil(round(excess, 6)))
    return now + min(later, count - gang_gpus)


def _gpus(amount: float, every: int, count: int) -> float:
    """How many GPUs have their share in it, in whole thousandths."""
    return max(0, int(amount)) * count * 1000 // every / 1000
