"""Check level 3c again: how far apart the gang's GPUs hang below the CPU sockets of each node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from muster.domain.decision import Placed
from muster.domain.topology import GpuTopology
from muster.placement.verify.links import MAX_PLANNED_GPUS
from muster.placement.verify.spots import Spot

_NEAR_TO_FAR = ("PXB", "PHB", "NODE", "SYS")
"""The links between PCIe switches, between groups of them, between host bridges, between NUMA nodes."""

_NUMA_NODE = 64
"""The cost of a further NUMA node. Any other further part costs 1."""


def sockets(placed: Placed, spots: Sequence[Spot]) -> list[str]:
    """Return whether the claimed distance is wrong. Existing members on the nodes of the plan count too."""
    total = sum(_distance(spot) for spot in spots)
    claimed = placed.objective.socket_distance
    return [f"the socket distance is {total}, not {claimed}"] if total != claimed else []


def _distance(spot: Spot) -> int:
    topology = spot.state.node.topology
    unknown = spot.state.unindexed_gpus or topology.gpu_count > MAX_PLANNED_GPUS
    return 0 if unknown else _apart(topology, spot.gpus)


@lru_cache(maxsize=4096)
def _apart(topology: GpuTopology, mask: int) -> int:
    """Return the costs of all further parts that the GPUs of the mask touch."""
    homes = _homes(topology)
    mine = [homes[gpu] for gpu in range(topology.gpu_count) if mask >> gpu & 1]
    further = [len({home[: depth + 1] for home in mine}) - 1 for depth in range(len(_NEAR_TO_FAR))]
    return _NUMA_NODE * further[0] + sum(further[1:]) if mine else 0


@lru_cache(maxsize=256)
def _homes(topology: GpuTopology) -> tuple[tuple[int, ...], ...]:
    """Return by GPU the number of its NUMA node, of its host bridge there, and so on down to its switch."""
    homes: list[tuple[int, ...]] = []
    for gpu in range(topology.gpu_count):
        home: tuple[int, ...] = ()
        for nearest in range(len(_NEAR_TO_FAR) - 1, -1, -1):
            across = _NEAR_TO_FAR[nearest:]
            number = 0
            while any(
                _kind(topology, gpu, other) in across
                for other in range(gpu)
                if homes[other][: len(home) + 1] == (*home, number)
            ):
                number += 1
            home = (*home, number)
        homes.append(home)
    return tuple(homes)


def _kind(topology: GpuTopology, a: int, b: int) -> str:
    link = topology.links[a][b]
    return link.kind if link else ""
