"""Compute values of members on a node: the GPUs there, the best fit, and unusable GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from muster.domain.request import Role, Scope
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.topology import Domains
from muster.placement.gang.running import RunningMembers
from muster.placement.gpus.costs import Cost, NodeContext
from muster.placement.gpus.damage import ONE_GPU
from muster.placement.gpus.node_rules import NodeRule
from muster.placement.gpus.slices import NodeGpus, ask_of
from muster.placement.limits import takes_gpus

if TYPE_CHECKING:  # instances import this module
    from muster.placement.gang.instance import Instance


NVSWITCH = "nvidia.com/nvswitch.present"
"""The label that is "true" on a node with an NVSwitch."""

NO_SUCH = -2
"""A code that no node has. The smallest code of a node is −1, which means that the node lacks the label."""


def _is_true(label: Domains) -> Bools:
    """Return [row] bool: whether the label is "true"."""
    return np.asarray(label.codes == label.index.get("true", NO_SUCH))


def gpus_on(instance: Instance, row: int) -> NodeGpus:
    """Return the GPUs of the node, for gangs whose members share GPUs."""
    return gpus_of(instance.columns, row)


def gpus_of(columns: Columns, row: int) -> NodeGpus:
    """Return the GPUs of a node of the cluster."""
    shape = columns.shapes[columns.shape[row]]
    memory = columns.gpu_memory[: len(shape.memory), row]
    return NodeGpus(shape, int(columns.free_gpus[row]), tuple(memory.tolist()))


def context_on(instance: Instance, row: int) -> NodeContext:
    """Return the context of the node for the costs of GPU choices."""
    rule = instance.rules.node_rules[instance.rules.in_node[row]]
    return context_of(instance.columns, instance.running, instance.policy_costs, row, rule)


def context_of(
    columns: Columns, running: RunningMembers, costs: tuple[Cost, ...], row: int, rule: NodeRule | None
) -> NodeContext:
    """Return the context of a node with these running members, for the costs of GPU choices."""
    in_wide, nvswitch = columns.topology.in_wide[row], columns.label(NVSWITCH)
    return NodeContext(costs, bool(in_wide), rule, bool(_is_true(nvswitch)[row]), row in running.with_gpus)


def node_kinds(instance: Instance, rows: Ints) -> Ints:
    """Return [property, node] int64. Nodes with equal columns have equal GPUs and costs of GPU choices."""
    columns = instance.columns
    properties: list[NDArray[Any]] = [
        columns.shape[rows],
        columns.free_gpus[rows],
        instance.rules.in_node[rows],
    ]
    properties += [columns.promised[rows], columns.topology.in_wide[rows]]
    if instance.policy_costs:
        properties += [*columns.gpu_memory[:, rows], _is_true(columns.label(NVSWITCH))[rows]]
    return np.stack([line.astype(np.int64) for line in properties])


def fit_with_penalty(instance: Instance, rows: Ints, counts: Ints) -> Ints:
    """Return [row, packing] int64: the best fit of these members on these nodes, then their score penalty.

    Both are one number: one unit of best fit outweighs all score penalties of the gang together. `counts` is
    [packing, role] int64.
    """
    fit = fit_of(instance.columns, instance.roles, rows, counts)
    if instance.penalty is None:
        return fit
    return np.asarray(fit * (100 * instance.request.size + 1) + instance.penalty[:, rows].T @ counts.T)


def fit_of(columns: Columns, roles: Sequence[Role], rows: Ints, counts: Ints) -> Ints:
    """Return [row, packing] int64: the shares of GPUs and cpu that stay free on the node, plus the cost to
    open the node.

    Less is better, because empty nodes then stay empty.

    `counts` is int64, members of these roles: [packing, role], or [row, packing, role] if each node has its
    own packings.
    """
    row_column, with_gpus = rows[:, None], np.array([takes_gpus(role) for role in roles])
    total, free = _total_and_free_gpus(columns, roles, rows, counts)
    cpu = counts @ np.array([role.resources.cpu_milli for role in roles], np.int64)
    shares = eighths(free, total) + eighths(columns.cpu[row_column] - cpu, columns.cpu_total[row_column])
    return shares + opening_cost(columns)[row_column] * (counts[..., with_gpus] > 0).any(axis=-1)


def eighths(free: Ints, total: Ints) -> Ints:
    """Return the share `free` / `total` in eighths, rounded down; 0 if one of the two is not positive.

    The steps are coarse on purpose: with finer ones nearly every node would be a class of its own. On a node
    with 8 GPUs a step is one GPU.
    """
    return 8 * np.maximum(free, 0) * (total > 0) // np.maximum(total, 1)


def _total_and_free_gpus(
    columns: Columns, roles: Sequence[Role], rows: Ints, counts: Ints
) -> tuple[Ints, Ints]:
    """Return the GPUs of each node [row, 1], and the GPUs that stay free next to these members [row,
    packing].

    Both are in units of memory if members share GPUs and the node serves slices.
    """
    total, free = columns.gpu_total[rows][:, None], columns.free_count[rows][:, None]
    if not any(role.slice and role.members for role in roles):
        return total, free - counts @ np.array([role.gpus for role in roles], np.int64)
    memory = np.array([sum(shape.memory) for shape in columns.shapes], np.int64)[columns.shape[rows]][:, None]
    serves, asks = memory > 0, [ask_of(role) for role in roles]
    units = np.array([ask.units * ask.gpus for ask in asks], np.int64)
    gpus = np.array([0 if ask.units else ask.gpus for ask in asks], np.int64)
    units_of_gpu = np.where(serves, memory // np.maximum(1, total), 1)
    free_units = np.where(serves, columns.gpu_memory[:, rows].sum(axis=0)[:, None], free)
    return np.where(serves, memory, total), free_units - counts @ units - units_of_gpu * (counts @ gpus)


MIN_STEPS, MAX_STEPS = 16, 64
"""In how many steps the free nodes of a domain are counted. With more steps, nearly all nodes of wide domains
would differ.
"""


@lru_cache(maxsize=1)
def opening_cost(columns: Columns) -> Ints:
    """Return [row] int64: the cost, in the best fit, to open the node: to take its first GPU.

    The cost is the number of wholly free GPU nodes in the node's domain, summed over the scopes above the
    node. So plans prefer domains with few free nodes. The numbers of a scope are scaled so that its largest
    domain counts as 16 to 64 nodes, and rounded up. A node that is in use, closed to pods, or in no domain
    costs nothing, because gangs of whole nodes cannot use it.
    """
    open_to_pods = np.array([p.ready and not p.unschedulable for p in columns.profiles], bool)[
        columns.profile
    ]
    has_gpus = columns.gpu_total > 0
    free_rows = np.flatnonzero(open_to_pods & has_gpus & (columns.free_count == columns.gpu_total))
    cost = np.zeros(len(has_gpus), np.int64)
    for scope in (*columns.topology.scopes, Scope.NVLINK_DOMAIN):
        domains = columns.topology.domains(scope)
        if len(free_rows) and domains.names:
            domain = 1 + domains.by_row  # 0 stands for no domain
            nodes = np.bincount(domain, has_gpus).astype(np.int64)
            free = np.bincount(domain[free_rows], minlength=len(nodes))
            free[0] = 0
            largest = max(1, int(nodes[1:].max()))
            cost[free_rows] += -(
                -min(MAX_STEPS, max(MIN_STEPS, largest)) * free[domain[free_rows]] // largest
            )
    return cost


SHARE_SLACK = ONE_GPU // 8
"""A GPU that lacks at most this much of its share is still usable."""
MIB = 20
"""Memory is counted in MiB, as a shift of bytes."""
LARGEST_AMOUNT = 1 << 42
"""Amounts are cut here, so that their products do not overflow."""


def unusable_gpus(
    columns: Columns, roles: Sequence[Role], rows: Ints, counts: Ints, has_gang_gpus: Bools
) -> Ints:
    """Return [row, packing] int64: how many GPUs the members without GPUs make unusable on these nodes.

    Such members take cpu and memory that pods with GPUs need. A GPU's share of a resource is the node's
    amount divided by the node's GPUs. Shares are counted in GPU-thousandths.

    `counts` is int64, members of these roles: [packing, role], or [row, packing, role] if each node has its
    own packings. `has_gang_gpus` [row] bool is whether members of the gang with GPUs run on the node.
    """
    with_gpus = np.array([takes_gpus(role) for role in roles])
    counts = counts if counts.ndim == 3 else counts[None]
    gpu_members, other_members = counts * with_gpus, counts * ~with_gpus
    gpus_taken = counts @ np.array([role.gpus for role in roles], np.int64)
    total = columns.gpu_total[rows][:, None]
    usable = usable_after = ONE_GPU * (columns.free_count[rows][:, None] - gpus_taken)
    excess = np.zeros_like(usable)
    for node_total, free, demand, unit in (
        (columns.cpu_total, columns.cpu, [role.resources.cpu_milli for role in roles], 0),
        (columns.memory_total, columns.memory, [role.resources.memory_bytes for role in roles], MIB),
    ):
        total_amount, free_amount = node_total[rows][:, None] >> unit, free[rows][:, None]
        scale = np.where(total_amount > 0, ONE_GPU * total, 0), np.maximum(1, total_amount)
        gpu_demand = gpu_members @ np.array(demand, np.int64)
        total_demand = gpu_demand + other_members @ np.array(demand, np.int64)
        no_limit = np.where(total_amount > 0, 0, ONE_GPU * total)
        usable = np.minimum(usable, no_limit + _shares((free_amount - gpu_demand) >> unit, scale))
        usable_after = np.minimum(
            usable_after, no_limit + _shares((free_amount - total_demand) >> unit, scale)
        )
        share_excess = [
            np.maximum(0, _shares(amount >> unit, scale) - ONE_GPU * gpus_taken)
            for amount in (total_demand, gpu_demand)
        ]
        excess = np.maximum(excess, share_excess[0] - share_excess[1])
    lost_now = (usable - usable_after + ONE_GPU - 1 - SHARE_SLACK) // ONE_GPU
    is_only_user = ~(gpu_members.any(axis=-1) | has_gang_gpus[:, None])
    lost_later = np.where(
        is_only_user, np.maximum(1, -(-excess // ONE_GPU)), (excess + ONE_GPU - 1 - SHARE_SLACK) // ONE_GPU
    )
    lost_later = np.minimum(lost_later, total - gpus_taken)
    return np.asarray(np.where(other_members.any(axis=-1), lost_now + lost_later, 0))


def _shares(amount: Ints, scale: tuple[Ints, Ints]) -> Ints:
    """Return for how many GPUs, in thousandths, the amount has the full share."""
    times, total_amount = scale
    return np.asarray(np.clip(amount, 0, LARGEST_AMOUNT) * times // total_amount)
