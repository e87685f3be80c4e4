"""What nodes offer for a price, and the part where so many members are to be had for least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.placement.cluster.columns import Ints

MANY = 64
"""Nodes; where something must become free on more, it is no advice."""


class Offers(NamedTuple):
    """Offers of `offered` members more at this price each, on the node `row`: of a node the cheaper first."""

    row: Ints
    price: Ints
    offered: Ints


def cheapest(offers: Offers, part: Ints, missing: Ints) -> list[tuple[int, int]] | None:
    """The offers, by index, and how many members of each make up for what is `missing` [part], in the part
    where that is cheapest. None where no part has enough, or takes too many nodes. `part` is that of each
    row."""
    of, total = part[offers.row], np.bincount(part[offers.row], offers.offered, len(missing))
    parts = (missing > 0) & (total >= missing)
    if not parts.any():
        return None
    low, high = int(offers.price.min()), int(offers.price.max())
    parts &= missing * low <= int(missing[parts].min()) * high  # others can't be the cheapest
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
