"""One stream through the planner: each gang is placed when it comes, or turned away; those placed leave."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

from benchmarks.clusters import ALLOCATABLE, GPU, Boards, topology
from benchmarks.streams.arrivals import Arrival, Gang, arrivals
from muster.domain.decision import Placed
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, Link, mask_of
from muster.placement.place import place

MEMORY_PER_GPU = 64 << 30


@dataclass(frozen=True, slots=True)
class Tree:
    """A cluster: zones of racks of nodes. `domain`: each rack is one NVLink domain of nodes of four GPUs."""

    zones: int
    racks: int
    nodes: int
    boards: Boards = Boards.NVSWITCH
    domain: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return 4 if self.domain else 8

    @property
    def capacity(self) -> int:
        """GPUs in all."""
        return self.zones * self.racks * self.nodes * self.gpus

    def snapshot(self) -> Snapshot:
        """Return it with nothing running."""
        made = [
            self._node(zone, rack, node)
            for zone in range(self.zones)
            for rack in range(self.racks)
            for node in range(self.nodes)
        ]
        return Snapshot.of(made, ())

    def _node(self, zone: int, rack: int, node: int) -> Node:
        where = f"{zone}-{rack}"
        labels = {"topology.kubernetes.io/rack": where}
        if self.zones > 1:
            labels["topology.kubernetes.io/zone"] = str(zone)
        if self.domain:
            labels["gpu.topology/nvlink-domain"] = where
        gpus = _four() if self.domain else topology(self.boards)
        return Node(f"n-{where}-{node}", ALLOCATABLE, gpus, frozenset({GPU}), labels)


@cache
def _four() -> GpuTopology:
    return GpuTopology.of_islands(4, 4, Link.of_kind("NV18"), Link.of_kind("SYS"))


@dataclass(frozen=True, slots=True)
class Task:
    """One stream to run."""

    mix: str
    load: float
    tree: Tree
    gangs: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`turned_away` of the gangs; of these `large` want more than one node. `work`: GPU time placed, as a
    share of that asked for; `nodes` of all placed gangs together; `unproven` plans."""

    turned_away: int
    large: int
    work: float
    nodes: int
    unproven: int


def run(task: Task) -> Outcome:
    """Run it. Arrivals in the first tenth fill the cluster and do not count."""
    coming = arrivals(task.mix, task.load, task.tree.capacity, task.gangs, task.seed)
    cluster = _Cluster(task.tree.snapshot())
    turned_away = large = nodes = unproven = 0
    done = asked = 0.0
    for i, arrival in enumerate(coming):
        placed = cluster.place(i, arrival)
        if i < task.gangs // 10:
            continue
        gang = arrival.gang
        work = gang.size * gang.stay
        asked += work
        if placed is None:
            turned_away += 1
            large += gang.size > task.tree.gpus
        else:
            done += work
            nodes += len({member.node for member in placed.members})
            unproven += not placed.optimal
    return Outcome(turned_away, large, done / asked, nodes, unproven)


class _Cluster:
    """What runs now."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._running: dict[str, list[Usage]] = {name: [] for name in snapshot.nodes}
        self._leaving: list[tuple[float, int, list[Usage]]] = []

    def place(self, number: int, arrival: Arrival) -> Placed | None:
        """Return the plan of a gang that comes now; None for one that is turned away."""
        self._until(arrival.at)
        gang = arrival.gang
        placed = place(self._snapshot, _request(number, gang))
        if not isinstance(placed, Placed):
            return None
        asked = _resources(gang)
        usages = [Usage(m.uid, m.node, asked, mask_of(m.gpus)) for m in placed.members]
        for usage in usages:
            self._running[usage.node].append(usage)
        self._refresh({usage.node for usage in usages})
        heapq.heappush(self._leaving, (arrival.at + gang.stay, number, usages))
        return placed

    def _until(self, now: float) -> None:
        changed = set()
        while self._leaving and self._leaving[0][0] <= now:
            for usage in heapq.heappop(self._leaving)[2]:
                self._running[usage.node].remove(usage)
                changed.add(usage.node)
        if changed:
            self._refresh(changed)

    def _refresh(self, changed: set[str]) -> None:
        nodes = dict(self._snapshot.nodes)
        for name in changed:
            nodes[name] = NodeState.of(nodes[name].node, self._running[name])
        self._snapshot = Snapshot(nodes, self._snapshot.levels)


def _resources(gang: Gang) -> Resources:
    return Resources(gang.cpu_milli, gang.gpus * MEMORY_PER_GPU, 1)


def _request(number: int, gang: Gang) -> Request:
    members = tuple(Member(f"{number}-{i}", f"{number}-{i}", i) for i in range(gang.members))
    role = Role("worker", members, _resources(gang), gang.gpus, GPU)
    return Request(GangId("streams", "", str(number)), (role,), gang.members, gang.scope)
