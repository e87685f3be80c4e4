"""Find the best plan for given members: the first exact method that accepts a level decides it.

METHODS is the order in which methods are asked. Before that comes `presolved`. After counting, several
regions may be equally good. Then each of them is decided to the end, and the best one is taken.
"""

from __future__ import annotations

from dataclasses import replace

from muster.domain.decision import Step
from muster.placement.gang.instance import Counts, Instance
from muster.placement.limits import Budget
from muster.placement.model.objective import NODES, levels_of_plan
from muster.placement.search.dealing import dealt_by_role
from muster.placement.search.members_without_gpus import MembersWithoutGpus
from muster.placement.search.methods import Declined, Exact, Infeasible, Partial, Solved, Unknown
from muster.placement.search.one_role import DomainTables, SortedCapacities
from muster.placement.search.plan import Found, Gap, Value
from muster.placement.search.quality import LevelCore, LinkThresholds
from muster.placement.search.region_count import RegionCount
from muster.placement.search.role_aggregation import RoleAggregation
from muster.placement.search.single_node import SingleNode

MAX_FINISHED = 8
"""The most equally good regions that are decided to the end, for gangs that share GPUs or have a policy.

For these gangs the choices of each node take a while.
"""

Outcome = tuple[Partial | None, Gap | None]
"""The best plan, None if none was found; and the first level without proof, None if all are proven.

If there is no plan and no gap, it is proven that nothing fits.
"""


def search(instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget) -> Found:
    """Return the best plan with all members in one part of every scope of `scopes`."""
    best, gap = decided(presolved(instance, scopes, need, budget), None, budget)
    if best is None:
        return Found((), gap)
    return Found(dealt_by_role(best.instance, best.shares()), gap, best.steps)


def presolved(instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget) -> Partial:
    """Return the plan with nothing decided, without parts that no plan for all these members can use."""
    with budget.phase("scan"):
        instance = instance.for_all(need)
    return Partial(instance, scopes, need, levels_of_plan(instance.levels, instance.costs, instance.idle))


def decided(plan: Partial, incumbent: Value | None, budget: Budget) -> Outcome:
    """Decide all levels that are left. Stop if the plan cannot beat the incumbent."""
    gap, declined = plan.gap, list[tuple[str, str]]()
    while plan.levels:
        method, answer, reasons, doubt = _asked(plan, incumbent, budget)
        gap, declined = gap or doubt, [*declined, *reasons]
        if isinstance(answer, Infeasible):
            return None, gap
        gap = gap or answer.gap
        if isinstance(answer, Unknown):
            return None, gap
        plans = list(answer.plans)
        if len(plans[0].levels) < len(plan.levels):
            plans = [_noted(plan, each, method, declined) for each in plans]
            declined = []
        if len(plans) > 1:
            return _best(plans, gap, budget)
        plan = plans[0]
        gap = gap or plan.gap
        if incumbent is not None and plan.value > incumbent[: len(plan.value)]:
            return None, gap
    return plan, gap


Asked = tuple[Exact, Solved | Infeasible | Unknown, list[tuple[str, str]], Gap | None]
"""The method that accepted, its answer, why others declined, and what these could not prove."""


def _asked(plan: Partial, incumbent: Value | None, budget: Budget) -> Asked:
    """Ask the methods in their order for the next level.

    Raises:
        LookupError: All methods decline, which is a defect of METHODS.
    """
    declined, gap = list[tuple[str, str]](), None
    for method in METHODS:
        if not isinstance(plan.known, method.given):
            continue
        began = budget.now()
        answer = method.solve(plan, plan.levels[0], incumbent, budget)
        if not isinstance(answer, Declined):
            budget.decided(method.name, began)
            return method, answer, declined, gap
        if answer.reason:  # it is "" where the method is about something that the gang does not have
            declined.append((method.name, answer.reason))
        gap = gap or answer.gap
    raise LookupError(f"no method decides {plan.levels[0].name}: {declined}")


def _noted(before: Partial, after: Partial, method: Exact, declined: list[tuple[str, str]]) -> Partial:
    """Record which method decided the levels that are no longer left, unless it did so itself."""
    done = before.levels[: len(before.levels) - len(after.levels)]
    first, *others = after.steps[len(before.steps) :] or [Step(level.name, method.name) for level in done]
    first = replace(first, declined=(*declined, *first.declined))
    return replace(after, steps=(*before.steps, first, *others))


def _best(plans: list[Partial], gap: Gap | None, budget: Budget) -> Outcome:
    """Decide each of the plans that are equally good so far, and return the best.

    What is not proven for one of them is not proven for the best.
    """
    best: Partial | None = None
    for i, plan in enumerate(plans):
        costs = plan.instance.costs
        if costs and i == MAX_FINISHED:
            gap = gap or Gap(costs[0].value)
            break
        found, doubt = decided(plan, best.value if best else None, budget)
        gap = gap or doubt
        if found is not None and (best is None or found.value < best.value):
            best = found
    return best, gap if best is not None else gap or Gap(NODES.name)


METHODS: tuple[Exact, ...] = (
    MembersWithoutGpus(decided),
    SingleNode(),
    RoleAggregation(decided),
    SortedCapacities(),
    DomainTables(),
    RegionCount(),
    LinkThresholds(),
    LevelCore(),
)
"""The exact methods in the order in which they are asked: cheap ones first, last one that accepts any
problem.
"""
