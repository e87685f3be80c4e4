"""Tabulate the best GPU sets of a node for every size at once, as arrays that many searches share.

Sets are compared within groups of one mask of free GPUs and one size. Only the best set of each weakest link
can matter. So a group is narrowed key by key, which avoids sorting 2^n sets, and a handful is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from muster.domain.topology import bits
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.fragmentation import fragmentation, unusable
from muster.placement.gpus.numa import pcie_homes, socket_distances
from muster.placement.gpus.rings import NO_LINK, Values, kinds_of, link_matrix, popcounts, rings

TABLED_GPUS = 8
"""Shapes with at most this many GPUs have one table for all masks of free GPUs: 3^8 =
6,561 pairs for 8 GPUs.
"""


@dataclass(frozen=True, slots=True)
class Sets:
    """The sets of every size that can be in a best plan, for one shape and one mask of free GPUs.

    Arrays are [size, choice] int64, for sizes from 0 to the node's number of GPUs. `choices` [size] is how
    many choices of a row are valid; the rest is padding. It is 0 if too few GPUs are free. Order and values
    are those of `gpusets.best_sets`: `weakest` and `ring` in MB/s, `damage` in GPU-thousandths. The arrays
    are shared, so they must not be written to.
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
def sets_within(shape: Shape, free: int, allowed: int, per_domain: tuple[int, ...] | None = None) -> Sets:
    """Return the same for sets inside `allowed`, and with `per_domain[i]` GPUs of domain
    i if that is given.
    """
    if shape.topology.gpu_count > MAX_RING_GPUS:
        return _without_links(shape, free, allowed & free, per_domain)
    masks = _up_to_symmetry(shape, free & allowed, per_domain is not None)
    if per_domain is not None:
        count = popcounts(shape.topology.gpu_count)
        for domain, wanted in zip(shape.domains, per_domain, strict=True):
            masks = masks[count[masks & domain] == wanted]
    one = np.zeros_like(masks)
    return Sets(*(table[0] for table in _best(shape, 1, one, one + free, masks)))


@lru_cache(maxsize=256)
def every_free_mask(shape: Shape) -> tuple[Values, ...]:
    """Return the fields of Sets with one more axis in front: the mask of free GPUs."""
    free, masks = _pairs(shape.topology.gpu_count)
    return _best(shape, 1 << shape.topology.gpu_count, free, free, masks)


@lru_cache(maxsize=TABLED_GPUS + 1)
def _pairs(count: int) -> tuple[Values, Values]:
    """Return all pairs of a mask of free GPUs and a subset of it, as two arrays."""
    every = np.arange(1 << count)
    free, masks = np.nonzero((every & ~every[:, None]) == 0)
    return free.astype(np.int64), masks.astype(np.int64)


def _best(shape: Shape, rows: int, row: Values, free: Values, masks: Values) -> tuple[Values, ...]:
    """Return the fields of Sets for each row, from candidates: `masks[i]` out of `free[i]` belongs to
    `row[i]`.

    The order of preference is that of `gpusets.best_sets`. If two sets differ only by a swap of equal GPUs,
    only the one with lower indices must be among the candidates.
    """
    topology = shape.topology
    known, sizes = rings(topology), topology.gpu_count + 1
    group = row * sizes + popcounts(topology.gpu_count)[masks]
    domains = np.zeros_like(masks)
    for domain in shape.domains:
        domains += (masks & domain) != 0
    fewest = least_of(group, domains)
    masks, free, group, domains = masks[fewest], free[fewest], group[fewest], domains[fewest]
    weakest, ring, damage = known.weakest[masks], known.total[masks], _damages(shape, free, masks)
    inside = known.inside[free & ~masks]
    sockets = socket_distances(topology, masks)

    # Of sets with equal weakest links only the best matters: narrow each such group to it, key by key.
    finer = group * len(known.levels) + np.searchsorted(known.levels, weakest)
    left = np.arange(len(masks))
    for key in (-ring, sockets, damage, -inside, masks):
        left = left[least_of(finer[left], key[left])]

    # Largest ring first, so a later set matters only if its weakest link is faster.
    keys = (masks, -inside, damage, sockets, -ring, group)
    left = left[np.lexsort(tuple(key[left] for key in keys))]
    rank = group[left] * (2 * NO_LINK) + weakest[left]
    left = left[np.diff(np.maximum.accumulate(rank), prepend=-1) > 0]
    choices = np.bincount(group[left], minlength=rows * sizes)
    last = np.cumsum(choices)[group[left]] - 1
    choice = last - np.arange(len(left))  # reversed: the largest weakest link first
    width = max(1, int(choices.max()))
    every = (masks, domains, weakest, ring, sockets, damage)
    arrays = [np.zeros((rows * sizes, width), np.int64) for _ in every]
    for array, values in zip(arrays, every, strict=True):
        array[group[left], choice] = values[left]
    tables = (*(array.reshape(rows, sizes, width) for array in arrays), choices.reshape(rows, sizes))
    for table in tables:
        table.setflags(write=False)
    return tables


def least_of(group: Values, key: Values) -> NDArray[np.bool_]:
    """Return [i] bool: whether `key[i]` is the least of its group. Groups are small numbers."""
    if not len(group):
        return np.zeros(0, bool)
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group, key)
    return np.asarray(key == least[group])


def _damages(shape: Shape, free: Values, masks: Values) -> Values:
    count = popcounts(shape.topology.gpu_count)
    unused = np.array([unusable(k) for k in range(shape.topology.gpu_count + 1)])
    damage = np.zeros_like(masks)
    for pool in shape.pools:
        damage += unused[np.maximum(count[free & ~masks & pool] - shape.hidden, 0)]
        damage -= unused[np.maximum(count[free & pool] - shape.hidden, 0)]
    return damage


def _up_to_symmetry(shape: Shape, allowed: int, fixed_domains: bool) -> Values:
    """Return subsets of `allowed`. Of those that differ by a swap of equal GPUs, only the lowest is returned.

    That is 17 sets instead of 65,536 for 16 GPUs behind one NVSwitch.
    """
    masks = np.zeros(1, np.int64)
    for kind in kinds_in(shape, fixed_domains):
        lowest = [0]
        for gpu in kind:
            if allowed >> gpu & 1:
                lowest.append(lowest[-1] | 1 << gpu)
        masks = (masks[:, None] | np.array(lowest)).ravel()
    return masks


@lru_cache(maxsize=256)
def kinds_in(shape: Shape, fixed_domains: bool) -> tuple[tuple[int, ...], ...]:
    """Return GPUs in kinds: swapping two GPUs of a kind changes neither links nor domains nor pools nor
    socket distances.

    If two GPUs are a domain of their own each, they can be swapped with their domains. They cannot if domains
    are told apart (`fixed_domains`).
    """
    parts: dict[tuple[int, ...], list[int]] = {}
    homes = pcie_homes(shape.topology)
    for number, kind in enumerate(kinds_of(link_matrix(shape.topology))):
        for gpu in kind:
            home = next((domain for domain in shape.domains if domain >> gpu & 1), 0)
            pool = next((pool for pool in shape.pools if pool >> gpu & 1), 0)
            if not fixed_domains and home == 1 << gpu:
                home = 0
            if not fixed_domains and pool == 1 << gpu:
                pool = 0
            parts.setdefault((number, home, pool, *homes[gpu]), []).append(gpu)
    return tuple(map(tuple, parts.values()))


def _without_links(shape: Shape, free: int, allowed: int, per_domain: tuple[int, ...] | None) -> Sets:
    """Return one choice of each size, for nodes with too many GPUs for the tables; their links count as
    unknown.

    The choice touches as few domains as possible. It prefers the fullest domain that is enough, then low
    indices.
    """
    if per_domain is None:
        found = [_packed(shape.domains, allowed, size) for size in range(allowed.bit_count() + 1)]
    else:
        pairs = list(zip(shape.domains, per_domain, strict=True))
        enough = all((domain & allowed).bit_count() >= wanted for domain, wanted in pairs)
        found = [sum(_lowest(domain & allowed, wanted) for domain, wanted in pairs)] if enough else []
    sizes = shape.topology.gpu_count + 1
    arrays = {field.name: np.zeros((sizes, 1), np.int64) for field in fields(Sets)}
    sets = Sets(**{**arrays, "choices": np.zeros(sizes, np.int64)})
    for mask in found:
        size = mask.bit_count()
        sets.masks[size, 0] = mask
        sets.domains[size, 0] = sum(1 for domain in shape.domains if domain & mask)
        sets.weakest[size, 0] = NO_LINK if size < 2 else 0
        sets.damage[size, 0] = fragmentation(shape, free & ~mask) - fragmentation(shape, free)
        sets.choices[size] = 1
    return sets


def _packed(domains: Iterable[int], allowed: int, left: int) -> int:
    taken, open_domains = 0, [allowed & domain for domain in domains if allowed & domain]
    while left:
        enough = [domain for domain in open_domains if domain.bit_count() >= left]
        pick = min(enough, key=int.bit_count) if enough else max(open_domains, key=int.bit_count)
        open_domains.remove(pick)
        taken |= _lowest(pick, left)
        left -= min(left, pick.bit_count())
    return taken


def _lowest(mask: int, count: int) -> int:
    """Return the lowest `count` bits of the mask."""
    return sum(1 << gpu for gpu in list(bits(mask))[:count])
