"""Count how few domains, and then nodes, hold the members of one role, and what domains take in such plans.

Only the roomiest nodes of a domain matter, so everything follows from sums of sorted capacities. A price is p
members for a node. At this price a domain gains Σ max(0, capacity − p). N nodes in at most L domains then
hold at most p · N plus the L largest gains. The best price is a fraction and bounds the nodes as the linear
relaxation does. In whole numbers the bound is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.search.domain_choice import DomainChoice
from muster.placement.search.node_tables import NEVER
from muster.placement.search.runs import place_in_run


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A price of `members` for each `nodes` nodes.

    `gain` [domain] is Σ max(0, nodes · capacity − members). `best` are the domains that gain most, as many as
    may be touched.
    """

    members: int
    nodes: int
    gain: Ints
    best: Ints

    def slack(self, nodes: int, need: int) -> int:
        """Return the slack of the bound for `nodes` nodes: no plan with this number of nodes loses more."""
        return self.members * nodes + int(self.gain[self.best].sum()) - self.nodes * need


@dataclass(frozen=True, eq=False)
class DomainNodes:
    """Nodes that take members. `need` members must lie in `limit` domains.

    `cap` [domain, node] is how many members the node takes, the roomiest node first, 0 for none. `rows` are
    these nodes, domain after domain.
    """

    need: int
    limit: int
    rows: Ints
    cap: Ints

    @classmethod
    def of(cls, rows: Ints, cap: Ints, domain: Ints, need: int, limit: int | None = None) -> DomainNodes:
        """Return the domains of nodes in any order. Without a `limit`, it is the fewest domains that hold the
        members.
        """
        order = np.lexsort((rows, -cap, domain))
        rows, cap, domain = rows[order], cap[order], np.unique(domain[order], return_inverse=True)[1]
        place = place_in_run(domain)
        caps = np.zeros((int(domain[-1]) + 1, int(place.max()) + 1), np.int64)
        caps[domain, place] = cap
        return cls(need, limit or _fewest(caps.sum(axis=1), need), rows, caps)

    @cached_property
    def at(self) -> Ints:
        """[domain, node] The index into `rows`. It is arbitrary if there is no node."""
        sizes = (self.cap > 0).sum(axis=1)
        begins = np.cumsum(sizes) - sizes
        return np.asarray(np.minimum(begins[:, None] + np.arange(self.cap.shape[1]), len(self.rows) - 1))

    @cached_property
    def held(self) -> Ints:
        """[domain, n] What the n roomiest nodes hold."""
        return np.pad(np.cumsum(self.cap, axis=1), ((0, 0), (1, 0)))

    @cached_property
    def fullest(self) -> Ints:
        """The domains that hold most, as many as may be touched."""
        return np.asarray(np.argsort(-self.held[:, -1], kind="stable")[: self.limit])

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The prices tried on the way to the best one, which is the last.

        At each price, the nodes that gain, in the domains that gain most, hold fewer members than needed, or
        more. The next price makes the nearest plan below the need and the nearest one above it equally good.
        """
        low, high = (0, 0), self._plan(self.cap > 0, self.fullest)
        tried = list[Price]()
        while True:
            nodes, members = high[0] - low[0], high[1] - low[1]
            over = np.maximum(0, nodes * self.cap - members)
            gain = over.sum(axis=1)
            best = np.argsort(-gain, kind="stable")[: self.limit]
            tried.append(Price(members, nodes, gain, best))
            plan = self._plan(over > 0, best)
            worth, known = (each[0] * members + (self.need - each[1]) * nodes for each in (plan, low))
            if worth == known:
                return tuple(tried)
            low, high = (plan, high) if plan[1] < self.need else (low, plan)

    def _plan(self, used: Bools, domains: Ints) -> tuple[int, int]:
        """Return how many nodes are used in these domains, and how many members they hold."""
        return int(used[domains].sum()), int(self.cap[domains][used[domains]].sum())

    def counted(self, max_steps: int) -> Choices | None:
        """Return what domains may take with the fewest nodes; None if the tables for it take more steps."""
        best = self.prices[-1]
        least = -(best.slack(0, self.need) // best.members)
        domains = (self.fullest, *(price.best for price in self.prices))
        enough = min(_fewest(self.cap[some].ravel(), self.need) for some in domains)
        for nodes in range(least, enough):
            choices = self.within(nodes)
            choice = choices.choice(choices.fewest)
            max_steps -= choice.steps
            if max_steps < 0:
                return None
            if choice.best() is not None:
                return choices
        return self.within(enough)

    def within(self, nodes: int) -> Choices:
        """Return what domains may take in a plan with this number of nodes."""
        count = len(self.cap)
        rooms, always = list[Ints](), np.full(count, count <= self.limit)
        for price in self.prices:
            slack = price.slack(nodes, self.need)
            rooms.append(slack + np.minimum(0, price.gain - price.gain[price.best[-1]]))
            always |= price.gain - np.delete(price.gain, price.best).max(initial=0) > slack
        kept = (np.array(rooms) >= 0).all(axis=0)
        rows = self.rows[np.repeat(kept, (self.cap > 0).sum(axis=1))]
        domains = DomainNodes(self.need, self.limit, rows, self.cap[kept])
        members = np.arange(min(self.need, int(domains.held.max(initial=0))) + 1)
        fewest = (domains.held[:, None, :] < members[:, None]).sum(axis=2)
        still_open = (members > 0) & (members <= domains.held[:, -1:])
        for price, room in zip(self.prices, rooms, strict=True):
            lost = price.members * fewest - price.nodes * members + price.gain[kept, None]
            still_open &= lost <= room[kept, None]
        return Choices(domains, nodes, fewest, still_open, always[kept])


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What `domains` may take in a plan with this number of `nodes`.

    `fewest` [domain, members] is how many nodes hold these members. `open` [domain, members] is whether the
    domain takes them in any such plan. `always` [domain] is whether the domain is in every such plan.
    """

    domains: DomainNodes
    nodes: int
    fewest: Ints
    open: Bools
    always: Bools

    def choice(self, cost: Ints) -> DomainChoice:
        """Return the choice of domains by a cost [domain, members]."""
        cost = np.where(self.open, cost, NEVER)
        return DomainChoice(cost, self.always, self.domains.limit, self.domains.need)


def _fewest(held: Ints, need: int) -> int:
    """Return how many of the largest entries hold the members; one more than there are if all do not."""
    return int(np.searchsorted(np.cumsum(-np.sort(-held)), need)) + 1
