"""One pod at a time, in the order given; no departures, no second tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.openb.cluster import SLOTS, Cluster
from benchmarks.openb.policies import Policy
from benchmarks.openb.trace import Nodes, Request, Whole


@dataclass(frozen=True, slots=True)
class Replay:
    """GPU-thousandths after each arrival: those asked for so far (`arrived`) and those allocated."""

    capacity: int
    arrived: Whole
    allocated: Whole

    def unallocated(self, load: int) -> float:
        """Percent of the cluster's GPUs: the mean over the arrivals at which that many percent had arrived.

        As published: arrivals are binned by the rounded percentage; failed pods have arrived too.
        """
        at_load = np.rint(100 * self.arrived / self.capacity) == load
        return float(100 - np.mean(100 * self.allocated[at_load] / self.capacity))


class _Seen:
    """The cheapest option of one request on each node: its cost, infinite where there is none, and column."""

    def __init__(self, nodes: int) -> None:
        self.cost = np.full(nodes, np.inf)
        self.column = np.zeros(nodes, dtype=np.int64)
        self.at = np.full(nodes, -1)
        """The count of placements when this was true."""


def replay(nodes: Nodes, order: Sequence[Request], policy: Policy) -> Replay:
    """Place each where its cost is least; between equals on the first node, on its fullest GPU."""
    cluster = Cluster(nodes)
    changed: Whole = np.zeros(len(nodes.cpu), dtype=np.int64)
    cached_by_request: dict[Request, _Seen] = {}
    allocated = np.zeros(len(order), dtype=np.int64)
    placements = 0
    for i, request in enumerate(order):
        cached = cached_by_request.setdefault(request, _Seen(len(changed)))
        _refresh(cached, request, cluster, policy, np.flatnonzero((cached.at < changed) | (not policy.lasts)))
        cached.at[:] = placements
        node = int(np.argmin(cached.cost))
        if np.isfinite(cached.cost[node]):
            cluster.place(request, node, int(cached.column[node]))
            placements += 1
            changed[node] = placements
            allocated[i] = request.milli
    arrived = np.cumsum([request.milli for request in order])
    return Replay(nodes.gpu_milli, arrived, np.cumsum(allocated))


def _refresh(cached: _Seen, request: Request, cluster: Cluster, policy: Policy, nodes: Whole) -> None:
    options = cluster.options(request, nodes)
    costs = np.full((len(options.nodes), SLOTS), np.inf)
    costs[options.row, options.column] = policy.costs(options)
    cached.cost[nodes] = np.inf
    cached.cost[options.nodes] = costs.min(axis=1)
    cached.column[options.nodes] = costs.argmin(axis=1)
