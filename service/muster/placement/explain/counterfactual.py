"""Show the same nodes as if other pods took nothing of some resources. The gang's existing members stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from muster.domain.node import Resources, Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.arrays import Codes
from muster.placement.cluster.columns import Bools, Columns, Ints, amounts_of, memory_of
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.topology import place_of

GPU, CPU, MEMORY, PODS = "gpu", "cpu", "memory", "pods"
RESOURCES = (GPU, GPU_MEMORY, CPU, MEMORY, PODS)
"""Resources that each cluster has. Further resources have their own names, as in `Resources.others`."""


def resources_of(roles: Iterable[Role]) -> tuple[str, ...]:
    """Return `RESOURCES`, then the other resources that these roles ask for, by name."""
    return (*RESOURCES, *sorted({name for role in roles for name, _ in role.resources.others}))


def free_of(view: Columns, what: str) -> Ints:
    """Return [row] int64: what is free of a resource. GPU memory is summed over the node's GPUs."""
    if what == GPU_MEMORY:
        return np.asarray(view.gpu_memory.sum(axis=0))
    free = {GPU: view.free_count, CPU: view.cpu, MEMORY: view.memory, PODS: view.pods}
    return free[what] if what in free else view.other(what)


def in_one_piece(view: Columns, what: str) -> Ints:
    """Return [row] int64: the largest free piece of a resource. Of GPU memory, a piece lies on one GPU."""
    return view.gpu_memory.max(axis=0, initial=0) if what == GPU_MEMORY else free_of(view, what)


def amount_of(role: Role, what: str) -> int:
    """Return what one member asks for, in the units of `free_of`."""
    gpu_memory = role.slice.units * role.slice.gpus if role.slice else 0
    return _amount(what, role.gpus, gpu_memory, role.resources)


def taken_of(usage: Usage, what: str) -> int:
    """Return what a pod takes, in the units of `free_of`."""
    gpus = usage.gpus.bit_count() + usage.unindexed_gpus
    return _amount(what, 0 if usage.units else gpus, gpus * usage.units, usage.resources)


def _amount(what: str, gpus: int, gpu_memory: int, resources: Resources) -> int:
    amounts = {
        GPU: gpus,
        GPU_MEMORY: gpu_memory,
        CPU: resources.cpu_milli,
        MEMORY: resources.memory_bytes,
        PODS: max(1, resources.pods),
    }
    return amounts[what] if what in amounts else resources.other(what)


@dataclass(frozen=True, slots=True)
class EmptyStates(Sequence[NodeState]):
    """The nodes' states with all GPUs free that no existing member has. They are made on request."""

    states: Sequence[NodeState]
    running: Mapping[int, Sequence[Usage]]

    @overload
    def __getitem__(self, row: int) -> NodeState: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[NodeState]: ...
    def __getitem__(self, row: int | slice) -> NodeState | Sequence[NodeState]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return NodeState.of(self.states[row].node, self.running.get(row, ()))

    def __iter__(self) -> Iterator[NodeState]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.states)


LINES = {GPU: slice(0, 3), CPU: slice(3, 4), MEMORY: slice(4, 5), PODS: slice(5, 6)}
"""The lines of `Columns.amounts` for each resource."""


def emptied(view: Columns, request: Request) -> Columns:
    """Return the view in which only the gang's existing members take anything.

    Unhealthy GPUs stay unusable.
    """
    running = _running(view, request)
    states = EmptyStates(view.states, running)
    free = view.totals[: len(view.amounts)].copy()
    gpu_memory = _all_memory(view)
    for row in running:
        free[:, row] = amounts_of(states[row])
        gpu_memory[:, row] = memory_of(states[row], len(gpu_memory))
    shape, shapes, promised = _shapes(view, states, free[2])
    return replace(
        view,
        amounts=free,
        gpu_memory=gpu_memory,
        states=states,
        shape=shape,
        shapes=shapes,
        promised=promised,
        others={},
        _places={},
    )


def partly(view: Columns, empty: Columns, resources: Collection[str]) -> Columns:
    """Return the view with these resources free as in `empty`, and all else as it is."""
    if not resources:
        return view
    free = view.amounts.copy()
    for resource in LINES.keys() & set(resources):
        free[LINES[resource]] = empty.amounts[LINES[resource]]
    other_amounts = {name: (empty if name in resources else view).other(name) for name in view.others}
    memory = (empty if GPU_MEMORY in resources else view).gpu_memory
    return replace(empty if GPU in resources else view, amounts=free, gpu_memory=memory, others=other_amounts)


def _all_memory(view: Columns) -> Ints:
    lines = len(view.gpu_memory)
    of_shape = np.zeros((lines, len(view.shapes)), np.int64)
    for i, shape in enumerate(view.shapes):
        of_shape[: len(shape.memory), i] = shape.memory[:lines]
    healthy: Ints = view.totals[0] >> np.arange(lines)[:, None] & 1
    return np.asarray(of_shape[:, view.shape] * healthy)


def _running(view: Columns, request: Request) -> Mapping[int, list[Usage]]:
    """Return what existing members take, by row."""
    roles = {role.name: role for role in request.roles}
    usages: dict[int, list[Usage]] = {}
    for running in request.running:
        usage = running.usage
        if running.role in roles:
            role = roles[running.role]
            gpus, units = (role.slice.gpus, role.slice.units) if role.slice else (role.gpus, 0)
            unknown = 0 if running.gpus else gpus
            usage = Usage(running.member.uid, running.node, role.resources, running.gpus, unknown, units)
        if usage is not None and running.node in view.row:
            usages.setdefault(view.row[running.node], []).append(usage)
    return usages


def _shapes(view: Columns, states: EmptyStates, unindexed: Ints) -> tuple[Codes, tuple[Shape, ...], Bools]:
    """Return shapes for nodes whose taken GPUs had unknown indices, which are free now.

    The result has the codes by row, the shapes, and whether parts are promised by row. Equal nodes get one
    shape.
    """
    rows = np.flatnonzero(view.unindexed != unindexed)
    if not len(rows):
        return view.shape, view.shapes, view.promised
    shape, promised = view.shape.copy(), view.promised.copy()
    codes = {of_shape: code for code, of_shape in enumerate(view.shapes)}
    of_kind: dict[tuple[int, bool, int], tuple[int, bool]] = {}
    in_wide = view.topology.in_wide
    for row in rows.tolist():
        kind = (id(view.states[row].node.topology), bool(in_wide[row]), int(unindexed[row]))
        if kind not in of_kind:
            place = place_of(states[row])
            of_kind[kind] = (codes.setdefault(place.shape, len(codes)), place.promised)
        shape[row], promised[row] = of_kind[kind]
    return shape, tuple(codes), promised
