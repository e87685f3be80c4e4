"""One trial: ordinary gangs that come and end, at a fixed rate, and how long each was on its way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.headofline import pods
from benchmarks.headofline.neighbour import Loop, Neighbour
from benchmarks.headofline.stats import Gang, Inputs
from benchmarks.headofline.stats import waited as waited_for
from benchmarks.throughput import prometheus
from benchmarks.throughput.binds import NotBoundInTime
from benchmarks.throughput.site import Site
from local_cluster.stack import Stack

EVERY_S = 0.5
ENDS_AFTER = 10
"""A bound gang is deleted once this many more have been created: ordinary gangs end and free their GPUs."""
LOOKS_PER_S = 20.0
"""So often the service is asked whether it is ready."""
PATIENCE_S = 60.0
"""So long after the last gang was created a gang that is not bound counts as that."""

LAG, PHASES = "muster_watch_lag_seconds", "muster_gang_phase_seconds"


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds from creation to bound of each gang, gangs that were not bound, processors in use, decisions by
    outcome, the seconds that each answer of /readyz took, and what the service took in."""

    seconds: Sequence[float]
    unbound: int
    processors: Mapping[str, float]
    decisions: Mapping[str, float]
    ready: Sequence[float]
    inputs: Inputs


def ordinary(site: Site, stack: Stack, namespace: Neighbour, name: str, count: int) -> Seen:
    """Create `count` gangs of four, one each half a second, and wait until all are bound."""
    gangs: list[Gang] = []
    ended: set[Gang] = set()
    side = {"service": stack.service, "scheduler": stack.scheduler}

    def step(index: int) -> None:
        bodies = pods.ordinary(f"{name}-{index:03}")
        gangs.append(Gang(time.monotonic(), tuple(body["metadata"]["name"] for body in bodies)))
        namespace.create(bodies)
        at = binds.at
        for gang in [gang for gang in gangs[:-ENDS_AFTER] if gang not in ended]:
            if at.keys() >= set(gang.members):
                namespace.delete(gang.members)
                ended.add(gang)

    ready: list[float] = []

    def look(_: int) -> None:
        began = time.monotonic()
        stack.service_get("/readyz")
        ready.append(time.monotonic() - began)

    before, text, began = site.cpu_s(side), stack.service_get("/metrics"), time.monotonic()
    with site.watch() as binds, Loop(look, LOOKS_PER_S):
        for index in range(count):
            time.sleep(max(0.0, began + index * EVERY_S - time.monotonic()))
            step(index)
        try:
            binds.wait(count * pods.SIZE, PATIENCE_S)
        except NotBoundInTime:
            if len(binds.at) == 0:
                raise
        at, until = binds.at, time.monotonic()
    after, text_after = site.cpu_s(side), stack.service_get("/metrics")
    had, has = _decisions(text), _decisions(text_after)
    namespace.delete([member for gang in gangs for member in gang.members])
    seconds, unbound = waited_for(gangs, at, until)
    return Seen(
        seconds,
        unbound,
        {process: (after[process] - used_s) / (until - began) for process, used_s in before.items()},
        {outcome: number - had.get(outcome, 0.0) for outcome, number in has.items()},
        ready,
        _inputs(text, text_after),
    )


def _inputs(before: str, after: str) -> Inputs:
    lag, phases = _changes(before, after, LAG, ""), _changes(before, after, PHASES, "phase")
    taken_s, waited = lag.get("", (0.0, 0.0))
    return Inputs(taken_s, waited, {phase: mean for phase, (_, mean) in phases.items()})


def _changes(before: str, after: str, histogram: str, label: str) -> dict[str, tuple[float, float]]:
    """Return how many values each label of a histogram got between two texts, and their mean."""
    sums: dict[tuple[str, str], float] = {}
    for sign, text in ((-1.0, before), (1.0, after)):
        for name, labels, value in prometheus.samples(text):
            key = name, labels.get(label, "")
            sums[key] = sums.get(key, 0.0) + sign * value
    counts = {value: count for (name, value), count in sums.items() if name == f"{histogram}_count" and count}
    return {value: (count, sums[f"{histogram}_sum", value] / count) for value, count in counts.items()}


def _decisions(text: str) -> dict[str, float]:
    return prometheus.by_label(text, "muster_decision_seconds_count", "outcome")
