"""The trace replayed through the planner itself: each pod a gang of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.openb.replay import Replay
from benchmarks.openb.trace import GPU, Nodes, Request
from muster.domain.decision import Placed
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, NodeRules, Role, SelectorTerm, Slice, TypicalRequest
from muster.domain.request import Request as Gang
from muster.domain.snapshot import Snapshot
from muster.domain.topology import GpuTopology, mask_of
from muster.placement.place import place

MODEL = "nvidia.com/gpu.product"
RESOURCE = "nvidia.com/gpu"
PODS = 100_000
"""Pods that a node may run: the trace knows no such limit."""
MIB = 1 << 20


def replay(nodes: Nodes, order: Sequence[Request], mix: Mapping[Request, float]) -> Replay:
    """Place each, told the mix; between equals on the first node. A GPU is `GPU` units of memory: a pod of
    thousandths takes a slice. What did not fit once is not asked for again: nothing ever leaves."""
    models = [nodes.models[model] for model in nodes.model.tolist()]
    columns = (nodes.cpu.tolist(), nodes.memory.tolist(), nodes.gpus.tolist(), models)
    snapshot = Snapshot.of(map(_node, range(len(models)), *columns), (), typical=typical(mix))
    allocated = np.zeros(len(order), dtype=np.int64)
    failed: set[Request] = set()
    for i, request in enumerate(order):
        if request in failed:
            continue
        gang = _gang(i, request)
        decision = place(snapshot, gang)
        if not isinstance(decision, Placed):
            failed.add(request)
            continue
        (member,) = decision.members
        usage = Usage(
            member.uid, member.node, gang.roles[0].resources, mask_of(member.gpus), units=member.units
        )
        snapshot = snapshot.with_usages([usage])
        allocated[i] = request.milli
    arrived = np.cumsum([request.milli for request in order])
    return Replay(nodes.gpu_milli, arrived, np.cumsum(allocated))


def typical(mix: Mapping[Request, float]) -> tuple[TypicalRequest, ...]:
    """The mix as a cluster is told it. A kind without GPUs can lose none."""
    return tuple(
        TypicalRequest(
            share,
            kind.gpus,
            kind.cpu,
            kind.gpu_milli if kind.is_shared else 0,
            ((MODEL, kind.models),) if kind.models else (),
        )
        for kind, share in mix.items()
        if kind.gpus
    )


def _node(number: int, cpu: int, memory: int, gpus: int, model: str) -> Node:
    return Node(
        f"node-{number:04}",
        Resources(cpu, memory * MIB, PODS),
        GpuTopology.unknown(gpus),
        frozenset({RESOURCE}),
        {MODEL: model},
        gpu_memory=(GPU,) * gpus,
    )


def _gang(number: int, request: Request) -> Gang:
    models = (SelectorTerm(MODEL, "In", request.models),) if request.models else ()
    whole = 0 if request.is_shared else request.gpus
    role = Role(
        "pod",
        (Member(str(number), str(number)),),
        Resources(request.cpu, request.memory * MIB),
        whole,
        RESOURCE if whole else "",
        NodeRules(models),
        slice=Slice(request.gpu_milli) if request.is_shared else None,
    )
    return Gang(GangId("openb", "openb", str(number)), (role,), 1)
