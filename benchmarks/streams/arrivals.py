"""What arrives: seeded streams of gangs, from mixes of sizes or drawn from published traces."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.openb import trace
from muster.domain.request import Scope

DATA = Path(__file__).parent / "data" / "philly.csv"
CPU_PER_GPU = 8_000
GPUS = 8
"""GPUs of a node: a larger job has members that each take a whole one."""
OPENB_GANGS = 0.1
"""Openb knows single pods alone. This share of its arrivals is replaced by gangs of two or four nodes."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Members that each ask for `gpus` and `cpu_milli`, all in one part of the scope. `stay`: how long the
    gang runs, in units of its mix. Next to them are `idle` members without GPUs, with `idle_cpu` each."""

    members: int
    gpus: int
    stay: float
    scope: Scope | None = None
    cpu_milli: int = 0
    idle: int = 0
    idle_cpu: int = 0

    @property
    def size(self) -> int:
        """GPUs in all."""
        return self.members * self.gpus


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang and when it comes."""

    at: float
    gang: Gang


Draw = Callable[[random.Random], Gang]
"""One gang of a mix."""

Weights = Mapping[tuple[int, int, Scope | None], float]
"""By members, GPUs of each and scope: the share of such gangs."""


def _of_sizes(weights: Weights) -> Draw:
    kinds, shares = list(weights), list(weights.values())

    def draw(rng: random.Random) -> Gang:
        ((members, gpus, scope),) = rng.choices(kinds, shares)
        return Gang(members, gpus, rng.expovariate(1), scope, gpus * CPU_PER_GPU)

    return draw


def _feeding(rng: random.Random) -> Gang:
    members, gpus, scope, idle, cores = rng.choices(list(FEEDING), list(FEEDING.values()))[0]
    return Gang(members, gpus, rng.expovariate(1), scope, gpus * MUCH_CPU_PER_GPU, idle, cores * 1000)


def _philly(rng: random.Random) -> Gang:
    gpus, stay = rng.choice(_philly_jobs())
    if gpus <= GPUS:
        return Gang(1, gpus, stay, None, gpus * CPU_PER_GPU)
    return Gang(gpus // GPUS, GPUS, stay, Scope.RACK, GPUS * CPU_PER_GPU)


def _openb(rng: random.Random) -> Gang:
    if rng.random() < OPENB_GANGS:
        return Gang(rng.choice((2, 4)), GPUS, rng.expovariate(1), Scope.RACK, GPUS * CPU_PER_GPU)
    pod = rng.choice(_openb_pods())
    return Gang(1, pod.gpus, rng.expovariate(1), None, pod.cpu)


@cache
def _philly_jobs() -> tuple[tuple[int, float], ...]:
    with DATA.open(encoding="utf-8") as lines:
        return tuple((int(row["num_gpu"]), float(row["duration_s"])) for row in csv.DictReader(lines))


@cache
def _openb_pods() -> tuple[trace.Request, ...]:
    """Those with GPUs; a part of a GPU counts as a whole one."""
    return tuple(pod for pod in trace.pods("default") if pod.gpus)


RACK, ZONE, DOMAIN = Scope.RACK, Scope.ZONE, Scope.NVLINK_DOMAIN

MUCH_CPU_PER_GPU = 12_000
FEEDING: Mapping[tuple[int, int, Scope | None, int, int], float] = {
    **{(1, n, None, 0, 0): 0.12 for n in (1, 2, 4, 8)},
    (2, 8, RACK, 0, 0): 0.08,
    (4, 8, RACK, 0, 0): 0.06,
    (1, 4, None, 8, 8): 0.1,
    (2, 8, None, 1, 2): 0.1,
    (8, 1, None, 4, 8): 0.08,
    (0, 0, None, 6, 16): 0.1,
}
"""By members, GPUs of each, scope, members without GPUs, and cores of each: the share of such gangs."""

MIXES: Mapping[str, Draw] = {
    "whole": _of_sizes({(1, 8, None): 0.6, (2, 8, RACK): 0.25, (4, 8, RACK): 0.15}),
    "odd": _of_sizes({(1, 8, None): 0.4, (3, 8, RACK): 0.3, (5, 8, RACK): 0.3}),
    "mixed": _of_sizes(
        {(1, n, None): 0.15 for n in (1, 2, 4, 8)}
        | {(2, 8, RACK): 0.16, (4, 8, RACK): 0.16, (8, 8, RACK): 0.08}
    ),
    "parts": _of_sizes(
        {(1, n, None): 0.15 for n in (1, 2, 4, 8)} | {(8, 1, RACK): 0.1, (8, 2, RACK): 0.1, (8, 4, RACK): 0.2}
    ),
    "zones": _of_sizes(
        {(1, n, None): 0.15 for n in (2, 4, 8)}
        | {(2, 8, RACK): 0.2, (4, 8, RACK): 0.15, (6, 8, ZONE): 0.1, (12, 8, ZONE): 0.1}
    ),
    "domains": _of_sizes(
        {(1, n, None): 0.2 for n in (1, 2, 4)}
        | {(2, 4, DOMAIN): 0.15, (4, 4, DOMAIN): 0.15, (8, 4, DOMAIN): 0.1}
    ),
    "feeding": _feeding,
    "philly": _philly,
    "openb": _openb,
}
"""By name. `whole`, `odd`: members of whole nodes; `mixed`: small pods too; `parts`: members of less than a
node; `zones`: some need a zone; `domains`: some need an NVLink domain of several nodes of four GPUs;
`feeding`: some have members without GPUs, or these alone."""


def arrivals(mix: str, load: float, capacity: int, gangs: int, seed: int) -> list[Arrival]:
    """Return gangs that come at random, so often that all of them together would hold `load` of the capacity
    (GPUs) on average."""
    rng = random.Random(f"{mix} {load} {capacity} {seed}")
    drawn = [MIXES[mix](rng) for _ in range(gangs)]
    work = sum(gang.size * gang.stay for gang in drawn) / gangs
    all_arrivals, now = [], 0.0
    for gang in drawn:
        now += rng.expovariate(load * capacity / work)
        all_arrivals.append(Arrival(now, gang))
    return all_arrivals
