"""Read the running pods of a cluster as arrays, one entry for each pod of a unit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from muster.domain.clearing import CLOCK_SKEW_S, OLDEST_S, Occupancy, Occupant, Unit
from muster.domain.constraints import Affinity, PeerConstraint, TopologySpread
from muster.domain.node import Node, Resources, Usage
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits
from muster.placement.cluster.columns import CPU, LARGEST, MEMORY, PODS, Bools, Columns, Ints, gpu_counts
from muster.placement.cluster.topology import Domains
from muster.placement.model.problem import Floats

NOWHERE = -1
"""The row of a pod whose node is not in the snapshot, and the number of no budget."""

GPU_MEMORY = "memory of GPUs"
"""The resource that slices ask for."""


@dataclass(frozen=True, slots=True, eq=False)
class Pods:
    """All pods of units, by unit and then by UID. `units` are in the order of their keys."""

    occupants: tuple[Occupant, ...]
    units: tuple[Unit, ...]
    keys: tuple[str, ...]
    """[unit]"""
    budgets: tuple[str, ...]
    row: Ints
    """[pod] The row of the pod's node, or NOWHERE."""
    unit: Ints
    """[pod]"""
    budget: Ints
    """[pod] The number of the pod's budget, or NOWHERE."""
    gpus: Ints
    """[pod] The bit mask of its GPUs."""
    unindexed: Ints
    """[pod] How many of its GPUs have unknown indices."""
    is_going: Bools
    """[pod] Whether the pod ends anyway. A pod that lingers after its end is not going."""
    is_movable: Bools
    """[pod] Whether the pod runs: it neither is going nor lingers."""
    end_loss: Ints
    """[unit] GPU-minutes that are lost if the unit ends."""
    restart_loss: Ints
    """[pod] GPU-minutes that are lost if the pod ends and its unit runs on."""
    priority: Ints
    """[unit]"""
    spare: Ints
    """[unit] How many pods the unit may lose while it runs on."""
    protected: tuple[str, ...]
    """[unit] Why no pod of the unit may be a victim, as a clause; "" if there is no reason."""
    _amounts: dict[str, Ints] = field(default_factory=dict)

    def may_go(self, priority: int, constraints: Iterable[PeerConstraint], columns: Columns) -> Bools:
        """Return [pod] whether the pod may be a victim of a gang with this priority."""
        is_safe = np.array([bool(clause) for clause in self.protected], np.bool_)
        is_safe |= self.counts_for_rules(constraints, columns) | (self.priority >= priority)
        return np.asarray(self.is_movable & ~is_safe[self.unit])

    def counts_for_rules(self, constraints: Iterable[PeerConstraint], columns: Columns) -> Bools:
        """Return [unit] whether rules between pods may count a pod of the unit.

        These are pods that the gang must be near, and pods that a spread constraint counts. A rule names the
        nodes of such pods, so all units with a pod on such a node stay.
        """
        nodes = set[str]().union(
            *(rule.existing for rule in constraints if isinstance(rule, Affinity | TopologySpread))
        )
        rows = [columns.row[node] for node in nodes if node in columns.row]
        counts = np.zeros(len(self.keys), np.bool_)
        counts[self.unit[np.isin(self.row, rows)]] = True
        return counts

    def amounts(self, name: str, columns: Columns) -> Ints:
        """Return [pod] how much of a resource other than GPUs becomes free with each pod, at most."""
        amounts = self._amounts.get(name)
        if amounts is None:
            usages = [occupant.usage for occupant in self.occupants]
            if name == GPU_MEMORY:
                nodes = [columns.states[row].node if row >= 0 else None for row in self.row.tolist()]
                freed = [
                    _gpu_memory(usage, node) if node else 0 for usage, node in zip(usages, nodes, strict=True)
                ]
            else:
                freed = [_amount(usage.resources, name) for usage in usages]
            cut = [max(0, min(amount, LARGEST)) for amount in freed]
            amounts = self._amounts[name] = np.array(cut, np.int64)
        return amounts


def pods_of(occupancy: Occupancy, columns: Columns) -> Pods:
    """Return the pods of an occupancy, with the rows of these columns. The last answer is remembered."""
    last = _latest[0]
    if last is None or last[0] is not occupancy or last[1] is not columns.nodes:
        last = _latest[0] = (occupancy, columns.nodes, _read_pods(occupancy, columns))
    return last[2]


_latest: list[tuple[Occupancy, Domains, Pods] | None] = [None]


def _read_pods(occupancy: Occupancy, columns: Columns) -> Pods:
    units, now = occupancy.units, occupancy.now
    keys = tuple(sorted(units))
    unit_index = {key: u for u, key in enumerate(keys)}
    occupants = [occupant for occupant in occupancy.occupants if occupant.unit in units]
    occupants.sort(key=lambda occupant: (occupant.unit, occupant.usage.pod_uid))
    budgets = tuple(sorted({occupant.budget for occupant in occupants} - {""}))
    budget_index = {name: b for b, name in enumerate(budgets)} | {"": NOWHERE}
    unit = np.array([unit_index[occupant.unit] for occupant in occupants], np.int64)
    ends = np.array([occupant.ends for occupant in occupants], float)
    started = np.array([occupant.started for occupant in occupants], float)
    is_movable = ends == 0
    running = np.bincount(unit[is_movable], minlength=len(keys))
    protected = [_why_protected(units[key], now) for key in keys]
    for p in np.flatnonzero(started > now + CLOCK_SKEW_S).tolist():
        protected[unit[p]] = protected[unit[p]] or f"its pod {occupants[p].name} started in the future"
    share, lost_s = _gpu_shares(occupants, columns), _lost_seconds(occupants, occupancy, started, unit)
    end_loss = _minutes(share, lost_s + occupancy.restart_s)[is_movable]
    return Pods(
        occupants=tuple(occupants),
        units=tuple(units[key] for key in keys),
        keys=keys,
        budgets=budgets,
        row=np.array([columns.row.get(occupant.usage.node, NOWHERE) for occupant in occupants], np.int64),
        unit=unit,
        budget=np.array([budget_index[occupant.budget] for occupant in occupants], np.int64),
        gpus=np.array([occupant.usage.gpus for occupant in occupants], np.int64),
        unindexed=np.array([occupant.usage.unindexed_gpus for occupant in occupants], np.int64),
        is_going=(ends > 0) & (ends + occupancy.linger_s >= now),
        is_movable=is_movable,
        end_loss=np.bincount(unit[is_movable], end_loss, len(keys)).astype(np.int64),
        restart_loss=_minutes(share, np.full(len(share), occupancy.restart_s)),
        priority=np.array([units[key].priority for key in keys], np.int64),
        spare=np.maximum(0, running - np.array([units[key].min_members for key in keys], np.int64)),
        protected=tuple(protected),
    )


def _why_protected(unit: Unit, now: float) -> str:
    """Return why no pod of the unit may be a victim now, as a clause; "" if there is no reason."""
    if unit.protected or unit.protected_until <= now:
        return unit.protected
    minutes = math.ceil((unit.protected_until - now) / 60)
    return f"its minimum run time ends in {minutes} min"


def _lost_seconds(occupants: list[Occupant], occupancy: Occupancy, started: Floats, unit: Ints) -> Floats:
    """Return [pod] the seconds of work that the pod loses: since the last checkpoint, or since its start.

    The checkpoint of one pod counts for all pods of its `unit`. A checkpoint in the future does not count.
    """
    stated = np.array([occupant.saved for occupant in occupants], float)
    newest = np.zeros(len(occupancy.units))
    np.maximum.at(newest, unit, np.where(stated <= occupancy.now, stated, 0.0))
    saved = newest[unit]
    interval = [occupancy.units[occupant.unit].checkpoint_s for occupant in occupants]
    since_start = np.clip(occupancy.now - started, 0.0, OLDEST_S)
    since_saved = np.where(saved > 0, occupancy.now - saved, np.array(interval, float))
    lost: Floats = np.minimum(since_start, since_saved)
    return lost


def _gpu_shares(occupants: list[Occupant], columns: Columns) -> Floats:
    """Return [pod] how many GPUs the pod holds: a part of a GPU for a slice."""
    masks = np.array([occupant.usage.gpus for occupant in occupants], np.int64)
    unindexed = [occupant.usage.unindexed_gpus for occupant in occupants]
    share: Floats = gpu_counts(masks) + np.array(unindexed, float)
    for p, occupant in enumerate(occupants):
        row = columns.row.get(occupant.usage.node) if occupant.usage.units else None
        if row is not None:
            largest = max(columns.states[row].node.gpu_memory, default=1)
            share[p] = share[p] * occupant.usage.units / largest
    return share


def _minutes(share: Floats, seconds: Floats) -> Ints:
    """Return the GPU-minutes, rounded up. Also a pod without GPUs costs one, so that none ends in vain."""
    return np.maximum(1, np.ceil(share * seconds / 60)).astype(np.int64)


def _amount(resources: Resources, name: str) -> int:
    amounts = {CPU: resources.cpu_milli, MEMORY: resources.memory_bytes, PODS: resources.pods}
    return amounts[name] if name in amounts else resources.other_amount(name)


def _gpu_memory(usage: Usage, node: Node) -> int:
    if usage.units:
        return usage.units * (usage.gpus.bit_count() or len(node.gpu_memory))
    if usage.unindexed_gpus:
        return sum(node.gpu_memory)
    return sum(node.gpu_memory[gpu] for gpu in bits(usage.gpus) if gpu < len(node.gpu_memory))


def snapshot_without(snapshot: Snapshot, occupancy: Occupancy, gone: Collection[Occupant]) -> Snapshot:
    """Return the cluster without these pods."""
    uids = {occupant.usage.pod_uid for occupant in gone}
    nodes = dict(snapshot.nodes)
    for name in {occupant.usage.node for occupant in gone} & nodes.keys():
        usages = [occupant.usage for occupant in occupancy.by_node[name]]
        staying = [usage for usage in usages if usage.pod_uid not in uids]
        nodes[name] = NodeState.of(nodes[name].node, staying)
    return replace(snapshot, nodes=nodes)
