"""Clusters to measure on: seeded, loaded in one of two ways, and changed a few nodes at a time as in life.

A node has 8 GPUs, 128 cores and 2 TiB (a DGX H100 has 112 cores and 2 TB:
https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html). 16 nodes share a rack.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain

from muster.domain.node import Node, Resources, Usage
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, Link

GPU = "nvidia.com/gpu"
GPUS = 8
NODES_PER_RACK = 16
ALLOCATABLE = Resources(cpu_milli=128_000, memory_bytes=2 << 40, pods=110)
CPU_PER_GPU = 10_000
MEMORY_PER_GPU = 128 << 30
"""What a running pod takes for each of its GPUs, on average; half to one and a half times of it."""
POD_GPUS = (1, 2, 4, 8)
FREE_DEVIATION = 2.5
"""GPUs by which the free counts of nodes scatter around their mean, where the load is scattered."""
TRIES = 40
"""Random nodes that a pod tries before the cluster counts as full for its size."""


class Fill(StrEnum):
    """How the load comes about."""

    SCATTERED = "scattered"
    """A normally distributed free count a node, cut to what there can be; which GPUs is random. As in the
    prototypes: the cut leaves more free than `load` says, 16 % at 95 %."""
    PODS = "pods"
    """Pods of 1, 2, 4 and 8 GPUs on random nodes that have room, until the load is met."""


class Boards(StrEnum):
    """What joins the GPUs of a node."""

    NVSWITCH = "nvswitch"
    """All to all, NV12, as HGX A100."""
    CUBE = "cube"
    """The hybrid cube mesh of eight V100s (DGX-1)."""
    ISLANDS = "islands"
    """Two islands of four."""
    MIXED = "mixed"
    """Each rack has one of the three."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What cluster to build. `load` is the share of GPUs taken; `racks_per_zone` 0 stands for no zones."""

    nodes: int
    load: float
    fill: Fill = Fill.SCATTERED
    boards: Boards = Boards.NVSWITCH
    racks_per_zone: int = 0


class Cluster:
    """A cluster in life: `snapshot` is how it is now. Equal shapes and seeds give equal clusters."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._rng = random.Random(f"{shape} {seed}")
        self._pods = 0
        self._nodes = [_node(shape, i, seed) for i in range(shape.nodes)]
        self._usages: list[list[Usage]] = [[] for _ in self._nodes]
        if shape.fill is Fill.SCATTERED:
            self._scatter(shape.load)
        else:
            self._fill(shape.load)
        self.snapshot = Snapshot(
            {
                node.name: NodeState.of(node, usages)
                for node, usages in zip(self._nodes, self._usages, strict=True)
            }
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, without what is taken of them."""
        return tuple(self._nodes)

    @property
    def usages(self) -> tuple[Usage, ...]:
        """What all running pods take."""
        return tuple(usage for usages in self._usages for usage in usages)

    @property
    def load(self) -> float:
        """The share of GPUs that is taken now."""
        free = sum(state.free_gpu_count for state in self.snapshot.nodes.values())
        return 1 - free / (GPUS * len(self._nodes))

    def churn(self, moves: int) -> Snapshot:
        """Let `moves` pods end, each replaced by one of the same size on a random node that has room: two
        nodes change for each, and the load stays."""
        nodes = dict(self.snapshot.nodes)
        for _ in range(moves):
            source = next((i for i in self._some_nodes() if self._usages[i]), None)
            if source is None:
                continue
            ended = self._usages[source].pop(self._rng.randrange(len(self._usages[source])))
            self._refresh(nodes, source)
            for target in chain(self._some_nodes(), (source,)):
                free = nodes[self._nodes[target].name].free_gpus
                if free.bit_count() >= ended.gpus.bit_count():
                    self._start(target, free, ended.gpus.bit_count())
                    self._refresh(nodes, target)
                    break
        self.snapshot = Snapshot(nodes, self.snapshot.levels)
        return self.snapshot

    def _refresh(self, nodes: dict[str, NodeState], index: int) -> None:
        node = self._nodes[index]
        nodes[node.name] = NodeState.of(node, self._usages[index])

    def _scatter(self, load: float) -> None:
        for index in range(len(self._nodes)):
            mean = GPUS * (1 - load)
            free = round(self._rng.gauss(mean, FREE_DEVIATION)) if load else GPUS
            free_mask, gpus_taken = (1 << GPUS) - 1, GPUS - max(0, min(GPUS, free))
            while gpus_taken:
                size = self._rng.choice([size for size in POD_GPUS if size <= gpus_taken])
                free_mask = self._start(index, free_mask, size)
                gpus_taken -= size

    def _fill(self, load: float) -> None:
        free = [(1 << GPUS) - 1] * len(self._nodes)
        gpus_left = round(load * GPUS * len(self._nodes))
        sizes = list(POD_GPUS)
        while gpus_left > 0 and sizes:
            size = self._rng.choice(sizes)
            for index in self._some_nodes():
                if free[index].bit_count() >= size:
                    free[index] = self._start(index, free[index], size)
                    gpus_left -= size
                    break
            else:
                sizes.remove(size)

    def _some_nodes(self) -> Iterator[int]:
        return (self._rng.randrange(len(self._nodes)) for _ in range(TRIES))

    def _start(self, index: int, free: int, size: int) -> int:
        """Put a pod on random free GPUs of the node; the mask of those still free."""
        choices = [gpu for gpu in range(GPUS) if free >> gpu & 1]
        mask = sum(1 << gpu for gpu in self._rng.sample(choices, size))
        share = 0.5 + self._rng.random()
        resources = Resources(round(share * CPU_PER_GPU) * size, round(share * MEMORY_PER_GPU) * size, 1)
        self._pods += 1
        self._usages[index].append(Usage(f"pod-{self._pods}", self._nodes[index].name, resources, gpus=mask))
        return free & ~mask


def _node(shape: Shape, index: int, seed: int) -> Node:
    rack = index // NODES_PER_RACK
    name = f"node-{index:05}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/rack": f"rack-{rack:04}"}
    if shape.racks_per_zone:
        labels["topology.kubernetes.io/zone"] = f"zone-{rack // shape.racks_per_zone:02}"
    boards = shape.boards
    if boards is Boards.MIXED:
        kinds = (Boards.NVSWITCH, Boards.CUBE, Boards.ISLANDS)
        boards = random.Random(f"{seed} {rack}").choice(kinds)
    return Node(name, ALLOCATABLE, topology(boards), frozenset({GPU}), labels)


@cache
def topology(boards: Boards) -> GpuTopology:
    """The links of a node, one object for all nodes that have them."""
    between = Link.of_kind("SYS")
    if boards is Boards.CUBE:
        return _cube()
    if boards is Boards.ISLANDS:
        return GpuTopology.of_islands(GPUS, 4, Link.of_kind("NV12"), between)
    return GpuTopology.of_islands(GPUS, GPUS, Link.of_kind("NV12"), between)


def _cube() -> GpuTopology:
    """As `nvidia-smi topo -m` prints it: local_cluster/topologies/v100-8x-hybrid-cube-mesh.txt."""
    rows = (
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    )
    return GpuTopology(tuple(_links(row.split()) for row in rows))


def _links(kinds: Sequence[str]) -> tuple[Link | None, ...]:
    return tuple(None if kind == "X" else Link.of_kind(kind) for kind in kinds)
