"""Begin with gangs that have members without GPUs: the GPUs that these make unusable are decided early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from muster.domain.decision import Step
from muster.domain.request import Scope
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.instance import Instance
from muster.placement.gang.on_node import best_fit, costs_on, gpus_on
from muster.placement.gpus.costs import Cost, Taken, cost_of
from muster.placement.limits import Budget
from muster.placement.model.objective import NODES, UNUSABLE, Idle, Level
from muster.placement.search.methods import Answer, Decide, Declined, Infeasible, Partial, Solved, Start
from muster.placement.search.plan import Gap, Share, Value
from muster.placement.search.single_node import on_one_node


@dataclass(frozen=True, slots=True)
class MembersWithoutGpus:
    """Decide gangs inside one node, and gangs without GPUs that nodes without GPUs hold."""

    decide: Decide
    name: ClassVar = "members-without-gpus"
    given: ClassVar = (Start,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide all levels if the gang lies inside one node, or if nodes without GPUs hold it."""
        instance = plan.instance
        if instance.idle is Idle.NONE:
            return Declined("")
        inside = self._inside_one(plan, budget)
        if inside is not None:
            return inside
        if level is not UNUSABLE:
            return Declined("members without GPUs may lie on other nodes")
        active, without = list(plan.active), instance.on(instance.columns.gpu_total == 0)
        found, gap = self.decide(replace(plan, instance=without, levels=plan.levels[1:]), None, budget)
        if found is not None:
            steps = (Step(level.name, self.name), *found.steps)
            return Solved((replace(plan.complete(found.shares(), found.value), steps=steps),), gap)
        if gap is None and (without.room[active] == instance.room[active]).all():
            return Infeasible()
        return Declined("nodes without GPUs do not hold the gang", gap)

    def _inside_one(self, plan: Partial, budget: Budget) -> Answer | None:
        """Return the best plan if all members must lie inside one node; None if they need not.

        An NVLink domain may span nodes. Then the best plan inside such domains is compared.
        """
        instance, wide = plan.instance, plan.instance.columns.topology.in_wide
        alone = sum(plan.need) == 1 and not instance.existing
        one_node = alone or bool({Scope.NODE, Scope.GPU} & {*plan.scopes})
        inside = instance if one_node else instance.on(~wide)
        narrow = alone or {Scope.NODE, *INSIDE} & {*plan.scopes}
        if not narrow or not inside.room[list(plan.active)].any():
            return None
        with budget.phase("scan"):
            share, proven = on_one_node(inside, plan.scopes, plan.need, budget)
        found: list[tuple[Share, ...]] = [] if share is None else [(share,)]
        gap = None if proven else Gap(NODES.name)
        if not one_node and instance.room[:, wide].any():
            spread, doubt = self.decide(replace(plan, instance=instance.on(wide)), None, budget)
            gap = gap or doubt
            found += [] if spread is None else [spread.shares()]
        if not found:
            return Declined("no node is known to take all members", gap) if gap else Infeasible()
        return Solved((plan.complete(min(found, key=lambda shares: _worth(instance, shares))),), gap)


def _worth(instance: Instance, shares: Sequence[Share]) -> tuple[int, ...]:
    """Return the value of a plan in one NVLink domain, without the domains: these are equal for all."""
    rows, counts = np.array([s.row for s in shares]), np.array([s.counts for s in shares], np.int64)
    unusable = int(instance.unusable(rows, counts[:, None]).sum())
    beside = instance.idle is Idle.BESIDE
    touching = rows[[s.gpus.mask > 0 for s in shares]] if beside else rows
    topology = instance.columns.topology
    parts = [len(np.unique(topology.index_or_own(scope)[touching])) for scope in instance.levels]
    crossed = (*parts, len(touching))
    found = [*crossed, unusable] if beside else [unusable, *crossed]
    for cost in instance.costs:
        if cost is not Cost.NVLINK_DOMAINS:
            found.append(sum(_cost(instance, share, cost) for share in shares))
    prices, damage = instance.prices, sum(share.gpus.damage for share in shares)
    if prices is not None:
        gpus, cpu = instance.gpus(counts), instance.cpu(counts)
        each = zip(rows, gpus, cpu, strict=True)
        damage = sum(
            int(prices.of_whole(np.array([r]), np.array([g]), np.array([c]))[0, 0]) for r, g, c in each
        )
    found += [-min(share.gpus.weakest for share in shares), -sum(share.gpus.ring for share in shares)]
    fit = sum(int(best_fit(instance, np.array([s.row]), np.array([s.counts]))[0, 0]) for s in shares)
    return (*found, sum(share.gpus.sockets for share in shares), damage, fit)


def _cost(instance: Instance, share: Share, cost: Cost) -> int:
    taken = Taken(np.array([share.shared]), np.array([share.gpus.mask & ~share.shared]))
    return int(cost_of(cost, gpus_on(instance, share.row), taken, costs_on(instance, share.row))[0])
