"""Place one role inside one domain by a table over nodes and members, without a solver.

f[n, m] is the least cost of m members on n of the domain's nodes, computed node after node, for all domains
at once. The levels below the nodes are combined into one number: each level weighs more than all below it can
sum up to. The numbers are integers, so this is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Bools, Ints

NEVER = np.int64(1) << 61

MAX_STEPS = 40_000_000
"""The most elements that the table visits. If there are more, the solver decides."""


def steps(parts: int, width: int, nodes: int, need: int, most: int) -> int:
    """Return the work of `best_nodes`, in elements."""
    return parts * width * (nodes + 1) * (need + 1) * most


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The cheapest ways to fill parts.

    `cost` [part, nodes, members] is NEVER if impossible. `history` [node, part, nodes, members] is how many
    members the node takes there.
    """

    cost: Ints
    history: NDArray[np.int16]

    def taken(self, part: int, nodes: int, members: int) -> Ints:
        """Return [node] the members on each node of the part in the cheapest plan."""
        width = len(self.history)
        found = np.zeros(width, np.int64)
        for i in range(width - 1, -1, -1):
            found[i] = self.history[i, part, nodes, members]
            members -= int(found[i])
            nodes -= int(found[i] > 0)
        return found


def table_of(cost: Ints, need: int, nodes: int) -> Table:
    """Return the cheapest ways to put up to `need` members on up to `nodes` nodes of each part.

    `cost` [part, node, members] is the cost of this number of members, from 0, on the node; NEVER if
    impossible. Between equals the first nodes are taken.
    """
    parts, width, most = cost.shape
    table = np.full((parts, nodes + 1, need + 1), NEVER, np.int64)
    table[:, 0, 0] = 0
    history = np.zeros((width, parts, nodes + 1, need + 1), np.int16)
    usable = np.asarray((cost < NEVER).any(axis=0))
    for i in range(width):
        grown = table.copy()
        for members in range(1, min(most - 1, need) + 1):
            if not usable[i, members]:
                continue
            reached = table[:, :-1, : need + 1 - members] + cost[:, i, members, None, None]
            better = reached < grown[:, 1:, members:]
            grown[:, 1:, members:][better] = reached[better]
            history[i, :, 1:, members:][better] = members
        table = np.minimum(grown, NEVER)
    return Table(table, history)


def best_nodes(cost: Ints, need: int, nodes: int) -> tuple[int, Ints] | None:
    """Return the cheapest way to put `need` members on exactly `nodes` nodes of one part; None if no part
    can.

    The result is the part, the first between equals, and [node] the members on each of its nodes.
    """
    table = table_of(cost, need, nodes)
    best = int(table.cost[:, nodes, need].argmin())
    if table.cost[best, nodes, need] >= NEVER:
        return None
    return best, table.taken(best, nodes, need)


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """Several levels as one cost, in which the first level outweighs the rest. `cost` is
    NEVER if not valid.

    A level's value is its `low` for each node, and its `unit` for each step above that. All plans have at
    least its `least` steps. Each step weighs its `weight`.
    """

    cost: Ints
    lows: tuple[int, ...]
    units: tuple[int, ...]
    least: tuple[int, ...]
    weights: tuple[int, ...]

    def parted(self, total: Ints, nodes: Ints) -> list[Ints]:
        """Return the sums of the single levels, given the sum of the cost over `nodes` nodes."""
        found = []
        total = total - sum(least * weight for least, weight in zip(self.least, self.weights, strict=True))
        for low, unit, least, weight in zip(self.lows, self.units, self.least, self.weights, strict=True):
            steps, total = np.divmod(total, weight)
            found.append((steps + least) * unit + low * nodes)
        return found


def largest_sum(cost: Ints, nodes: int) -> int:
    """Return the most that choices [node, choice] on at most `nodes` nodes can cost together."""
    each = np.sort(cost.max(axis=1))
    return int(each[max(0, len(each) - nodes) :].sum())


def smallest_sum(cost: Ints, valid: Bools, nodes: int) -> int:
    """Return the least that valid choices [node, choice] on exactly `nodes` nodes can cost together."""
    each = np.sort(np.where(valid, cost, NEVER).min(axis=1)[valid.any(axis=1)])
    return int(each[:nodes].sum())


def combined(levels: list[Ints], valid: Bools, nodes: int, *, exactly: bool = False) -> Combined | None:
    """Return one cost for plans with at most `nodes` nodes; None if the numbers do not fit into 64 bits.

    `levels` are arrays [node, choice], and `valid` says which entries count. If all plans have `exactly` this
    number of nodes, each level weighs more than those below it can differ. That leaves room for more levels.
    """
    total = np.zeros(valid.shape, np.int64)
    parts, weight, most = list[tuple[int, int, int, int]](), 1, 0
    for level in reversed(levels):
        values = level[valid]
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if low == high:  # the level tells no plans apart
            parts.append((low, 1, 0, weight))
            continue
        unit = int(np.gcd.reduce(values - low))
        steps = np.where(valid, (level - low) // unit, 0)
        largest = largest_sum(steps, nodes)
        most += largest * weight
        if most >= NEVER:
            return None
        total += steps * weight
        least = smallest_sum(steps, valid, nodes) if exactly else 0
        parts.append((low, unit, least, weight))
        weight *= largest - least + 1
    lows, units, leasts, weights = zip(*reversed(parts), strict=True)
    return Combined(np.where(valid, total, NEVER), lows, units, leasts, weights)
