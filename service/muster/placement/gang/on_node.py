"""Describe single nodes for one gang: their GPUs, the costs of GPU choices, and the best fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.domain.request import Role
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.topology import Domains
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.instance import Instance
from muster.placement.gang.whole_nodes import opening
from muster.placement.gpus.costs import Cost, On
from muster.placement.gpus.fragmentation import left_over_steps
from muster.placement.gpus.node_rules import InNode
from muster.placement.gpus.slices import NodeGpus, ask_of
from muster.placement.limits import takes_gpus

NVSWITCH = "nvidia.com/nvswitch.present"
"""The label that is "true" on a node with an NVSwitch."""

NO_SUCH = -2
"""A code that no node has. The smallest code of nodes is −1, for no label."""


def _is_true(label: Domains) -> Bools:
    """Return [row] bool: whether the label is "true"."""
    return np.asarray(label.codes == label.index.get("true", NO_SUCH))


def gpus_on(instance: Instance, row: int) -> NodeGpus:
    """Return the GPUs of the node, for gangs whose members share GPUs."""
    return gpus_of(instance.columns, row)


def gpus_of(view: Columns, row: int) -> NodeGpus:
    """Return the GPUs of a node of the cluster, whatever gang asks."""
    shape = view.shapes[view.shape[row]]
    memory = view.gpu_memory[: len(shape.memory), row]
    return NodeGpus(shape, int(view.free_gpus[row]), tuple(memory.tolist()))


def costs_on(instance: Instance, row: int) -> On:
    """Return what decides the costs of GPU choices on the node."""
    rule = instance.rules.node_rules[instance.rules.in_node[row]]
    return on_row(instance.columns, instance.existing, instance.costs, row, rule)


def on_row(
    view: Columns, existing: ExistingMembers, costs: tuple[Cost, ...], row: int, rule: InNode | None
) -> On:
    """Return what decides the costs of GPU choices on a node with these existing members."""
    here = any(stay.row == row and stay.has_gpus for stay in existing.members)
    wide, nvswitch = view.topology.in_wide[row], view.label(NVSWITCH)
    return On(costs, bool(wide), rule, bool(_is_true(nvswitch)[row]), here)


def kinds_of(instance: Instance, rows: Ints) -> Ints:
    """Return [property, node] int64. Nodes with equal columns have equal GPUs and equal costs of choices."""
    view = instance.columns
    lines: list[NDArray[Any]] = [view.shape[rows], view.free_gpus[rows], instance.rules.in_node[rows]]
    lines += [view.promised[rows], view.topology.in_wide[rows]]
    if instance.costs:
        lines += [*view.gpu_memory[:, rows], _is_true(view.label(NVSWITCH))[rows]]
    return np.stack([line.astype(np.int64) for line in lines])


def best_fit(instance: Instance, rows: Ints, counts: Ints) -> Ints:
    """Return [row, packing] int64: the best fit of these members on these nodes, with preferences below it.

    One step of the best fit outweighs all scores of the gang. `counts` is [packing, role] int64.
    """
    fit = fit_of(instance.columns, instance.roles, rows, counts)
    if instance.penalty is None:
        return fit
    return np.asarray(fit * (100 * instance.request.size + 1) + instance.penalty[:, rows].T @ counts.T)


def fit_of(view: Columns, roles: Sequence[Role], rows: Ints, counts: Ints) -> Ints:
    """Return [row, packing] int64: what is left free on the node, and what it costs to open the node.

    `counts` is int64, members of these roles: [packing, role], or [row, packing, role] if each node has its
    own packings.
    """
    at, with_gpus = rows[:, None], np.array([takes_gpus(role) for role in roles])
    total, free = _gpu_shares(view, roles, rows, counts)
    cpu = counts @ np.array([role.resources.cpu_milli for role in roles], np.int64)
    left = left_over_steps(total, free, view.cpu_total[at], view.cpu[at], 0, cpu)
    return left + opening(view)[at] * (counts[..., with_gpus] > 0).any(axis=-1)


def _gpu_shares(view: Columns, roles: Sequence[Role], rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the GPUs of each node [row, 1], and those still free after these members [row, packing].

    Both are in units of memory if members share GPUs and the node serves slices.
    """
    total, free = view.gpu_total[rows][:, None], view.free_count[rows][:, None]
    if not any(role.slice and role.members for role in roles):
        return total, free - counts @ np.array([role.gpus for role in roles], np.int64)
    of_shape = np.array([sum(shape.memory) for shape in view.shapes], np.int64)[view.shape[rows]][:, None]
    serves, asks = of_shape > 0, [ask_of(role) for role in roles]
    units = np.array([ask.units * ask.gpus for ask in asks], np.int64)
    whole = np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    each = np.where(serves, of_shape // np.maximum(1, total), 1)
    left = np.where(serves, view.gpu_memory[:, rows].sum(axis=0)[:, None], free)
    return np.where(serves, of_shape, total), left - counts @ units - each * (counts @ whole)
