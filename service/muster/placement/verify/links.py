"""Count level 3 again: the best rings over the gang's GPUs on each node, and their distance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, permutations

from muster.domain.decision import Placed
from muster.domain.topology import GpuTopology
from muster.placement.verify.parts import Spot

MAX_RING_BY_FORCE = 8
"""The most GPUs of a ring that is counted again by trying 7! orders; with equal links, any number is."""

MAX_PLANNED_GPUS = 16
"""On nodes with more GPUs than this, the planner claims no links."""

_MB_PER_GB = 1000
"""Links count in whole MB/s, as in the objective."""


def links(plan: Placed, spots: Sequence[Spot]) -> list[str]:
    """Return what is wrong with the claimed links over the gang's GPUs on the nodes that the plan touches."""
    wrong = []
    unknown = {
        spot.state.node.name
        for spot in spots
        if spot.gpus.bit_count() > 1 and not any(map(any, spot.state.node.topology.links))
    }
    new = {member.node for member in plan.members if member.gpus}
    states = [spot.state for spot in spots]
    if sorted(unknown & new) != list(plan.unknown_links):
        wrong.append(f"links are unknown on {sorted(unknown & new)}, not on {list(plan.unknown_links)}")
    unsure = sorted(state.node.name for state in states if state.unindexed_gpus and state.node.name in new)
    if unsure != list(plan.unknown_indices):
        wrong.append(f"taken GPUs are unknown on {unsure}, not on {list(plan.unknown_indices)}")
    rings = [_ring(spot) for spot in spots if spot.gpus.bit_count() > 1]
    if None in rings:
        return wrong
    weakest = min((ring[0] for ring in rings if ring), default=0) / _MB_PER_GB or None
    total = sum(ring[1] for ring in rings if ring) / _MB_PER_GB
    claimed = plan.objective
    if weakest != claimed.weakest_link_gb_per_s:
        wrong.append(f"the weakest link is {weakest}, not {claimed.weakest_link_gb_per_s} GB/s")
    if total != claimed.ring_gb_per_s:
        wrong.append(f"the rings sum up to {total}, not {claimed.ring_gb_per_s} GB/s")
    return wrong


def _ring(spot: Spot) -> tuple[int, int] | None:
    """Return the weakest link and the sum of the best ring over the GPUs of the spot in MB/s.

    None means that they are not counted again.
    """
    topology = spot.state.node.topology
    if spot.state.unindexed_gpus or topology.gpu_count > MAX_PLANNED_GPUS:
        return 0, 0
    return _best_ring(topology, spot.gpus)


@lru_cache(maxsize=4096)
def _best_ring(topology: GpuTopology, mask: int) -> tuple[int, int] | None:
    """Return the same by trying every ring; None if there are too many."""
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
"""The links between PCIe switches, between groups of them, between host bridges, between NUMA nodes."""

_NUMA_NODE = 64
"""The cost of a further NUMA node. Any other further part costs 1."""


def sockets(plan: Placed, spots: Sequence[Spot]) -> list[str]:
    """Return whether the claimed distance is wrong. Existing members on the nodes of the plan count too."""
    total = sum(_distance(spot) for spot in spots)
    claimed = plan.objective.socket_distance
    return [f"the socket distance is {total}, not {claimed}"] if total != claimed else []


def _distance(spot: Spot) -> int:
    topology = spot.state.node.topology
    unknown = spot.state.unindexed_gpus or topology.gpu_count > MAX_PLANNED_GPUS
    return 0 if unknown else _apart(topology, spot.gpus)


@lru_cache(maxsize=4096)
def _apart(topology: GpuTopology, mask: int) -> int:
    """Return the costs of all further parts that the GPUs of the mask touch."""
    gpu_homes = [home for gpu, home in enumerate(homes(topology)) if mask >> gpu & 1]
    further = [len({home[: depth + 1] for home in gpu_homes}) - 1 for depth in range(len(_NEAR_TO_FAR))]
    return _NUMA_NODE * further[0] + sum(further[1:]) if gpu_homes else 0


@lru_cache(maxsize=256)
def homes(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return by GPU the number of its NUMA node, of its host bridge there, and so on down to its switch."""
    so_far: list[tuple[int, ...]] = []
    for gpu in range(topology.gpu_count):
        home: tuple[int, ...] = ()
        for nearest in range(len(_NEAR_TO_FAR) - 1, -1, -1):
            across = _NEAR_TO_FAR[nearest:]
            number = 0
            while any(
                _kind(topology, gpu, earlier) in across
                for earlier in range(gpu)
                if so_far[earlier][: len(home) + 1] == (*home, number)
            ):
                number += 1
            home = (*home, number)
        so_far.append(home)
    return tuple(so_far)


def _kind(topology: GpuTopology, a: int, b: int) -> str:
    link = topology.links[a][b]
    return link.kind if link else ""
