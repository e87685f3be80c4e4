"""What one watch event costs: a pod is seen bound, and the planner's view of the cluster follows."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.clusters import Cluster, Shape
from benchmarks.summary import Spread
from muster.domain.node import Resources, Usage
from muster.gangs.capacity.ledger import Ledger
from muster.placement.cluster.columns import columns_of

TARGET_US = 100
"""For an event to be in the snapshot."""


@dataclass(frozen=True, slots=True)
class EventCost:
    """Microseconds an event: to book it, to make the snapshot from it, to bring the planner's columns up to
    that snapshot."""

    nodes: int
    bind_us: Spread | None
    snapshot_us: Spread | None
    columns_us: Spread | None


def event_cost(nodes: int, events: int, seed: int) -> EventCost:
    """Return the cost of `events` events, one after another, on a cluster at half load."""
    cluster = Cluster(Shape(nodes, 0.5), seed)
    ledger = Ledger()
    for node in cluster.nodes:
        ledger.set_node(node)
    for usage in cluster.usages:
        ledger.bind(usage.pod_uid, usage)
    columns_of(ledger.snapshot())
    rng = random.Random(seed)
    booked: list[float] = []
    snapshot_s: list[float] = []
    read: list[float] = []
    for i in range(events):
        usage = Usage(f"new-{i}", rng.choice(cluster.nodes).name, Resources(1000, 1 << 30), gpus=0)
        start = time.perf_counter()
        ledger.bind(usage.pod_uid, usage)
        bound = time.perf_counter()
        snapshot = ledger.snapshot()
        snapped = time.perf_counter()
        columns_of(snapshot)
        end = time.perf_counter()
        for times, span in ((booked, bound - start), (snapshot_s, snapped - bound), (read, end - snapped)):
            times.append(span * 1e6)
    return EventCost(nodes, Spread.of(booked), Spread.of(snapshot_s), Spread.of(read))
