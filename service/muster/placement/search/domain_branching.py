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
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import PREFERENCES, WEAKEST_LINK, Level
from muster.placement.search.capacities import Choices, Domains
from muster.placement.search.methods import Answer, Declined, Partial, Regions, Solved
from muster.placement.search.one_role import (
    TOO_LARGE,
    WIDE_DOMAINS,
    DomainTable,
    NodeSets,
    Plan,
    best_plan,
    left_over_of,
    node_sets,
    wide_tell_apart,
)
from muster.placement.search.plan import Gap, Share, Value
from muster.placement.search.single_node import at_least, by_level
from muster.placement.search.tables import MAX_STEPS, NEVER, one_cost, steps

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
        (role,) = plan.active
        reason = _not_for_branching(instance, known, role)
        if reason:
            return Declined(reason)
        with budget.phase("sets"):
            possible = Domains.of(known.rows, known.cap, known.region, plan.need[role]).counted()
            if possible is None or steps(possible.width, possible.most, 1, plan.need[role]) > MAX_STEPS:
                return Declined(TOO_LARGE)
            shares, proven = in_shared_domain(instance, role, possible, budget)
        if not shares:
            return Declined(TOO_LARGE)
        return Solved((plan.complete(shares),), None if proven else Gap(instance.costs[0].value))


def _not_for_branching(instance: Instance, known: Regions, role: int) -> str:
    """Return why the gang is not for this method; "" if it is."""
    gpus = takes_gpus(instance.roles[role])
    reasons = {
        "rules bind members on a node": not instance.plain,
        "no slices and no policies": not instance.costs,
        "damage is priced by typical requests": instance.costs and instance.prices,
        "no part of the narrowest level holds all members": known.left,
        WIDE_DOMAINS: gpus and wide_tell_apart(instance, known.rows, known.region, lone=True),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def in_shared_domain(
    instance: Instance, role: int, possible: Choices, budget: Budget
) -> tuple[tuple[Share, ...], bool]:
    """Return the best plan in one of these domains, () if there is none, and whether that is proven.

    If time runs out, it is the best of those examined.
    """
    packings = tuple(_packing(instance, role, n) for n in range(possible.most + 1))
    lines = at_least(instance, possible.rows, packings)
    domains = len(possible.open)
    at_first = _at_first_sight(lines[: len(instance.costs)], possible)
    order = sorted(range(domains), key=lambda domain: (at_first[domain], domain))
    best: tuple[Plan, Choices] | None = None
    complete, chunk = True, max(1, AT_ONCE // steps(possible.width, possible.most, 1, possible.of.need))
    for start in range(0, domains, chunk):
        hopeful = [
            domain
            for domain in order[start : start + chunk]
            if best is None or at_first[domain] <= best[0].value
        ]
        if not hopeful:
            break
        for bound, domain in sorted(_bounds(instance, role, possible, lines, hopeful)):
            if best is not None and bound >= best[0].value:
                break
            if budget.spent and (best is not None or budget.truncated):
                complete = False
                break
            here, _ = possible.alone([domain])
            sets, all_of_them = _sets(instance, role, here, budget)
            complete &= all_of_them
            plan = best_plan(instance, here, sets)
            if plan is not None and (best is None or plan.value < best[0].value):
                best = (plan, here)
    return (() if best is None else best[0].shares(instance, role, best[1])), complete


def _at_first_sight(costs: Ints, possible: Choices) -> list[Value]:
    """Return for each domain the least cost of the members at each level by itself.

    At any price of a member, the cheapest nodes cost at most as much as those of a plan.
    """
    members, domains = np.arange(possible.most + 1), len(possible.open)
    valid = (members >= possible.least[:, None]) & (members <= possible.cap[:, None])
    bounds = np.full((len(costs), domains), -np.inf)
    cheap = possible.place < possible.nodes  # domains are adjacent in both orders
    for level, cost in enumerate(costs):
        for price in SLOPES:
            of_node = np.where(valid, cost - price * members, np.inf).min(axis=1)
            order = np.lexsort((of_node, possible.domain))
            total = (
                np.bincount(possible.domain[cheap], of_node[order][cheap], domains) + price * possible.of.need
            )
            bounds[level] = np.maximum(bounds[level], np.ceil(total - 1e-6))
    return [tuple(int(value) for value in line) for line in bounds.T.tolist()]


def _bounds(
    instance: Instance, role: int, possible: Choices, lines: Ints, domains: list[int]
) -> list[tuple[Value, int]]:
    """Return for these domains the least cost of the members, all levels together; only for domains where
    they fit.
    """
    here, index = possible.alone(domains)
    least = by_level(instance, lines[:, index, : here.most + 1], left_over_of(instance, role, here))
    link, sums = (
        [*least].index(WEAKEST_LINK),
        [cost for level, cost in least.items() if level is not WEAKEST_LINK],
    )
    members = np.arange(here.most + 1)
    valid = (members >= here.least[:, None]) & (members <= here.cap[:, None])
    cost = one_cost(sums, valid, here.nodes)
    if cost is None:  # the numbers are too large, so only the first levels are used
        sums = sums[:link]
        cost = one_cost(sums, valid, here.nodes)
    if cost is None:
        return [((), domain) for domain in domains]
    table = DomainTable.of(here, cost)
    total = table.total[:, 0]  # each domain takes all members
    taken = table.members(np.where(total < NEVER, here.of.need, 0))
    nodes = np.flatnonzero(taken)
    of_domain = here.domain[nodes]
    keys = [np.bincount(of_domain, level[nodes, taken[nodes]], len(domains)) for level in sums]
    if len(sums) > link:
        fastest = np.zeros(len(domains), np.int64)
        np.minimum.at(fastest, here.domain, np.where(valid, least[WEAKEST_LINK], 0).min(axis=1))
        keys.insert(link, fastest)
    bounds = zip(*(key.astype(np.int64).tolist() for key in keys), strict=True)
    return [
        (bound, domain)
        for bound, domain, cost in zip(bounds, domains, total.tolist(), strict=True)
        if cost < NEVER
    ]


def _sets(instance: Instance, role: int, here: Choices, budget: Budget) -> tuple[NodeSets, bool]:
    """Return the values of all choices on these nodes, and whether the choices are complete."""
    by_node = []
    for row, high, low in zip(here.rows.tolist(), here.cap.tolist(), here.least.tolist(), strict=True):
        packings = tuple(_packing(instance, role, n) for n in range(low, high + 1))
        by_node.append(choices(instance.asks, packings, gpus_on(instance, row), costs_on(instance, row)))
        budget.spend(NODE_TIME + PACKING_TIME * len(packings))
    names = [PREFERENCES[cost].field for cost in instance.costs]
    width = max(
        (int(np.bincount(node.packing).max(initial=0)) for node in by_node if len(node.packing)), default=1
    )
    shape = (len(here.rows), here.most + 1, width)
    values: dict[str, Ints] = {name: np.zeros(shape, np.int64) for name in (*names, *CHOICE_VALUES)}
    valid = np.zeros(shape, bool)
    for i, node in enumerate(by_node):
        begins = np.searchsorted(node.packing, node.packing)
        at = (i, node.packing + int(here.least[i]), np.arange(len(node.packing)) - begins)
        for name, of_cost in zip(names, node.costs, strict=True):
            values[name][at] = of_cost
        for name in CHOICE_VALUES:
            values[name][at] = getattr(node, name)
        valid[at] = True
    return node_sets(instance, role, here, values, valid), all(node.complete for node in by_node)


def _packing(instance: Instance, role: int, members: int) -> Counts:
    return tuple(members if r == role else 0 for r in range(len(instance.roles)))
