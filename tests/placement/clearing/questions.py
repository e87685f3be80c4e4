"""Random small clusters with running pods, and a gang that may clear some of them away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from muster.domain.clearing import ClearQuestion, Occupancy, Occupant, Unit
from muster.domain.node import Resources, Usage
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from tests.placement.worlds import worlds

NOW = 1_000_000.0
PRIORITY = 10
"""The preemptor's."""


FAMILIES = {
    "whole GPUs": (),
    "levels": ("levels",),
    "roles with scopes": ("role scope",),
    "slices": ("slices",),
    "slices, members that run": ("slices", "running"),
    "segments": ("segments",),
    "segments by rank, members that run": ("segments", "ranks", "running"),
    "members that run": ("running",),
    "at most so many": ("max per",),
    "few must fit": ("least",),
    "subgroups": ("subgroups",),
    "equal names": ("paths",),
    "inside nodes": ("inside",),
    "on one node": ("one node", "anti-affinity"),
    "room for few": ("room",),
    "some of several subgroups": ("quorum",),
    "elastic roles": ("elastic",),
    "some GPUs match": ("matching",),
    "subrequests": ("subrequests",),
    "members without GPUs": ("idle",),
    "members without GPUs, roles with scopes": ("idle", "role scope"),
    "kept apart": ("anti-affinity",),
    "near pods": ("affinity",),
    "spread": ("skew",),
    "preferences": ("role preferences", "scores"),
}
"""Families: the features that their worlds have, by name."""


class Question(NamedTuple):
    """A cluster with all its pods, and a question about it."""

    snapshot: Snapshot
    question: ClearQuestion

    def __repr__(self) -> str:
        occupancy = self.question.occupancy
        lines = [f"budgets {dict(occupancy.budgets)}"]
        for key, unit in occupancy.units.items():
            lines.append(f"{key}: {unit}")
            lines += [f"  {occupant}" for occupant in occupancy.occupants if occupant.unit == key]
        lines += [f"stays: {occupant.usage}" for occupant in occupancy.occupants if not occupant.unit]
        lines += [str(state) for state in self.snapshot.nodes.values()]
        return "\n".join([*lines, str(self.question.request)])


@st.composite
def questions(draw: st.DrawFn, *features: str) -> Question:
    """A world with these features, in which up to four units hold most of what is free."""
    snapshot, request = draw(worlds(*features))
    stays = [member.usage for member in request.running if member.usage is not None]
    occupants, nodes = list[Occupant](), {}
    for name, state in snapshot.nodes.items():
        usages = [usage for usage in stays if usage.node == name]
        if draw(st.integers(0, 3)) == 0:
            usages = list(_taken(state))
        nodes[name] = NodeState.of(state.node, usages)
        occupants += [Occupant(usage, usage.pod_uid) for usage in usages]
    keys = "abcd"[: draw(st.sampled_from([1, 2, 3, 3, 4]))]
    for name in snapshot.nodes:
        for number in range(draw(st.sampled_from([0, 1, 2, 2, 3]))):
            usage = draw(_usages(f"{name}{number}", nodes[name]))
            if usage is not None:
                nodes[name] = nodes[name].with_usage(usage)
                occupants.append(draw(_occupants(usage, draw(st.sampled_from(keys)))))
    sizes = Counter(occupant.unit for occupant in occupants)
    units = {key: draw(_units(key, sizes[key])) for key in keys}
    budgets = {"p": draw(st.sampled_from([0, 1, 1, 2, 5])), "q": draw(st.integers(0, 2))}
    question = ClearQuestion(request, Occupancy.of(occupants, units, NOW, budgets), PRIORITY)
    snapshot = replace(snapshot, nodes=nodes)
    return Question(_with(snapshot, [occupant.usage for occupant in occupants]), question)


def _taken(state: NodeState) -> Iterator[Usage]:
    """What is taken on the node already, as usages."""
    node, name = state.node, state.node.name
    healthy = ((1 << node.topology.gpu_count) - 1) & ~node.unhealthy
    whole = healthy & ~state.free_gpus
    for gpu, units in enumerate(state.memory):
        if healthy >> gpu & 1 and 0 < units < node.gpu_memory[gpu]:
            whole &= ~(1 << gpu)
            used = node.gpu_memory[gpu] - units
            yield Usage(f"{name}-{gpu}", name, Resources(pods=0), gpus=1 << gpu, units=used)
    whole |= node.tainted & ~state.tainted
    yield Usage(f"{name}-taken", name, node.allocatable - state.free, gpus=whole)
    if state.unindexed_gpus:
        yield Usage(f"{name}-other", name, Resources(pods=0), unindexed_gpus=state.unindexed_gpus)


def _with(snapshot: Snapshot, usages: list[Usage]) -> Snapshot:
    nodes = {
        name: NodeState.of(state.node, [usage for usage in usages if usage.node == name])
        for name, state in snapshot.nodes.items()
    }
    return replace(snapshot, nodes=nodes)


@st.composite
def _usages(draw: st.DrawFn, uid: str, state: NodeState) -> Usage | None:
    """What a pod takes of what is free: GPUs, a slice, or cpu alone. None if nothing is free."""
    free, node = list(bits(state.free_gpus)), state.node.name
    cpu = draw(st.sampled_from([0, 0, 500, 1000]))
    resources = Resources(min(cpu, max(0, state.free.cpu_milli)), 0, draw(st.sampled_from([0, 1])))
    kinds = ["gpus"] * 6 + ["cpu", "unindexed"] + ["slice"] * 4 * bool(state.memory)
    kind = draw(st.sampled_from(kinds))
    if kind == "slice":
        units = draw(st.sampled_from([1, 2, 3, 5]))
        open_gpus = [gpu for gpu, free_units in enumerate(state.free_memory) if free_units >= units]
        if not open_gpus:
            return None
        return Usage(uid, node, resources, gpus=1 << draw(st.sampled_from(open_gpus)), units=units)
    if kind == "cpu":
        cores = draw(st.sampled_from([1000, 2000, 3000]))
        return Usage(uid, node, Resources(min(cores, max(0, state.free.cpu_milli))))
    count = min(draw(st.sampled_from([1, 2, 2, 4])), state.free_gpu_count)
    if not count:
        return None
    if kind == "unindexed":
        return Usage(uid, node, resources, unindexed_gpus=count)
    return Usage(uid, node, resources, gpus=mask_of(draw(st.permutations(free))[:count]))


@st.composite
def _occupants(draw: st.DrawFn, usage: Usage, unit: str) -> Occupant:
    age = draw(st.sampled_from([0, 0, 90, 600, 3600, 7200]))
    started = NOW + 300 if draw(st.integers(0, 24)) == 0 else NOW - age
    return Occupant(
        usage,
        f"pod-{usage.pod_uid}",
        unit,
        started,
        saved=draw(st.sampled_from([0, 0, 0, NOW - 60, NOW + 60, NOW - 5000])),
        subgroup=draw(st.sampled_from(["", "", "x"])),
        budget=draw(st.sampled_from(["", "", "", "p", "q"])),
        ends=draw(st.sampled_from([0, 0, 0, 0, 0, 0, NOW + 30, NOW - 30, NOW - 90])),
    )


@st.composite
def _units(draw: st.DrawFn, key: str, size: int) -> Unit:
    return Unit(
        f"gang {key}",
        draw(st.sampled_from([0, 0, 0, 5, 5, PRIORITY])),
        draw(st.sampled_from([size, size, 1, max(1, size - 1)])),
        draw(st.sampled_from([{}, {}, {"x": 1}, {"": 1}])),
        draw(st.sampled_from(["", "", "", "", "", "it says never"])),
        draw(st.sampled_from([float("inf"), float("inf"), 120.0])),
    )
