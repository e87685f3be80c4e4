"""Choose between equal sets of GPUs, so that a gang on several nodes uses the fewest network rails.

This is the last level. The nodes and their members are decided, and each node keeps the value of its GPUs at
all other levels. A set of rails *holds* the gang if each node has GPUs of equal value on these rails alone.
All sets of rails are tried at once, so the answer is exact and needs no time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from muster.domain.node import BOARD_GPUS
from muster.placement.cluster.columns import Columns, Ints, gpu_counts, values_in
from muster.placement.cluster.fabric import Shape
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import node_kinds
from muster.placement.gang.packings import distinct_columns
from muster.placement.gang.running import RunningMembers
from muster.placement.gpus.costs import Cost, GpuWays, NodeContext, cost_of
from muster.placement.gpus.damage import damage_to_pools
from muster.placement.gpus.gpusets import links_over
from muster.placement.gpus.slices import NodeGpus
from muster.placement.search.plan import NodePlan

RAIL_SETS = "rail-sets on these nodes"
"""The method that decides the level, as `--explain` shows it."""


def gpus_of_gang(running: RunningMembers, rows: Ints, masks: Ints) -> tuple[Ints, Ints]:
    """Return rows and masks of the GPUs of the whole gang. `masks` [node] are the new GPUs on `rows`.

    A node with GPUs of running and of new members occurs twice.
    """
    rows = np.concatenate((rows, np.array([*running.masks], np.int64)))
    masks = np.concatenate((masks, np.array([*running.masks.values()], np.int64)))
    return rows[masks > 0], masks[masks > 0]


def rails_on(columns: Columns, rows: Ints, masks: Ints) -> int:
    """Return the network rails of these GPUs as a bit mask. Rails that are not known are left out."""
    return int(np.bitwise_or.reduce(values_in(columns.rails[:, rows], masks), axis=None))


def on_fewest_rails(instance: Instance, nodes: Sequence[NodePlan]) -> Sequence[NodePlan]:
    """Return the plan with GPUs of the same value on the fewest rails.

    The plan stays as it is if members share GPUs, if all GPUs lie on one node, or if no choice has fewer
    rails. Nodes that give all their free GPUs have no choice.
    """
    columns, running = instance.columns, instance.running
    if instance.sliced or len(nodes) + len(running.masks) < 2:
        return nodes
    rows = np.array([node.row for node in nodes], np.int64)
    masks = np.array([node.gpus.mask for node in nodes], np.int64)
    has_choice = (masks > 0) & (masks != columns.free_gpus[rows]) & columns.rails[:, rows].any(axis=0)
    if not has_choice.any():
        return nodes
    fixed_rails = rails_on(columns, *gpus_of_gang(running, rows[~has_choice], masks[~has_choice]))
    rails_before = fixed_rails | rails_on(columns, rows[has_choice], masks[has_choice])
    if fixed_rails == rails_before or len(np.unique(gpus_of_gang(running, rows, masks)[0])) < 2:
        return nodes
    index_with_choice = np.flatnonzero(has_choice)
    has_domain_counts = np.array([any(nodes[i].by_domain) for i in index_with_choice.tolist()])
    kinds = np.stack(
        [
            *node_kinds(instance, rows[index_with_choice]),
            *columns.rails[:, rows[index_with_choice]],
            masks[index_with_choice],
            has_domain_counts,
        ]
    )
    kind_of_node, first = distinct_columns(kinds)
    choices_by_kind = [_gpu_choices(instance, nodes[i]) for i in index_with_choice[first].tolist()]
    rails = _fewest_rails(fixed_rails, [rails_by_choice for _, rails_by_choice in choices_by_kind])
    if rails.bit_count() == rails_before.bit_count():
        return nodes
    masks_after = [
        int(choices[rails_by_choice & ~rails == 0][0]) for choices, rails_by_choice in choices_by_kind
    ]
    changed = list(nodes)
    for i, kind in zip(index_with_choice.tolist(), kind_of_node.tolist(), strict=True):
        changed[i] = replace(nodes[i], gpus=replace(nodes[i].gpus, mask=masks_after[kind]))
    return changed


def _fewest_rails(fixed_rails: int, rails_by_kind: Sequence[Ints]) -> int:
    """Return the smallest set of rails that holds the gang, as a bit mask.

    Between sets of equal size, the set with the lowest rails is returned. `fixed_rails` are the rails of
    nodes without a choice. `rails_by_kind` [kind][choice] are the rails of each choice.
    """
    sets = np.arange(1 << BOARD_GPUS)
    holds = sets & fixed_rails == fixed_rails
    for rails in rails_by_kind:
        holds &= (rails & ~sets[:, None] == 0).any(axis=1)
    sets = sets[holds]
    return int(sets[gpu_counts(sets).argmin()])


def _gpu_choices(instance: Instance, node: NodePlan) -> tuple[Ints, Ints]:
    """Return [choice] the sets of GPUs that the node may give for this plan, and the rails of each as a bit
    mask.
    """
    columns = instance.columns
    rule, shape, free = instance.node_rule(node.row)
    # Preferences of roles bind members to NVLink domains too, but the rules of this instance lack them.
    binds_domains = any(node.by_domain) or (rule is not None and rule.binds_domains)
    in_wide = bool(columns.topology.in_wide[node.row])
    context = NodeContext(instance.policy_costs or (Cost.NVLINK_DOMAINS,), in_wide, rule)
    masks = _equal_sets(shape, free, node.gpus.mask, context, binds_domains, instance.prices is not None)
    return masks, np.bitwise_or.reduce(values_in(columns.rails[:, [node.row]], masks))


@lru_cache(maxsize=1 << 10)
def _equal_sets(
    shape: Shape, free: int, mask: int, context: NodeContext, binds_domains: bool, priced: bool
) -> Ints:
    """Return the sets of GPUs of the same value as `mask`, as masks. The set that leaves the best-linked free
    GPUs comes first. Between equal sets, the set with the lowest indices does.

    If rules bind members to NVLink domains, each domain gives as many GPUs as in `mask`. A priced damage
    depends on the number of GPUs alone.
    """
    all_masks = np.arange(1 << shape.topology.gpu_count)
    masks = all_masks[(all_masks & ~free == 0) & (gpu_counts(all_masks) == mask.bit_count())]
    gpu_ways = GpuWays(np.zeros_like(masks), masks)
    values = [cost_of(cost, NodeGpus(shape, free, ()), gpu_ways, context) for cost in context.costs]
    *links, links_left = links_over(shape, free, masks, context.running_mask)
    values += links
    if not priced:
        values.append(damage_to_pools(shape, free, masks))
    if binds_domains:
        values += [gpu_counts(masks & domain) for domain in shape.domains]
    index = np.searchsorted(masks, mask)
    equal = np.logical_and.reduce([value == value[index] for value in values])
    equal_masks: Ints = masks[equal]
    return equal_masks[np.argsort(-links_left[equal], kind="stable")]
