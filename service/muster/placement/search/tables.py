"""Fill parts with members at the least cost: one table, whose only axis is the number of members.

The cost of a plan is a sum over its nodes. So the best way to put m members into a part has one cost. A part
needs one cost for each m, however many levels the objective has. The same table fills domains from nodes,
and the cluster from domains. `combine_levels` makes one number of all levels: each level outweighs the lower
levels. The numbers are integers, so this is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.placement.cluster.columns import Bools, Ints

NEVER = np.int64(1) << 61
"""The cost of an impossible choice."""

ELEMENTS_PER_NUMPY_CALL = 2_000
"""How many elements take as long as one call of numpy."""

MAX_TABLE_WORK = 40_000_000
"""The most elements that the computation of one table may visit. A larger problem is left to the solver."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The cheapest ways to fill each part from its children, child after child."""

    cost: Ints
    """[part, child, members] The child's cost with these members: 0 for no member, NEVER if impossible."""
    min_cost: Ints
    """[child, part, members] The least cost of the members on the children before this child. The last line
    is for all children.
    """

    @classmethod
    def of(cls, cost: Ints, low: int, high: int) -> Table:
        """Return the table for `low` to `high` members in each part. The cost of no members is set to 0."""
        cost = cost[:, :, : high + 1]
        parts, children, _ = cost.shape
        cost[:, :, 0] = 0
        min_cost = np.full((children + 1, parts, high + 1), NEVER)
        min_cost[0, :, 0] = 0
        offered = np.asarray((cost < NEVER).any(axis=0))
        # Lower bound of the members so far: with fewer than `lows[child]` members, the later children cannot
        # reach `low`.
        largest = np.where(offered, np.arange(offered.shape[1]), 0).max(axis=1)
        lows, highs = (low - largest.sum() + np.cumsum(largest)).tolist(), np.cumsum(largest).tolist()
        for child in range(children):
            without_child, with_child = min_cost[child], min_cost[child + 1]
            with_child[:] = without_child
            end = min(high, highs[child]) + 1
            for members in (np.flatnonzero(offered[child, 1:]) + 1).tolist():
                start = max(lows[child], members)
                new_cost = without_child[:, start - members : end - members] + cost[:, child, members, None]
                np.minimum(with_child[:, start:end], new_cost, out=with_child[:, start:end])
        return cls(cost, min_cost)

    @property
    def total(self) -> Ints:
        """[part, members] The least cost of these members in the part."""
        return np.asarray(self.min_cost[-1])

    def split(self, parts: Ints, members: Ints) -> Ints:
        """Return [part, child] the members of each child in the cheapest way to put `members` into `parts`.

        Between equally cheap ways, the first children get the members.
        """
        remaining, by_child = members.copy(), np.zeros((len(parts), self.cost.shape[1]), np.int64)
        part_index = parts[:, None]
        for child in reversed(range(self.cost.shape[1])):
            amounts = np.flatnonzero((self.cost[parts, child] < NEVER).any(axis=0))
            remaining_without = remaining[:, None] - amounts
            cost = np.where(remaining_without < 0, NEVER, self.min_cost[child][part_index, remaining_without])
            reached = cost + self.cost[part_index, child, amounts]
            target = self.min_cost[child + 1][part_index, remaining[:, None]]
            by_child[:, child] = amounts[(reached == target).argmax(axis=1)]
            remaining -= by_child[:, child]
        return by_child


def table_work(children: int, offered: int, parts: int, max_members: int) -> int:
    """Return how many elements a table visits, if each child offers `offered` numbers of members."""
    return children * offered * max(ELEMENTS_PER_NUMPY_CALL, parts * (max_members + 1))


@dataclass(frozen=True, slots=True, eq=False)
class CombinedCost:
    """Several levels combined into one cost.

    All nodes of a plan cost at most `max_total` together, and plans differ by less than `per_node_offset`.
    """

    cost: Ints
    """[node, choice] The cost, NEVER if the choice is not valid."""
    max_total: int
    per_node_offset: int


def combine_levels(levels: Sequence[Ints], valid: Bools, nodes: int) -> CombinedCost | None:
    """Return the combined cost for plans with this number of nodes; None if 64 bits are too few.

    `levels` are arrays [node, choice], the most important first, and `valid` says which entries count. One
    unit of a level weighs more than the largest difference of all lower levels together.
    """
    total, weight, max_total = np.zeros(valid.shape, np.int64), 1, 0
    for level in reversed(levels):
        values = level[valid]
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if low == high:  # all plans are equal at this level
            continue
        steps_up = np.where(valid, (level - low) // int(np.gcd.reduce(values - low)), 0)
        largest = _largest_sum(steps_up, nodes)
        max_total += largest * weight
        if max_total >= NEVER:
            return None
        total += steps_up * weight
        weight *= largest - _smallest_sum(steps_up, valid, nodes) + 1
    max_total = _largest_sum(total, nodes)
    per_node_offset = max_total - _smallest_sum(total, valid, nodes) + 1
    return CombinedCost(np.where(valid, total, NEVER), max_total, per_node_offset)


def _largest_sum(cost: Ints, nodes: int) -> int:
    """Return the most that choices [node, choice] on at most `nodes` nodes can cost together."""
    largest = np.sort(cost.max(axis=1, initial=0))
    return int(largest[max(0, len(largest) - nodes) :].sum())


def _smallest_sum(cost: Ints, valid: Bools, nodes: int) -> int:
    """Return the least that valid choices [node, choice] on exactly `nodes` nodes can cost together."""
    smallest = np.sort(np.where(valid, cost, NEVER).min(axis=1, initial=NEVER)[valid.any(axis=1)])
    return int(smallest[:nodes].sum())
