"""How long the cheapest victims take on a full cluster, and what others would end there: `make victims`.

The cluster is full of running gangs of 1 to 256 GPUs, each best fit, in a rack if one is roomy enough. Some
end and others come, so that what is free is scattered as in life. A gang of priority 100 arrives.

JSON lines on standard output. First, for each case, the CPU time of the answers and how many are proven.
Then, for each case and method, the gangs that lose members, the GPU-hours that are lost, their ratio to ours,
and how often a higher priority is hurt than by `clear`. The other methods are in
`benchmarks/peers/victims.py`. Slow is not wrong: nothing is asserted.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from benchmarks import options
from benchmarks.clusters import CPU_PER_GPU, GPU, GPUS, MEMORY_PER_GPU, NODES_PER_RACK, Cluster, Shape
from benchmarks.peers.victims import PEERS, RunningGang
from benchmarks.peers.victims import Cluster as PeersCluster
from muster.command_line import Option, run_command
from muster.domain.clearing import Clearing, ClearQuestion, Occupancy, Occupant, Unit
from muster.domain.node import Resources, Usage
from muster.domain.request import GangId, Member, Request, Role, Scope
from muster.domain.snapshot import Snapshot
from muster.placement.clearing import clear
from muster.placement.limits import Limits

MIX = (
    *(
        (1, 1, 38.0),
        (1, 2, 8),
        (1, 4, 10),
        (1, 8, 14),
        (2, 8, 7),
        (4, 8, 5),
        (8, 8, 3),
        (16, 8, 1.2),
        (32, 8, 0.4),
    ),
    *((4, 1, 3), (8, 1, 3), (8, 2, 2), (16, 1, 2), (16, 2, 1.2), (32, 4, 0.6), (64, 1, 0.5)),
)
"""(members, GPUs of each, weight). Many gangs are small, and most GPU time is in whole nodes."""
PRIORITIES = ((0, 0.40), (10, 0.25), (50, 0.20), (100, 0.15))
PREEMPTOR = 100
CASES: Mapping[str, tuple[int, int, bool]] = {
    **{f"rack {n}x{g}": (n, g, True) for n, g in ((64, 1), (96, 1), (16, 4), (8, 8), (16, 8))},
    **{f"any {n}x{g}": (n, g, False) for n, g in ((256, 8), (512, 8), (1024, 4), (2048, 2), (4096, 1))},
}
"""Members, GPUs of each, and whether one rack must hold all."""
NOW = 2_000_000.0
OURS = "clear"
COLD = "cold"
"""The first question of a world: nodes and pods are read for the first time."""


class Loss(NamedTuple):
    """What victims cost: gangs that lose members, GPU-hours, and the highest priority."""

    gangs: int
    gpu_hours: float
    priority: int


class World:
    """A cluster full of gangs. Equal seeds give equal worlds."""

    def __init__(self, nodes: int, load: float, seed: int, elastic: float) -> None:
        self._rng = random.Random(f"{nodes} {load} {seed}")
        self._elastic = elastic
        self._nodes = Cluster(Shape(nodes, 0.0), seed).nodes
        self._free = np.full(nodes, GPUS, np.int64)
        self._gangs: list[tuple[list[int], int]] = []
        """The nodes of the members, and the GPUs of each member."""
        self._fill(load)
        for _ in range(4):
            self._rng.shuffle(self._gangs)
            ended = len(self._gangs) * 12 // 100
            for members, gpus in self._gangs[:ended]:
                np.add.at(self._free, members, gpus)
            del self._gangs[:ended]
            self._fill(load)
        self.occupancy = self._occupancy()
        self.snapshot = Snapshot.of(self._nodes, [pod.usage for pod in self.occupancy.occupants])

    def _fill(self, load: float) -> None:
        misses = 0
        while self._free.sum() > (1 - load) * GPUS * len(self._nodes) and misses < 60:
            count, gpus, _ = self._rng.choices(MIX, [weight for *_, weight in MIX])[0]
            members = self._places(count, gpus)
            misses = 0 if members else misses + 1
            if members:
                np.subtract.at(self._free, members, gpus)
                self._gangs.append((members, gpus))

    def _places(self, count: int, gpus: int) -> list[int]:
        """Nodes for the members: in the tightest rack that holds all, else in as few racks as possible. A
        single pod goes to the fullest node, and now and then to any node."""
        room = self._free // gpus
        if count == 1:
            fitting = np.flatnonzero(room)
            if len(fitting) and self._rng.random() < 0.2:
                return [int(self._rng.choice(fitting))]
            return [int(fitting[self._free[fitting].argmin()])] if len(fitting) else []
        by_rack = np.add.reduceat(room, np.arange(0, len(room), NODES_PER_RACK))
        holding = np.flatnonzero(by_rack >= count)
        racks = [holding[by_rack[holding].argmin()]] if len(holding) else np.argsort(-by_rack)
        places: list[int] = []
        for rack in racks:
            first = int(rack) * NODES_PER_RACK
            for node in np.argsort(room[first : first + NODES_PER_RACK]).tolist():
                places += [first + node] * min(int(room[first + node]), count - len(places))
            if len(places) == count:
                return places
        return []

    def _occupancy(self) -> Occupancy:
        rng = self._rng
        open_gpus = [rng.sample(range(GPUS), GPUS) for _ in self._nodes]
        occupants, units = list[Occupant](), dict[str, Unit]()
        for number, (members, gpus) in enumerate(self._gangs):
            key, size = f"gang-{number:05}", len(members)
            priority = rng.choices([p for p, _ in PRIORITIES], [weight for _, weight in PRIORITIES])[0]
            elastic = size > 3 and rng.random() < self._elastic
            never = "it says never" if rng.random() < 0.05 else ""
            units[key] = Unit(key, priority, size // 2 if elastic else size, protected=never)
            started = NOW - 3600 * min(240.0, rng.lognormvariate(1.2, 1.5))
            resources = Resources(CPU_PER_GPU * gpus, MEMORY_PER_GPU * gpus)
            for rank, node in enumerate(members):
                mask = sum(1 << open_gpus[node].pop() for _ in range(gpus))
                usage = Usage(f"{key}-{rank}", self._nodes[node].name, resources, gpus=mask)
                occupants.append(Occupant(usage, usage.pod_uid, key, started, rank=rank))
        return Occupancy.of(occupants, units, NOW)

    def question(self, case: str) -> ClearQuestion:
        """Return the question for a case of CASES."""
        count, gpus, in_rack = CASES[case]
        members = tuple(Member(f"w-{i}", f"w-{i}", i) for i in range(count))
        role = Role("w", members, Resources(8_000 * gpus, (64 << 30) * gpus), gpus, GPU)
        gang = GangId("bench", "", "gang")
        request = Request(gang, (role,), count, Scope.RACK if in_rack else None, priority=PREEMPTOR)
        return ClearQuestion(request, self.occupancy, PREEMPTOR)

    def as_peers_see_it(self, case: str) -> PeersCluster:
        """Return the cluster with the gangs that may go, for a case of CASES."""
        row = {node.name: number for number, node in enumerate(self._nodes)}
        pods_of: dict[str, list[Occupant]] = defaultdict(list)
        for pod in self.occupancy.occupants:
            pods_of[pod.unit].append(pod)
        gangs = [
            RunningGang(
                key,
                unit.priority,
                NOW - pods_of[key][0].started,
                pods_of[key][0].usage.gpus.bit_count(),
                np.array([row[pod.usage.node] for pod in pods_of[key]]),
                len(pods_of[key]) - unit.min_members,
            )
            for key, unit in self.occupancy.units.items()
            if unit.priority < PREEMPTOR and not unit.protected
        ]
        count, gpus, in_rack = CASES[case]
        return PeersCluster(self._free, NODES_PER_RACK, gangs, count, gpus, in_rack)

    def loss(self, gangs: Sequence[RunningGang], gone: Mapping[str, int]) -> Loss:
        """Return what is lost if each of these gangs loses `gone[key]` members."""
        hours, restart_s, priorities = 0.0, self.occupancy.restart_s, list[int]()
        for gang in gangs:
            count = gone.get(gang.key, 0)
            lost_s = restart_s + (gang.age_s if count == gang.size else 0)
            hours += gang.gpus * count * lost_s / 3600
            priorities += [gang.priority] * (count > 0)
        return Loss(len(gone), hours, max(priorities))


def main(
    nodes: Annotated[int, Option(help="Nodes of 8 GPUs, 16 in a rack.")] = 5_000,
    load: Annotated[float, Option(help="The share of GPUs that is taken.")] = 0.95,
    seeds: Annotated[int, Option(help="Worlds, each with every case.")] = 5,
    elastic: Annotated[
        float, Option(help="The share of gangs of four or more that may shrink to half.")
    ] = 0.2,
    cases: Annotated[str, Option(help="Cases by name, comma-separated; all if empty.")] = "",
    limit: Annotated[float, Option(help="Deterministic time of the solver for one answer.")] = 2.0,
) -> int:
    """Ask for the cheapest victims on full clusters, and print how long the answers took."""
    names = options.chosen(cases, CASES, "--cases")
    samples: dict[str, list[tuple[float, bool, bool]]] = defaultdict(list)
    losses: dict[str, list[dict[str, Loss | None]]] = defaultdict(list)
    for seed in range(seeds):
        world = World(nodes, load, seed, elastic)
        for name in (f"{names[0]} {COLD}", *names):
            start = time.process_time()
            answer = clear(world.snapshot, world.question(name.removesuffix(f" {COLD}")), Limits(limit))
            ms = 1000 * (time.process_time() - start)
            has_victims = isinstance(answer, Clearing) and bool(answer.victims)
            samples[name].append((ms, answer.proven, has_victims))
            if isinstance(answer, Clearing) and answer.victims and name in CASES:
                losses[name].append(_losses(world, name, answer))
    for name, of_case in samples.items():
        print(json.dumps({"case": name, **_figures(of_case)}), flush=True)
    for name, by_method in losses.items():
        for method in (OURS, *PEERS):
            print(json.dumps({"case": name, "method": method, **_comparison(by_method, method)}), flush=True)
    return 0


def _losses(world: World, case: str, answer: Clearing) -> dict[str, Loss | None]:
    """Return what is lost by each method; None if it finds no victims."""
    cluster, ours = world.as_peers_see_it(case), max(victim.priority for victim in answer.victims)
    losses: dict[str, Loss | None] = {OURS: Loss(len(answer.victims), answer.loss / 60, ours)}
    for name, victims_of in PEERS.items():
        gone = victims_of(cluster)
        losses[name] = world.loss(cluster.gangs, gone) if gone else None
    return losses


def _comparison(by_method: Sequence[dict[str, Loss | None]], method: str) -> dict[str, float | None]:
    """Return the sums over the questions for which the method finds victims."""
    pairs = [(theirs, ours) for of in by_method if (theirs := of[method]) and (ours := of[OURS])]
    hours, our_hours = sum(theirs.gpu_hours for theirs, _ in pairs), sum(ours.gpu_hours for _, ours in pairs)
    return {
        "n": len(pairs),
        "gangs": sum(theirs.gangs for theirs, _ in pairs),
        "gpu_hours": round(hours, 1),
        "ratio": round(hours / our_hours, 2) if our_hours else None,
        "higher_priority": sum(theirs.priority > ours.priority for theirs, ours in pairs),
    }


def _figures(samples: Sequence[tuple[float, bool, bool]]) -> dict[str, float | None]:
    """Return the times of the answers with victims, and how many of all answers are proven."""
    times = [ms for ms, _, has_victims in samples if has_victims]
    return {
        "n": len(samples),
        "victims": len(times),
        "p50_ms": round(float(np.percentile(times, 50)), 1) if times else None,
        "p99_ms": round(float(np.percentile(times, 99)), 1) if times else None,
        "proven": sum(proven for _, proven, _ in samples),
    }


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.victims"))
