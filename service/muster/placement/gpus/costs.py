"""Compute what GPUs cost at the levels before the links, such as NUMA nodes or shared GPUs. Only gangs with
slices or a policy have such levels besides NVLink domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from muster.domain.policies import PolicyTopology, Strategy
from muster.domain.request import PolicyTerm
from muster.domain.topology import GpuTopology
from muster.placement.cluster.columns import gpu_counts
from muster.placement.gpus.links import numa_nodes
from muster.placement.gpus.node_rules import NodeRule
from muster.placement.gpus.slices import NodeGpus, Values


class Cost(Enum):
    """A level of the objective that is summed over the touched nodes. Its value is the level's name."""

    NVLINK_DOMAINS = "nvlink_domains"
    NVLINK_SPREAD = "nvlink_spread"
    NUMA_NODES = "numa_nodes"
    NUMA_SPREAD = "numa_spread"
    NVSWITCH = "nvswitch"
    NVSWITCH_SPREAD = "nvswitch_spread"
    SHARING = "sharing"
    SHARED_GPUS = "shared_gpus"


PACKING_COSTS = {
    PolicyTopology.NVLINK: Cost.NVLINK_DOMAINS,
    PolicyTopology.NUMA: Cost.NUMA_NODES,
    PolicyTopology.NVSWITCH: Cost.NVSWITCH,
}
"""The cost that the strategies pack and prefer minimise, by topology."""

SPREADING_COSTS = {
    PolicyTopology.NVLINK: Cost.NVLINK_SPREAD,
    PolicyTopology.NUMA: Cost.NUMA_SPREAD,
    PolicyTopology.NVSWITCH: Cost.NVSWITCH_SPREAD,
}
"""The cost that the strategy spread minimises, by topology."""

PARTS: Mapping[PolicyTopology, Callable[[GpuTopology], tuple[int, ...]]] = {PolicyTopology.NUMA: numa_nodes}
"""The parts inside a node that policies count, as masks of GPUs. NVLink domains are not listed, because they
may span nodes.
"""

_TOPOLOGY_OF = {
    cost: topology
    for cost_by_topology in (PACKING_COSTS, SPREADING_COSTS)
    for topology, cost in cost_by_topology.items()
}

SHARING_COSTS = (Cost.SHARING, Cost.SHARED_GPUS)
"""The levels of gangs that share GPUs."""


@lru_cache(maxsize=256)
def costs_of(terms: tuple[PolicyTerm, ...], sliced: bool) -> tuple[Cost, ...]:
    """Return the levels between nodes and links, in their order. NVLink domains alone give (), because then
    the faster `gpusets` choose the GPUs.
    """
    costs_of_terms = [
        (SPREADING_COSTS if term.strategy == Strategy.SPREAD else PACKING_COSTS)[
            PolicyTopology(term.topology)
        ]
        for term in terms
    ]
    if not any(term.topology == PolicyTopology.NVLINK for term in terms):
        costs_of_terms.append(Cost.NVLINK_DOMAINS)
    costs = tuple(dict.fromkeys((*costs_of_terms, *(SHARING_COSTS if sliced else ()))))
    return () if costs == (Cost.NVLINK_DOMAINS,) else costs


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The properties of a node, and of the gang on it, that decide the costs of GPU choices."""

    costs: tuple[Cost, ...]
    """The levels before the links, in their order."""
    in_wide: bool = False
    """Whether all GPUs of the node lie in one NVLink domain over several nodes. Such a domain is counted with
    the racks and zones, so it costs nothing here.
    """
    rule: NodeRule | None = None
    """The rule that binds members on the node."""
    nvswitch: bool = False
    """Whether the node has an NVSwitch."""
    has_gang_gpus: bool = False
    """Whether running members have GPUs on the node. Then the level of NVSwitch costs nothing more."""

    @property
    def running_mask(self) -> int:
        """The mask of the GPUs of running members."""
        return self.rule.running_mask if self.rule else 0


@dataclass(frozen=True, slots=True, eq=False)
class GpuWays:
    """Ways to take GPUs: [way] bit masks of the GPUs for slices, and of the GPUs taken whole."""

    shared: Values
    whole_gpus: Values

    @property
    def all(self) -> Values:
        """[way] Masks of all GPUs taken."""
        return self.shared | self.whole_gpus


def parts_of(cost: Cost, topology: GpuTopology) -> tuple[int, ...]:
    """Return the parts inside a node that the level counts, as masks of GPUs; () if the level counts no
    parts.
    """
    parts = PARTS.get(_TOPOLOGY_OF[cost]) if cost in _TOPOLOGY_OF else None
    return parts(topology) if parts else ()


def cost_of(cost: Cost, node: NodeGpus, gpu_ways: GpuWays, context: NodeContext) -> Values:
    """Return [way] int64: the cost of each way."""
    masks, shape = gpu_ways.all, node.shape
    if cost in (Cost.SHARING, Cost.SHARED_GPUS):
        counted_gpus = node.free if cost is Cost.SHARING else ~context.running_mask
        gpus = gpu_counts(gpu_ways.shared & counted_gpus)
        return -gpus if shape.spreads_slices else gpus
    if cost in (Cost.NVSWITCH, Cost.NVSWITCH_SPREAD):
        counts = not context.has_gang_gpus and context.nvswitch is (cost is Cost.NVSWITCH_SPREAD)
        return np.asarray((masks != 0) & counts, np.int64)
    sign = -1 if cost in SPREADING_COSTS.values() else 1
    if parts := parts_of(cost, shape.topology):
        return sign * _count_parts(masks, parts, context.running_mask)
    counted_elsewhere = context.in_wide and cost is Cost.NVLINK_DOMAINS
    return sign * _count_parts(
        masks, () if counted_elsewhere else shape.domains, context.rule.running_domains if context.rule else 0
    )


def _count_parts(masks: Values, parts: tuple[int, ...], running_domains: int) -> Values:
    """Return [way] int64: how many parts the GPUs touch, without the parts that running members touch."""
    new_parts = np.zeros_like(masks)
    for part in parts:
        if not part & running_domains:
            new_parts += masks & part != 0
    return new_parts
