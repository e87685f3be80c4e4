"""Find the most members that one part of some scopes holds: the largest sum, then most of
the earlier roles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from muster.domain.request import Scope
from muster.placement.cluster.columns import ALL_GPUS, Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.packings import packings_on
from muster.placement.limits import Budget
from muster.placement.model.most_members import most_members
from muster.placement.model.quorum import QuorumRule
from muster.placement.search.classes import coarse
from muster.placement.search.regions import NOWHERE, regions
from muster.placement.search.single_node import parts_inside


@dataclass(frozen=True, slots=True)
class Most:
    """`counts` by role fit in `part`, and `proven` is whether no more do.

    The part is "" for the whole cluster. The parts of several scopes are joined by " in ".
    """

    counts: Counts
    part: str
    proven: bool

    @property
    def members(self) -> int:
        """The number of members that fit."""
        return sum(self.counts)


def most(instance: Instance, scopes: tuple[str, ...], need: Counts, budget: Budget) -> Most:
    """Return the most members of `need` that one part of all the scopes holds."""
    nothing = Most((0,) * len(need), "", True)
    active = [r for r, count in enumerate(need) if count]
    if not active or not len(instance.columns.names):
        return nothing
    inside = _inside_nodes(instance, scopes, need)
    found = [inside] if inside is not None else []
    region = regions(instance, scopes, need)
    if (region != NOWHERE).any():
        if len(active) == 1 and not instance.rules.model and not instance.request.quorum:
            found.append(_of_one_role(instance, scopes, region, active[0], need))
        else:
            found += _of_roles(instance, scopes, region, need, budget)
    best = max(found, key=lambda one: (one.members, one.counts), default=nothing)
    return replace(best, proven=all(one.proven for one in found))


def _of_one_role(instance: Instance, scopes: tuple[str, ...], region: Ints, role: int, need: Counts) -> Most:
    rows = np.flatnonzero(region != NOWHERE)
    cap = np.minimum(instance.room[role][rows], need[role])
    total = np.minimum(np.bincount(region[rows], cap), need[role])
    best = int(total.argmax())
    counts = tuple(int(total[best]) if r == role else 0 for r in range(len(need)))
    return Most(counts, _name(instance, scopes, int(rows[region[rows] == best][0])), True)


def _of_roles(
    instance: Instance, scopes: tuple[str, ...], region: Ints, need: Counts, budget: Budget
) -> list[Most]:
    """Return what regions hold, the most promising first, until no other region can hold more."""
    rows = np.flatnonzero(region != NOWHERE)
    caps = np.minimum(instance.room[:, rows], np.array(need)[:, None])
    bounds = np.stack(
        [np.minimum(np.bincount(region[rows], cap), n) for cap, n in zip(caps, need, strict=True)]
    )
    found, quorum = list[Most](), _quorum(instance, need)
    counted = quorum.counted if quorum else need
    for one in np.argsort(-bounds.sum(axis=0), kind="stable").tolist():
        limit = (int(bounds[:, one].sum()), tuple(bounds[:, one].tolist()))
        if found and limit <= max((each.members, each.counts) for each in found):
            continue
        if budget.spent:
            found.append(Most((0,) * len(need), "", False))
            break
        inside = rows[region[rows] == one]
        problem, complete = coarse(instance, inside, counted, ())
        if not problem.classes:
            continue
        problem = replace(problem, partial=True)
        counts, proven = most_members(problem, budget, quorum)
        name = _name(instance, scopes, int(inside[0]))
        found.append(Most(counts or (0,) * len(need), name, proven and complete))
    return found


def _quorum(instance: Instance, need: Counts) -> QuorumRule | None:
    """Return the rule that enough subgroups start, if some are enough.

    Roles that ask for the same, on the same nodes, are counted as one where nothing else tells them apart.
    """
    if instance.request.quorum is None:
        return None
    alike, first = list(range(len(need))), dict[object, int]()
    for r, role in enumerate(instance.roles if instance.plain else ()):
        asked = (role.resources, role.gpus, role.gpu_resource, role.slice, instance.room[r].tobytes())
        alike[r] = first.setdefault(asked, r)
    names = tuple(role.name for role in instance.roles)
    return QuorumRule(instance.request.quorum, names, need, tuple(alike))


def _inside_nodes(instance: Instance, scopes: tuple[str, ...], need: Counts) -> Most | None:
    """Return the most that fits in one node or in a part inside one; None if no scope asks for that."""
    view = instance.columns
    narrow = [scope for scope in scopes if scope in INSIDE]
    if not narrow and Scope.NODE not in scopes:
        return None
    usable = np.asarray((instance.room > 0).any(axis=0))
    if instance.existing:
        usable &= np.isin(np.arange(len(usable)), list(instance.existing.masks)) & (
            len(instance.existing.masks) == 1
        )
    for scope in scopes:
        if scope not in (*INSIDE, Scope.NODE):
            usable &= view.topology.index(scope) >= 0
    if Scope.NODE not in scopes and Scope.GPU not in scopes:
        usable &= ~view.topology.in_wide  # wide domains are regions
    rows, masks = list[Ints](), list[Ints]()
    for shape in np.unique(view.shape[usable]).tolist():
        of_shape = np.flatnonzero(usable & (view.shape == shape))
        for part in (mask & ALL_GPUS for mask in parts_inside(instance, int(of_shape[0]), narrow)):
            rows.append(of_shape)
            masks.append(np.full(len(of_shape), part))
    if not rows:
        return None
    every, mask = np.concatenate(rows), np.concatenate(masks)
    index, packings = packings_on(instance, every, need, mask)
    complete = all(packing.complete for packing in packings)
    nobody = (0,) * len(need)
    quorum = instance.request.quorum
    taken = [{nobody, *(p.all if instance.rules.whole or quorum else p.largest)} for p in packings]
    ways = set[Counts]().union(*taken)
    started = filter(instance.starts, ways) if quorum else ways
    for counts in sorted(started, key=lambda way: (sum(way), way), reverse=True):
        holds = np.array([counts in ways for ways in taken])[index]
        for may_hold in instance.rules.whole:
            holds &= may_hold(counts)[every]
        if holds.any():
            break
    else:
        return Most(nobody, "", complete)
    held = np.flatnonzero(holds)
    first = int(held[np.lexsort((mask[held], every[held]))[0]])
    return Most(counts, _name(instance, scopes, int(every[first]), int(mask[first])), complete)


def _name(instance: Instance, scopes: tuple[str, ...], row: int, mask: int = -1) -> str:
    """Return the parts of the scopes in which this node, or these GPUs of it, lie, narrowest first."""
    topology = instance.columns.topology
    names = [
        next((name for name, part in topology.parts(row, scope) if mask == -1 or mask & ~part == 0), "")
        for scope in scopes
    ]
    return " in ".join(names[::-1])
