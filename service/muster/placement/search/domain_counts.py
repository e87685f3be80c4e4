"""Count how few racks, and then nodes, hold the members of one role, and what racks take in such plans.

Only the roomiest nodes of a rack matter, so everything follows from sums of sorted capacities. A price is p
members for a node. At this price a rack gains Σ max(0, capacity − p). N nodes in at most L racks then hold at
most p · N plus the L largest gains. The best price is a fraction and bounds the nodes as the linear
relaxation does. In whole numbers the bound is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.search.domain_choice import RackChoice
from muster.placement.search.node_tables import NEVER
from muster.placement.search.runs import place_in_run


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A price of `members` for each `nodes` nodes.

    `gain` [rack] is Σ max(0, nodes · capacity − members). `best` are the racks that gain most, as many as may
    be touched.
    """

    members: int
    nodes: int
    gain: Ints
    best: Ints

    def slack(self, nodes: int, need: int) -> int:
        """Return the slack of the bound for `nodes` nodes: no plan with this number of nodes loses more."""
        return self.members * nodes + int(self.gain[self.best].sum()) - self.nodes * need


@dataclass(frozen=True, eq=False)
class RackNodes:
    """Nodes that take members. `need` members must lie in `limit` racks.

    `cap` [rack, node] is how many members the node takes, the roomiest node first, 0 for none. `rows` are
    these nodes, rack after rack.
    """

    need: int
    limit: int
    rows: Ints
    cap: Ints

    @classmethod
    def of(cls, rows: Ints, cap: Ints, rack: Ints, need: int, limit: int | None = None) -> RackNodes:
        """Return the racks of nodes in any order. Without a `limit`, it is the fewest racks that hold the
        members.
        """
        order = np.lexsort((rows, -cap, rack))
        rows, cap, rack = rows[order], cap[order], np.unique(rack[order], return_inverse=True)[1]
        place = place_in_run(rack)
        caps = np.zeros((int(rack[-1]) + 1, int(place.max()) + 1), np.int64)
        caps[rack, place] = cap
        return cls(need, limit or _fewest(caps.sum(axis=1), need), rows, caps)

    @cached_property
    def at(self) -> Ints:
        """[rack, node] The index into `rows`. It is arbitrary if there is no node."""
        sizes = (self.cap > 0).sum(axis=1)
        begins = np.cumsum(sizes) - sizes
        return np.asarray(np.minimum(begins[:, None] + np.arange(self.cap.shape[1]), len(self.rows) - 1))

    @cached_property
    def held(self) -> Ints:
        """[rack, n] What the n roomiest nodes hold."""
        return np.pad(np.cumsum(self.cap, axis=1), ((0, 0), (1, 0)))

    @cached_property
    def fullest(self) -> Ints:
        """The racks that hold most, as many as may be touched."""
        return np.asarray(np.argsort(-self.held[:, -1], kind="stable")[: self.limit])

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The prices tried on the way to the best one, which is the last.

        At each price, the nodes that gain, in the racks that gain most, hold fewer members than needed, or
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

    def _plan(self, used: Bools, racks: Ints) -> tuple[int, int]:
        """Return how many nodes are used in these racks, and how many members they hold."""
        return int(used[racks].sum()), int(self.cap[racks][used[racks]].sum())

    def counted(self, max_steps: int) -> Choices | None:
        """Return what racks may take with the fewest nodes; None if the tables for it take more steps."""
        best = self.prices[-1]
        least = -(best.slack(0, self.need) // best.members)
        racks = (self.fullest, *(price.best for price in self.prices))
        enough = min(_fewest(self.cap[some].ravel(), self.need) for some in racks)
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
        """Return what racks may take in a plan with this number of nodes."""
        count = len(self.cap)
        rooms, always = list[Ints](), np.full(count, count <= self.limit)
        for price in self.prices:
            slack = price.slack(nodes, self.need)
            rooms.append(slack + np.minimum(0, price.gain - price.gain[price.best[-1]]))
            always |= price.gain - np.delete(price.gain, price.best).max(initial=0) > slack
        kept = (np.array(rooms) >= 0).all(axis=0)
        rows = self.rows[np.repeat(kept, (self.cap > 0).sum(axis=1))]
        racks = RackNodes(self.need, self.limit, rows, self.cap[kept])
        members = np.arange(min(self.need, int(racks.held.max(initial=0))) + 1)
        fewest = (racks.held[:, None, :] < members[:, None]).sum(axis=2)
        still_open = (members > 0) & (members <= racks.held[:, -1:])
        for price, room in zip(self.prices, rooms, strict=True):
            lost = price.members * fewest - price.nodes * members + price.gain[kept, None]
            still_open &= lost <= room[kept, None]
        return Choices(racks, nodes, fewest, still_open, always[kept])


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What `racks` may take in a plan with this number of `nodes`.

    `fewest` [rack, members] is how many nodes hold these members. `open` [rack, members] is whether the rack
    takes them in any such plan. `always` [rack] is whether the rack is in every such plan.
    """

    racks: RackNodes
    nodes: int
    fewest: Ints
    open: Bools
    always: Bools

    def choice(self, cost: Ints) -> RackChoice:
        """Return the choice of racks by a cost [rack, members]."""
        cost = np.where(self.open, cost, NEVER)
        return RackChoice(cost, self.always, self.racks.limit, self.racks.need)


def _fewest(held: Ints, need: int) -> int:
    """Return how many of the largest entries hold the members; one more than there are if all do not."""
    return int(np.searchsorted(np.cumsum(-np.sort(-held)), need)) + 1
