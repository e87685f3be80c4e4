"""Choose GPUs of a node: first the best set for all members (the union), then each member's part of it.

The union comes first, because members also pass data between pods. The best sets of every size are tabulated
at once, as arrays that many searches share. Sets are compared within a group: one mask of free GPUs and one
size. Of the sets with equal weakest links, only the best can be in an optimal plan. So each level removes
sets from the group until a few are left. That is faster than sorting 2^n sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from muster.domain.topology import GpuTopology, bits, mask_of
from muster.placement.cluster.columns import gpu_counts
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.damage import damage_of, damage_to_pools
from muster.placement.gpus.links import (
    NO_LINK,
    Rings,
    Values,
    interchangeable_gpus,
    link_matrix,
    pcie_homes,
    rings,
    socket_distances,
)

EXACT_SPLIT_GPUS = 8
"""Unions with at most this many GPUs are split exactly, larger unions with unequal links greedily."""


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one node, as a bit mask of indices, and their values.

    `domains` is how many NVLink domains the GPUs touch. `weakest` and `ring` are the weakest link and the sum
    of the best ring, in MB/s: NO_LINK and 0 for fewer than two GPUs, 0 and 0 with unknown links. `sockets` is
    the socket distance. `damage` is F after minus F before, in GPU-thousandths. A negative damage means that
    the set takes GPUs which no typical request could use.
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


@lru_cache(maxsize=1 << 16)
def best_sets(shape: Shape, free: int, size: int, allowed: int = -1) -> tuple[GpuSet, ...]:
    """Return the sets of `size` free and allowed GPUs that can be in a best plan, largest weakest link first.

    All sets touch as few NVLink domains as possible. The first set is the best for the node alone: the
    largest weakest link, then the largest ring sum, then the least socket distance, then the least damage.
    Each later set has a weaker link, but is better at a level after it. Such a set can be best if the gang's
    weakest link is on another node. Between equal sets, the set that leaves the best-linked free GPUs is
    taken, then the lowest indices. The result is () if too few GPUs are free.
    """
    if free & ~allowed:
        return _sets_of_size(sets_within(shape, free, free & allowed), size)
    return _sets_of_size(sets_of(shape, free), size)


def _sets_of_size(sets: Sets, size: int) -> tuple[GpuSet, ...]:
    if size >= len(sets.choices):
        return ()
    count = sets.choices[size]
    columns = (getattr(sets, name)[size, :count].tolist() for name in ("masks", *SET_VALUES))
    return tuple(GpuSet(*values) for values in zip(*columns, strict=True))


def gpu_set_of(shape: Shape, free: int, mask: int) -> GpuSet:
    """Return the GPUs of the mask as a set, taken from the `free` GPUs of a node of this shape."""
    domains = sum(1 for domain in shape.domains if domain & mask)
    damage = damage_of(shape, free, mask)
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return GpuSet(mask, domains, NO_LINK if mask.bit_count() < 2 else 0, 0, 0, damage)
    table, sockets = rings(shape.topology), socket_distances(shape.topology, np.array([mask]))
    return GpuSet(mask, domains, int(table.weakest[mask]), int(table.total[mask]), int(sockets[0]), damage)


@lru_cache(maxsize=1 << 14)
def split(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Divide the `union` among members: one mask for each, in the order of `sizes`, which sum up to the
    union.

    The largest weakest link over the members' own rings decides, then the largest sum of these rings. This is
    exact for at most EXACT_SPLIT_GPUS GPUs. In larger unions members take their best set in turn, and if
    links are unknown, the lowest indices.

    If members must stay inside given parts, such as one NVLink domain each, call this function for each part.
    The parts do not limit each other, so the results together are the best.

    Raises:
        AssertionError: The sizes do not sum up to the union.
    """
    if topology.gpu_count > MAX_RING_GPUS or not topology.is_known or max(sizes, default=0) <= 1:
        parts = _split_in_order(union, sizes)
    elif union.bit_count() <= EXACT_SPLIT_GPUS:
        parts = _split_exactly(topology, union, tuple(sorted(filter(None, sizes), reverse=True)))
    else:
        parts = _split_greedily(topology, union, sizes)
    by_size: dict[int, list[int]] = {}
    for part in sorted(parts, key=lambda mask: mask & -mask):
        by_size.setdefault(part.bit_count(), []).append(part)
    return tuple(by_size[size].pop(0) if size else 0 for size in sizes)


_Split = tuple[int, tuple[int, ...]]
"""Sum of the members' rings in MB/s, and the members' masks."""


def _split_exactly(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the split with the largest weakest link, and among such splits the largest sum.

    One search cannot optimise both values, because the best split of the remaining GPUs depends on the
    weakest link of the parts before. So each weakest link is tried, the fastest first.
    """
    table = rings(topology)
    for floor in table.levels[::-1].tolist():
        best_split = _largest_sum(table, floor, union, sizes, {})
        if best_split is not None:
            return list(best_split[1])
    raise AssertionError("no split: the sizes do not sum up to the union")


def _largest_sum(
    table: Rings,
    floor: int,
    union: int,
    sizes: tuple[int, ...],
    memo: dict[tuple[int, tuple[int, ...]], _Split | None],
) -> _Split | None:
    """Return the best split into parts whose weakest links are all at least `floor`; None if no split exists.

    Some part must have the lowest GPU. So that part is chosen first, and each split is tried once.
    """
    if not union:
        return 0, ()
    key = (union, sizes)
    if key in memo:
        return memo[key]
    lowest_gpu, later_gpus = union & -union, tuple(bits(union & (union - 1)))
    best_split: _Split | None = None
    for size in sorted(set(sizes), reverse=True):
        size_index = sizes.index(size)
        later_sizes = sizes[:size_index] + sizes[size_index + 1 :]
        for more_gpus in combinations(later_gpus, size - 1):
            part = lowest_gpu | mask_of(more_gpus)
            if table.weakest[part] < floor:
                continue
            inner_split = _largest_sum(table, floor, union & ~part, later_sizes, memo)
            if inner_split is not None:
                summed = inner_split[0] + int(table.total[part])
                if best_split is None or summed > best_split[0]:
                    best_split = (summed, (part, *inner_split[1]))
    memo[key] = best_split
    return best_split


def _split_greedily(topology: GpuTopology, union: int, sizes: tuple[int, ...]) -> list[int]:
    shape = Shape(topology, (union,), (union,))
    parts = []
    for size in sorted(filter(None, sizes), reverse=True):
        part = best_sets(shape, union, size)[0].mask
        parts.append(part)
        union &= ~part
    return parts


def _split_in_order(union: int, sizes: tuple[int, ...]) -> list[int]:
    gpus = bits(union)
    return [mask_of(list(islice(gpus, size))) for size in filter(None, sizes)]


TABLED_GPUS = 8
"""Shapes with at most this many GPUs have one table for all masks of free GPUs: 3^8 = 6,561 pairs for 8 GPUs.
"""


@dataclass(frozen=True, slots=True)
class Sets:
    """The sets of every size that can be in a best plan, for one shape and one mask of free GPUs.

    Arrays are [size, choice] int64, for sizes from 0 to the node's number of GPUs. `choices` [size] is the
    number of valid choices, 0 if too few GPUs are free; the other entries are padding. Order and values are
    those of `gpusets.best_sets`: `weakest` and `ring` in MB/s, `damage` in GPU-thousandths. The arrays are
    shared, so they must not be written to.
    """

    masks: Values
    domains: Values
    weakest: Values
    ring: Values
    sockets: Values
    damage: Values
    choices: Values


@lru_cache(maxsize=1 << 14)
def sets_of(shape: Shape, free: int) -> Sets:
    """Return `gpusets.best_sets` for every size, among the `free` GPUs of a node of this shape."""
    if shape.topology.gpu_count > TABLED_GPUS:
        return sets_within(shape, free, free)
    tables = every_free_mask(shape)
    return Sets(*(table[free] for table in tables))


@lru_cache(maxsize=1 << 12)
def sets_within(shape: Shape, free: int, allowed: int) -> Sets:
    """Return `gpusets.best_sets` for every size, for sets inside `allowed`."""
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return _sets_without_links(shape, free, allowed & free)
    masks = _subsets_up_to_symmetry(shape, free & allowed)
    row = np.zeros_like(masks)
    return Sets(*(table[0] for table in _best_sets(shape, 1, row, row + free, masks)))


@lru_cache(maxsize=256)
def every_free_mask(shape: Shape) -> tuple[Values, ...]:
    """Return the fields of Sets with a further axis in front: the mask of free GPUs."""
    free, masks = _free_masks_with_subsets(shape.topology.gpu_count)
    return _best_sets(shape, 1 << shape.topology.gpu_count, free, free, masks)


@lru_cache(maxsize=TABLED_GPUS + 1)
def _free_masks_with_subsets(count: int) -> tuple[Values, Values]:
    """Return all pairs of a mask of free GPUs and a subset of it, as two arrays."""
    all_masks = np.arange(1 << count)
    free, masks = np.nonzero((all_masks & ~all_masks[:, None]) == 0)
    return free.astype(np.int64), masks.astype(np.int64)


def _best_sets(shape: Shape, rows: int, row: Values, free: Values, masks: Values) -> tuple[Values, ...]:
    """Return the fields of Sets for each row, from candidates: `masks[i]` out of `free[i]` belongs to
    `row[i]`.

    The order of preference is that of `gpusets.best_sets`. Of sets that differ only by a swap of equal GPUs,
    the candidates need only the set with the lowest indices.
    """
    topology = shape.topology
    ring_table, sizes = rings(topology), topology.gpu_count + 1
    group = row * sizes + gpu_counts(masks)
    domains = np.zeros_like(masks)
    for domain in shape.domains:
        domains += (masks & domain) != 0
    fewest = least_of(group, domains)
    masks, free, group, domains = masks[fewest], free[fewest], group[fewest], domains[fewest]
    weakest, ring, damage = (
        ring_table.weakest[masks],
        ring_table.total[masks],
        damage_to_pools(shape, free, masks),
    )
    links_left = ring_table.link_sums[free & ~masks]
    sockets = socket_distances(topology, masks)

    # Of sets with equal weakest links only the best one can be in an optimal plan. Narrow each such group to
    # the best set, key by key.
    finer = group * len(ring_table.levels) + np.searchsorted(ring_table.levels, weakest)
    keys = (-ring, sockets, damage, -links_left, masks)
    sets = np.arange(len(masks))
    for key in keys:
        sets = sets[least_of(finer[sets], key[sets])]
    sets = sets[sets_that_matter(group[sets], weakest[sets], *(key[sets] for key in keys))]
    choices = np.bincount(group[sets], minlength=rows * sizes)
    choice = np.arange(len(sets)) - (np.cumsum(choices) - choices)[group[sets]]
    width = max(1, int(choices.max()))
    set_fields = (masks, domains, weakest, ring, sockets, damage)
    arrays = [np.zeros((rows * sizes, width), np.int64) for _ in set_fields]
    for array, values in zip(arrays, set_fields, strict=True):
        array[group[sets], choice] = values[sets]
    tables = (*(array.reshape(rows, sizes, width) for array in arrays), choices.reshape(rows, sizes))
    for table in tables:
        table.setflags(write=False)
    return tables


def sets_that_matter(group: Values, weakest: Values, *keys: Values) -> Values:
    """Return the indices of the sets that can be in a best plan, group by group.

    Of two sets, the set with smaller `keys` is better; the first key decides first. A worse set matters only
    if its `weakest` link is faster. The fastest weakest link comes first.
    """
    order = np.lexsort((*keys[::-1], group))
    rank = group[order] * (2 * NO_LINK) + weakest[order]
    order = order[np.diff(np.maximum.accumulate(rank), prepend=-1) > 0]
    return order[np.lexsort((-weakest[order], group[order]))]


def links_over(shape: Shape, free: int, masks: Values, present: int) -> tuple[Values, Values, Values, Values]:
    """Return [way] the weakest link, the ring and the socket distance over these GPUs and the GPUs `present`.

    The last array is the sum of the links among the `free` GPUs that stay. Without a link matrix all links
    count as 0.
    """
    if shape.topology.gpu_count > MAX_RING_GPUS:
        none = np.zeros_like(masks)
        return np.where(gpu_counts(masks | present) < 2, NO_LINK, 0), none, none, none
    table, union = rings(shape.topology), masks | present
    sockets = socket_distances(shape.topology, union)
    return table.weakest[union], table.total[union], sockets, table.link_sums[free & ~masks]


def least_of(group: Values, key: Values) -> NDArray[np.bool_]:
    """Return [i] bool: whether `key[i]` is the least of its group. `group` has small numbers."""
    if not len(group):
        return np.zeros(0, bool)
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group, key)
    return np.asarray(key == least[group])


def _subsets_up_to_symmetry(shape: Shape, allowed: int) -> Values:
    """Return subsets of `allowed`. Of subsets that differ by a swap of equal GPUs, only the lowest is
    returned.

    For 16 GPUs behind one NVSwitch, these are 17 sets instead of 65,536.
    """
    masks = np.zeros(1, np.int64)
    for kind in kinds_in(shape, False):
        lowest_of_kind = [0]
        for gpu in kind:
            if allowed >> gpu & 1:
                lowest_of_kind.append(lowest_of_kind[-1] | 1 << gpu)
        masks = (masks[:, None] | np.array(lowest_of_kind)).ravel()
    return masks


@lru_cache(maxsize=256)
def kinds_in(shape: Shape, fixed_domains: bool) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs in kinds. Two GPUs of a kind can be swapped: no link, domain, pool or socket distance
    changes.

    If each GPU is an NVLink domain alone, GPUs are swapped with their domains. `fixed_domains` forbids this,
    for rules that name domains.
    """
    parts: dict[tuple[int, ...], list[int]] = {}
    homes = pcie_homes(shape.topology)
    for number, kind in enumerate(interchangeable_gpus(link_matrix(shape.topology))):
        for gpu in kind:
            home = next((domain for domain in shape.domains if domain >> gpu & 1), 0)
            pool = next((pool for pool in shape.pools if pool >> gpu & 1), 0)
            if not fixed_domains and home == 1 << gpu:
                home = 0
            if not fixed_domains and pool == 1 << gpu:
                pool = 0
            parts.setdefault((number, home, pool, *homes[gpu]), []).append(gpu)
    return tuple(map(tuple, parts.values()))


def _sets_without_links(shape: Shape, free: int, allowed: int) -> Sets:
    """Return one choice of each size, for nodes with too many GPUs for the tables; their links count as
    unknown.

    The choice touches as few domains as possible. It prefers the fullest domain that is enough, then low
    indices.
    """
    sizes = shape.topology.gpu_count + 1
    arrays = {field.name: np.zeros((sizes, 1), np.int64) for field in fields(Sets)}
    sets = Sets(**{**arrays, "choices": np.zeros(sizes, np.int64)})
    for size in range(allowed.bit_count() + 1):
        mask = _pack_into_domains(shape.domains, allowed, size)
        sets.masks[size, 0] = mask
        sets.domains[size, 0] = sum(1 for domain in shape.domains if domain & mask)
        sets.weakest[size, 0] = NO_LINK if size < 2 else 0
        sets.damage[size, 0] = damage_of(shape, free, mask)
        sets.choices[size] = 1
    return sets


def _pack_into_domains(domains: Iterable[int], allowed: int, missing: int) -> int:
    gpus, open_domains = 0, [allowed & domain for domain in domains if allowed & domain]
    while missing:
        large_domains = [domain for domain in open_domains if domain.bit_count() >= missing]
        pick = (
            min(large_domains, key=int.bit_count) if large_domains else max(open_domains, key=int.bit_count)
        )
        open_domains.remove(pick)
        gpus |= lowest_gpus(pick, missing)
        missing -= min(missing, pick.bit_count())
    return gpus


def lowest_gpus(mask: int, count: int) -> int:
    """Return the lowest `count` bits of the mask."""
    return mask_of(list(bits(mask))[:count])
