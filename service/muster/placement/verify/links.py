"""Count the best rings over the gang's GPUs on each node again, their distance, and the rails of all GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise, permutations

from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.topology import GpuTopology
from muster.placement.verify.parts import NodeKind, Spot, Spots

MAX_RING_BY_FORCE = 8
"""The most GPUs with unequal links whose best ring is counted again: 7! orders are tried."""

MAX_PLANNED_GPUS = 16
"""On nodes with more GPUs than this, the planner claims no links."""

_MB_PER_GB = 1000
"""Links count in whole MB/s, as in the objective."""


def check_links(plan: Placed, kinds: Mapping[NodeKind, int], everyone: Spots) -> list[str]:
    """Return the errors in the claimed links over the gang's GPUs on the nodes that the plan touches."""
    wrong = []
    unlinked = {kind.topology for kind in kinds if not any(map(any, kind.topology.links))}
    in_doubt = unlinked or any(kind.unindexed_gpus for kind in kinds)
    new = sorted({member.node for member in plan.members if in_doubt and member.gpus})
    several = [name for name in new if everyone[name].gpus.bit_count() > 1]
    unknown = [name for name in several if everyone[name].state.node.topology in unlinked]
    if unknown != list(plan.unknown_links):
        wrong.append(f"links are unknown on {unknown}, not on {list(plan.unknown_links)}")
    unsure = [name for name in new if everyone[name].state.unindexed_gpus]
    if unsure != list(plan.unknown_indices):
        wrong.append(f"taken GPUs are unknown on {unsure}, not on {list(plan.unknown_indices)}")
    rings = [
        (_best_ring(kind.topology, kind.gpus) if _is_planned(kind) else (0, 0), nodes)
        for kind, nodes in kinds.items()
        if kind.gpus.bit_count() > 1
    ]
    if any(ring is None for ring, _ in rings):
        return wrong
    weakest = min((ring[0] for ring, _ in rings if ring), default=0) / _MB_PER_GB or None
    total = sum(nodes * ring[1] for ring, nodes in rings if ring) / _MB_PER_GB
    claimed = plan.objective
    if weakest != claimed.weakest_link_gb_per_s:
        wrong.append(f"the weakest link is {weakest}, not {claimed.weakest_link_gb_per_s} GB/s")
    if total != claimed.ring_gb_per_s:
        wrong.append(f"the rings sum up to {total}, not {claimed.ring_gb_per_s} GB/s")
    return wrong


def _is_planned(kind: NodeKind) -> bool:
    """Return whether the planner claims links on such nodes."""
    return not kind.unindexed_gpus and kind.topology.gpu_count <= MAX_PLANNED_GPUS


@lru_cache(maxsize=4096)
def _best_ring(topology: GpuTopology, mask: int) -> tuple[int, int] | None:
    """Return the weakest link and the sum of the best ring, in MB/s; None if rings are too many to try."""
    gpus = [gpu for gpu in range(topology.gpu_count) if mask >> gpu & 1]
    speed = {
        (i, j): round(link.gb_per_s * _MB_PER_GB) if (link := topology.links[i][j]) else 0
        for i, j in permutations(gpus, 2)
    }
    values = set(speed.values())
    if len(values) == 1:
        value = values.pop()
        return value, value * len(gpus)
    if len(gpus) > MAX_RING_BY_FORCE:
        return None
    first, *later_gpus = gpus
    best_ring = (-1, -1)
    for order in permutations(later_gpus):
        if order[0] > order[-1]:
            continue  # the same ring in the other direction
        links = [speed[a, b] for a, b in pairwise((first, *order, first))]
        best_ring = max(best_ring, (min(links), sum(links)))
    return best_ring


_NEAR_TO_FAR = ("PXB", "PHB", "NODE", "SYS")
"""Links between PCIe switches, between groups of switches, between host bridges, between NUMA nodes."""

_NUMA_NODE = 64
"""The cost of a further NUMA node. Any other further part costs 1."""


def check_sockets(plan: Placed, kinds: Mapping[NodeKind, int]) -> list[str]:
    """Return a sentence if the claimed distance is wrong. Running members on the plan's nodes count too."""
    planned = ((kind, nodes) for kind, nodes in kinds.items() if _is_planned(kind))
    total = sum(nodes * _cost_of_parts(kind.topology, kind.gpus) for kind, nodes in planned)
    claimed = plan.objective.socket_distance
    return [f"the socket distance is {total}, not {claimed}"] if total != claimed else []


def check_rails(request: Request, plan: Placed, spots: Iterable[Spot]) -> list[str]:
    """Return a sentence if the claimed number of rails is wrong. `spots` are those of the gang by node."""
    gpus = [(spot.state.node.rail_by_gpu, spot.gpus) for spot in spots if spot.gpus]
    rails_touched = {rail for rails, mask in set(gpus) for gpu, rail in enumerate(rails) if mask >> gpu & 1}
    shares_gpus = any(role.slice for role in request.roles if role.members)
    number = len(rails_touched) if rails_touched and len(gpus) > 1 and not shares_gpus else None
    claimed = plan.objective.rails
    return [f"the GPUs lie on {number} rails, not {claimed}"] if number != claimed else []


@lru_cache(maxsize=4096)
def _cost_of_parts(topology: GpuTopology, mask: int) -> int:
    """Return the cost of all further parts that the GPUs of the mask touch, at all borders."""
    gpu_homes = [home for gpu, home in enumerate(homes_of_gpus(topology)) if mask >> gpu & 1]
    further_parts = [len({home[: depth + 1] for home in gpu_homes}) - 1 for depth in range(len(_NEAR_TO_FAR))]
    return _NUMA_NODE * further_parts[0] + sum(further_parts[1:]) if gpu_homes else 0


@lru_cache(maxsize=256)
def homes_of_gpus(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return by GPU the numbers of its NUMA node, of its host bridge there, and so on down to its switch."""
    home_by_gpu: list[tuple[int, ...]] = []
    for gpu in range(topology.gpu_count):
        home: tuple[int, ...] = ()
        for nearest in range(len(_NEAR_TO_FAR) - 1, -1, -1):
            link_kinds = _NEAR_TO_FAR[nearest:]
            number = 0
            while any(
                _link_kind(topology, gpu, earlier) in link_kinds
                for earlier in range(gpu)
                if home_by_gpu[earlier][: len(home) + 1] == (*home, number)
            ):
                number += 1
            home = (*home, number)
        home_by_gpu.append(home)
    return tuple(home_by_gpu)


def _link_kind(topology: GpuTopology, a: int, b: int) -> str:
    link = topology.links[a][b]
    return link.kind if link else ""
