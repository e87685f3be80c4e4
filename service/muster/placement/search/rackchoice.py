"""Which racks, and how many members in each: a table over racks and members, exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.search.onerack import NEVER


@dataclass(frozen=True, slots=True, eq=False)
class RackChoice:
    """`need` members in `limit` racks. `cost` [rack, members], NEVER where the rack can't take so many; the
    racks in `always` are taken in any case."""

    cost: Ints
    always: Bools
    limit: int
    need: int

    @property
    def slots(self) -> int:
        """Racks that are still to be chosen."""
        return self.limit - int(self.always.sum())

    @property
    def base(self) -> Ints:
        """[rack] What the rack takes at least; of those still to be chosen what any of them does."""
        width, can = self.cost.shape[1], self.cost < NEVER
        least = np.where(can.any(axis=1), can.argmax(axis=1), width)
        return np.asarray(np.where(self.always, least, least[~self.always].min(initial=width)))

    @property
    def extra(self) -> int:
        """Members beyond what all racks of a plan take at least."""
        base, slots = self.base, self.slots
        return self.need - int(base[self.always].sum() + (slots and slots * base[~self.always].min()))

    @property
    def steps(self) -> int:
        """The work of `best`, in elements."""
        return int((self.cost < NEVER).sum()) * (self.slots + 1) * max(0, self.extra + 1)

    def best(self) -> Ints | None:
        """The members of each rack in the cheapest plan, the first between equals; None where there is none.

        Rack after rack: the least cost of the racks so far [racks chosen, members beyond their base].
        """
        if self.slots < 0 or self.extra < 0:
            return None
        width, base, extra = self.cost.shape[1], self.base, self.extra
        table = np.full((self.slots + 1, extra + 1), NEVER)
        table[0, 0] = 0
        order = np.flatnonzero(self.always).tolist()
        order += np.flatnonzero(~self.always).tolist() if self.slots else []
        history: list[Ints] = []
        for rack in order:
            first = 0 if self.always[rack] else 1
            before = table[: len(table) - first]
            padded = np.concatenate([np.full((len(before), width), NEVER), before], axis=1)
            grown = np.full_like(table, NEVER) if self.always[rack] else table.copy()
            taken = np.zeros_like(table)
            for members in np.flatnonzero(self.cost[rack] < NEVER).tolist():
                at = width - (members - int(base[rack]))
                reached = padded[:, at : at + extra + 1] + self.cost[rack, members]
                better = reached < grown[first:]
                np.copyto(grown[first:], reached, where=better)
                np.copyto(taken[first:], members, where=better)
            table = grown
            history.append(taken)
        slots = self.slots
        if table[slots, extra] >= NEVER:
            return None
        chosen = np.zeros(len(self.cost), np.int64)
        for rack, taken in zip(order[::-1], history[::-1], strict=True):
            chosen[rack] = taken[slots, extra]
            if chosen[rack]:
                slots -= int(not self.always[rack])
                extra -= int(chosen[rack] - base[rack])
        return chosen
