"""The best plan for exact counts of members within the parts of some scopes.

On one node it is read off; one role inside one rack is a table (onerack), over several racks two (manyracks);
roles whose members are multiples of one another are one (onesize). Everything else: zones, racks and nodes
are counted on the coarse problem, then the levels below are decided on the fine one, by bounds and a small
exact core (model/).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.placement.gang.site import Counts, Site
from muster.placement.limits import Budget
from muster.placement.model.objective import NODES
from muster.placement.search.counting import Counting
from muster.placement.search.finish import Finished, finish
from muster.placement.search.gap import Gap
from muster.placement.search.manyracks import over_racks
from muster.placement.search.onenode import Share, on_one_node
from muster.placement.search.onerole import in_one_rack, regions_of
from muster.placement.search.onesize import OneSize, one_size
from muster.placement.search.regions import NOWHERE, regions
from muster.placement.search.sharedrack import in_shared_rack

MAX_FINISHED = 8
"""Regions with parts and nodes counted that are looked at below that, where members share GPUs or policies
prefer some: there each node's choices take a while."""


@dataclass(frozen=True, slots=True)
class Found:
    """Shares of the nodes; `gap` of the first level not proven best, None where all are.

    No shares: nothing fits, proven unless there is a gap.
    """

    shares: tuple[Share, ...]
    gap: Gap | None = None


NOTHING = Found(())
"""Nothing fits, proven."""


def search(site: Site, scopes: tuple[str, ...], need: Counts, budget: Budget) -> Found:
    """The best plan with all members in one part of every scope of `scopes`."""
    with budget.phase("scan"):
        site = site.for_all(need)
        share, proven = on_one_node(site, scopes, need, budget)
        doubt = None if proven else Gap(NODES.name)
        if share is not None:
            return Found((share,), doubt)
        alike = one_size(site, need)
    if alike is not None:
        found = _over_nodes(site, scopes, alike.units, budget, alike)
        shares = alike.dealt(site, found.shares)
        if shares or found == NOTHING:
            return Found(shares, doubt or found.gap)
    found = _over_nodes(site, scopes, need, budget)
    return Found(found.shares, doubt or found.gap)


def _over_nodes(
    site: Site, scopes: tuple[str, ...], need: Counts, budget: Budget, alike: OneSize | None = None
) -> Found:
    """The best plan on several nodes; of units of `alike` none where they are not likely to hold its
    members."""
    active = [role for role, count in enumerate(need) if count]
    with budget.phase("scan"):
        region = regions(site, scopes, need)
    counting = Counting(site, need, budget)
    if len(active) == 1 and not site.rules.model and not site.standing:
        role = active[0]
        with budget.phase("scan"):
            found = regions_of(site, region, role, need[role])
        if found is None:
            return NOTHING
        if site.plain and not (site.costs and (site.prices or found.left)):
            with budget.phase("sets"):
                if site.costs:
                    plan = in_shared_rack(site, found, role, need[role], budget)
                elif found.left:
                    plan = over_racks(site, found, role, need[role])
                else:
                    plan = in_one_rack(site, found, role, need[role])
            if plan is not None:
                shares, proven = plan
                return Found(shares, None if proven else Gap(site.costs[0].value))
        counting.regions(found.rows, found.region, found.left)
    else:
        # Parts of a level that is counted anyway are not told apart here: it may count no more than one.
        once = tuple(level for level in site.levels if level in scopes)
        rows = np.flatnonzero(region != NOWHERE)
        if once:
            region = regions(site, tuple(scope for scope in scopes if scope not in once), need)
        counting.regions(rows, region[rows], site.levels, once)
    if alike is not None and counting.found and not any(map(alike.likely, counting.found)):
        return Found((), Gap(NODES.name))
    return _finished(site, counting, budget)


def _finished(site: Site, counting: Counting, budget: Budget) -> Found:
    """The best of the regions that are equal as far as they were counted. What is not proven of one of them
    is not proven of the best."""
    best: Finished | None = None
    gap = None
    if not (counting.proven and counting.complete):
        gap = next(filter(None, (counted.gap for counted in counting.found)), Gap(NODES.name))
    for i, counted in enumerate(counting.found):
        if site.costs and i == MAX_FINISHED:
            gap = gap or Gap(site.costs[0].value)
            break
        done = finish(site, counted, budget, best.value if best else None)
        gap = gap or counted.gap or done.gap
        if done.shares and (best is None or done.value < best.value):
            best = done
    if best is None:
        return Found((), gap or (Gap(NODES.name) if counting.found else None))
    return Found(best.shares, gap)
