"""Decide one role over several domains with tables: the fewest domains, then the fewest nodes.

In a plan with the fewest nodes each domain uses the fewest nodes that hold its members, else fewer nodes
would do. So a domain is one choice: how many members it takes, and the number of its nodes follows. One table
has the cheapest way to fill each domain for each choice. Another one has the cheapest choices of all domains.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import numpy as np

from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Instance
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.objective import NODES, WIDE, Level
from muster.placement.model.problem import FREE
from muster.placement.search import node_tables
from muster.placement.search.classes import parts_by_row
from muster.placement.search.domain_counts import Choices, DomainNodes
from muster.placement.search.methods import Answer, Counted, Declined, Partial, Regions, Solved
from muster.placement.search.node_tables import NEVER
from muster.placement.search.plan import Share, Value
from muster.placement.search.single_domain import Hopeful, TooLargeError, best_plan, fields_of

MAX_STEPS = 6_000_000
"""The most elements that tables of all domains visit. If there are more, the solver decides.

The tables inside the domains have the limit of a single domain (`node_tables`).
"""


class DomainTables:
    """Decide domains, nodes and all levels below by tables, for one role over several domains."""

    name: ClassVar = "domain-tables"
    given: ClassVar = (Regions,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the domains and all below."""
        instance, known = plan.instance, plan.known
        assert isinstance(known, Regions)
        if not instance.plain:
            return Declined("rules bind members on a node")
        if instance.costs:
            return Declined("slices or policies")
        if known.left != instance.levels[-1:] or not known.left:
            wider = "wider parts are to be counted first"
            return Declined(wider if known.left else "one part of the narrowest level holds all members")
        (role,) = plan.active
        if takes_gpus(instance.roles[role]) and instance.columns.topology.in_wide[known.rows].any():
            return Declined("NVLink domains over several nodes are to be counted")
        with budget.phase("sets"):
            shares = over_domains(instance, known, role, plan.need[role])
        return Declined("the tables are too large") if shares is None else Solved((plan.complete(shares),))


class CountedDomainTables:
    """Decide the levels below the nodes by tables, for one role over several domains that are counted."""

    name: ClassVar = "counted-domain-tables"
    given: ClassVar = (Counted,)

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide all levels below the nodes."""
        assert isinstance(plan.known, Counted)
        with budget.phase("sets"):
            reason = _not_for_tables(plan.instance, plan.known)
            found = None if reason else in_many_domains(plan.instance, plan.known)
        if found is None:
            return Declined(reason or "the tables are too large")
        value, shares = found
        return Solved((plan.complete(shares, value),))


def over_domains(instance: Instance, found: Regions, role: int, need: int) -> tuple[Share, ...] | None:
    """Return the best plan in one of these regions; None if the tables would be too large."""
    rows = found.rows
    domain = parts_by_row(instance, instance.levels[-1], rows)
    each_region = [found.region == region for region in range(int(found.region.max()) + 1)]
    regions = [DomainNodes.of(rows[here], found.cap[here], domain[here], need) for here in each_region]
    limit = min(domains.limit for domains in regions)
    counted = [domains.counted(MAX_STEPS) for domains in regions if domains.limit == limit]
    choices = [each for each in counted if each is not None]
    nodes = min((each.nodes for each in choices), default=0)
    plans = [_planned(instance, role, each) for each in choices if each.nodes == nodes]
    best = min((plan for plan in plans if plan is not None), key=itemgetter(0), default=None)
    return None if best is None or None in counted or None in plans else best[1]


def _not_for_tables(instance: Instance, counted: Counted) -> str:
    """Return why the counted region is not for tables; "" if it is."""
    problem = counted.problem
    limited = {*problem.at_most} - {NODES.name, *instance.levels[-1:]}
    reasons = {
        "several roles": sum(map(bool, problem.need)) > 1,
        "rules bind members": not instance.plain or counted.domains,
        "slices or policies": instance.costs,
        "NVLink domains over several nodes are to be counted": (problem.part(WIDE) != FREE).any(),
        "other parts than domains are limited": not instance.levels or limited,
        "the counts are not proven": counted.gap,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def in_many_domains(instance: Instance, counted: Counted) -> tuple[Value, tuple[Share, ...]] | None:
    """Return the best plan of a region whose parts and nodes are counted, and its value; None if tables are
    too large.
    """
    problem = counted.problem
    role = next(role for role, need in enumerate(problem.need) if need)
    most = np.where(problem.open, problem.patterns.counts[problem.kind, :, role], 0).max(axis=1)
    rows = np.concatenate([problem.nodes(c) for c in range(problem.classes)])
    cap, domain = (np.repeat(each, problem.size) for each in (most, problem.part(instance.levels[-1])))
    limit = problem.at_most.get(instance.levels[-1], len(np.unique(domain)))  # not limited if all are needed
    domains = DomainNodes.of(rows, cap, domain, problem.need[role], limit)
    return _planned(instance, role, domains.within(counted.value[-1]))


def _planned(instance: Instance, role: int, choices: Choices) -> tuple[Value, tuple[Share, ...]] | None:
    """Return the best plan and its value; None if the tables would be too large."""
    filling = Filling(choices)
    if filling.steps > node_tables.MAX_STEPS or choices.choice(choices.fewest).steps > MAX_STEPS:
        return None
    hopeful = filling.hopeful
    plan = best_plan(
        instance, role, hopeful, fields_of(instance, role, hopeful), choices.domains.need, filling.cheapest
    )
    return None if plan is None else (plan.value, plan.shares(instance, role, hopeful))


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """The ways to fill domains with what they may take."""

    choices: Choices

    @property
    def hopeful(self) -> Hopeful:
        """The nodes that can be in a plan, as one region."""
        domains = self.choices.domains
        cap = domains.cap[domains.cap > 0]
        each = np.arange(len(cap))
        least = np.maximum(1, cap - self.most_lost)
        return Hopeful(self.choices.nodes, domains.rows, 0 * each, each, cap, least)

    @property
    def lost(self) -> Ints:
        """[domain, members] How many more members the roomiest nodes could hold."""
        held, members = self.choices.domains.held, np.arange(self.choices.open.shape[1])
        return np.asarray(held[self._at_fewest] - members)

    @property
    def _at_fewest(self) -> tuple[Ints, Ints]:
        """[domain, members] Indices into tables by [domain, nodes]: the fewest nodes for these members."""
        domains, width = self.choices.domains.cap.shape
        return np.arange(domains)[:, None], np.minimum(self.choices.fewest, width)

    @property
    def most_lost(self) -> int:
        """The largest entry of `lost` among open choices."""
        return int(self.lost[self.choices.open].max(initial=0))

    @property
    def steps(self) -> int:
        """The work of the table, in elements."""
        (domains, width), lost = self.choices.domains.cap.shape, self.most_lost + 1
        return int(domains * width * (width + 1) // 2 * lost * lost)

    def cheapest(self, cost: Ints) -> Ints | None:
        """Return [node] the members of each node in the cheapest plan, the first between equals; None if
        there is none.

        `cost` [node, members] is NEVER if the node cannot take them.

        Raises:
            TooLargeError: The costs do not fit in one number.
        """
        domains, choices = self.choices.domains, self.choices
        # One node outweighs all that plans with the fewest nodes can differ in.
        valid = cost < NEVER
        most = node_tables.largest_sum(np.where(valid, cost, 0), choices.nodes)
        node = most - node_tables.smallest_sum(cost, valid, choices.nodes) + 1
        if node * (choices.nodes + 1) + most >= NEVER:
            raise TooLargeError
        table, history = self._filled(cost)
        domain_of, nodes = self._at_fewest
        total = table[domain_of, nodes, np.clip(self.lost, 0, table.shape[2] - 1)]
        chosen = choices.choice(np.where(total < NEVER, total + node * nodes, NEVER)).best()
        if chosen is None or choices.fewest[np.arange(len(chosen)), chosen].sum() > choices.nodes:
            return None  # links this fast need more nodes
        taken = np.zeros(len(domains.rows), np.int64)
        for domain in np.flatnonzero(chosen).tolist():
            used = int(choices.fewest[domain, chosen[domain]])
            lost = int(domains.held[domain, used] - chosen[domain])
            for i in range(domains.cap.shape[1] - 1, -1, -1):
                members = int(history[i, domain, used, lost])
                if members:
                    used -= 1
                    lost -= int(domains.cap[domain, used]) - members
                    taken[domains.at[domain, i]] = members
        return taken

    def _filled(self, cost: Ints) -> tuple[Ints, Ints]:
        """Return the least cost of each domain, and the members that each node takes there.

        The cost is [domain, nodes, lost]: the nodes take `lost` members less than the roomiest ones could
        hold. The members are [node, domain, nodes, lost].
        """
        caps, at_node = self.choices.domains.cap, self.choices.domains.at
        domains, width = caps.shape
        lost = np.arange(self.most_lost + 1)
        table = np.full((domains, width + 1, len(lost)), NEVER)
        table[:, 0, 0] = 0
        history = np.zeros((width, domains, width + 1, len(lost)), np.int16)
        every = np.arange(domains)
        for i in range(width):
            members = np.maximum(0, caps[:, i, None] - lost)  # [domain, fewer]
            price = np.where(members > 0, cost[at_node[:, i, None], members], NEVER)
            # What the roomiest node in this place could hold and this one does not: [domain, nodes, lost,
            # fewer].
            before = lost[:, None] - (caps[:, : i + 1, None, None] - members[:, None, None, :])
            at = (every[:, None, None, None], np.arange(i + 1)[:, None, None], np.maximum(before, 0))
            reached = np.where(before < 0, NEVER, table[at] + price[:, None, None, :])
            fewer = reached.argmin(axis=3)
            least = np.take_along_axis(reached, fewer[..., None], 3)[..., 0]
            grown = table[:, 1 : i + 2]
            better = least < grown
            history[i, :, 1 : i + 2] = np.where(better, members[every[:, None, None], fewer], 0)
            table[:, 1 : i + 2] = np.where(better, least, grown)
        return table, history
