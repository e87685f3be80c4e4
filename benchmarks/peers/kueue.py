"""Kueue's topology-aware scheduling: best fit, from the widest level down.

Sources, github.com/kubernetes-sigs/kueue: keps/2724-topology-aware-scheduling/README.md @00541031 ("Computing
the assignment", two-level and multi-level scheduling) and pkg/cache/scheduler/tas_flavor_snapshot.go
@00c45514 (findTopologyAssignment and what it calls; between v0.17 and v0.19). Leaders, balanced placement (a
feature gate), preferred node affinity and replacement of nodes are left out.

1. Bottom-up, count the pods, and the slices, that fit in each domain.
2. At the asked level: the tightest domain that takes all. None: with `required` refuse, with `preferred` go
   one level up; at the widest level take the largest domains one after another, the last by best fit.
3. Down to the nodes: largest first, the last by best fit. Above the slices' level over all chosen domains at
   once, below it domain by domain.

Podsets are placed one after another; nothing is taken back. A request without any constraint is
"unconstrained": there the profile, mixed by default since v0.15, takes the least free nodes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchmarks.peers.fabric import Assignment, Fabric, Ints, asks
from muster.domain.request import Request, Role, Scope


class Order(StrEnum):
    """Which domains are filled first."""

    BEST_FIT = "BestFit"
    LEAST_FREE = "LeastFreeCapacity"


@dataclass(frozen=True, slots=True)
class Ask:
    """One podset. `climbs`: where no domain of the level takes all, a wider level is tried. `slices`: level →
    size of the slices there; single pods if empty."""

    count: int
    level: int
    required: bool
    climbs: bool
    order: Order
    slices: Mapping[int, int]


def kueue(
    fabric: Fabric,
    request: Request,
    preferred: str | None = Scope.RACK,
    unconstrained: Order = Order.LEAST_FREE,
) -> Assignment | None:
    """Where Kueue puts the pods. `preferred` is what a user would write for roles that nothing is required
    of, None for no constraint; `unconstrained` is the profile's order for those."""
    free = fabric.free.copy()
    node_of_pod: dict[str, str] = {}
    for role in request.roles:
        ask = _ask(fabric, request, role, preferred, unconstrained)
        pods_by_node = _assigned(fabric, free, role, ask) if ask else None
        if pods_by_node is None:
            return None
        nodes = [node for node, count in sorted(pods_by_node.items()) for _ in range(count)]
        node_of_pod |= {m.uid: fabric.names[node] for m, node in zip(role.members, nodes, strict=True)}
        for node, count in pods_by_node.items():
            free[node] -= count * asks(role)
    return node_of_pod


def _ask(
    fabric: Fabric, request: Request, role: Role, preferred: str | None, unconstrained: Order
) -> Ask | None:
    required = role.required_scope or request.required_scope
    wished = next(iter(request.preferred_scopes), preferred)
    sizes = [(fabric.level(segment.scope), segment.size) for segment in role.segments]
    slices = {at: size for at, size in sizes if at is not None}
    level = fabric.level(required or wished or (fabric.levels[0] if slices else Scope.NODE))
    if level is None or len(slices) < len(sizes) or any(at < level for at in slices):
        return None
    if any(len(role.members) % size for size in slices.values()):
        return None
    free_choice = required is None and wished is None
    order = unconstrained if free_choice else Order.BEST_FIT
    return Ask(len(role.members), level, required is not None, not free_choice, order, slices)


def _assigned(fabric: Fabric, free: Ints, role: Role, ask: Ask) -> dict[int, int] | None:
    """Pods by node."""
    nodes = len(fabric.levels) - 1
    slice_level = min(ask.slices, default=nodes)
    size = ask.slices.get(slice_level, 1)
    pods, units = _counts(fabric, free, role, ask, slice_level)
    fitting = _fitting(fabric, pods, units, ask, ask.count // size)
    if fitting is None:
        return None
    level, parts = fitting
    filled = _filled(parts, units[level], ask.count // size, ask.order)
    while filled is not None and level < slice_level:
        lower = [child for part in filled for child in _children(fabric, level, part)]
        level += 1
        lower = _sorted(lower, units[level], pods[level], ask.order)
        filled = _filled(lower, units[level], ask.count // size, ask.order)
    if filled is None:
        return None
    pods_by_part = {part: count * size for part, count in filled.items()}
    while level < nodes:
        level += 1
        below = _size_at(ask.slices, level)
        units_below = [count // below for count in pods[level]] if below > 1 else units[level]
        spread: dict[int, int] = {}
        for part, count in pods_by_part.items():
            children = _sorted(_children(fabric, level - 1, part), units_below, pods[level], ask.order)
            filled = _filled(children, units_below if below > 1 else pods[level], count // below, ask.order)
            if filled is None:
                return None
            spread |= {child: share * below for child, share in filled.items()}
        pods_by_part = spread
    return {node: count for node, count in pods_by_part.items() if count}


def _counts(
    fabric: Fabric, free: Ints, role: Role, ask: Ask, slice_level: int
) -> tuple[list[list[int]], list[list[int]]]:
    """By level and domain: the pods that fit, and the slices; below the slices' level none are counted.

    Where slices nest, a child counts for its parent in whole inner slices only.
    """
    nodes = len(fabric.levels) - 1
    size = ask.slices.get(slice_level, 1)
    pods: list[Ints] = [fabric.room(free, role)]
    units: list[Ints] = [pods[0] // size if slice_level == nodes else np.zeros_like(pods[0])]
    for level in range(nodes - 1, -1, -1):
        inner = _size_at(ask.slices, level + 1) if level >= slice_level else 1
        count = len(fabric.starts[level]) - 1
        of = fabric.parents[level]
        whole_units = np.bincount(of, pods[0] // inner * inner, count).astype(np.int64)
        sliced = np.bincount(of, units[0], count).astype(np.int64)
        pods.insert(0, whole_units)
        units.insert(0, whole_units // size if level == slice_level else sliced)
    return [counts.tolist() for counts in pods], [counts.tolist() for counts in units]


def _size_at(slices: Mapping[int, int], level: int) -> int:
    """The size of the inner slices that hold at a level: those of the next level named, single pods if none.
    The outermost slices are not inner ones."""
    inner = sorted(slices)[1:]
    return next((slices[at] for at in inner if level <= at), 1)


def _fitting(
    fabric: Fabric, pods: list[list[int]], units: list[list[int]], ask: Ask, unit_count: int
) -> tuple[int, list[int]] | None:
    """The level at which the domains are chosen, and those domains in the order they are filled."""
    level = ask.level
    while True:
        parts = _sorted(range(len(units[level])), units[level], pods[level], ask.order)
        fitting = [part for part in parts if units[level][part] >= unit_count]
        if fitting:
            tightest = min(fitting, key=lambda part: units[level][part])
            return level, [tightest if ask.order is Order.BEST_FIT else fitting[0]]
        if ask.required:
            return None
        if level == 0 or not ask.climbs:
            filled = _filled(parts, units[level], unit_count, ask.order)
            return None if filled is None else (level, list(filled))
        level -= 1


def _sorted(parts: Sequence[int], units: Sequence[int], pods: Sequence[int], order: Order) -> list[int]:
    """Most slices first, or fewest; between equals the fewest pods, then the path."""
    sign = -1 if order is Order.BEST_FIT else 1
    return sorted(parts, key=lambda part: (sign * units[part], pods[part], part))


def _filled(
    parts: Sequence[int], units: Sequence[int], unit_count: int, order: Order
) -> dict[int, int] | None:
    """What each domain takes, one after another; with best fit the last one is the tightest that is left."""
    filled: dict[int, int] = {}
    for i, first in enumerate(parts):
        part = first
        if order is Order.BEST_FIT and units[part] >= unit_count:
            part = min(
                (later_part for later_part in parts[i:] if units[later_part] >= unit_count),
                key=lambda later_part: units[later_part],
            )
        filled[part] = min(unit_count, units[part])
        unit_count -= filled[part]
        if not unit_count:
            return filled
    return None


def _children(fabric: Fabric, level: int, part: int) -> range:
    of = fabric.parents[level]
    return range(int(np.searchsorted(of, part, "left")), int(np.searchsorted(of, part, "right")))
