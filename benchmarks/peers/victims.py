"""Which running gangs other schedulers end for a gang of equal members, from their sources.

- kube-scheduler 1.37, pkg/scheduler/framework/preemption/podgrouppreemption.go: all units of lower priority
  are taken out, and the group is placed once on what is left. Then the units return in the order of their
  importance (priority, gangs before pods, larger, older), each if its nodes have room next to the group.
  So of equal gangs the youngest go. Of equal racks the first is taken.
- Kueue, pkg/scheduler/preemption/preemption.go (classicalPreemptions): the lowest priority and the newest go
  first, until the gang fits. Then they return in the reverse order, each if the gang still fits.
- Volcano 1.15, docs/design/gang-aware-eviction-design.md: racks are tried in the order of what is free, the
  roomiest first. There, members that a gang can spare go first, then whole gangs by priority and by the share
  of the gang that lies in the rack, until the gang fits. Nothing returns.

In doubt the reading is the kinder one. All three see the same free GPUs and the same gangs as `clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.fabric import Ints

Gone = Mapping[str, int]
"""The number of members that go, by the key of the gang."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningGang:
    """A gang that may go. `nodes` are those of its members, which have `gpus` GPUs each."""

    key: str
    priority: int
    age_s: float
    gpus: int
    nodes: Ints
    spare: int
    """How many members it may lose while it runs on."""

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Free GPUs by node, racks of equal size, and a gang that waits: `count` members of `gpus` GPUs each."""

    free: Ints
    nodes_per_rack: int
    gangs: Sequence[RunningGang]
    count: int
    gpus: int
    in_rack: bool

    def fits(self, free: Ints) -> bool:
        """Return whether the waiting gang fits into what is free."""
        room = free // self.gpus
        return bool((self.by_rack(room).max() if self.in_rack else room.sum()) >= self.count)

    def by_rack(self, amounts: Ints) -> Ints:
        """Return the sum of each rack."""
        sums: Ints = np.add.reduceat(amounts, np.arange(0, len(amounts), self.nodes_per_rack))
        return sums


def kube_scheduler(cluster: Cluster) -> Gone | None:
    """Return the gangs that kube-scheduler 1.37 ends; None if the waiting gang does not fit."""
    free = cluster.free.copy()
    for gang in cluster.gangs:
        np.add.at(free, gang.nodes, gang.gpus)
    if not cluster.fits(free):
        return None
    nodes = np.arange(len(free))
    if cluster.in_rack:
        holding = np.flatnonzero(cluster.by_rack(free // cluster.gpus) >= cluster.count)
        rack = holding[cluster.by_rack(free)[holding].argmin()]
        nodes = nodes[nodes // cluster.nodes_per_rack == rack]
    for _ in range(cluster.count):  # as its score LeastAllocated does, each member goes to the emptiest node
        free[nodes[free[nodes].argmax()]] -= cluster.gpus

    def importance(gang: RunningGang) -> tuple[int, bool, int, float]:
        return -gang.priority, gang.size == 1, -gang.size, -gang.age_s

    gone = {}
    for gang in sorted(cluster.gangs, key=importance):
        np.subtract.at(free, gang.nodes, gang.gpus)
        if (free[gang.nodes] < 0).any():
            np.add.at(free, gang.nodes, gang.gpus)
            gone[gang.key] = gang.size
    return gone


def kueue(cluster: Cluster) -> Gone | None:
    """Return the gangs that Kueue ends; None if the waiting gang does not fit."""
    free, ended = cluster.free.copy(), list[RunningGang]()
    for gang in sorted(cluster.gangs, key=lambda gang: (gang.priority, gang.age_s)):
        if cluster.fits(free):
            break
        np.add.at(free, gang.nodes, gang.gpus)
        ended.append(gang)
    if not cluster.fits(free):
        return None
    for gang in reversed(ended[:-1]):
        np.subtract.at(free, gang.nodes, gang.gpus)
        if cluster.fits(free):
            ended.remove(gang)
        else:
            np.add.at(free, gang.nodes, gang.gpus)
    return {gang.key: gang.size for gang in ended}


def volcano(cluster: Cluster) -> Gone | None:
    """Return the gangs that Volcano ends or shrinks; None if the waiting gang does not fit."""
    all_nodes = np.arange(len(cluster.free))
    parts = [all_nodes]
    if cluster.in_rack:
        rack = all_nodes // cluster.nodes_per_rack
        parts = [all_nodes[rack == r] for r in np.argsort(-cluster.by_rack(cluster.free), kind="stable")]
    for part in parts:
        free, gone = np.zeros_like(cluster.free), dict[str, int]()
        free[part] = cluster.free[part]
        for gang, count, nodes in _bundles(cluster, part):
            if cluster.fits(free):
                return gone
            np.add.at(free, nodes, gang.gpus)
            gone[gang.key] = count
        if cluster.fits(free):
            return gone
    return None


def _bundles(cluster: Cluster, part: Ints) -> Iterator[tuple[RunningGang, int, Ints]]:
    """Yield (gang, how many of its members have gone by then, nodes in the part that become free)."""
    bundles: list[tuple[tuple[bool, int, float], RunningGang, int, Ints]] = []
    for gang in cluster.gangs:
        inside = gang.nodes[np.isin(gang.nodes, part)]
        spare = min(gang.spare, len(inside))
        if spare:
            bundles.append(((False, gang.priority, 0.0), gang, spare, inside[-spare:]))
        if len(inside) > spare:
            share = (len(inside) - spare) / gang.size
            bundles.append(((True, gang.priority, -share), gang, gang.size, inside[: len(inside) - spare]))
    for _, gang, count, nodes in sorted(bundles, key=lambda bundle: (bundle[0], bundle[1].key)):
        yield gang, count, nodes


PEERS: Mapping[str, Callable[[Cluster], Gone | None]] = {
    "kube-scheduler": kube_scheduler,
    "kueue": kueue,
    "volcano": volcano,
}
