"""Count how few domains, and then nodes, hold the members of one role, and what domains take in such plans.

Only the roomiest nodes of a domain matter, so everything follows from sums of sorted capacities. Lagrangian
relaxation bounds the nodes: a node costs p members. At this price the gain of a domain is the largest
m − p · (its fewest nodes for m members). N nodes in L domains hold at most p · N plus the L largest gains.
The best price is a fraction, and all computation is in whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from muster.placement.cluster.columns import LARGEST, Bools, Ints
from muster.placement.model.problem import fewest
from muster.placement.search.regions import fullest_first, place_in_run, renumbered
from muster.placement.search.tables import MAX_TABLE_STEPS, NEVER, Table, steps

MAX_OPTION_CELLS = 10_000_000
"""The most entries of an array by domain and amount. Several of them take 80 MB each."""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A price of `members` for each `nodes` nodes.

    `gain` [domain] is the largest nodes · m − members · (fewest nodes for m). It is taken over the numbers m
    that the domain may take. `domains` are those that gain most, as many as a plan touches.
    """

    members: int
    nodes: int
    gain: Ints
    domains: Ints

    def slack(self, nodes: int, need: int) -> int:
        """Return the slack of the bound for `nodes` nodes: no plan with this number of nodes loses more."""
        return self.members * nodes + int(self.gain[self.domains].sum()) - self.nodes * need

    def slack_with(self, nodes: int, need: int) -> Ints:
        """Return [domain] the slack for plans that touch the domain."""
        return np.asarray(self.slack(nodes, need) + np.minimum(0, self.gain - self.gain[self.domains[-1]]))


@dataclass(frozen=True, eq=False)
class DomainCapacities:
    """Domains: `limit` of them take the `need` members.

    `rows`, `domain` and `cap` are [node]: the row, its domain from 0, and how many members it takes. Nodes
    are sorted by domain, and the roomiest node of a domain comes first. A domain takes a multiple of `step`
    members, at most `max_members` [domain].
    """

    need: int
    limit: int
    step: int
    rows: Ints
    domain: Ints
    cap: Ints
    max_members: Ints

    @classmethod
    def of(
        cls, rows: Ints, cap: Ints, domain: Ints, need: int, *, step: int = 1, max_members: Ints | None = None
    ) -> DomainCapacities:
        """Return the domains of these nodes; `limit` is the fewest domains that hold the members.

        `domain` [node] are codes. `max_members` [node] is the most members of the node's domain.
        """
        domain = renumbered(domain)
        order = fullest_first(domain, cap)
        rows, cap, domain = rows[order], cap[order], domain[order]
        room = np.minimum(np.bincount(domain, cap).astype(np.int64), need)
        if max_members is not None:
            room[domain] = np.minimum(room[domain], max_members[order])
        room = room // step * step
        assert room.sum() >= need, "the domains hold all members"
        return cls(need, fewest(room, need), step, rows, domain, cap, room)

    @cached_property
    def first_node(self) -> Ints:
        """[domain] The index of its first node."""
        return np.asarray(np.searchsorted(self.domain, np.arange(len(self.max_members))))

    @cached_property
    def cumulative_capacity(self) -> Ints:
        """[node] What the node and the roomier nodes of its domain hold."""
        cumulative = np.cumsum(self.cap)
        return np.asarray(cumulative - (cumulative - self.cap)[self.first_node][self.domain])

    @cached_property
    def member_counts(self) -> Ints:
        """The numbers of members that a domain may take if `limit` domains hold all."""
        fullest = int(np.sort(self.max_members)[::-1][: self.limit - 1].sum())  # all domains but one
        return np.arange(
            max(self.step, self.need - fullest), int(self.max_members.max(initial=0)) + 1, self.step
        )

    @cached_property
    def possible(self) -> Bools:
        """[domain, amount] Whether the domain holds this many."""
        return np.asarray(self.member_counts <= self.max_members[:, None])

    @cached_property
    def fewest(self) -> Ints:
        """[domain, amount] How many nodes hold these members."""
        width = len(self.member_counts)
        # From this amount on, one more node is needed.
        too_few = (self.cumulative_capacity - self.member_counts[0]) // self.step + 1
        code = self.domain * (width + 1) + np.clip(too_few, 0, width)
        counts = np.bincount(code, minlength=len(self.max_members) * (width + 1)).reshape(-1, width + 1)
        return np.asarray(np.cumsum(counts, axis=1)[:, :width] + 1)

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The prices tried on the way to the best one, which is the last.

        At each price, the domains that gain most hold fewer members than needed, or more. At the next price,
        the nearest plan below the need and the nearest plan above it are equally good.
        """
        full = np.maximum(0, self.max_members - self.member_counts[0]) // self.step
        prices, domains = list[Price](), np.arange(len(self.max_members))
        fullest = np.lexsort((self.fewest[domains, full], -self.max_members))[: self.limit]
        low, high = (0, 0), self._plan(full, fullest)
        while True:
            nodes, members = high[0] - low[0], high[1] - low[1]
            gains = np.where(self.possible, nodes * self.member_counts - members * self.fewest, -NEVER)
            amount = gains.argmax(axis=1)
            gain = gains[domains, amount]
            largest = np.argsort(-gain, kind="stable")[: self.limit]
            prices.append(Price(members, nodes, gain, largest))
            plan = self._plan(amount, largest)
            if (
                plan[0] * members + (self.need - plan[1]) * nodes
                == low[0] * members + (self.need - low[1]) * nodes
            ):
                return tuple(prices)
            low, high = (plan, high) if plan[1] < self.need else (low, plan)

    def _plan(self, amount: Ints, domains: Ints) -> tuple[int, int]:
        """Return the nodes and the members of these domains, if domain d takes `member_counts[amount[d]]`."""
        of_domain = amount[domains]
        return int(self.fewest[domains, of_domain].sum()), int(self.member_counts[of_domain].sum())

    def options_at_minimum(self) -> DomainOptions | None:
        """Return what domains may take with the fewest nodes; None if the tables for this are too large."""
        if len(self.max_members) * len(self.member_counts) > MAX_OPTION_CELLS:
            return None
        if self.limit == 1:
            return self.options_with_nodes(int(self.fewest[self.possible].min()))
        price = self.prices[-1]
        enough, visited = self._enough, 0
        for nodes in range(-(price.slack(0, self.need) // price.members), enough):
            options = self.options_with_nodes(nodes)
            visited += options.steps
            if visited > MAX_TABLE_STEPS:
                return None
            if options.cheapest(options.fewest, 1, nodes) is not None:
                return options
        return self.options_with_nodes(enough)

    @property
    def _enough(self) -> int:
        """A number of nodes that is enough: all nodes if rules bind domains."""
        room, enough = np.bincount(self.domain, self.cap), len(self.rows)
        if self.step > 1 or (self.max_members < np.minimum(room, self.need)).any():
            return enough
        fullest = np.argsort(-room, kind="stable")[: self.limit]
        for domains in (fullest, *(price.domains for price in self.prices)):
            if room[domains].sum() >= self.need:
                touched = np.zeros(len(room), bool)
                touched[domains] = True
                enough = min(enough, fewest(self.cap[touched[self.domain]], self.need))
        return enough

    def options_with_nodes(self, nodes: int) -> DomainOptions:
        """Return what domains may take in a plan with this number of nodes."""
        slacks = [price.slack_with(nodes, self.need) for price in self.prices]
        domains = np.flatnonzero((np.array(slacks) >= 0).all(axis=0))
        still_open, fewest_nodes = self.possible[domains], self.fewest[domains]
        for price, slack in zip(self.prices, slacks, strict=True):
            losses = (
                price.members * fewest_nodes - price.nodes * self.member_counts + price.gain[domains, None]
            )
            still_open &= losses <= slack[domains, None]
        touched = still_open.any(axis=1)
        domains, still_open, fewest_nodes = domains[touched], still_open[touched], fewest_nodes[touched]
        # The nodes that hold an amount, the roomiest ones, hold `spare` members more. No node can take fewer
        # than its room without `spare`, nor than the last of these nodes.
        last = np.where(still_open, self.first_node[domains, None] + fewest_nodes - 1, 0)
        spare = np.where(still_open, self.cumulative_capacity[last] - self.member_counts, 0)
        min_by_domain = np.full(len(self.max_members), LARGEST)
        min_by_domain[domains] = np.where(still_open, self.cap[last] - spare, LARGEST).min(
            axis=1, initial=LARGEST
        )
        indices = np.flatnonzero(self.cap >= min_by_domain[self.domain])
        domain, cap = np.searchsorted(domains, self.domain[indices]), self.cap[indices]
        min_members = np.maximum(
            cap - spare.max(axis=1, initial=0)[domain], min_by_domain[self.domain[indices]]
        )
        rows, index_in_domain = self.rows[indices], place_in_run(domain)
        return DomainOptions(
            self, nodes, rows, domain, index_in_domain, cap, min_members, still_open, fewest_nodes
        )


@dataclass(frozen=True, slots=True, eq=False)
class DomainOptions:
    """What the domains that are left may take in a plan with this number of `nodes`.

    `rows`, `domain`, `index_in_domain`, `cap` and `min_members` are [node], for the nodes that can be in such a plan: the
    row, the domain from 0, the position in it, and the most and the fewest members that the node takes.
    `open` [domain, amount] is whether the domain takes `capacities.amounts[amount]` in any such plan, and `fewest`
    on how many nodes.
    """

    capacities: DomainCapacities
    nodes: int
    rows: Ints
    domain: Ints
    index_in_domain: Ints
    cap: Ints
    min_members: Ints
    open: Bools
    fewest: Ints

    @property
    def max_per_node(self) -> int:
        """The most members of a node."""
        return int(self.cap.max(initial=0))

    @property
    def width(self) -> int:
        """The most nodes of a domain."""
        return int(self.index_in_domain.max(initial=0)) + 1

    @property
    def steps(self) -> int:
        """The work of `cheapest`, in elements."""
        return steps(1, int(self.open.sum()), 1, self.capacities.need)

    @property
    def fits_tables(self) -> bool:
        """Whether tables over the nodes of all domains are small enough."""
        return (
            steps(self.width, self.max_per_node, len(self.open), int(self.capacities.member_counts[-1]))
            <= MAX_TABLE_STEPS
        )

    @property
    def possible(self) -> Bools:
        """[node, members] Whether the node may take this many members."""
        members = np.arange(self.max_per_node + 1)
        return np.asarray((members >= self.min_members[:, None]) & (members <= self.cap[:, None]))

    def of_domain(self, domain: int) -> DomainOptions:
        """Return the choices of one domain."""
        inside, only = self.domain == domain, slice(domain, domain + 1)
        nodes = {
            name: getattr(self, name)[inside] for name in ("rows", "index_in_domain", "cap", "min_members")
        }
        return replace(
            self, **nodes, domain=self.domain[inside] * 0, open=self.open[only], fewest=self.fewest[only]
        )

    def cheapest(self, cost: Ints, per_node_offset: int, max_total: int) -> Ints | None:
        """Return [domain] the members of each domain in the cheapest plan; None if there is no plan.

        `cost` [domain, amount] includes `per_node_offset` for each node. All nodes of a plan cost at most `max_total`.
        """
        if not len(cost) or max_total >= NEVER:
            return None
        if self.capacities.limit == 1:  # the domain takes all members
            cheapest = int(cost[:, 0].argmin())
            all_in_one = self.capacities.need * (np.arange(len(cost)) == cheapest)
            return all_in_one if cost[cheapest, 0] <= max_total else None
        # One more domain gains at most `gain`. So it saves at most `saved` nodes, and weighs more.
        price = self.capacities.prices[-1]
        gain = int(np.delete(price.gain, price.domains).max(initial=0))
        saved = (price.slack(self.nodes, self.capacities.need) + gain) // price.members + 1
        domain_cost = max_total - per_node_offset * (self.nodes - saved) + 1
        if domain_cost * (self.capacities.limit + 1) + max_total >= NEVER:
            return None
        steps_of_count = self.capacities.member_counts // self.capacities.step
        offered = np.full((1, len(self.open), int(steps_of_count.max()) + 1), NEVER)
        offered[0, :, steps_of_count] = np.where(self.open & (cost < NEVER), cost + domain_cost, NEVER).T
        need = self.capacities.need // self.capacities.step
        table = Table.of(offered, need, need)
        if table.total[0, need] > domain_cost * self.capacities.limit + max_total:
            return None
        return np.asarray(table.split(np.zeros(1, np.int64), np.array([need]))[0] * self.capacities.step)
