"""The links of a node's GPUs as its API object publishes them, and the best sets of GPUs by trying all.

Written on its own, with the bandwidths that docs/objective.md gives: the demo must not judge the planner by
the planner's own code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

from local_cluster.api import Object

NVLINK_GB_PER_S = 25.0
PCIE_GB_PER_S = {"PSB": 15.0, "PIX": 14.0, "PXB": 13.0, "PHB": 12.0, "NODE": 11.0, "SYS": 10.0}
LINKS_BEHIND_A_SWITCH = {"2": 6, "3": 12, "4": 18, "5": 18}
"""NVLink generation (`nvidia.com/nvlink.version`) → NVLinks of a GPU on an NVSwitch board."""

_KEY = re.compile(r"GPU_([A-Z]+\d*)_(\d+)_(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Ring:
    """The best ring over a set of GPUs: its weakest link, GB/s (modelled), then the sum of its links."""

    weakest_gb_per_s: float
    sum_gb_per_s: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """`kinds[{i, j}]` is the link between two GPUs, as `nvidia-smi topo -m` abbreviates it."""

    gpu_count: int
    kinds: Mapping[frozenset[int], str]

    def kind(self, a: int, b: int) -> str:
        """Return the kind of link between two GPUs."""
        return self.kinds[frozenset((a, b))]

    def gb_per_s(self, a: int, b: int) -> float:
        """Return the bandwidth of the link between two GPUs, GB/s."""
        return bandwidth_of(self.kind(a, b))

    def ring(self, gpus: Collection[int]) -> Ring | None:
        """The best ring over these GPUs, by trying all; None for fewer than two. Two GPUs: their link."""
        first, *later_gpus = sorted(gpus)
        if not later_gpus:
            return None
        rings = []
        for order in permutations(later_gpus):
            closed = [first, *order] if len(later_gpus) == 1 else [first, *order, first]
            links = [self.gb_per_s(a, b) for a, b in pairwise(closed)]
            rings.append(Ring(min(links), sum(links)))
        return max(rings)

    def weakest_kind(self, gpus: Collection[int]) -> str | None:
        """The kind of the weakest link on the best ring."""
        ring = self.ring(gpus)
        if ring is None:
            return None
        kinds = (self.kind(a, b) for a, b in combinations(sorted(gpus), 2))
        return next(kind for kind in kinds if bandwidth_of(kind) == ring.weakest_gb_per_s)

    def best_sets(self, free: Collection[int], size: int) -> list[tuple[int, ...]]:
        """Return all sets of `size` free GPUs whose weakest link is the widest possible."""
        rings = {gpus: ring for gpus in combinations(sorted(free), size) if (ring := self.ring(gpus))}
        fastest = max((ring.weakest_gb_per_s for ring in rings.values()), default=0.0)
        return [gpus for gpus, ring in rings.items() if ring.weakest_gb_per_s == fastest]


def bandwidth_of(kind: str) -> float:
    """Modelled GB/s, one direction."""
    return PCIE_GB_PER_S[kind] if kind in PCIE_GB_PER_S else NVLINK_GB_PER_S * int(kind.removeprefix("NV"))


def matrix_of(node: Object) -> Matrix:
    """The matrix of a Node: from its GPU_TOPOLOGY annotation, else from the labels of an NVSwitch board."""
    text = (node["metadata"].get("annotations") or {}).get("GPU_TOPOLOGY")
    kinds = dict(_annotated(text) if text else _switched(node["metadata"].get("labels") or {}))
    return Matrix(1 + max((gpu for pair in kinds for gpu in pair), default=-1), kinds)


def _annotated(text: str) -> Iterator[tuple[frozenset[int], str]]:
    for key in json.loads(text):
        if match := _KEY.fullmatch(key):
            yield frozenset((int(match[2]), int(match[3]))), match[1]


def _switched(labels: Mapping[str, str]) -> Iterator[tuple[frozenset[int], str]]:
    if labels.get("nvidia.com/nvswitch.present") != "true":
        return
    kind = f"NV{LINKS_BEHIND_A_SWITCH[labels['nvidia.com/nvlink.version']]}"
    for pair in combinations(range(int(labels["nvidia.com/gpu.count"])), 2):
        yield frozenset(pair), kind
