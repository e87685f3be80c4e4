"""Estimate without a solver what victims cost: at least in each region, and at most by a good choice.

Both estimates take units in steps: a unit first loses the pods that it can spare, and then it ends. Steps go
in the order of cost by gain, which is what members may take once the pods of the step are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from muster.placement.clearing.pods import GPU_MEMORY
from muster.placement.clearing.relaxation import ALL, Part, Relaxation
from muster.placement.cluster.columns import CPU, GPU, MEMORY, PODS, Bools, Ints
from muster.placement.model.problem import Floats


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates for one request, if only the pods `may_go` may be victims. They count one resource."""

    relaxation: Relaxation
    may_go: Bools

    @cached_property
    def _resource(self) -> int:
        """The resource that is counted: GPUs, or memory of GPUs, or cpu."""
        names = (GPU, GPU_MEMORY, CPU, MEMORY, PODS)
        return self.relaxation.resources.index(
            next(name for name in names if name in self.relaxation.resources)
        )

    @cached_property
    def _amounts_asked(self) -> list[int]:
        """What each member asks for, the least first."""
        asks, need = self.relaxation.asks[:, self._resource].tolist(), self.relaxation.need
        return sorted(ask for ask, members in zip(asks, need, strict=True) for _ in range(members))

    @cached_property
    def _unusable(self) -> Ints:
        """[row] What is free on each node, but not usable: members take multiples of one amount."""
        unusable: Ints = self.relaxation.free[self._resource] % (gcd(*self._amounts_asked) or 1)
        return unusable

    @cached_property
    def _gains(self) -> Ints:
        """[pod] How much more members may take if the pod goes, at most: what it frees, and what is unusable
        on its node."""
        row, freed = self.relaxation.pods.row, self.relaxation.freed_amounts[self._resource]
        gains: Ints = freed + np.where(row >= 0, self._unusable[row], 0)
        return gains

    def bounds(self, regions: Sequence[int]) -> list[tuple[int, int]]:
        """Return (bound, region): no victims in the region cost less. The lowest bounds come first.

        Regions in which no victims are enough are left out.
        """
        relaxation, r = self.relaxation, self._resource
        hosts = (relaxation.region >= 0) & relaxation.admits.any(axis=0)
        region_count = int(relaxation.region.max(initial=0)) + 1
        usable_on_node = (relaxation.free[r] - self._unusable)[hosts]
        usable = np.bincount(relaxation.region[hosts], usable_on_node, region_count)
        lacking = np.maximum(0.0, sum(self._amounts_asked[: relaxation.request.min_member]) - usable)
        cost = self._least_costs(hosts, lacking)
        finite = [region for region in regions if cost[region] < np.inf]
        return sorted((int(np.ceil(cost[region] * (1 - 1e-9))), region) for region in finite)

    def _least_costs(self, hosts: Bools, lacking: Floats) -> Floats:
        """Return [region] the least cost of gaining what is lacking, if the last step may be taken in part.

        The pods that a unit can spare count as the cheapest pod in cost and as the largest in gain. So no
        real step is better.
        """
        relaxation, pods = self.relaxation, self.relaxation.pods
        costs = relaxation.costs(self.may_go)
        freeing = np.flatnonzero(
            self.may_go & (pods.row >= 0) & hosts[pods.row] & (relaxation.freed_amounts[self._resource] > 0)
        )
        units, gains = len(pods.keys) + 1, self._gains[freeing]
        key, group = np.unique(
            relaxation.region[pods.row[freeing]] * units + pods.unit[freeing], return_inverse=True
        )
        region, unit = np.divmod(key, units)
        largest, cheapest = np.zeros(len(key)), np.full(len(key), np.inf)
        np.maximum.at(largest, group, gains)
        np.minimum.at(cheapest, group, costs.pod[freeing])
        spared = np.minimum(pods.spare[unit], np.bincount(group, minlength=len(key)))
        gain = np.bincount(group, gains, len(key))
        step_gain = np.concatenate([spared * largest, np.maximum(0.0, gain - spared * largest)])
        step_cost = np.concatenate([spared * cheapest, costs.end[unit] - spared * cheapest])
        return _fill(np.tile(region, 2), step_gain, step_cost, lacking)

    def good_choice(self, room: Ints) -> list[Part]:
        """Return victims with which the members fit by sums: a good choice, not always the cheapest.

        Steps are taken until the members fit. Then the dearest are taken back if the members fit without
        them. The list is empty if the gang has several roles or a required scope.
        """
        active = [k for k, need in enumerate(self.relaxation.need) if need]
        if len(active) != 1 or self.relaxation.request.required_scope is not None:
            return []
        members = _Members(self.relaxation, active[0], room[active[0]])
        need, steps = self.relaxation.request.min_member, list[_Step]()
        for step in sorted(self._steps(), key=lambda step: (step.ratio, step.part)):
            if members.count >= need:
                break
            members.change(step.pods, 1)
            steps.append(step)
        if members.count < need:
            return []
        ending = {step.part[0] for step in steps if step.part[1] == ALL}
        for step in sorted(steps, key=lambda step: -step.cost):
            unit, pod = step.part
            if pod != ALL and unit in ending:
                continue
            members.change(step.pods, -1)
            if members.count < need:
                members.change(step.pods, 1)
            else:
                steps.remove(step)
                ending.discard(unit)
        return [step.part for step in steps if step.part[1] == ALL or step.part[0] not in ending]

    def _steps(self) -> Iterator[_Step]:
        """Yield the steps of all units. A unit with minimums of subgroups only ends."""
        pods, costs = self.relaxation.pods, self.relaxation.costs(self.may_go)
        indices = np.flatnonzero(self.may_go & (pods.row >= 0))
        indices = indices[np.lexsort((costs.pod[indices], -self._gains[indices], pods.unit[indices]))]
        units, begins = np.unique(pods.unit[indices], return_index=True)
        for unit, of_unit in zip(units.tolist(), np.split(indices, begins[1:]), strict=False):
            spare = 0 if pods.units[unit].min_by_subgroup else int(pods.spare[unit])
            spared, last_pods = of_unit[:spare], of_unit[spare:]
            for pod in spared.tolist():
                yield _Step((unit, pod), [pod], int(costs.pod[pod]), int(self._gains[pod]))
            cost = int(costs.end[unit] - costs.pod[spared].sum())
            yield _Step((unit, ALL), last_pods.tolist(), cost, int(self._gains[last_pods].sum()))


@dataclass(frozen=True, slots=True)
class _Step:
    """A unit loses one of the pods that it can spare, or it ends and loses all others."""

    part: Part
    pods: list[int]
    cost: int
    gain: int

    @property
    def ratio(self) -> float:
        """Return the cost by gain."""
        return self.cost / max(self.gain, 0.5)


class _Members:
    """How many members of one role fit by sums, while pods go and come back."""

    def __init__(self, relaxation: Relaxation, role: int, room: Ints) -> None:
        resources = np.flatnonzero(relaxation.asks[role])
        self._row, self._room = relaxation.pods.row, room
        self._asks, self._free = relaxation.asks[role][resources, None], relaxation.free[resources]
        self._freed = relaxation.freed_amounts[resources]
        self.count = self._count(np.arange(len(room)))

    def _count(self, rows: Ints) -> int:
        return int(np.minimum((self._free[:, rows] // self._asks).min(axis=0), self._room[rows]).sum())

    def change(self, pods: list[int], sign: int) -> None:
        """Let pods go (1), or come back (-1)."""
        rows = np.unique(self._row[pods])
        self.count -= self._count(rows)
        np.add.at(self._free.T, self._row[pods], sign * self._freed[:, pods].T)
        self.count += self._count(rows)


def _fill(region: Ints, gain: Floats, cost: Floats, lacking: Floats) -> Floats:
    """Return [region] the cost of the cheapest steps that gain what is lacking; infinite if all gain less."""
    steps = np.flatnonzero(gain)
    steps = steps[np.lexsort((cost[steps] / gain[steps], region[steps]))]
    region, gain, cost = region[steps], gain[steps], cost[steps]
    gained_before = np.append(np.cumsum(gain) - gain, 0.0)
    first = np.searchsorted(region, np.arange(len(lacking)))
    gained_before = gained_before[:-1] - gained_before[first][region]
    used_gain = np.clip(lacking[region] - gained_before, 0.0, gain)
    total = np.bincount(region, cost * used_gain / gain, len(lacking))
    return np.where(np.bincount(region, gain, len(lacking)) >= lacking, total, np.inf)
