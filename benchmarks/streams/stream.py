"""One stream through the planner: each gang is placed when it comes, or turned away; those placed leave."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

from benchmarks.clusters import ALLOCATABLE, GPU, Boards, topology
from benchmarks.streams.arrivals import Arrival, Gang, arrivals
from muster.domain.decision import Placed
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import GangId, Member, NodeRules, Request, Role, SelectorTerm
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import GpuTopology, Link, mask_of
from muster.placement.place import place

OWN = "without-gpus"
"""A label that only nodes without GPUs have."""
APART = NodeRules((SelectorTerm(OWN, "In", ("true",)),))
MEMORY_PER_GPU = 64 << 30


@dataclass(frozen=True, slots=True)
class Tree:
    """A cluster: zones of racks of nodes. `domain`: each rack is one NVLink domain of nodes of four GPUs."""

    zones: int
    racks: int
    nodes: int
    boards: Boards = Boards.NVSWITCH
    domain: bool = False
    without_gpus: int = 0
    """Further nodes without GPUs, in racks of their own."""

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
        nodes = [
            self._node(zone, rack, node)
            for zone in range(self.zones)
            for rack in range(self.racks)
            for node in range(self.nodes)
        ]
        nodes += [self._without_gpus(node) for node in range(self.without_gpus)]
        return Snapshot.of(nodes, ())

    def _without_gpus(self, node: int) -> Node:
        labels = {"topology.kubernetes.io/rack": f"cpu-{node // self.nodes}", OWN: "true"}
        return Node(f"cpu-{node}", ALLOCATABLE, GpuTopology.unknown(0), frozenset(), labels)

    def _node(self, zone: int, rack: int, node: int) -> Node:
        rack_name = f"{zone}-{rack}"
        labels = {"topology.kubernetes.io/rack": rack_name}
        if self.zones > 1:
            labels["topology.kubernetes.io/zone"] = str(zone)
        if self.domain:
            labels["gpu.topology/nvlink-domain"] = rack_name
        gpus = _four() if self.domain else topology(self.boards)
        return Node(f"n-{rack_name}-{node}", ALLOCATABLE, gpus, frozenset({GPU}), labels)


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
    apart: bool = False
    """Whether members without GPUs ask for nodes without GPUs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`turned_away` of the gangs; of these `large` want more than one node, `without_gpus` no GPU. `work`:
    GPU time placed, as a share of that asked for; `nodes` of all placed gangs together; `unproven` plans."""

    turned_away: int
    large: int
    without_gpus: int
    work: float
    nodes: int
    unproven: int


def run(task: Task) -> Outcome:
    """Run it. Arrivals in the first tenth fill the cluster and do not count."""
    coming = arrivals(task.mix, task.load, task.tree.capacity, task.gangs, task.seed)
    cluster = _Cluster(task.tree.snapshot(), task.apart)
    turned_away = large = without_gpus = nodes = unproven = 0
    done = work_asked = 0.0
    for i, arrival in enumerate(coming):
        plan = cluster.place(i, arrival)
        if i < task.gangs // 10:
            continue
        gang = arrival.gang
        work = gang.size * gang.stay
        work_asked += work
        if plan is None:
            turned_away += 1
            large += gang.size > task.tree.gpus
            without_gpus += not gang.size
        else:
            done += work
            nodes += len({member.node for member in plan.members if member.gpus})
            unproven += not plan.optimal
    return Outcome(turned_away, large, without_gpus, done / work_asked, nodes, unproven)


class _Cluster:
    """What runs now."""

    def __init__(self, snapshot: Snapshot, apart: bool) -> None:
        self._snapshot, self._apart = snapshot, apart
        self._running: dict[str, list[Usage]] = {name: [] for name in snapshot.nodes}
        self._leaving: list[tuple[float, int, list[Usage]]] = []

    def place(self, number: int, arrival: Arrival) -> Placed | None:
        """Return the plan of a gang that comes now; None for one that is turned away."""
        self._until(arrival.at)
        gang = arrival.gang
        request = _request(number, gang, apart=self._apart)
        plan = place(self._snapshot, request)
        if not isinstance(plan, Placed):
            return None
        resources = {role.name: role.resources for role in request.roles}
        usages = [Usage(m.uid, m.node, resources[m.role], mask_of(m.gpus)) for m in plan.members]
        for usage in usages:
            self._running[usage.node].append(usage)
        self._refresh({usage.node for usage in usages})
        heapq.heappush(self._leaving, (arrival.at + gang.stay, number, usages))
        return plan

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


def _request(number: int, gang: Gang, *, apart: bool) -> Request:
    rules = APART if apart else NodeRules()
    possible_roles = (
        _role("worker", number, gang.members, gang.gpus, gang.cpu_milli, NodeRules()),
        _role("feeder", number, gang.idle, 0, gang.idle_cpu, rules),
    )
    roles = tuple(role for role in possible_roles if role.members)
    size = gang.members + gang.idle
    return Request(GangId("streams", "", str(number)), roles, size, gang.scope)


def _role(name: str, number: int, count: int, gpus: int, cpu_milli: int, rules: NodeRules) -> Role:
    members = tuple(Member(f"{number}-{name}-{i}", f"{number}-{name}-{i}", i) for i in range(count))
    resources = Resources(cpu_milli, gpus * MEMORY_PER_GPU, 1)
    return Role(name, members, resources, gpus, GPU if gpus else "", rules)
