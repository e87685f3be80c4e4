"""One role over several racks, once the fewest racks and nodes are known: no solver, two tables.

In a plan of the fewest nodes each rack uses the fewest that hold its members: else fewer would do in all. So
a rack is one choice, how many members it takes, and the nodes follow. The first table has the cheapest way to
fill a rack for each choice, the second the cheapest choices of all racks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.site import Site
from muster.placement.model.objective import NODES, WIDE
from muster.placement.model.problem import FREE
from muster.placement.search import onerack
from muster.placement.search.counting import Counted
from muster.placement.search.onenode import Share
from muster.placement.search.onerack import NEVER
from muster.placement.search.onerole import Hopeful, TooLargeError, Value, best_plan, fields_of
from muster.placement.search.rackchoice import RackChoice
from muster.placement.search.runs import place_in_run

MAX_STEPS = 6_000_000
"""Elements that the second table may visit in all; more is left to the solver. The first may visit as many
as that of one rack."""

EPSILON = 1e-6


def in_many_racks(site: Site, counted: Counted) -> tuple[Value, tuple[Share, ...]] | None:
    """The best plan of the region, proven; None where that is not for these tables: several roles, members
    bound to each other, other parts to be counted than racks, or too much to look at."""
    problem = counted.problem
    active = [role for role, need in enumerate(problem.need) if need]
    bound = not site.plain or site.costs or counted.racks or (problem.part(WIDE) != FREE).any()
    counted_too = {*problem.at_most} - {NODES.name, *site.levels[-1:]}
    if len(active) > 1 or bound or not site.levels or counted_too or counted.gap:
        return None
    role = active[0]
    racks = Racks.of(counted, site.levels[-1], role)
    if racks.filling > onerack.MAX_STEPS or racks.steps > MAX_STEPS:
        return None
    hopeful = racks.hopeful
    plan = best_plan(site, role, hopeful, fields_of(site, role, hopeful), racks.need, racks.cheapest)
    return None if plan is None else (plan.value, plan.shares(site, role, hopeful))


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Racks of which `limit` hold `need` members on `nodes` nodes.

    [rack, node], the roomiest first: `cap`, the members that the node takes at most, 0 for none; `at`, its
    index in `rows`. `held` [rack, nodes]: what so many of the roomiest hold. [rack, members]: `fewest`, the
    nodes that hold so many; `open`, whether the rack takes so many in any plan of so few nodes. `always`
    [rack]: whether it is in all of them.
    """

    limit: int
    need: int
    nodes: int
    rows: Ints
    cap: Ints
    at: Ints
    held: Ints
    fewest: Ints
    open: Bools
    always: Bools

    @classmethod
    def of(cls, counted: Counted, scope: str, role: int) -> Racks:
        """The racks of what is left of the coarse problem."""
        problem = counted.problem
        nodes, need = counted.value[-1], problem.need[role]
        most = np.where(problem.open, problem.patterns.counts[problem.kind, :, role], 0).max(axis=1)
        rows = np.concatenate([problem.nodes(c) for c in range(problem.classes)])
        cap = np.repeat(most, problem.size)
        rack = np.unique(np.repeat(problem.part(scope), problem.size), return_inverse=True)[1]
        limit = problem.at_most.get(scope, int(rack.max()) + 1)  # not limited where all are needed
        order = np.lexsort((rows, -cap, rack))
        rows, cap, rack = rows[order], cap[order], rack[order]
        place = place_in_run(rack)
        caps = np.zeros((int(rack[-1]) + 1, int(place.max()) + 1), np.int64)
        at = np.zeros_like(caps)
        caps[rack, place], at[rack, place] = cap, np.arange(len(rows))
        held = np.concatenate([np.zeros((len(caps), 1), np.int64), np.cumsum(caps, axis=1)], axis=1)
        members = np.arange(min(need, int(held.max())) + 1)
        fewest = (held[:, None, :] < members[:, None]).sum(axis=2)
        still_open, always = _within(fewest, members <= held[:, -1:], limit, need, nodes)
        return cls(limit, need, nodes, rows, caps, at, held, fewest, still_open, always)

    @property
    def hopeful(self) -> Hopeful:
        """The nodes, as one region."""
        cap = np.zeros(len(self.rows), np.int64)
        cap[self.at[self.cap > 0]] = self.cap[self.cap > 0]
        each = np.arange(len(cap))
        return Hopeful(self.nodes, self.rows, 0 * each, each, cap, np.maximum(1, cap - self.most_lost))

    @property
    def lost(self) -> Ints:
        """[rack, members]: how many more the roomiest nodes could hold."""
        return np.asarray(self.held[self._at_fewest] - np.arange(self.open.shape[1]))

    @property
    def _at_fewest(self) -> tuple[Ints, Ints]:
        """[rack, members]: where tables by [rack, nodes] have the fewest nodes that hold so many."""
        return np.arange(len(self.cap))[:, None], np.minimum(self.fewest, self.cap.shape[1])

    @property
    def most_lost(self) -> int:
        return int(self.lost[self.open].max(initial=0))

    @property
    def filling(self) -> int:
        """The work of the first table, in elements."""
        (racks, width), lost = self.cap.shape, self.most_lost + 1
        return int(racks * width * (width + 1) // 2 * lost * lost)

    @property
    def steps(self) -> int:
        """The work of the second table, in elements."""
        return self._choice(np.where(self.open, 0, NEVER)).steps

    def _choice(self, cost: Ints) -> RackChoice:
        return RackChoice(cost, self.always, self.limit, self.need)

    def cheapest(self, cost: Ints) -> Ints | None:
        """The members on each node in the cheapest plan, the first between equals; None where there is none.

        `cost` [node, members], NEVER where that can't be.
        """
        finite = cost[cost < NEVER]
        node = int(finite.max(initial=0)) * self.nodes + 1  # one node outweighs all else
        if node * (self.nodes + 1) >= NEVER:
            raise TooLargeError
        table, history = self._filled(cost)
        rack_of, nodes = self._at_fewest
        total = table[rack_of, nodes, np.clip(self.lost, 0, table.shape[2] - 1)]
        chosen = self._choice(np.where(self.open & (total < NEVER), total + node * nodes, NEVER)).best()
        if chosen is None:
            return None
        taken = np.zeros(len(self.rows), np.int64)
        for rack in np.flatnonzero(chosen).tolist():
            used = int(self.fewest[rack, chosen[rack]])
            lost = int(self.held[rack, used] - chosen[rack])
            for i in range(self.cap.shape[1] - 1, -1, -1):
                members = int(history[i, rack, used, lost])
                if members:
                    used -= 1
                    lost -= int(self.cap[rack, used]) - members
                    taken[self.at[rack, i]] = members
        return taken

    def _filled(self, cost: Ints) -> tuple[Ints, Ints]:
        """The least cost of each rack [rack, nodes, lost]: so many nodes that take so many members less than
        the roomiest could hold; and [node, rack, nodes, lost] the members that the node takes there."""
        racks, width = self.cap.shape
        lost = np.arange(self.most_lost + 1)
        table = np.full((racks, width + 1, len(lost)), NEVER)
        table[:, 0, 0] = 0
        history = np.zeros((width, racks, width + 1, len(lost)), np.int64)
        every = np.arange(racks)
        for i in range(width):
            members = np.maximum(0, self.cap[:, i, None] - lost)  # [rack, fewer]
            price = np.where(members > 0, cost[self.at[:, i, None], members], NEVER)
            # What the node in its place could hold at most, and does not. [rack, nodes, lost, fewer]
            before = lost[:, None] - (self.cap[:, : i + 1, None, None] - members[:, None, None, :])
            at = (every[:, None, None, None], np.arange(i + 1)[:, None, None], np.maximum(before, 0))
            reached = np.where(before < 0, NEVER, table[at] + price[:, None, None, :])
            fewer = reached.argmin(axis=3)
            least = np.take_along_axis(reached, fewer[..., None], 3)[..., 0]
            grown = table[:, 1 : i + 2]
            better = least < grown
            history[i, :, 1 : i + 2] = np.where(better, members[every[:, None, None], fewer], 0)
            table[:, 1 : i + 2] = np.where(better, least, grown)
        return table, history


def _within(fewest: Ints, valid: Bools, limit: int, need: int, nodes: int) -> tuple[Bools, Bools]:
    """What racks take in a plan of so few nodes [rack, members], and which are in every such plan [rack]: by
    the Lagrangian bound of the nodes, at a few prices of a member (see model.bound)."""
    racks, width = fewest.shape
    members = np.arange(width)
    still_open, always = valid & (members > 0), np.full(racks, racks <= limit)
    largest = int(np.diff(np.flatnonzero(np.diff(fewest.max(axis=0), prepend=-1))).max(initial=1))
    for each in range(1, largest + 1):
        value = np.where(valid, fewest - members / each, np.inf)
        best = value.min(axis=1)
        ordered = np.sort(best)
        gap = nodes - (need / each + ordered[:limit].sum()) + EPSILON
        room = np.full(racks, gap)
        if racks > limit:
            room -= np.maximum(0.0, best - ordered[limit - 1])
            always |= ordered[limit] - best > gap
        still_open &= value - best[:, None] <= room[:, None]
    return still_open, always
