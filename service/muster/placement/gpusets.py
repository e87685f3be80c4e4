"""Which GPUs of a node: the best union for all members of the gang on it, then its split among them.

The union first, so that members talk over NVLink across pods as well as inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from muster.domain.topology import GpuTopology, bits
from muster.placement.damage import fragmentation, unusable
from muster.placement.fabric import MAX_RING_GPUS, Shape
from muster.placement.rings import NO_LINK, Values, popcounts, rings

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
    if size == 0:
        return (GpuSet(0, 0, NO_LINK, 0, 0),)
    if (free & allowed).bit_count() < size:
        return ()
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return (_without_links(shape, free, size, allowed),)
    table = rings(shape.topology)
    masks = _subsets(shape.topology.gpu_count, size)
    masks = masks[(masks & ~(free & allowed)) == 0]
    domains = sum(
        (((masks & domain) != 0).astype(np.int64) for domain in shape.domains), np.zeros_like(masks)
    )
    masks = masks[domains == domains.min()]
    weakest, ring = table.weakest[masks], table.total[masks]
    damage = _damages(shape, free, masks)
    order = np.lexsort((masks, -table.inside[free & ~masks], damage, -ring))
    best: list[GpuSet] = []
    floor = -1
    for i in order:  # the largest ring first: each later one must have a faster weakest link to matter
        if weakest[i] > floor:
            floor = int(weakest[i])
            best.append(GpuSet(int(masks[i]), int(domains.min()), floor, int(ring[i]), int(damage[i])))
    return tuple(reversed(best))


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
    """
    if topology.gpu_count > MAX_RING_GPUS or not topology.known or max(sizes, default=0) <= 1:
        parts = _in_order(union, sizes)
    elif union.bit_count() <= EXACT_SPLIT_GPUS:
        table = rings(topology)
        memo: dict[tuple[int, tuple[int, ...]], _Split] = {}
        parts = list(_best_split(table.weakest, table.total, union, tuple(sorted(sizes)), memo)[2])
    else:
        parts = _greedily(topology, union, sizes)
    by_size: dict[int, list[int]] = {}
    for part in sorted(parts, key=lambda mask: mask & -mask):
        by_size.setdefault(part.bit_count(), []).append(part)
    return tuple(by_size[size].pop(0) if size else 0 for size in sizes)


_Split = tuple[int, int, tuple[int, ...]]
"""Weakest link of any member, sum of the members' rings (both MB/s), the members' masks."""


def _best_split(
    weakest: Values,
    total: Values,
    union: int,
    sizes: tuple[int, ...],
    memo: dict[tuple[int, tuple[int, ...]], _Split],
) -> _Split:
    """The best way to share `union` among members of these sizes: the lowest GPU is tried in each size."""
    if not union:
        return NO_LINK, 0, ()
    key = (union, sizes)
    if key in memo:
        return memo[key]
    lowest, rest = union & -union, list(bits(union & (union - 1)))
    best: _Split = (-1, -1, ())
    for size in sorted(set(sizes) - {0}, reverse=True):
        at = sizes.index(size)
        left = sizes[:at] + sizes[at + 1 :]
        for others in combinations(rest, size - 1):
            part = lowest
            for gpu in others:
                part |= 1 << gpu
            least, summed, parts = _best_split(weakest, total, union & ~part, left, memo)
            found = (min(least, int(weakest[part])), summed + int(total[part]), (part, *parts))
            if found[:2] > best[:2]:
                best = found
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


@lru_cache(maxsize=256)
def _subsets(count: int, size: int) -> Values:
    return np.flatnonzero(popcounts(count) == size)


def _damages(shape: Shape, free: int, masks: Values) -> Values:
    table = np.array([unusable(k) for k in range(shape.topology.gpu_count + 1)])
    count = popcounts(shape.topology.gpu_count)
    damage = np.full(len(masks), -fragmentation(shape, free), np.int64)
    for pool in shape.pools:
        damage += table[np.maximum(count[free & ~masks & pool] - shape.hidden, 0)]
    return damage


def _without_links(shape: Shape, free: int, size: int, allowed: int) -> GpuSet:
    """Too many GPUs for the tables: as few domains as can be, the fullest that is enough, lowest indices."""
    left, taken = size, 0
    domains = [free & allowed & domain for domain in shape.domains if free & allowed & domain]
    while left:
        enough = [domain for domain in domains if domain.bit_count() >= left]
        pick = min(enough, key=int.bit_count) if enough else max(domains, key=int.bit_count)
        domains.remove(pick)
        for gpu in list(bits(pick))[:left]:
            taken |= 1 << gpu
            left -= 1
    return value_of(shape, free, taken)
