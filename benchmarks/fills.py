"""Nodes filled to the last GPU, pod by pod: our choice of GPUs and go-gpuallocator's, for the same pods."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.peers.gpuallocator import BestEffort, scores_of
from local_cluster.topology import parse_topology
from muster.domain.node import Node, Resources
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology, Link
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.cluster.topology import place_of
from muster.placement.gpus.gpusets import best_sets, every_free_mask, sets_of, sets_within
from muster.placement.gpus.links import MB_PER_GB, rings

TOPOLOGIES = Path(__file__).parents[1] / "local_cluster" / "topologies"
POD_GPUS = (1, 2, 4, 8)

WITHOUT_PEER: Mapping[str, str] = MappingProxyType(
    {
        "dgx2-16x-v100-nvswitch": "16 GPUs: the original takes 16 s for one choice, and all links are equal",
        "mi300-class-8x-xgmi": "no NVIDIA GPUs: the policy has no score for xGMI",
    }
)
"""Why the peer is not asked on these topologies."""

Choose = Callable[[int, int], int]
"""(free GPUs, how many) → the GPUs to take; masks."""


def run(trials: int, seed: int) -> dict[str, Any]:
    """For each topology: in how many trials the sum over all pods of the best ring over their GPUs is larger
    with ours (`wins`), equal (`ties`) or smaller (`losses`), and both mean sums, GB/s.

    A pod takes 1, 2, 4 or 8 GPUs at random, or what is still free. Rings are those of the largest sum, which
    neither side goes by: ours by the weakest link first, theirs by all pairs. So the mean over pods of two
    GPUs and more of the weakest link (on the ring where it is fastest) is reported as well.
    """
    results: dict[str, Any] = {"trials": trials, "seed": seed, "topologies": {}}
    for path in sorted(TOPOLOGIES.glob("*.txt")):
        topology = topology_of(path.stem)
        peer = None if path.stem in WITHOUT_PEER else BestEffort(scores_of(topology)).allocate
        results["topologies"][path.stem] = _compared(
            topology, peer, trials, random.Random(f"{path.stem} {seed}")
        )
        if path.stem in WITHOUT_PEER:
            results["topologies"][path.stem]["without_peer"] = WITHOUT_PEER[path.stem]
    return results


def slowest_choice_ms(trials: int, seed: int) -> dict[str, float]:
    """The longest time that the choice for one pod took, ms of wall clock, nothing remembered, by links."""
    nodes = {
        "dgx2-16x-v100-nvswitch": topology_of("dgx2-16x-v100-nvswitch"),
        "two islands of eight": _islands(8),
        "eight bridged pairs": _islands(2),
        "v100-8x-hybrid-cube-mesh": topology_of("v100-8x-hybrid-cube-mesh"),
    }
    slowest = {}
    for name, topology in nodes.items():
        draw, shape, times = random.Random(seed), shape_of(topology), []
        for _ in range(trials):
            for cached in (rings, every_free_mask, sets_of, sets_within, best_sets):
                cached.cache_clear()
            free = draw.getrandbits(topology.gpu_count) | 1
            size = draw.randint(1, free.bit_count())
            start = time.perf_counter()
            best_sets(shape, free, size)
            times.append(1000 * (time.perf_counter() - start))
        slowest[name] = round(max(times), 2)
    return slowest


@cache
def topology_of(name: str) -> GpuTopology:
    """The links of a file of local_cluster/topologies."""
    links = parse_topology(name, (TOPOLOGIES / f"{name}.txt").read_text()).links
    return GpuTopology(
        tuple(tuple(None if kind == "X" else Link.of_kind(kind) for kind in row) for row in links)
    )


def shape_of(topology: GpuTopology) -> Shape:
    """A node with these links and no labels, as the planner sees it."""
    return place_of(NodeState.of(Node("node", Resources(), topology), ())).shape


def pods(gpus: int, draw: random.Random) -> list[int]:
    """Return sizes of pods that fill `gpus` GPUs, in order of arrival."""
    sizes: list[int] = []
    while free := gpus - sum(sizes):
        sizes.append(min(draw.choice(POD_GPUS), free))
    return sizes


def fill(gpus: int, sizes: list[int], choose: Choose) -> list[int]:
    """The GPUs that each pod gets, one after another."""
    free, masks = (1 << gpus) - 1, []
    for size in sizes:
        masks.append(choose(free, size))
        free &= ~masks[-1]
    return masks


def _compared(
    topology: GpuTopology, peer: Choose | None, trials: int, draw: random.Random
) -> dict[str, float]:
    shape = shape_of(topology)
    fills = [pods(topology.gpu_count, draw) for _ in range(trials)]
    ours = [
        _worth(topology, sizes, lambda free, size: best_sets(shape, free, size)[0].mask) for sizes in fills
    ]
    result = _means("ours", ours)
    if peer is not None:
        theirs = [_worth(topology, sizes, peer) for sizes in fills]
        result |= _means("theirs", theirs)
        pairs = [(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=True)]
        result["wins"] = sum(a > b for a, b in pairs)
        result["ties"] = sum(a == b for a, b in pairs)
        result["losses"] = sum(a < b for a, b in pairs)
    return result


def _worth(topology: GpuTopology, sizes: list[int], choose: Choose) -> tuple[int, list[int]]:
    """The sum of the pods' rings, and the weakest link of each pod of two GPUs and more; MB/s."""
    masks = fill(topology.gpu_count, sizes, choose)
    total, weakest = rings(topology, weakest_first=False).total, rings(topology).weakest
    return (
        sum(int(total[gpus]) for gpus in masks),
        [int(weakest[gpus]) for gpus in masks if gpus.bit_count() > 1],
    )


def _means(whose: str, worths: list[tuple[int, list[int]]]) -> dict[str, float]:
    weakest = [link for _, links in worths for link in links]
    return {
        f"{whose}_mean_ring_gb_per_s": round(sum(total for total, _ in worths) / len(worths) / MB_PER_GB, 2),
        f"{whose}_mean_weakest_gb_per_s": round(sum(weakest) / max(1, len(weakest)) / MB_PER_GB, 2),
    }


def _islands(size: int) -> GpuTopology:
    return GpuTopology.of_islands(MAX_RING_GPUS, size, Link.of_kind("NV12"), Link.of_kind("SYS"))
