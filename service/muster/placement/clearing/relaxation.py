"""Reduce a question to sums of resources: what members ask for, what is free, what each pod would free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from muster.domain.clearing import Occupancy
from muster.domain.request import Request
from muster.placement.clearing.pods import GPU_MEMORY, NOWHERE, Pods
from muster.placement.cluster.candidates import Excluded, admits
from muster.placement.cluster.columns import CPU, GPU, LARGEST, MEMORY, PODS, Bools, Ints, gpu_counts
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.instance import amounts_of
from muster.placement.model.build import QuorumRule
from muster.placement.model.problem import Floats
from muster.placement.model.victims import PodLimit, VictimProblem


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A request on a cluster, by sums of resources. No sum is smaller than in truth."""

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
            shrink_cost=1,
            pod_cost=costs.pod[pods].tolist(),
            spare=self.pods.spare[units].tolist(),
            limits=self._limits(pods, units, unit),
        )
        return problem, pods, units

    def costs(self, may_go: Bools) -> Costs:
        """Return what victims cost: first their loss, then the number of units that are hurt."""
        factor = len(np.unique(self.pods.unit[may_go])) + 1
        return Costs(self.pods.end_loss * factor + 1, self.pods.restart_loss * factor)

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

    def cheap_units(self, room: Ints, may_go: Bools) -> list[int]:
        """Return units with whose end the members fit by sums: a good choice, not the cheapest.

        Units go in the order of cost by amount freed, until the members fit. Then the dearest stay if the
        members fit without their end. The list is empty if the gang has several roles or a required scope.
        """
        active = [k for k, need in enumerate(self.need) if need]
        if len(active) != 1 or self.request.required_scope is not None or not may_go.any():
            return []
        (k,), costs = active, self.costs(may_go)
        lines = np.flatnonzero(self.asks[k])
        asks, free, amounts = self.asks[k][lines, None], self.free[lines], self.freed_amounts[lines]
        indices = np.flatnonzero(may_go & (self.pods.row >= 0))
        units, begins = np.unique(self.pods.unit[indices], return_index=True)
        pods_of_unit = dict(zip(units.tolist(), np.split(indices, begins[1:]), strict=False))
        freed = np.bincount(self.pods.unit[indices], self.freed_amounts[self._main][indices], len(costs.end))

        def count_members(rows: Ints) -> int:
            return int(np.minimum((free[:, rows] // asks).min(axis=0), room[k][rows]).sum())

        def change(unit: int, sign: int) -> int:
            pods = pods_of_unit[unit]
            rows = np.unique(self.pods.row[pods])
            before = count_members(rows)
            np.add.at(free.T, self.pods.row[pods], sign * amounts[:, pods].T)
            return count_members(rows) - before

        members, ended = count_members(np.arange(free.shape[1])), list[int]()
        ratio = costs.end / np.maximum(freed, 0.5)
        for unit in sorted(pods_of_unit, key=lambda unit: (float(ratio[unit]), unit)):
            if members >= self.request.min_member:
                break
            members += change(unit, 1)
            ended.append(unit)
        for unit in sorted(ended, key=lambda unit: -int(costs.end[unit])):
            members += change(unit, -1)
            if members < self.request.min_member:
                members += change(unit, 1)
            else:
                ended.remove(unit)
        return ended if members >= self.request.min_member else []

    @cached_property
    def _main(self) -> int:
        """The resource that bounds and good choices count: GPUs, or memory of GPUs, or cpu."""
        names = (GPU, GPU_MEMORY, CPU, MEMORY, PODS)
        return self.resources.index(next(name for name in names if name in self.resources))

    def bounds(self, regions: Sequence[int], may_go: Bools) -> list[tuple[int, int]]:
        """Return (bound, region): no victims in the region cost less. The lowest bounds come first.

        The bound counts one resource. Pods go in the order of cost by amount
        freed in the region, and the last one in part.
        """
        r = self._main
        amounts_asked = sorted(self.asks[k, r] for k, need in enumerate(self.need) for _ in range(need))
        hosts = (self.region >= 0) & self.admits.any(axis=0)
        size = int(self.region.max(initial=0)) + 1
        free = np.bincount(self.region[hosts], self.free[r][hosts], size)
        lacking = np.maximum(0.0, sum(amounts_asked[: self.request.min_member]) - free)
        cost = _fractional_costs(self, may_go & (self.pods.row >= 0), r, hosts, lacking)
        finite = [region for region in regions if cost[region] < np.inf]
        return sorted((int(np.ceil(cost[region] * (1 - 1e-9))), region) for region in finite)


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What victims cost, in numbers that order as the loss and then the number of units do."""

    end: Ints
    """[unit]"""
    pod: Ints
    """[pod] Apart from the cost of 1 of each unit that loses pods."""


def _fractional_costs(
    relaxation: Relaxation, may_go: Bools, resource: int, hosts: Bools, lacking: Floats
) -> Floats:
    """Return [region] the least cost of freeing what is lacking, if units may end in part."""
    pods, costs = relaxation.pods, relaxation.costs(may_go)
    indices = np.flatnonzero(may_go)
    indices = indices[hosts[pods.row[indices]] & (relaxation.freed_amounts[resource][indices] > 0)]
    region, freed = relaxation.region[pods.row[indices]], relaxation.freed_amounts[resource][indices]
    key, group = np.unique(region * (len(pods.keys) + 1) + pods.unit[indices], return_inverse=True)
    amount_of_unit = np.bincount(group, freed, len(key)) if len(key) else np.zeros(0)
    alone = pods.spare[pods.unit[indices]] > 0
    amounts = np.concatenate([amount_of_unit, freed[alone]]).astype(float)
    regions = np.concatenate([key // (len(pods.keys) + 1), region[alone]])
    prices = np.concatenate([costs.end[key % (len(pods.keys) + 1)], costs.pod[indices[alone]]]).astype(float)
    order = np.lexsort((prices / amounts, regions))
    amounts, regions, prices = amounts[order], regions[order], prices[order]
    freed_before = np.cumsum(amounts) - amounts
    first = np.searchsorted(regions, np.arange(len(lacking)))
    freed_before -= np.append(freed_before, 0.0)[first][regions] if len(regions) else 0.0
    used = np.clip(lacking[regions] - freed_before, 0.0, amounts)
    total = np.bincount(regions, prices * used / amounts, len(lacking))
    is_enough = np.bincount(regions, amounts, len(lacking)) >= lacking
    return np.where(is_enough, total, np.inf)
