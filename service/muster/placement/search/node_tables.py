"""One role inside one part of the narrowest level, a rack: no solver, a table over nodes and members.

f[n, m] is the least cost of m members on n of the part's nodes, node after node; parts side by side. The
levels below the nodes are one number: each level weighs more than all below it can sum up to. Integers:
exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Bools, Ints

NEVER = np.int64(1) << 61

MAX_STEPS = 40_000_000
"""Elements that the table may visit in all; more is left to the solver."""


def steps(parts: int, width: int, nodes: int, need: int, most: int) -> int:
    """The work of `best_nodes`, in elements."""
    return parts * width * (nodes + 1) * (need + 1) * most


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """`cost` [part, nodes, members], NEVER where it can't be; `history` [node, part, nodes, members]: the
    members that the node takes there."""

    cost: Ints
    history: NDArray[np.int16]

    def taken(self, part: int, nodes: int, members: int) -> Ints:
        """The members on each node of the part in the cheapest plan."""
        width = len(self.history)
        found = np.zeros(width, np.int64)
        for i in range(width - 1, -1, -1):
            found[i] = self.history[i, part, nodes, members]
            members -= int(found[i])
            nodes -= int(found[i] > 0)
        return found


def table_of(cost: Ints, need: int, nodes: int) -> Table:
    """The cheapest ways to put up to `need` members on up to `nodes` nodes of each part.

    `cost` [part, node, members] is the cost of so many members (from 0) on the node, NEVER where it can't.
    Between equals the first nodes.
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
    """The cheapest way to put `need` members on exactly `nodes` nodes of one part: the part, the first
    between equals, and the members on each of its nodes; None where no part can."""
    table = table_of(cost, need, nodes)
    best = int(table.cost[:, nodes, need].argmin())
    if table.cost[best, nodes, need] >= NEVER:
        return None
    return best, table.taken(best, nodes, need)


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """Several levels as one cost, the first outweighing the rest: `cost`, NEVER where it does not count."""

    cost: Ints
    lows: tuple[int, ...]
    units: tuple[int, ...]
    weights: tuple[int, ...]

    def parted(self, total: Ints, nodes: Ints) -> list[Ints]:
        """The levels' own sums, of a sum over so many nodes."""
        found = []
        for low, unit, weight in zip(self.lows, self.units, self.weights, strict=True):
            steps, total = np.divmod(total, weight)
            found.append(steps * unit + low * nodes)
        return found


def combined(levels: list[Ints], valid: Bools, nodes: int) -> Combined | None:
    """One cost for plans of at most `nodes` nodes; None where the numbers would not fit. `levels` are arrays
    of one shape, `valid` says where they count."""
    total = np.zeros(valid.shape, np.int64)
    lows, units, weights, weight = list[int](), list[int](), list[int](), 1
    for level in reversed(levels):
        values = level[valid]
        low, high = int(values.min(initial=1 << 60)), int(values.max(initial=-(1 << 60)))
        if low > high:
            low = high = 0
        unit = int(np.gcd.reduce(values - low, initial=0)) or 1
        total += np.where(valid, (level - low) // unit, 0) * weight
        lows, units, weights = [low, *lows], [unit, *units], [weight, *weights]
        weight *= (high - low) // unit * nodes + 1
        if weight * nodes > 1 << 60:
            return None
    return Combined(np.where(valid, total, NEVER), tuple(lows), tuple(units), tuple(weights))
