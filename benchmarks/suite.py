"""What is measured in one run: sites (clusters of one kind), and how often each case is placed on them.

A site is visited in rounds, the one that is furthest behind next, so that a run that is out of time has
measured all of them alike. Each round builds a cluster; before every instance a twentieth of its nodes
changes and an untimed gang of one lets the planner take note, then a few more pods move: the instance is
*warm*, as in life. The first of each round is *cold*: the planner has never seen the cluster.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.clusters import GPU, GPUS, Boards, Cluster, Fill, Shape
from benchmarks.gangs import Case
from benchmarks.measure import Sample, measured
from benchmarks.peers.fabric import Fabric
from muster.domain.node import Resources
from muster.domain.request import GangId, Member, Request, Role
from muster.domain.snapshot import Snapshot
from muster.placement.place import place

IN_A_ROUND = 5
"""Instances of each case in a round."""
MOVES = 2
"""Pods that move between the planner's last look and a warm instance: four nodes change."""
HOPELESS = 20
"""Instances without a feasible one after which a case is given up on a site."""
DRAWS = 5
"""Instances drawn at most, as a multiple of the feasible ones that are wanted."""

GANG_OF_ONE = Request(
    GangId("bench", "", "look"), (Role("one", (Member("one", "one"),), Resources(1000), 1, GPU),), 1
)


@dataclass(frozen=True, slots=True)
class Site:
    """Clusters of one kind. `instances` are wanted of each case, feasible ones."""

    nodes: int
    load: float
    instances: int
    boards: Boards = Boards.NVSWITCH
    racks_per_zone: int = 0

    @property
    def name(self) -> str:
        """Return the site's name in tables."""
        extras = [] if self.boards is Boards.NVSWITCH else [self.boards.value]
        extras += ["zones"] if self.racks_per_zone else []
        return " ".join([f"{self.nodes} × {GPUS}", f"{self.load:.0%}", *extras])


@dataclass(slots=True)
class Cell:
    """All instances of one case on one site. `loads` are the shares of GPUs really taken."""

    site: Site
    case: Case
    samples: list[Sample] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    skipped: int = 0
    """Instances not even tried: fewer GPUs free in the whole cluster than the gang asks for."""

    @property
    def answered(self) -> list[Sample]:
        """Those with the answer that the case is about: a plan, or a refusal with a proof."""
        return [
            sample
            for sample in self.samples
            if (sample.plan is not None) == self.case.placeable and not sample.defect and not sample.undecided
        ]

    @property
    def wanted(self) -> int:
        """Return how many instances the cell needs."""
        return max(1, round(self.site.instances * self.case.share))

    @property
    def done(self) -> bool:
        """Return whether the cell has its instances, or no more can be drawn."""
        drawn = len(self.samples) + self.skipped
        feasible = len(self.answered)
        return feasible >= self.wanted or drawn >= DRAWS * self.wanted or (not feasible and drawn >= HOPELESS)


@dataclass(slots=True)
class Run:
    """The cells of a run, and when it must end (monotonic seconds)."""

    cells: list[Cell]
    seed: int
    until: float
    guard_s: float
    rounds: dict[Site, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, sites: Sequence[Site], cases: Sequence[Case], seed: int, seconds: float, guard_s: float
    ) -> Run:
        """Return a run over all pairs of a site and a case."""
        cells = [Cell(site, case) for site in sites for case in cases]
        return cls(cells, seed, time.monotonic() + seconds, guard_s, dict.fromkeys(sites, 0))

    def go(self, progress: Callable[[Run, Site], None] = lambda run, site: None) -> None:
        """Measure until all cells are done or time is up."""
        while (site := self._furthest_behind()) is not None and time.monotonic() < self.until:
            progress(self, site)
            self._round(site)
            self.rounds[site] += 1

    @property
    def complete(self) -> bool:
        """Return whether every cell is done."""
        return all(cell.done for cell in self.cells)

    def _furthest_behind(self) -> Site | None:
        open_sites = {cell.site for cell in self.cells if not cell.done}
        return min(
            (site for site in self.rounds if site in open_sites),
            key=lambda site: self.rounds[site] / site.instances,
            default=None,
        )

    def _round(self, site: Site) -> None:
        number = self.rounds[site]
        fill = tuple(Fill)[number % len(Fill)]
        seed = self.seed * 10_000 + number
        shape = Shape(site.nodes, site.load, fill, site.boards, site.racks_per_zone)
        cluster = Cluster(shape, seed)
        gc.collect()
        gc.freeze()  # as the service does once it has seen the cluster
        fabric = Fabric.of(cluster.snapshot)
        cells = [cell for cell in self.cells if cell.site == site]
        cells = cells[number % len(cells) :] + cells[: number % len(cells)]
        turns = [cell for cell in cells for _ in range(min(IN_A_ROUND, cell.wanted))]
        warm = False
        for cell in turns:
            if time.monotonic() >= self.until:
                return
            if not cell.done and _stands_a_chance(cell, cluster):
                fabric = fabric.refreshed(self._next(cluster, warm))
                cell.loads.append(cluster.load)
                cell.samples.append(measured(fabric, cell.case, seed=seed, warm=warm, guard_s=self.guard_s))
                warm = True

    def _next(self, cluster: Cluster, warm: bool) -> Snapshot:
        """Another landscape, and a few moves since the planner saw it; where cold the cluster as it is."""
        if not warm:
            return cluster.snapshot
        cluster.churn(len(cluster.nodes) // 40)
        place(cluster.snapshot, GANG_OF_ONE)
        return cluster.churn(MOVES)


def _stands_a_chance(cell: Cell, cluster: Cluster) -> bool:
    """Return whether enough GPUs are free at all; if not, count the instance as drawn."""
    gpus_asked = sum(role.gpus * len(role.members) for role in cell.case.request(cluster.snapshot).roles)
    free = GPUS * cell.site.nodes * (1 - cluster.load)
    if cell.case.placeable and gpus_asked > free:
        cell.skipped += 1
        return False
    return True


def standard_sites(instances: int) -> Iterator[Site]:
    """The clusters that the targets name. Those that targets are set for get all the instances, the others
    a fifth or a tenth."""
    few, fewer = max(1, instances // 5), max(1, instances // 10)
    for load in (0.5, 0.8, 0.95):
        yield Site(5_000, load, instances)
    for load in (0.0, 0.5, 0.8, 0.95):
        yield Site(640, load, few)
        yield Site(20_000, load, fewer)
    yield Site(5_000, 0.0, few)
    yield Site(5_000, 0.8, few, boards=Boards.MIXED)
    yield Site(5_000, 0.8, few, racks_per_zone=40)
