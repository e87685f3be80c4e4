"""Turn numbers of members on nodes into places of named members, with their GPU indices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from operator import attrgetter

import numpy as np

from muster.domain.decision import MemberPlacement
from muster.domain.request import Member, Role, Scope
from muster.domain.topology import bits
from muster.placement.cluster.columns import Ints
from muster.placement.gang.blocks import rank_key
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import gpus_on
from muster.placement.gpus.gpusets import lowest_gpus, split
from muster.placement.gpus.node_rules import Counts
from muster.placement.gpus.slices import slices_by_gpu
from muster.placement.search.plan import NodePlan


def sort_by_rank(role: Role) -> list[Member]:
    """Return members by rank. Members without a rank come last, in the natural order of names (worker-2
    before worker-10).
    """
    ranks = {member.rank for member in role.members}
    if None not in ranks and len(ranks) == len(role.members):  # each member has a rank of its own
        return sorted(role.members, key=attrgetter("rank"))
    return sorted(role.members, key=rank_key)


def place_members(instance: Instance, nodes: Iterable[NodePlan]) -> tuple[MemberPlacement, ...]:
    """Return the places of members: consecutive ranks of a role lie together on a node, and nodes are filled
    in the order of the fabric.

    The result is in the order of roles, then ranks. If these plans have fewer members than the gang, the last
    ranks are left out.
    """
    nodes, names = tuple(nodes), instance.columns.names
    masks_by_node = _masks_by_node(instance, nodes)
    places = dict[str, MemberPlacement]()
    for block, (role, ask) in enumerate(zip(instance.roles, instance.asks, strict=True)):
        nodes_of_block = [i for i, masks in enumerate(masks_by_node) if masks[block]]
        queue = iter(sort_by_rank(role))
        for i in _sort_along_fabric(
            instance, block, nodes_of_block, np.array([nodes[i].row for i in nodes_of_block], np.int64)
        ):
            node = names[nodes[i].row]
            for mask, member in zip(masks_by_node[i][block], queue, strict=False):
                place = MemberPlacement(member.uid, member.name, role.name, node, _gpus_of(mask), ask.units)
                places[member.uid] = place
    members = chain.from_iterable(map(sort_by_rank, instance.request.roles))
    return tuple(places[member.uid] for member in members if member.uid in places)


@lru_cache(maxsize=1 << 14)
def _gpus_of(mask: int) -> tuple[int, ...]:
    return tuple(bits(mask))


def _sort_along_fabric(instance: Instance, block: int, indices: list[int], rows: Ints) -> list[int]:
    """Return these indices of plans in the order of the fabric. `rows` has the row of each.

    Nodes in one part of a segment's scope come together, then nodes in one zone, one rack, one NVLink domain.
    """
    columns = instance.columns
    segments = [instance.rules.cells[name][rows] for name in instance.rules.order[block]]
    parts = [columns.topology.index(scope)[rows] for scope in instance.fabric_scopes]
    nvlink = columns.topology.index(Scope.NVLINK_DOMAIN)[rows]
    order = np.lexsort(np.stack([*segments, *parts, nvlink, rows])[::-1])
    return [indices[i] for i in order.tolist()]


def _masks_by_node(instance: Instance, nodes: Iterable[NodePlan]) -> list[list[list[int]]]:
    """Return `_masks_by_block` of each node plan, computed once for nodes with equal GPUs and members."""
    shape, sliced = instance.columns.shape, instance.sliced
    masks_by_key: dict[tuple[object, ...], list[list[int]]] = {}
    masks_by_node = []
    for node in nodes:
        node_key = node.row if sliced else shape[node.row].item()  # GPUs that are shared differ by node
        key = (node_key, node.counts, node.gpus.mask, node.by_domain, node.shared)
        masks = masks_by_key.get(key)
        if masks is None:
            masks = masks_by_key[key] = _masks_by_block(instance, node, sliced)
        masks_by_node.append(masks)
    return masks_by_node


def _masks_by_block(instance: Instance, node: NodePlan, sliced: bool) -> list[list[int]]:
    """Return for each block the GPUs of each of its members on the node.

    Members that are bound to an NVLink domain get their GPUs first, domain by domain, then the other members.
    """
    gpus = [role.gpus for role in instance.roles]
    shape = instance.columns.shapes[instance.columns.shape[node.row]]
    masks_by_block: list[list[int]] = [[] for _ in gpus]
    free_gpus = node.gpus.mask & ~node.shared
    if sliced:
        for block, masks in enumerate(_slice_masks_by_block(instance, node)):
            masks_by_block[block] += masks
    for domain, domain_mask in enumerate(shape.domains if any(node.by_domain) else ()):
        bound = [
            block for block, members in enumerate(node.by_domain) for _ in range(_count_in(members, domain))
        ]
        sizes = [gpus[block] for block in bound]
        spare = (free_gpus & domain_mask).bit_count() - sum(sizes)
        for block, mask in zip(
            bound, split(shape.topology, free_gpus & domain_mask, (*sizes, spare)), strict=False
        ):
            masks_by_block[block].append(mask)
            free_gpus &= ~mask
    for block, members in enumerate(node.by_domain):
        for gpus_by_domain in members or ():
            if isinstance(gpus_by_domain, tuple):
                mask = sum(
                    lowest_gpus(free_gpus & shape.domains[d], count) for d, count in enumerate(gpus_by_domain)
                )
                masks_by_block[block].append(mask)
                free_gpus &= ~mask
    loose = [
        block for block, count in enumerate(node.counts) for _ in range(count - len(masks_by_block[block]))
    ]
    for block, mask in zip(
        loose, split(shape.topology, free_gpus, tuple(gpus[block] for block in loose)), strict=True
    ):
        masks_by_block[block].append(mask)
    return masks_by_block


def _slice_masks_by_block(instance: Instance, node: NodePlan) -> list[list[int]]:
    """Return for each block the GPUs of each of its members that share GPUs.

    The slices of a block are dealt out to its members in turn, GPU by GPU. No GPU has more slices of a block
    than the block has members. So each member gets different GPUs.
    """
    masks_by_block: list[list[int]] = []
    dealt_out = slices_by_gpu(instance.asks, node.counts, gpus_on(instance, node.row), node.shared)
    for ask, count, by_gpu in zip(instance.asks, node.counts, dealt_out, strict=True):
        gpus = [gpu for gpu, slices in enumerate(by_gpu) for _ in range(slices)]
        masks = [sum(1 << gpu for gpu in gpus[i::count]) for i in range(count)] if ask.units else []
        masks_by_block.append(masks)
    return masks_by_block


def _count_in(members: Counts | tuple[Counts, ...] | None, domain: int) -> int:
    """Return the number of a block's members that are bound to this NVLink domain of the node."""
    count = members[domain] if members and domain < len(members) else 0
    return count if isinstance(count, int) else 0
