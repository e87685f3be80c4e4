"""Find the part in which the missing members cost least, from what its nodes offer for a price."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.placement.cluster.columns import Ints

MANY = 64
"""The most nodes on which something may have to become free. On more of them, the advice is useless."""


class Offers(NamedTuple):
    """Offers of nodes: `offered` more members at `price` each on the node `row`, all [offer] int64.

    The cheaper offers of a node come before its dearer ones.
    """

    row: Ints
    price: Ints
    offered: Ints


def cheapest(offers: Offers, part: Ints, missing: Ints) -> list[tuple[int, int]] | None:
    """Return which offers to take, by index, and how many members of each, in the part where that is
    cheapest.

    They make up for what is `missing` [part]. `part` [row] is the part of each row. The result is None if no
    part offers enough, or if the cheapest one takes more than MANY nodes.
    """
    of, total = part[offers.row], np.bincount(part[offers.row], offers.offered, len(missing))
    parts = (missing > 0) & (total >= missing)
    if not parts.any():
        return None
    low, high = int(offers.price.min()), int(offers.price.max())
    parts &= missing * low <= int(missing[parts].min()) * high  # the other parts cannot be the cheapest
    some = np.flatnonzero(parts[of] & (offers.offered > 0))
    order = some[np.lexsort((offers.row[some], offers.price[some], of[some]))]
    of, price, offered = of[order], offers.price[order], offers.offered[order]
    before = np.cumsum(offered) - offered
    begins = np.flatnonzero(np.diff(of, prepend=-1))
    before -= np.repeat(before[begins], np.diff([*begins, len(of)]))
    taken = np.clip(missing[of] - before, 0, offered)
    cost = np.where(parts, np.bincount(of, taken * price, len(missing)), np.inf)
    chosen = np.flatnonzero((of == int(cost.argmin())) & (taken > 0))
    if len(np.unique(offers.row[order][chosen])) > MANY:
        return None
    return [(int(order[i]), int(taken[i])) for i in chosen.tolist()]
