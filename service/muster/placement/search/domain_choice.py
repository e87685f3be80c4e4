"""Choose domains, and how many members each takes, by an exact table over domains and members."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.search.node_tables import NEVER


@dataclass(frozen=True, slots=True, eq=False)
class DomainChoice:
    """The problem of placing `need` members in `limit` domains.

    `cost` [domain, members] is NEVER if the domain cannot take this number. Domains with `always` [domain]
    are always chosen.
    """

    cost: Ints
    always: Bools
    limit: int
    need: int

    @property
    def slots(self) -> int:
        """How many domains are still to be chosen."""
        return self.limit - int(self.always.sum())

    @property
    def skips(self) -> int:
        """How many domains are not chosen."""
        return len(self.always) - self.limit

    @property
    def base(self) -> Ints:
        """[domain] The least that the domain takes. For domains still to be chosen it is the
        least of any of them.
        """
        width, can = self.cost.shape[1], self.cost < NEVER
        least = np.where(can.any(axis=1), can.argmax(axis=1), width)
        return np.asarray(np.where(self.always, least, least[~self.always].min(initial=width)))

    @property
    def extra(self) -> int:
        """The members beyond what all domains of a plan take at least."""
        base, width = self.base, self.cost.shape[1]
        return self.need - int(base[self.always].sum() + self.slots * base[~self.always].min(initial=width))

    @property
    def steps(self) -> int:
        """The work of `best`, in elements."""
        lines = min(self.slots, self.skips) + 1
        return int((self.cost < NEVER).sum()) * max(0, lines) * max(0, self.extra + 1)

    def best(self) -> Ints | None:
        """Return [domain] the members of each domain in the cheapest plan, the first between equals; None if
        there is none.

        Domain after domain, a table has the least cost of the domains so far: [domains chosen, members beyond
        their base]. If fewer domains are skipped than chosen, its first axis counts skipped domains.
        """
        slots, skips, base, extra = self.slots, self.skips, self.base, self.extra
        if slots < 0 or skips < 0 or extra < 0:
            return None
        take, skip = (1, 0) if slots <= skips else (0, 1)
        table = np.full((min(slots, skips) + 1, extra + 1), NEVER)
        table[0, 0] = 0
        order = [*np.flatnonzero(self.always).tolist(), *np.flatnonzero(~self.always).tolist()]
        tables, offered = [table], self._offered(base, extra)
        for domain in order:
            before, table = table, np.full_like(table, NEVER)
            step = 0 if self.always[domain] else take
            if not self.always[domain]:
                table[skip:] = before[: len(table) - skip]
            for members, more in offered[domain]:
                reached = before[: len(table) - step, : extra + 1 - more] + self.cost[domain, members]
                np.minimum(table[step:, more:], reached, out=table[step:, more:])
            tables.append(table)
        line = slots if take else skips
        if table[line, extra] >= NEVER:
            return None
        chosen = np.zeros(len(self.cost), np.int64)
        for domain, (before, after) in zip(order[::-1], [*pairwise(tables)][::-1], strict=True):
            value = after[line, extra]
            if not self.always[domain] and line >= skip and before[line - skip, extra] == value:
                line -= skip
                continue
            line -= 0 if self.always[domain] else take
            for members, more in offered[domain]:
                if more <= extra and before[line, extra - more] + self.cost[domain, members] == value:
                    chosen[domain], extra = members, extra - more
                    break
        return chosen

    def _offered(self, base: Ints, extra: int) -> list[list[tuple[int, int]]]:
        """Return by domain what it may take, and how many beyond its base these are, at most `extra`."""
        least, found = base.tolist(), [list[tuple[int, int]]() for _ in base]
        for domain, members in np.argwhere(self.cost < NEVER).tolist():
            more = members - least[domain]
            if more <= extra:
                found[domain].append((members, more))
        return found
