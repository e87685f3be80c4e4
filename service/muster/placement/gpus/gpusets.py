"""Choose GPUs of a node: the best union for all members of the gang, then its split among the members.

The union comes first, so that members talk over NVLink between pods as well as inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from muster.domain.topology import GpuTopology, bits, mask_of
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.fragmentation import fragmentation
from muster.placement.gpus.gpu_tables import Sets, sets_of, sets_within
from muster.placement.gpus.numa import socket_distance
from muster.placement.gpus.rings import NO_LINK, Rings, rings

EXACT_SPLIT_GPUS = 8
"""Unions with at most this many GPUs are split exactly. Larger ones with unequal links are split greedily."""


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one node, as a bit mask of indices, and their values.

    `domains` is how many NVLink domains they touch. `weakest` and `ring` are the weakest link and the sum of
    the best ring, in MB/s. With fewer than two GPUs they are NO_LINK and 0; with unknown links they are 0.
    `sockets` is how far apart they hang below the node's CPU sockets: see numa. `damage` is F after minus F
    before, in GPU-thousandths. It is negative if the set takes GPUs that no typical request could use.
    """

    mask: int
    domains: int
    weakest: int
    ring: int
    sockets: int
    damage: int


SET_VALUES = {"domains": 1, "weakest": -1, "ring": -1, "sockets": 1, "damage": 1}
"""The values of a GPU set by name, in the order in which they decide: 1 if less is better, −1 if more is.

`Sets` and `Patterns` have a field of the same name for each.
"""


def rank(chosen: GpuSet) -> tuple[int, ...]:
    """Return the values in the order in which they decide, each to be small."""
    return tuple(sign * getattr(chosen, name) for name, sign in SET_VALUES.items())


@lru_cache(maxsize=1 << 16)
def best_sets(shape: Shape, free: int, size: int, allowed: int = -1) -> tuple[GpuSet, ...]:
    """Return the sets of `size` free and allowed GPUs that can be in a best plan, largest weakest link first.

    All of them touch as few NVLink domains as possible. The first is the best for the node alone: the largest
    weakest link, then the largest ring sum, then the least socket distance, then the least damage. Each later
    set has a weaker link, but is better at the levels after it. It matters when another node has the gang's
    weakest link. Between equals, the set that leaves the best-linked rest is taken, then the lowest indices.
    The result is () if too few GPUs are free.
    """
    if free & ~allowed:
        return _row(sets_within(shape, free, free & allowed), size)
    return _row(sets_of(shape, free), size)


@lru_cache(maxsize=1 << 14)
def best_set_of(shape: Shape, free: int, per_domain: tuple[int, ...]) -> tuple[GpuSet, ...]:
    """Return sets as `best_sets` does, with exactly `per_domain[i]` GPUs of `shape.domains[i]`.

    The result is () if a domain has too few.
    """
    return _row(sets_within(shape, free, free, per_domain), sum(per_domain))


def _row(sets: Sets, size: int) -> tuple[GpuSet, ...]:
    if size >= len(sets.choices):
        return ()
    count = sets.choices[size]
    columns = (getattr(sets, name)[size, :count].tolist() for name in ("masks", *SET_VALUES))
    return tuple(GpuSet(*values) for values in zip(*columns, strict=True))


def value_of(shape: Shape, free: int, mask: int) -> GpuSet:
    """Return this set with its values, if taken from the `free` GPUs of a node of this shape."""
    domains = sum(1 for domain in shape.domains if domain & mask)
    damage = fragmentation(shape, free & ~mask) - fragmentation(shape, free)
    if mask.bit_count() < 2:
        return GpuSet(mask, domains, NO_LINK, 0, 0, damage)
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return GpuSet(mask, domains, 0, 0, 0, damage)
    table = rings(shape.topology)
    sockets = socket_distance(shape.topology, mask)
    return GpuSet(mask, domains, int(table.weakest[mask]), int(table.total[mask]), sockets, damage)


@lru_cache(maxsize=1 << 14)
def split(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Divide the `union` among members: one mask for each, in the order of `sizes`, which sum up to the
    union.

    The largest weakest link over the members' own rings decides, then the largest sum of these rings. This is
    exact for at most EXACT_SPLIT_GPUS GPUs. In larger unions members take their best set in turn, and if
    links are unknown, the lowest indices.

    If members must stay inside given parts, for example one NVLink domain each, call this for each part. The
    results are the best in sum, because the choice in one part does not limit the others.

    Raises:
        AssertionError: The sizes do not sum up to the union.
    """
    if topology.gpu_count > MAX_RING_GPUS or not topology.known or max(sizes, default=0) <= 1:
        parts = _in_order(union, sizes)
    elif union.bit_count() <= EXACT_SPLIT_GPUS:
        parts = _exactly(topology, union, tuple(sorted(filter(None, sizes), reverse=True)))
    else:
        parts = _greedily(topology, union, sizes)
    by_size: dict[int, list[int]] = {}
    for part in sorted(parts, key=lambda mask: mask & -mask):
        by_size.setdefault(part.bit_count(), []).append(part)
    return tuple(by_size[size].pop(0) if size else 0 for size in sizes)


_Split = tuple[int, tuple[int, ...]]
"""Sum of the members' rings in MB/s, and the members' masks."""


def _exactly(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the split with the largest weakest link, and with the largest sum among those.

    One search cannot weigh both: the best split of the rest depends on the weakest link of the parts before
    it.
    """
    table = rings(topology)
    for floor in table.levels[::-1].tolist():
        found = _largest_sum(table, floor, union, sizes, {})
        if found is not None:
            return list(found[1])
    raise AssertionError("no split: the sizes do not sum up to the union")


def _largest_sum(
    table: Rings,
    floor: int,
    union: int,
    sizes: tuple[int, ...],
    memo: dict[tuple[int, tuple[int, ...]], _Split | None],
) -> _Split | None:
    """Return the best split into parts whose weakest links are all at least `floor`; None if there is none.

    The lowest GPU is tried in a part of each size, so that each split is tried once.
    """
    if not union:
        return 0, ()
    key = (union, sizes)
    if key in memo:
        return memo[key]
    lowest, rest = union & -union, tuple(bits(union & (union - 1)))
    best: _Split | None = None
    for size in sorted(set(sizes), reverse=True):
        at = sizes.index(size)
        left = sizes[:at] + sizes[at + 1 :]
        for others in combinations(rest, size - 1):
            part = lowest | mask_of(others)
            if table.weakest[part] < floor:
                continue
            found = _largest_sum(table, floor, union & ~part, left, memo)
            if found is not None:
                summed = found[0] + int(table.total[part])
                if best is None or summed > best[0]:
                    best = (summed, (part, *found[1]))
    memo[key] = best
    return best


def _greedily(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> list[int]:
    shape = Shape(topology, (union,), (union,))
    parts = []
    for size in sorted(filter(None, sizes), reverse=True):
        part = best_sets(shape, union, size)[0].mask
        parts.append(part)
        union &= ~part
    return parts


def _in_order(union: int, sizes: tuple[int, ...]) -> list[int]:
    gpus, parts = bits(union), []
    for size in filter(None, sizes):
        part = 0
        for _ in range(size):
            part |= 1 << next(gpus)
        parts.append(part)
    return parts
