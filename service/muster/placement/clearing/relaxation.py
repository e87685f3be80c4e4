"""Reduce a question to sums of resources: what members ask for, what is free, what each pod would free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from muster.domain.clearing import Occupancy
from muster.domain.request import Request
from muster.placement.clearing.pods import GPU_MEMORY, NOWHERE, Pods
from muster.placement.cluster.candidates import Excluded, admits
from muster.placement.cluster.columns import GPU, LARGEST, Bools, Ints, gpu_counts
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.instance import amounts_of
from muster.placement.model.build import QuorumRule
from muster.placement.model.victims import PodLimit, VictimProblem

Part = tuple[int, int]
"""A unit that ends, or one pod of a unit that runs on: the index of the unit, and ALL or that of the pod."""

ALL = -1

SHRINK_COST = 1
"""The cost of each unit that loses some of its pods, apart from the cost of the pods."""


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What victims cost, in numbers that order as the loss and then the number of units do."""

    end: Ints
    """[unit]"""
    pod: Ints
    """[pod] Apart from the cost of 1 of each unit that loses pods."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A request on a cluster, in sums of resources. What really fits also fits by these sums."""

    cluster: GangCluster
    pods: Pods
    occupancy: Occupancy
    excluded: Excluded

    @property
    def request(self) -> Request:
        """The request of the gang."""
        return self.cluster.request

    @cached_property
    def need(self) -> tuple[int, ...]:
        """[role] The number of members."""
        return tuple(len(role.members) for role in self.request.roles)

    @cached_property
    def amounts(self) -> list[dict[str, int]]:
        """[role] What a member asks for, by resource."""
        amounts = [amounts_of(role.resources, role.gpus) for role in self.request.roles]
        for role, by_resource in zip(self.request.roles, amounts, strict=True):
            if role.slice is not None:
                by_resource[GPU_MEMORY] = role.slice.units * role.slice.gpus
        return amounts

    @cached_property
    def resources(self) -> list[str]:
        """The resources that members ask for."""
        return sorted(set[str]().union(*self.amounts))

    @cached_property
    def asks(self) -> Ints:
        """[role, resource] What a member asks for."""
        lines = [[min(of.get(name, 0), LARGEST) for name in self.resources] for of in self.amounts]
        return np.array(lines, np.int64)

    @cached_property
    def any_gpu(self) -> bool:
        """Whether members may have GPUs with taints too, since it is open which GPUs match."""
        return any(role.subrequests for role in self.request.roles)

    @cached_property
    def free(self) -> Ints:
        """[resource, row] The free amounts, at least 0."""
        return np.maximum(0, np.stack([self._free_amount(name) for name in self.resources]))

    def _free_amount(self, name: str) -> Ints:
        columns = self.cluster.columns
        if name == GPU:
            free = columns.free_gpus
            if self.any_gpu:
                free = free | np.array([state.tainted for state in columns.states], np.int64)
            return gpu_counts(free) - columns.unindexed
        if name == GPU_MEMORY:
            return np.array([sum(state.memory) for state in columns.states], np.int64)
        return columns.free_amount(name)

    @cached_property
    def freed_amounts(self) -> Ints:
        """[resource, pod] What becomes free with each pod, on the node of the pod."""
        return np.stack([self._freed_amount(name) for name in self.resources])

    def _freed_amount(self, name: str) -> Ints:
        columns, masks = self.cluster.columns, self.pods.gpus
        if name != GPU:
            return self.pods.amounts(name, columns)
        if not self.any_gpu and len(masks):
            masks = masks & columns.totals[0][self.pods.row]
        return gpu_counts(masks) + self.pods.unindexed

    @cached_property
    def admits(self) -> Bools:
        """[role, row] Whether the node admits members of the role."""
        columns = self.cluster.columns
        return np.stack([admits(columns, role, self.excluded) for role in self.request.roles])

    @cached_property
    def region(self) -> Ints:
        """[row] The region in which the whole gang could lie, or NOWHERE."""
        columns, scope = self.cluster.columns, self.request.required_scope
        region = columns.topology.regions(scope)
        rows = [columns.row[pod.node] for pod in self.request.running if pod.node in columns.row]
        return np.where(np.isin(region, region[rows]), region, NOWHERE) if rows else region

    def room(self, may_go: Bools) -> Ints:
        """Return [role, row] how many members of a role alone the node holds without the pods that may go."""
        pods = np.flatnonzero(may_go & (self.pods.row >= 0))
        rows, columns = self.pods.row[pods], self.cluster.columns
        emptied = self.free.copy()
        for line, amounts in zip(emptied, self.freed_amounts, strict=True):
            np.add.at(line, rows, amounts[pods])
        room = np.zeros_like(self.admits, np.int64)
        for k, role in enumerate(self.request.roles):
            lines = np.flatnonzero(self.asks[k])
            room[k] = np.minimum((emptied[lines] // self.asks[k][lines, None]).min(axis=0), self.need[k])
            limits = {columns.row[node]: limit for node, limit in role.room.items() if node in columns.row}
            room[k, list(limits)] = np.minimum(room[k, list(limits)], list(limits.values()))
        return room * self.admits

    def possible_regions(self, room: Ints) -> list[int]:
        """Return the regions in which enough members might fit, by the sums of `room`."""
        rows = np.flatnonzero((self.region >= 0) & room.any(axis=0))
        if not len(rows):
            return []
        region = self.region[rows]
        members = [np.bincount(region, line[rows]) for line in room]
        by_role = np.minimum(members, np.array(self.need)[:, None])
        return np.flatnonzero(by_role.sum(axis=0) >= self.request.min_member).tolist()

    def problem(
        self, region: int, room: Ints, may_go: Bools, below: int | None
    ) -> tuple[VictimProblem, Ints, Ints]:
        """Return the model's problem for a region, and the pods and the units of its axes.

        Pods that go only at a cost of `below` or more are left out.
        """
        rows, costs = np.flatnonzero((self.region == region) & room.any(axis=0)), self.costs(may_go)
        if below is not None:
            goes_alone = (self.pods.spare[self.pods.unit] > 0) & (costs.pod + 1 < below)
            may_go = may_go & (goes_alone | (costs.end[self.pods.unit] < below))
        pods = np.flatnonzero(may_go & np.isin(self.pods.row, rows))
        units, unit = np.unique(self.pods.unit[pods], return_inverse=True)
        quorum = None
        if self.request.quorum is not None:
            names = tuple(role.name for role in self.request.roles)
            quorum = QuorumRule(self.request.quorum, names, self.need, tuple(range(len(names))))
        most_asked = self.asks.T @ room[:, rows]
        node = np.searchsorted(rows, self.pods.row[pods])
        problem = VictimProblem(
            asks=self.asks,
            need=self.need,
            min_members=self.request.min_member,
            quorum=quorum,
            free=np.minimum(self.free[:, rows], most_asked),
            room=room[:, rows],
            freed=np.minimum(self.freed_amounts[:, pods], most_asked[:, node]),
            node=node,
            unit=unit,
            end_cost=costs.end[units].tolist(),
            shrink_cost=SHRINK_COST,
            pod_cost=costs.pod[pods].tolist(),
            spare=self.pods.spare[units].tolist(),
            limits=self._limits(pods, units, unit),
        )
        return problem, pods, units

    def costs(self, may_go: Bools) -> Costs:
        """Return what victims cost: first their loss, then the number of units that are hurt."""
        factor = len(np.unique(self.pods.unit[may_go])) + 1
        return Costs(self.pods.end_loss * factor + 1, self.pods.restart_loss * factor)

    def cost(self, parts: Collection[Part], may_go: Bools) -> int:
        """Return what these victims cost."""
        costs, shrunk = self.costs(may_go), {unit for unit, pod in parts if pod != ALL}
        by_part = [costs.end[unit] if pod == ALL else costs.pod[pod] for unit, pod in parts]
        return int(sum(by_part)) + SHRINK_COST * len(shrunk)

    def _limits(self, pods: Ints, units: Ints, unit: Ints) -> list[PodLimit]:
        """Return the limits by disruption budgets and by subgroups."""
        limits, alone = list[PodLimit](), self.pods.spare[units][unit] > 0
        covered = self.pods.is_movable & (self.pods.budget >= 0) & np.isin(self.pods.unit, units)
        for budget in np.unique(self.pods.budget[covered]).tolist():
            of_budget = np.searchsorted(units, self.pods.unit[covered & (self.pods.budget == budget)])
            allowed = max(0, self.occupancy.budgets.get(self.pods.budgets[budget], 0))
            single = np.flatnonzero(alone & (self.pods.budget[pods] == budget)).tolist()
            limits.append(PodLimit(allowed, dict(Counter(of_budget.tolist())), single))
        for u in np.unique(unit[alone]).tolist():
            minimums = self.pods.units[units[u]].min_by_subgroup
            if minimums:
                limits += self._subgroup_limits(minimums, pods, np.flatnonzero(unit == u), int(units[u]))
        return limits

    def _subgroup_limits(
        self, minimums: Mapping[str, int], pods: Ints, of_unit: Ints, unit: int
    ) -> Iterator[PodLimit]:
        """Yield how many pods of each subgroup the unit may lose. `of_unit` are indices into `pods`."""
        occupants = self.pods.occupants
        members = np.flatnonzero(self.pods.is_movable & (self.pods.unit == unit)).tolist()
        sizes = Counter(occupants[pod].subgroup for pod in members)
        for subgroup, minimum in minimums.items():
            single = [p for p in of_unit.tolist() if occupants[pods[p]].subgroup == subgroup]
            yield PodLimit(max(0, sizes[subgroup] - minimum), {}, single)
