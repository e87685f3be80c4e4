"""The most members of several roles in one part of a scope: bounds by prices first, CP-SAT where these leave
it open. Only for gangs that no further rule binds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from muster.placement.cluster.columns import Ints
from muster.placement.gang.mixes import Mixes, mixes_on
from muster.placement.gang.site import Counts, Site
from muster.placement.limits import Budget
from muster.placement.model.solve import Status, feasible, most_members
from muster.placement.search.classes import coarse
from muster.placement.search.most import Most
from muster.placement.search.regions import NOWHERE, regions

STEPS = (0.0, 0.5, 0.75, 0.875, 1.0)
"""Discounts tried of each role, up to three; of more roles the first and the last alone. A role of which all
members are placed anyway is worth less where the others are four or eight times as large."""


def most_together(
    site: Site, scopes: tuple[str, ...], need: Counts, budget: Budget, wanted: int | None = None
) -> Most:
    """The most of `need` in one part of the scopes; with `wanted`, whether so many are there: the search ends
    where that is known."""
    region = regions(site, scopes, need)
    rows = np.flatnonzero(region != NOWHERE)
    best = Most((0,) * len(need), "", True)
    if not len(rows):
        return best
    index, mixes = mixes_on(site, rows, need)
    upper = bounds(region[rows], index, mixes, need)
    proven = all(mix.complete for mix in mixes)
    for one in np.argsort(-upper, kind="stable").tolist():
        if upper[one] <= best.members or upper[one] < (wanted or 0) or 0 < (wanted or 0) <= best.members:
            break
        inside = rows[region[rows] == one]
        part = site.columns.place(int(inside[0])).part(scopes[0]) if scopes else ""
        problem, _ = coarse(site, inside, need, ())
        if wanted == sum(need):  # then it need not be maximised
            status = feasible(problem, budget).status
            if status is Status.SOLVED:
                return Most(need, part, True)
            proven &= status is Status.INFEASIBLE
            continue
        counts, decided = most_members(replace(problem, partial=True), budget)
        proven &= decided
        if counts is not None and sum(counts) > best.members:
            best = Most(counts, part, True)
    return replace(best, proven=proven)


def bounds(region: Ints, index: Ints, mixes: list[Mixes], need: Counts) -> Ints:
    """What each region holds at most, all roles together.

    Whatever the discounts of the roles: members are worth no more than what is discounted of all that are
    needed, and what the best mix of each node is worth at the discounted price.
    """
    active = [r for r, count in enumerate(need) if count]
    width = max([1, *(len(mix.largest) for mix in mixes)])
    counts = np.zeros((len(mixes), width, len(need)))
    for kind, mix in enumerate(mixes):
        if mix.largest:
            counts[kind, : len(mix.largest)] = mix.largest
    steps = STEPS if len(active) <= 3 else (STEPS[0], STEPS[-1])
    discounts = np.zeros((len(steps) ** len(active), len(need)))
    discounts[:, active] = list(product(steps, repeat=len(active)))
    worth: NDArray[np.float64] = np.tensordot(counts, (1 - discounts).T, axes=1).max(axis=1)
    nodes = np.bincount(region * len(mixes) + index, minlength=(int(region.max()) + 1) * len(mixes))
    held = nodes.reshape(-1, len(mixes)).astype(float) @ worth
    upper: Ints = np.floor((held + discounts @ np.array(need)).min(axis=1) + 1e-6).astype(np.int64)
    return upper
