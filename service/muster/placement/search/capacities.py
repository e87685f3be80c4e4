"""Find the minimum number of domains, then of nodes, for one role; and the members of each domain in such
plans.

Only the roomiest nodes of a domain matter, so sums of sorted capacities are enough. Lagrangian relaxation
bounds the nodes: a node costs p members. At this price the gain of a domain is the largest m − p · (its
fewest nodes for m members). So N nodes in L domains hold at most p · N plus the L largest gains. The best
price is a fraction, so `Price` has its numerator and denominator, and all computation is in whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from muster.placement.cluster.columns import LARGEST, Bools, Ints
from muster.placement.limits import Budget
from muster.placement.model.problem import fewest_that_hold
from muster.placement.search.plan import EqualRegions
from muster.placement.search.regions import fullest_first_order, position_in_run, renumber
from muster.placement.search.tables import MAX_TABLE_WORK, NEVER, Table, table_work

MAX_OPTION_CELLS = 10_000_000
"""The most entries of an array by domain and amount. Such an array takes 80 MB, and there are several."""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A price of a node, in members: p = `members` / `nodes`.

    `gain` [domain] is the largest nodes · m − members · (fewest nodes for m), over the member counts m that
    the domain may take. `domains` are the domains with the largest gains, as many as a plan touches.
    """

    members: int
    nodes: int
    gain: Ints
    domains: Ints

    def slack(self, nodes: int, need: int) -> int:
        """Return the slack of the bound for `nodes` nodes.

        A domain's loss is how far its gain in a plan is below its largest gain. In a plan with this number of
        nodes, the losses of all domains sum up to at most the slack. So larger losses exclude a member count.
        """
        return self.members * nodes + int(self.gain[self.domains].sum()) - self.nodes * need

    def slack_by_domain(self, nodes: int, need: int) -> Ints:
        """Return [domain] the slack for plans that touch the domain."""
        return np.asarray(self.slack(nodes, need) + np.minimum(0, self.gain - self.gain[self.domains[-1]]))


@dataclass(frozen=True, eq=False)
class DomainCapacities:
    """The capacities of domains for `need` members of one role. `limit` is the fewest domains that hold them.

    Nodes are sorted by domain, and the roomiest node of a domain comes first. A domain takes a multiple of
    `step` members.
    """

    need: int
    limit: int
    step: int
    rows: Ints
    """[node] The row."""
    domain: Ints
    """[node] The domain, from 0."""
    cap: Ints
    """[node] How many members the node takes."""
    max_members: Ints
    """[domain] The most members that the domain takes."""

    @classmethod
    def of(
        cls, rows: Ints, cap: Ints, domain: Ints, need: int, *, step: int = 1, max_members: Ints | None = None
    ) -> DomainCapacities:
        """Return the domains of these nodes; `limit` is the fewest domains that hold the members.

        `domain` [node] is any code of the node's domain. `max_members` [node] is the most members of that
        domain.
        """
        domain = renumber(domain)
        order = fullest_first_order(domain, cap)
        rows, cap, domain = rows[order], cap[order], domain[order]
        room = np.minimum(np.bincount(domain, cap).astype(np.int64), need)
        if max_members is not None:
            room[domain] = np.minimum(room[domain], max_members[order])
        room = room // step * step
        assert room.sum() >= need, "the domains hold all members"
        return cls(need, fewest_that_hold(room, need), step, rows, domain, cap, room)

    @cached_property
    def first_node(self) -> Ints:
        """[domain] The index of the domain's first node."""
        return np.asarray(np.searchsorted(self.domain, np.arange(len(self.max_members))))

    @cached_property
    def cumulative_capacity(self) -> Ints:
        """[node] The members that the node and the larger nodes of its domain hold: a prefix sum."""
        cumulative = np.cumsum(self.cap)
        return np.asarray(cumulative - (cumulative - self.cap)[self.first_node][self.domain])

    @cached_property
    def member_counts(self) -> Ints:
        """The numbers of members that a domain may take if `limit` domains hold all members, ascending."""
        fullest = int(np.sort(self.max_members)[::-1][: self.limit - 1].sum())  # `limit` − 1 domains
        return np.arange(
            max(self.step, self.need - fullest), int(self.max_members.max(initial=0)) + 1, self.step
        )

    @cached_property
    def possible(self) -> Bools:
        """[domain, amount] Whether the domain holds `member_counts[amount]` members."""
        return np.asarray(self.member_counts <= self.max_members[:, None])

    @cached_property
    def fewest_nodes(self) -> Ints:
        """[domain, amount] The fewest nodes of the domain that hold `member_counts[amount]` members."""
        width = len(self.member_counts)
        # The first amount that the node and the larger nodes of its domain do not hold.
        too_few = (self.cumulative_capacity - self.member_counts[0]) // self.step + 1
        code = self.domain * (width + 1) + np.clip(too_few, 0, width)
        counts = np.bincount(code, minlength=len(self.max_members) * (width + 1)).reshape(-1, width + 1)
        return np.asarray(np.cumsum(counts, axis=1)[:, :width] + 1)

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The prices tried on the way to the best one, which is the last.

        At each price, the domains with the largest gains hold too few members, or enough. The next price
        makes the best plan so far with too few members and the best plan with enough members equally good.
        """
        full = np.maximum(0, self.max_members - self.member_counts[0]) // self.step
        prices, domains = list[Price](), np.arange(len(self.max_members))
        fullest = np.lexsort((self.fewest_nodes[domains, full], -self.max_members))[: self.limit]
        low, high = (0, 0), self._size_of_plan(full, fullest)
        while True:
            nodes, members = high[0] - low[0], high[1] - low[1]
            gains = np.where(self.possible, nodes * self.member_counts - members * self.fewest_nodes, -NEVER)
            amount = gains.argmax(axis=1)
            gain = gains[domains, amount]
            largest = np.argsort(-gain, kind="stable")[: self.limit]
            prices.append(Price(members, nodes, gain, largest))
            plan = self._size_of_plan(amount, largest)
            if (
                plan[0] * members + (self.need - plan[1]) * nodes
                == low[0] * members + (self.need - low[1]) * nodes
            ):
                return tuple(prices)
            low, high = (plan, high) if plan[1] < self.need else (low, plan)

    def _size_of_plan(self, amount: Ints, domains: Ints) -> tuple[int, int]:
        """Return the nodes and the members of these domains, if domain d takes `member_counts[amount[d]]`
        members.
        """
        amounts = amount[domains]
        return int(self.fewest_nodes[domains, amounts].sum()), int(self.member_counts[amounts].sum())

    def options_at_fewest_nodes(self) -> DomainOptions | None:
        """Return the options of domains in plans with the fewest nodes; None if the tables would be too
        large.
        """
        if len(self.max_members) * len(self.member_counts) > MAX_OPTION_CELLS:
            return None
        if self.limit == 1:
            return self.options_with_nodes(int(self.fewest_nodes[self.possible].min()))
        price = self.prices[-1]
        max_nodes, visited = self._sufficient_nodes, 0
        for nodes in range(-(price.slack(0, self.need) // price.members), max_nodes):
            options = self.options_with_nodes(nodes)
            visited += options.table_work
            if visited > MAX_TABLE_WORK:
                return None
            if options.cheapest(options.fewest_nodes, 1, nodes) is not None:
                return options
        return self.options_with_nodes(max_nodes)

    @property
    def _sufficient_nodes(self) -> int:
        """A number of nodes that is enough: an upper bound of the fewest nodes."""
        room, max_nodes = np.bincount(self.domain, self.cap), len(self.rows)
        if self.step > 1 or (self.max_members < np.minimum(room, self.need)).any():
            return max_nodes
        fullest = np.argsort(-room, kind="stable")[: self.limit]
        for domains in (fullest, *(price.domains for price in self.prices)):
            if room[domains].sum() >= self.need:
                is_chosen = np.zeros(len(room), bool)
                is_chosen[domains] = True
                max_nodes = min(max_nodes, fewest_that_hold(self.cap[is_chosen[self.domain]], self.need))
        return max_nodes

    def options_with_nodes(self, nodes: int) -> DomainOptions:
        """Return the options of domains in plans with this number of nodes."""
        slacks = [price.slack_by_domain(nodes, self.need) for price in self.prices]
        domains = np.flatnonzero((np.array(slacks) >= 0).all(axis=0))
        still_open, fewest_nodes = self.possible[domains], self.fewest_nodes[domains]
        for price, slack in zip(self.prices, slacks, strict=True):
            losses = (
                price.members * fewest_nodes - price.nodes * self.member_counts + price.gain[domains, None]
            )
            still_open &= losses <= slack[domains, None]
        is_usable = still_open.any(axis=1)
        domains, still_open, fewest_nodes = domains[is_usable], still_open[is_usable], fewest_nodes[is_usable]
        # Lower bounds by node. The fewest nodes for an amount are the largest nodes, and together they have
        # room for `spare` members too many. So each used node takes at least its own capacity − `spare`, and
        # at least the capacity − `spare` of the smallest of these nodes.
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
        rows, index_in_domain = self.rows[indices], position_in_run(domain)
        return DomainOptions(
            self, nodes, rows, domain, index_in_domain, cap, min_members, still_open, fewest_nodes
        )


@dataclass(frozen=True, slots=True, eq=False)
class DomainOptions:
    """The member counts of domains and of nodes that are possible in plans with this number of `nodes`.

    Domains and nodes that no such plan uses are left out. An amount is an index into
    `capacities.member_counts`.
    """

    capacities: DomainCapacities
    nodes: int
    rows: Ints
    """[node] The row."""
    domain: Ints
    """[node] The domain, from 0."""
    index_in_domain: Ints
    """[node] The node's position in the domain."""
    cap: Ints
    """[node] The most members that the node takes."""
    min_members: Ints
    """[node] The fewest members that the node takes if it is used."""
    open: Bools
    """[domain, amount] Whether the domain may take this amount in such a plan."""
    fewest_nodes: Ints
    """[domain, amount] The fewest nodes for this amount."""

    @property
    def max_per_node(self) -> int:
        """The most members of a node."""
        return int(self.cap.max(initial=0))

    @property
    def width(self) -> int:
        """The most nodes of a domain."""
        return int(self.index_in_domain.max(initial=0)) + 1

    @property
    def table_work(self) -> int:
        """How many elements `cheapest` visits, which decides whether it is fast enough."""
        return table_work(1, int(self.open.sum()), 1, self.capacities.need)

    @property
    def fits_tables(self) -> bool:
        """Whether tables over the nodes of all domains are small enough."""
        return (
            table_work(self.width, self.max_per_node, len(self.open), int(self.capacities.member_counts[-1]))
            <= MAX_TABLE_WORK
        )

    @property
    def possible(self) -> Bools:
        """[node, members] Whether the node may take this number of members."""
        members = np.arange(self.max_per_node + 1)
        return np.asarray((members >= self.min_members[:, None]) & (members <= self.cap[:, None]))

    def of_domain(self, domain: int) -> DomainOptions:
        """Return the options of one domain."""
        in_domain = self.domain == domain
        nodes = {
            name: getattr(self, name)[in_domain] for name in ("rows", "index_in_domain", "cap", "min_members")
        }
        return replace(
            self,
            **nodes,
            domain=self.domain[in_domain] * 0,
            open=self.open[domain : domain + 1],
            fewest_nodes=self.fewest_nodes[domain : domain + 1],
        )

    def cheapest(self, cost: Ints, per_node_offset: int, max_total: int) -> Ints | None:
        """Return [domain] the members of each domain in the cheapest plan; None if no plan exists.

        `cost` [domain, amount] includes `per_node_offset` for each node. The nodes of a plan cost at most
        `max_total` together.
        """
        if not len(cost) or max_total >= NEVER:
            return None
        if self.capacities.limit == 1:  # the domain takes all members
            cheapest = int(cost[:, 0].argmin())
            all_in_one = self.capacities.need * (np.arange(len(cost)) == cheapest)
            return all_in_one if cost[cheapest, 0] <= max_total else None
        # A further domain gains at most `gain`, so a plan with one domain more saves at most `saved` nodes.
        # Each domain costs `domain_cost`, which is more than this saving. So plans with more than `limit`
        # domains are never cheaper.
        price = self.capacities.prices[-1]
        gain = int(np.delete(price.gain, price.domains).max(initial=0))
        saved = (price.slack(self.nodes, self.capacities.need) + gain) // price.members + 1
        domain_cost = max_total - per_node_offset * (self.nodes - saved) + 1
        if domain_cost * (self.capacities.limit + 1) + max_total >= NEVER:
            return None
        multiples = self.capacities.member_counts // self.capacities.step
        offered = np.full((1, len(self.open), int(multiples.max()) + 1), NEVER)
        offered[0, :, multiples] = np.where(self.open & (cost < NEVER), cost + domain_cost, NEVER).T
        need = self.capacities.need // self.capacities.step
        table = Table.of(offered, need, need)
        if table.total[0, need] > domain_cost * self.capacities.limit + max_total:
            return None
        return np.asarray(table.split(np.zeros(1, np.int64), np.array([need]))[0] * self.capacities.step)


def options_of_regions(regions: EqualRegions, domain: Ints, need: int, budget: Budget) -> list[DomainOptions]:
    """Return the options of domains, for the regions with the fewest domains and nodes.

    `domain` [node] is the domain of each node of `regions`. If one domain is enough, all regions count as one
    region. The result is empty if the tables would be too large, or if no time remains.
    """
    region = regions.region if regions.uncounted_scopes else np.zeros_like(regions.region)
    step, max_members = regions.domain_rules.step, regions.domain_rules.max_members
    capacities = []
    for code in range(int(region.max()) + 1):
        in_region = region == code
        rows = regions.rows[in_region]
        limits = None if max_members is None else max_members[rows]
        cap, codes = regions.cap[in_region], domain[in_region]
        capacities.append(DomainCapacities.of(rows, cap, codes, need, step=step, max_members=limits))
    limit, options = min(domains.limit for domains in capacities), list[DomainOptions]()
    for domains in capacities:
        if domains.limit == limit:
            options_of_region = None if budget.late else domains.options_at_fewest_nodes()
            if options_of_region is None:
                return []
            options.append(options_of_region)
    nodes = min(possible.nodes for possible in options)
    options = [possible for possible in options if possible.nodes == nodes]
    return options if all(possible.fits_tables for possible in options) else []
