"""The whole gang on one node: nothing crosses fewer parts, and the best such node is read off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.fabric import INSIDE
from muster.placement.gang.site import Counts, Site, fits_at_once
from muster.placement.gpus.damage import left_over_steps
from muster.placement.gpus.gpusets import GpuSet, best_sets
from muster.placement.gpus.innode import Spread, sets_under


@dataclass(frozen=True, slots=True)
class Share:
    """What one node takes: members by role, and the GPUs for all of them."""

    row: int
    counts: Counts
    gpus: GpuSet
    spread: Spread = ()
    """By role, its members by NVLink domain; () and None where they may lie anywhere."""


def share_of(site: Site, row: int, counts: Counts, choice: int) -> Share:
    """The share of a node that takes these members on the GPU set of this choice, in the order of
    best_sets."""
    rule, shape, free = site.node_rule(row)
    if rule is None:
        size = sum(count * role.gpus for count, role in zip(counts, site.roles, strict=True))
        return Share(row, counts, best_sets(shape, free, size)[choice])
    return Share(row, counts, *sets_under(rule, shape, free, counts)[choice])


def on_one_node(site: Site, scopes: tuple[str, ...], need: Counts) -> Share | None:
    """The best node that takes the whole gang inside one part of each scope; None if there is none."""
    view = site.columns
    wanted = np.array(need, np.int64)
    size, cpu = int(site.gpus(wanted)), int(site.cpu(wanted))
    fits = fits_at_once(site, need)
    if site.standing:
        # Running members elsewhere make several nodes of it: parts are counted then.
        inside = any(scope in (*INSIDE, Scope.NODE) for scope in scopes)
        if not inside or len(site.standing.masks) != 1:
            return None
        fits &= np.isin(np.arange(len(fits)), list(site.standing.masks))
    for scope in scopes:
        if scope not in (*INSIDE, Scope.NODE):
            fits &= view.part(scope).codes >= 0
    for rule in site.request.max_per:
        wide = rule.scope == Scope.NVLINK_DOMAIN
        members = sum(n for n, role in zip(need, site.roles, strict=True) if role.gpus or not wide)
        if rule.scope not in (Scope.NODE, Scope.GPU) and members + len(site.standing.members) > rule.members:
            fits &= (view.wide < 0) if wide else False
    rows = np.flatnonzero(fits)
    if not len(rows):
        return None
    narrow = [scope for scope in scopes if scope in INSIDE]
    left = left_over_steps(
        view.gpu_total[rows], view.free_count[rows], view.cpu_total[rows], view.cpu[rows], size, cpu
    )
    # Nodes alike in shape and free GPUs are worth the same: each kind is looked at once.
    promised = view.promised[rows].astype(np.int64)
    in_wide = (view.wide[rows] >= 0).astype(np.int64)
    ruled = site.rules.in_node[rows]
    code = np.stack([view.shape[rows].astype(np.int64), view.free_gpus[rows], promised, in_wide, ruled])
    order = np.lexsort((rows, left, *code))
    begins = np.flatnonzero(np.diff(code[:, order], prepend=-2, axis=1).any(axis=0))
    best: tuple[tuple[int, ...], Share] | None = None
    for i in order[begins].tolist():
        row, fit = int(rows[i]), int(left[i])
        for allowed in parts_inside(site, row, narrow):
            for chosen, spread in _sets(site, row, need, size, allowed):
                domains = int(size > 0) if view.wide[row] >= 0 else chosen.domains
                key = (domains, -chosen.weakest, -chosen.ring, chosen.damage, fit, row, allowed)
                if best is None or key < best[0]:
                    best = (key, Share(row, need, chosen, spread))
    return best[1] if best else None


def _sets(site: Site, row: int, need: Counts, size: int, allowed: int) -> list[tuple[GpuSet, Spread]]:
    """The best set inside the mask, if there is one."""
    rule, shape, free = site.node_rule(row)
    if rule is None:
        return [(chosen, ()) for chosen in best_sets(shape, free, size, allowed)[:1]]
    if not rule.admits(need):
        return []
    return list(sets_under(rule, shape, free, need, allowed)[:1])


def parts_inside(site: Site, row: int, scopes: list[str]) -> list[int]:
    """Masks of the node's GPUs that a gang may use which lies in one part of each of these scopes."""
    place = site.columns.place(row)
    masks = [place.all_gpus]
    for scope in scopes:
        holding = site.standing.parts(site.columns, scope)
        parts = [mask for name, mask in place.parts(scope) if holding is None or name in holding]
        masks = [mask & part for mask in masks for part in parts if mask & part or not place.all_gpus]
    return masks
