"""Which GPUs of a node: the best union for all members of the gang on it, then its split among them.

The union first, so that members talk over NVLink across pods as well as inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from muster.domain.topology import GpuTopology, bits, mask_of
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.fragmentation import fragmentation
from muster.placement.gpus.gpu_tables import Sets, sets_of, sets_within
from muster.placement.gpus.rings import NO_LINK, Rings, rings

EXACT_SPLIT_GPUS = 8
"""Up to so many GPUs a union is split exactly; larger ones of unequal links, best set first."""


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one node, by index, as a bit mask, and what they are worth.

    `domains`: NVLink domains they touch. `weakest`, `ring`: of the best ring over them, MB/s; NO_LINK and 0
    below two GPUs, 0 where links are unknown. `damage`: F after − F before, GPU-thousandths (may be negative:
    taking what was of no use).
    """

    mask: int
    domains: int
    weakest: int
    ring: int
    damage: int


@lru_cache(maxsize=1 << 16)
def best_sets(shape: Shape, free: int, size: int, allowed: int = -1) -> tuple[GpuSet, ...]:
    """The sets of `size` GPUs, free and allowed, that can be in a best plan, largest weakest link first.

    All touch as few NVLink domains as can be. The first is the best for the node alone: the largest weakest
    link, then the largest ring sum, then the least damage. Each further one has a weaker link, but a larger
    sum or, at the same, less damage: they matter when another node has the gang's weakest link anyway.
    Between equals the set that leaves the best-linked rest, then the lowest indices. () if they are too few.
    """
    if free & ~allowed:
        return _row(sets_within(shape, free, free & allowed), size)
    return _row(sets_of(shape, free), size)


@lru_cache(maxsize=1 << 14)
def best_set_of(shape: Shape, free: int, per_domain: tuple[int, ...]) -> tuple[GpuSet, ...]:
    """As `best_sets`, with exactly `per_domain[i]` GPUs of `shape.domains[i]`; () where one has too few."""
    return _row(sets_within(shape, free, free, per_domain), sum(per_domain))


def _row(sets: Sets, size: int) -> tuple[GpuSet, ...]:
    if size >= len(sets.choices):
        return ()
    fields = (sets.masks, sets.domains, sets.weakest, sets.ring, sets.damage)
    count = sets.choices[size]
    return tuple(GpuSet(*values) for values in zip(*(f[size, :count].tolist() for f in fields), strict=True))


def value_of(shape: Shape, free: int, mask: int) -> GpuSet:
    """What this very set is worth, taken from the `free` GPUs of a node of this shape."""
    domains = sum(1 for domain in shape.domains if domain & mask)
    damage = fragmentation(shape, free & ~mask) - fragmentation(shape, free)
    if mask.bit_count() < 2:
        return GpuSet(mask, domains, NO_LINK, 0, damage)
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return GpuSet(mask, domains, 0, 0, damage)
    table = rings(shape.topology)
    return GpuSet(mask, domains, int(table.weakest[mask]), int(table.total[mask]), damage)


@lru_cache(maxsize=1 << 14)
def split(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Share the `union` out: one mask a member, in the order of `sizes`, which sum up to it.

    The largest weakest link over the members' own rings, then the largest sum of these. Exact up to
    EXACT_SPLIT_GPUS GPUs; beyond, and where links are equal or unknown, members take what is best in turn.

    Members that have to stay inside given parts (each in one NVLink domain, say) are split part by part: one
    call for each part's share of the union. Those are best in sum, too: no part's choice binds another's.
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
"""Sum of the members' rings, MB/s, and the members' masks."""


def _exactly(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> list[int]:
    """The largest weakest link first, then the sum among the splits that keep it: no one search may weigh
    both, for what is best of a rest depends on the weakest link of the parts already cut off."""
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
    """The best split into parts whose weakest links are all at or above `floor`; None if there is none.

    The lowest GPU is tried in a part of each size, so that no split comes twice.
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
