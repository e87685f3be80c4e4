"""Decide one role inside one domain if members share GPUs or have a policy, by branch and bound over domains.

Domains are examined closely one after another, the most promising first, until no other can be better.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.on_node import costs_on, gpus_on
from muster.placement.gpus.choices import CHOICE_VALUES, NODE_TIME, PACKING_TIME, choices
from muster.placement.limits import Budget
from muster.placement.model.objective import PREFERENCES, WEAKEST_LINK, Level
from muster.placement.search import node_tables
from muster.placement.search.methods import Answer, Declined, Partial, Regions, Solved
from muster.placement.search.plan import Gap, Share, Value
from muster.placement.search.single_domain import (
    TOO_LARGE,
    Fields,
    Hopeful,
    Plan,
    best_plan,
    hopeful_nodes,
    left_over_of,
)
from muster.placement.search.single_node import at_least, by_level

SLOPES = np.array([-1, -0.5, -0.25, -0.1, 0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1, 2])
"""Prices of a member at which domains are bounded in the first pass."""

AT_ONCE = 1 << 21
"""Steps of the tables of domains that are bounded together."""


class DomainBranching:
    """Decide one role inside one domain, domain after domain, if members share GPUs or have a policy."""

    name: ClassVar = "domain-branching"
    given: ClassVar = (Regions,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the nodes and all below."""
        instance, known = plan.instance, plan.known
        assert isinstance(known, Regions)
        if not instance.plain:
            return Declined("rules bind members on a node")
        if not instance.costs:
            return Declined("no slices and no policies")
        if instance.prices:
            return Declined("damage is priced by typical requests")
        if known.left:
            return Declined("no part of the narrowest level holds all members")
        (role,) = plan.active
        with budget.phase("sets"):
            found = in_shared_domain(instance, known, role, plan.need[role], budget)
        if found is None:
            return Declined(TOO_LARGE)
        shares, proven = found
        return Solved((plan.complete(shares),), None if proven else Gap(instance.costs[0].value))


def in_shared_domain(
    instance: Instance, found: Regions, role: int, need: int, budget: Budget
) -> tuple[tuple[Share, ...], bool] | None:
    """Return the best plan in one of these regions, and whether that is proven; None as for `in_one_domain`.

    If time runs out, it is the best of those examined.
    """
    hopeful = hopeful_nodes(instance, found, role, need)
    if hopeful is None:
        return None
    parts, width, most = hopeful.shape
    steps = node_tables.steps(1, width, hopeful.nodes, need, most)
    if steps > node_tables.MAX_STEPS:
        return None
    lines = at_least(instance, hopeful.rows, tuple(_packing(instance, role, n) for n in range(most)))
    at_first = _at_first_sight(lines[: len(instance.costs)], hopeful, need)
    order = sorted(range(parts), key=lambda part: (at_first[part], part))
    best: tuple[Plan, Hopeful] | None = None
    complete, chunk = True, max(1, AT_ONCE // steps)
    for start in range(0, parts, chunk):
        some = [
            part for part in order[start : start + chunk] if best is None or at_first[part] <= best[0].value
        ]
        if not some:
            break
        for bound, part in sorted(_bounds(instance, role, hopeful, lines, need, some)):
            if best is not None and bound >= best[0].value:
                break
            if budget.spent and (best is not None or budget.truncated):
                complete = False
                break
            here, _ = hopeful.of([part])
            fields, all_of_them = _fields(instance, role, here, budget)
            complete &= all_of_them
            plan = best_plan(instance, role, here, fields, need)
            if plan is not None and (best is None or plan.value < best[0].value):
                best = (plan, here)
    return None if best is None else (best[0].shares(instance, role, best[1]), complete)


def _at_first_sight(costs: Ints, hopeful: Hopeful, need: int) -> list[Value]:
    """Return for each region the least cost of the members at each level by itself.

    At any price of a member, the cheapest nodes cost at most as much as those of a plan.
    """
    parts, _, most = hopeful.shape
    members = np.arange(most)
    valid = (members >= hopeful.least[:, None]) & (members <= hopeful.cap[:, None])
    found = np.full((len(costs), parts), -np.inf)
    for level, cost in enumerate(costs):
        for price in SLOPES:
            each = np.where(valid, cost - price * members, np.inf).min(axis=1)
            order = np.lexsort((each, hopeful.region))
            taken = hopeful.at < hopeful.nodes  # regions are adjacent in both orders
            total = np.bincount(hopeful.region[taken], each[order][taken], parts) + price * need
            found[level] = np.maximum(found[level], np.ceil(total - 1e-6))
    return [tuple(int(value) for value in line) for line in found.T.tolist()]


def _bounds(
    instance: Instance, role: int, hopeful: Hopeful, lines: Ints, need: int, parts: list[int]
) -> list[tuple[Value, int]]:
    """Return for these regions the least cost of the members, all levels together; only for regions where
    they fit.
    """
    here, index = hopeful.of(parts)
    nodes, most = here.nodes, here.shape[2]
    values = by_level(instance, lines[:, index, :most], left_over_of(instance, role, here))
    link = [*values].index(WEAKEST_LINK)
    links = values.pop(WEAKEST_LINK)
    members = np.arange(most)
    valid = (members >= here.least[:, None]) & (members <= here.cap[:, None])
    every = list(values.values())
    combined = node_tables.combined(every, valid, nodes, exactly=True)
    if combined is None:  # the numbers are too large, so only the first levels are used
        combined = node_tables.combined(every[:link], valid, nodes, exactly=True)
    if combined is None:
        return [((), part) for part in parts]
    table = np.full(here.shape, node_tables.NEVER, np.int64)
    table[here.region, here.at] = combined.cost
    total = node_tables.table_of(table, need, nodes).cost[:, nodes, need]
    sums = combined.parted(np.where(total < node_tables.NEVER, total, 0), np.full(len(parts), nodes))
    fastest = np.zeros(len(parts), np.int64)
    np.minimum.at(fastest, here.region, np.where(valid, links, 0).min(axis=1))
    if len(sums) > link:
        sums.insert(link, fastest)
    keys = np.stack(sums, axis=1).tolist()
    return [
        (tuple(key), part)
        for key, part, cost in zip(keys, parts, total.tolist(), strict=True)
        if cost < node_tables.NEVER
    ]


def _fields(instance: Instance, role: int, here: Hopeful, budget: Budget) -> tuple[Fields, bool]:
    """Return the values of all choices on these nodes, and whether the choices are complete."""
    found = []
    for row, high, low in zip(here.rows.tolist(), here.cap.tolist(), here.least.tolist(), strict=True):
        packings = tuple(_packing(instance, role, n) for n in range(low, high + 1))
        found.append(choices(instance.asks, packings, gpus_on(instance, row), costs_on(instance, row)))
        budget.spend(NODE_TIME + PACKING_TIME * len(packings))
    names = [PREFERENCES[cost].field for cost in instance.costs]
    width = max(
        (int(np.bincount(each.packing).max(initial=0)) for each in found if len(each.packing)), default=1
    )
    shape = (len(here.rows), here.shape[2], width)
    fields: dict[str, Ints] = {name: np.zeros(shape, np.int64) for name in (*names, *CHOICE_VALUES)}
    fields["valid"] = np.zeros(shape, bool)
    for i, each in enumerate(found):
        begins = np.searchsorted(each.packing, each.packing)
        at = (i, each.packing + int(here.least[i]), np.arange(len(each.packing)) - begins)
        for name, values in zip(names, each.costs, strict=True):
            fields[name][at] = values
        for name in CHOICE_VALUES:
            fields[name][at] = getattr(each, name)
        fields["valid"][at] = True
    return fields, all(each.complete for each in found)


def _packing(instance: Instance, role: int, members: int) -> Counts:
    return tuple(members if r == role else 0 for r in range(len(instance.roles)))
