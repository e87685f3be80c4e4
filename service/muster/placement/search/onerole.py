"""One role: what needs no solver. Parts and nodes are counted by sorted capacities, which is its own proof;
inside one rack a table decides the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.site import Site
from muster.placement.gpus.damage import left_over_steps
from muster.placement.gpus.gpu_tables import sets_of
from muster.placement.search import onerack
from muster.placement.search.classes import parts_by_row
from muster.placement.search.onenode import Share, share_of
from muster.placement.search.runs import place_in_run


class _TooLargeError(Exception):
    """The levels do not fit in one number."""


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """Regions that are equally good so far. [row looked at]: `rows`, the `region` of each from 0, and `cap`,
    how many members it takes. `left` are the levels, widest first, that are still to be counted: there no one
    part holds all."""

    rows: Ints
    region: Ints
    cap: Ints
    left: tuple[str, ...]


def regions_of(site: Site, region: Ints, role: int, need: int) -> Regions | None:
    """The regions that hold the members, cut down to single zones, to single racks, as far as one is
    enough."""
    cap = np.minimum(site.room[role], need)
    rows = np.flatnonzero((region >= 0) & (cap > 0))
    found = _that_hold(rows, region[rows], cap[rows], need)
    if not len(found.rows):
        return None
    for i, level in enumerate(site.levels):
        part = parts_by_row(site, level, found.rows)
        inside = _that_hold(found.rows, _pairs(found.region, part), found.cap, need)
        if not len(inside.rows):
            return Regions(found.rows, found.region, found.cap, site.levels[i:])
        found = inside
    return found


def in_one_rack(site: Site, found: Regions, role: int, need: int) -> tuple[Share, ...] | None:
    """The best plan in one of these regions, of which none has parts left to count; None where that is not
    for a table: too large, or wide NVLink domains to be counted."""
    view, gpus = site.columns, site.roles[role].gpus
    nodes, rows, region, cap = _fewest_nodes(found, need)
    wide = view.wide[rows]
    if gpus and (wide >= 0).any():
        one_each = len(np.unique(np.stack([region, wide]), axis=1)[0]) == len(np.unique(region))
        if not one_each or (wide < 0).any():
            return None
    # What a node must take at least, if the fullest others take all they can.
    order = np.lexsort((-cap, region))
    rows, region, cap = rows[order], region[order], cap[order]
    fullest = np.bincount(region, np.where(place_in_run(region) < nodes - 1, cap, 0)).astype(np.int64)
    least = np.maximum(1, need - fullest[region])
    kept = cap >= least
    rows, region, cap, least = rows[kept], region[kept], cap[kept], least[kept]
    order = np.lexsort((rows, region))
    rows, region, cap, least = rows[order], region[order], cap[order], least[order]
    _, region = np.unique(region, return_inverse=True)
    at = place_in_run(region)
    parts, width, most = int(region[-1]) + 1, int(at.max()) + 1, int(cap.max()) + 1
    if onerack.steps(parts, width, nodes, need, most) > onerack.MAX_STEPS:
        return None
    try:
        chosen = _best(site, role, rows, cap, least, (region, at, (parts, width, most)), nodes, need)
    except _TooLargeError:
        return None
    if chosen is None:
        return None
    part, taken, choice = chosen
    grid = np.full((parts, width), -1, np.int64)
    grid[region, at] = np.arange(len(rows))
    shares = []
    for i in np.flatnonzero(taken).tolist():
        r, members = int(grid[part, i]), int(taken[i])
        counts = tuple(members if other == role else 0 for other in range(len(site.roles)))
        shares.append(share_of(site, int(rows[r]), counts, int(choice[r, members])))
    return tuple(shares)


def _best(
    site: Site, role: int, rows: Ints, cap: Ints, least: Ints, grid: tuple[Ints, Ints, tuple[int, int, int]],
    nodes: int, need: int,
) -> tuple[int, Ints, Ints] | None:  # fmt: skip
    """The part, the members by node there, and the GPU set's choice [row, members]."""
    view, gpus = site.columns, site.roles[role].gpus
    region, at, shape = grid
    members = np.arange(shape[2])
    fields = _tables(site, rows, members * gpus)
    valid = (members >= least[:, None]) & (members <= cap[:, None])
    left = left_over_steps(
        view.gpu_total[rows][:, None], view.free_count[rows][:, None], view.cpu_total[rows][:, None],
        view.cpu[rows][:, None], members * gpus, members * site.roles[role].resources.cpu_milli,
    )  # fmt: skip

    def best(chosen: Ints, allowed: Bools, levels: tuple[str, ...]) -> tuple[int, Ints] | None:
        costs = [np.take_along_axis(fields[name], chosen[:, :, None], 2)[:, :, 0] for name in levels]
        costs = [-cost if name == "ring" else cost for name, cost in zip(levels, costs, strict=True)]
        cost = onerack.combined([*costs, left], allowed, nodes)
        if cost is None:
            raise _TooLargeError
        table = np.full(shape, onerack.NEVER, np.int64)
        table[region, at] = cost.cost
        return onerack.best_nodes(table, need, nodes)

    def domains(found: tuple[int, Ints] | None) -> int | None:
        if found is None:
            return None
        part, taken = found
        here = (region == part) & (taken[at] > 0)
        return int(fields["domains"][here, taken[at[here]], 0].sum())

    first = np.zeros((len(rows), shape[2]), np.int64)
    same = fields["domains"][:, :, 0][valid]
    fewest = None
    if len(np.unique(same)) > 1:
        fewest = domains(best(first, valid, ("domains",)))
    offered = fields["valid"] & valid[:, :, None]
    for threshold in sorted(set(fields["weakest"][offered].tolist()), reverse=True):
        fast = offered & (fields["weakest"] >= threshold)
        allowed = fast.any(axis=2)
        if not _could_hold(region, np.where(allowed, members, 0).max(axis=1), nodes, need):
            continue
        chosen = fast.shape[2] - 1 - fast[:, :, ::-1].argmax(axis=2)
        found = best(chosen, allowed, ("domains", "ring", "damage"))
        if found is not None and (fewest is None or domains(found) == fewest):
            return found[0], found[1], chosen
    return None


def _tables(site: Site, rows: Ints, sizes: Ints) -> dict[str, Ints]:
    """The values of the GPU sets of these sizes, [row, size, choice]; `valid` says which there are."""
    view = site.columns
    alike, index = np.unique(
        np.stack([view.shape[rows].astype(np.int64), view.free_gpus[rows]]), axis=1, return_inverse=True
    )
    tables = [sets_of(view.shapes[shape], free) for shape, free in alike.T.tolist()]
    width = max(table.masks.shape[1] for table in tables)
    found = {
        name: np.zeros((len(tables), len(sizes), width), np.int64)
        for name in ("domains", "weakest", "ring", "damage")
    }
    valid = np.zeros((len(tables), len(sizes), width), bool)
    for i, table in enumerate(tables):
        some = sizes[sizes < len(table.choices)]
        wide = table.masks.shape[1]
        for name, values in found.items():
            values[i, : len(some), :wide] = getattr(table, name)[some]
        valid[i, : len(some), :wide] = np.arange(wide) < table.choices[some][:, None]
    return {**{name: values[index] for name, values in found.items()}, "valid": valid[index]}


def _could_hold(region: Ints, cap: Ints, nodes: int, need: int) -> bool:
    """Whether the fullest nodes of some region hold the members."""
    order = np.lexsort((-cap, region))
    region, cap = region[order], cap[order]
    return bool((np.bincount(region, np.where(place_in_run(region) < nodes, cap, 0)) >= need).any())


def _fewest_nodes(found: Regions, need: int) -> tuple[int, Ints, Ints, Ints]:
    """The fewest nodes of any region that hold the members, and the rows, regions, caps of those regions."""
    order = np.lexsort((-found.cap, found.region))
    region, cap = found.region[order], found.cap[order]
    begins = np.flatnonzero(np.diff(region, prepend=-1))
    reached = np.cumsum(cap)
    base = np.repeat(reached[begins] - cap[begins], np.diff([*begins, len(region)]))
    short = reached - base < need
    nodes = np.bincount(region, short) + 1
    fewest = int(nodes.min())
    kept = nodes[found.region] == fewest
    return fewest, found.rows[kept], found.region[kept], found.cap[kept]


def _that_hold(rows: Ints, region: Ints, cap: Ints, need: int) -> Regions:
    """The regions whose nodes hold the members, all together."""
    if not len(rows):
        return Regions(rows, region, cap, ())
    names, region = np.unique(region, return_inverse=True)
    holds = np.bincount(region, cap, len(names)) >= need
    kept = holds[region]
    return Regions(rows[kept], (np.cumsum(holds) - 1)[region[kept]], cap[kept], ())


def _pairs(region: Ints, part: Ints) -> Ints:
    return region * (int(part.max(initial=0)) + 1) + part
