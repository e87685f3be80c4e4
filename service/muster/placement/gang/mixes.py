"""How many members of each role one node can take: the mixes, found once for all nodes that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import gcd, prod

import numpy as np

from muster.domain.request import Role
from muster.placement.cluster.columns import Bools, Ints, gpu_counts
from muster.placement.gang.packed import packed
from muster.placement.gang.site import Counts, Site
from muster.placement.gpus.innode import InNode, allowed, few_ways, free_by_domain
from muster.placement.gpus.slices import Asks, Gpu, ask_of, fitting, slice_room, whole_gpus

MAX_MIXES = 2048
"""Ways to mix the roles on one node that are looked at; beyond, a thinned grid, and nothing is proven."""

MIN_STEPS = 3
"""Counts of each role on a thinned grid, at least."""

ENOUGH = -1
"""In the key of a mix: there is so much of the resource that it rules nothing out."""

LOTS = 1 << 62


@dataclass(frozen=True, eq=False)
class Mixes:
    """All mixes but the empty one, those that nothing can be added to, and whether the lists are complete. As
    arrays [mix, role], all of them `made` when they are asked for: most nodes are only counted."""

    tops: Ints
    complete: bool
    made: Callable[[], Ints]

    @cached_property
    def all(self) -> tuple[Counts, ...]:
        return _tuples(self.made())

    @cached_property
    def largest(self) -> tuple[Counts, ...]:
        return _tuples(self.tops)


def _tuples(mixes: Ints) -> tuple[Counts, ...]:
    return tuple(map(tuple, mixes.tolist()))


def _listed(every: Sequence[Counts], largest: Sequence[Counts], roles: int, *, complete: bool) -> Mixes:
    """Mixes that are known one by one."""
    table = np.array(every, np.int64).reshape(len(every), roles)
    tops = np.array(largest, np.int64).reshape(len(largest), roles)
    return Mixes(tops, complete, lambda: table)


def mixes_on(site: Site, rows: Ints, need: Counts, masks: Ints | None = None) -> tuple[Ints, list[Mixes]]:
    """What these nodes can take of `need`: the index of each row's mixes, and the mixes.

    GPUs of each row in `masks` may be used, by default all.
    """
    view = site.columns
    wanted = np.array(need, np.int64)
    caps = np.minimum(site.room[:, rows], wanted[:, None])
    gpus, memory = view.free_count[rows], view.gpu_memory[:, rows]
    if masks is not None:
        gpus = np.minimum(gpu_counts(view.free_gpus[rows] & masks), gpus)
        memory = memory * (masks >> np.arange(len(memory))[:, None] & 1)
        for r, role in enumerate(site.roles):
            caps[r] = np.minimum(caps[r], gpus // role.gpus) if role.gpus else caps[r]
            caps[r] = np.minimum(caps[r], slice_room(memory, ask_of(role))) if role.slice else caps[r]
    active = [r for r, count in enumerate(need) if count]
    if len(active) == 1:
        index, found = _of_one_role(caps[active[0]], active[0], len(need))
    elif _one_each(site, rows, active):
        index, found = _of_one_member(caps, active)
    else:
        free = view.free_gpus[rows] if masks is None else view.free_gpus[rows] & masks
        sliced = any(site.asks[r].units for r in active)
        tabled = _packed(site, rows, caps, memory, free) if sliced else None
        if tabled is not None:
            index, found = tabled
        else:
            index, found = _of_roles(site, rows, caps, active, gpus)
            if sliced:
                index, found = _sharing_gpus(site.asks, need, (index, found), memory, free)
    return _under_rules(site, rows, index, found)


def _of_roles(site: Site, rows: Ints, caps: Ints, active: list[int], gpus: Ints) -> tuple[Ints, list[Mixes]]:
    caps = caps[active]
    roles = [site.roles[r] for r in active]
    asks = np.concatenate([np.array([[role.gpus] for role in roles], np.int64), _asked(site, roles)], axis=1)
    free = np.concatenate([gpus[None], _free(site, rows)])
    key = np.concatenate([caps, _binding(caps, asks, np.maximum(0, free))])
    index, first = _distinct(key)
    asked = tuple(map(tuple, asks.tolist()))
    steps = tuple(gcd(*column) or 1 for column in asks.T.tolist())
    units = tuple(site.common_unit(r) for r in active)
    found = []
    for values in key[:, first].T.tolist():
        caps_of, free_of = tuple(values[: len(active)]), tuple(values[len(active) :])
        found.append(_spread(_mixes(asked, caps_of, free_of, steps, units), active, len(site.roles)))
    return index, found


def _asked(site: Site, roles: Sequence[Role]) -> Ints:
    """Return what a member of each role asks for besides GPUs, [role, resource]."""
    asks = [
        (
            role.resources.cpu_milli,
            role.resources.memory_bytes,
            max(1, role.resources.pods),
            *(role.resources.other(name) for name in site.others),
        )
        for role in roles
    ]
    return np.array(asks, np.int64)


def _free(site: Site, rows: Ints) -> Ints:
    """Return what these nodes have free, [resource, row], of the resources of `_asked`."""
    view = site.columns
    lines = [view.cpu, view.memory, view.pods, *(view.other(name) for name in site.others)]
    return np.stack([line[rows] for line in lines])


def _packed(site: Site, rows: Ints, caps: Ints, memory: Ints, free: Ints) -> tuple[Ints, list[Mixes]] | None:
    """The mixes of gangs that share GPUs, for all nodes at once: `memory` left, [GPU, row], and a mask of the
    GPUs that are `free`. None where the tables would be too large. Nodes that differ in the order of their
    GPUs, or in what is of no use, are one."""
    asks = site.asks
    if any(rule is not None and max(rule.unit) > 1 for rule in site.rules.node_rules):
        return None  # then not all that is less than what fits does
    units, whole = _gpu_kinds(asks, caps.max(axis=1, initial=0).tolist(), memory, free)
    each = _asked(site, site.roles).T
    left = np.minimum(np.maximum(0, _free(site, rows)), each @ caps)  # more is of no use
    index, first = _distinct(np.concatenate([caps, left, units * 2 + whole]))
    table = packed(asks, caps[:, first], each, left[:, first], units[:, first], whole[:, first])
    if table is None:
        return None
    return index, [Mixes(tops, True, partial(table.every, kind)) for kind, tops in enumerate(table.largest())]


def _gpu_kinds(asks: Asks, need: Sequence[int], memory: Ints, free: Ints) -> tuple[Ints, Bools]:
    """The units left of each GPU that are of use, and whether it is taken whole, [GPU, row]: the fullest
    first."""
    of_slices = [ask.units for ask, count in zip(asks, need, strict=True) if ask.units and count]
    step = gcd(*of_slices) or 1
    useful = np.minimum(memory, sum(need) * max(of_slices, default=0)) // step * step
    useful = useful * (useful >= min(of_slices, default=0))
    if not whole_gpus(asks, tuple(need)):
        return -np.sort(-useful, axis=0), np.zeros(useful.shape, bool)
    wide = max(len(memory), int(free.max(initial=0)).bit_length())
    useful = np.concatenate([useful, np.zeros((wide - len(memory), memory.shape[1]), np.int64)])
    kinds = -np.sort(-(useful * 2 + (free >> np.arange(wide)[:, None] & 1)), axis=0)
    return kinds // 2, kinds % 2 > 0


def _sharing_gpus(
    asks: Asks, need: Counts, mixed: tuple[Ints, list[Mixes]], memory: Ints, free: Ints
) -> tuple[Ints, list[Mixes]]:
    """Without the mixes whose slices and whole GPUs do not fit in the GPUs: `memory` left, [GPU, row], and a
    mask of those that are `free`. Nodes with like GPUs in another order, as far as it matters, are looked at
    once."""
    index_of, found = mixed
    units = [ask.units for ask, count in zip(asks, need, strict=True) if ask.units and count]
    step = gcd(*units)
    useful = np.minimum(memory // step, sum(need) * max(units) // step)
    gpus = len(memory)
    whole = np.zeros((0, len(index_of)), np.int64)
    if whole_gpus(asks, need):
        wide = max(gpus, int(free.max(initial=0)).bit_length())
        useful = np.concatenate([useful, np.zeros((wide - gpus, len(index_of)), np.int64)])
        whole = free >> np.arange(wide)[:, None] & 1
    kinds = np.sort(useful * 2 + (whole if len(whole) else 0), axis=0)
    index, first = _distinct(np.concatenate([index_of[None], kinds]))
    kept = []
    for i in first.tolist():
        mixes = found[int(index_of[i])]
        every = tuple(Gpu(value // 2 * step, bool(value % 2)) for value in kinds[:, i].tolist() if value)
        kept.append(_kept(mixes, *fitting(asks, mixes.all, every)))
    return index, kept


def _kept(mixes: Mixes, kept: tuple[Counts, ...], complete: bool) -> Mixes:
    """Fewer mixes, and those of them that nothing can be added to."""
    if len(kept) == len(mixes.all):
        return mixes
    counts = np.array(kept, np.int64).reshape(len(kept), -1)
    below: Bools = np.asarray((counts[:, None] <= counts[None]).all(axis=2))
    most = below.sum(axis=1) == 1  # below itself alone
    return Mixes(counts[most], mixes.complete and complete, lambda: counts)


def _under_rules(site: Site, rows: Ints, index: Ints, found: list[Mixes]) -> tuple[Ints, list[Mixes]]:
    """Without the mixes that the rules of a node forbid."""
    rules = site.rules
    if len(rules.node_rules) == 1:
        return index, found
    view, index_of = site.columns, index
    index, first = _distinct(np.stack([index, rules.in_node[rows], view.shape[rows], view.free_gpus[rows]]))
    ruled = []
    for i in first.tolist():
        rule, shape, free = site.node_rule(int(rows[i]))
        mixes = found[int(index_of[i])]
        by_domain = free_by_domain(shape, free)
        ruled.append(mixes if rule is None else _ruled(mixes.all, rule, by_domain, mixes.complete))
    return index, ruled


@lru_cache(maxsize=1 << 14)
def _ruled(mixes: tuple[Counts, ...], rule: InNode, free: Counts, complete: bool) -> Mixes:
    kept = tuple(mix for mix in mixes if allowed(rule, mix, free))

    def below(mix: Counts, other: Counts) -> bool:
        return mix != other and all(a <= b for a, b in zip(mix, other, strict=True))

    largest = tuple(mix for mix in kept if not any(below(mix, other) for other in kept))
    return _listed(kept, largest, len(rule.gpus), complete=complete and few_ways(rule, free))


def _of_one_role(caps: Ints, role: int, roles: int) -> tuple[Ints, list[Mixes]]:
    def counts(n: int) -> Counts:
        return (*(0,) * role, n, *(0,) * (roles - role - 1))

    values, index = np.unique(caps, return_inverse=True)
    return index, [
        _listed([counts(n) for n in range(1, cap + 1)], [counts(cap)] if cap else [], roles, complete=True)
        for cap in values.tolist()
    ]


def _one_each(site: Site, rows: Ints, active: list[int]) -> bool:
    """Whether each of these nodes takes one member at most, whatever its role."""
    used = np.unique(site.rules.in_node[rows]).tolist()
    rules = [site.rules.node_rules[i] for i in used]
    return bool(rules) and all(rule is not None and rule.takes_one(active) for rule in rules)


def _of_one_member(caps: Ints, active: list[int]) -> tuple[Ints, list[Mixes]]:
    """The mixes of one member each."""
    index, first = _distinct((caps[active] > 0).astype(np.int64))
    found = []
    for fits in caps[:, first].T > 0:
        every = [tuple(int(r == one) for r in range(len(caps))) for one in active if fits[one]]
        found.append(_listed(every, every, len(caps), complete=True))
    return index, found


def _binding(caps: Ints, asks: Ints, free: Ints) -> Ints:
    """What is free of each resource, in steps of what can be asked; ENOUGH where all caps fit in it at
    once."""
    found = np.empty_like(free)
    for i, ask in enumerate(asks.T):
        step = gcd(*ask.tolist()) or 1
        found[i] = np.where(ask @ caps <= free[i], ENOUGH, free[i] // step)
    return found


def _distinct(key: Ints) -> tuple[Ints, Ints]:
    """Columns of the key that are equal get one index; and the first column of each."""
    code = np.zeros(key.shape[1], np.int64)
    for line in key:
        values = line - int(line.min(initial=0))
        if int(values.max(initial=0)) > 1 << 20:
            values = np.unique(line, return_inverse=True)[1]
        code = code * (int(values.max(initial=0)) + 1) + values
        if int(code.max(initial=0)) > 1 << 40:
            code = np.unique(code, return_inverse=True)[1]
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return index, first


def _spread(mixes: Mixes, active: list[int], roles: int) -> Mixes:
    """The mixes of the active roles as mixes of all."""

    def spread(counts: Ints) -> Ints:
        every = np.zeros((len(counts), roles), np.int64)
        every[:, active] = counts
        return every

    return Mixes(spread(mixes.tops), mixes.complete, lambda: spread(mixes.made()))


@lru_cache(maxsize=1 << 14)
def _mixes(asks: tuple[Counts, ...], caps: Counts, free: Counts, steps: Counts, units: Counts) -> Mixes:
    """Mixes that take each role in multiples of its unit."""
    left = tuple(LOTS if f == ENOUGH else f * step for f, step in zip(free, steps, strict=True))
    grouped = tuple(tuple(ask * unit for ask in role) for role, unit in zip(asks, units, strict=True))
    caps = tuple(cap // unit for cap, unit in zip(caps, units, strict=True))
    complete = prod(cap + 1 for cap in caps) <= MAX_MIXES
    if complete:
        found = [mix for mix in _walk(grouped, [range(cap + 1) for cap in caps], left) if any(mix)]
        known = set(found)
        largest = [mix for mix in found if not any(more in known for more in _one_more(mix))]
    else:
        largest = list(dict.fromkeys(_filled(grouped, caps, left, mix) for mix in _some(grouped, caps, left)))
        found = list(dict.fromkeys([*filter(any, _some(grouped, caps, left)), *largest]))

    def members(mix: Counts) -> Counts:
        return tuple(count * unit for count, unit in zip(mix, units, strict=True))

    every, tops = list(map(members, found)), list(map(members, largest))
    return _listed(every, tops, len(asks), complete=complete)


def _one_more(mix: Counts) -> Iterator[Counts]:
    for r, count in enumerate(mix):
        yield (*mix[:r], count + 1, *mix[r + 1 :])


def _some(asks: tuple[Counts, ...], caps: Counts, free: Counts) -> Iterator[Counts]:
    """Of too many mixes, those on an evenly thinned grid; of too many roles, those of one role each."""
    mixed = sum(cap > 0 for cap in caps)
    steps = int(MAX_MIXES ** (1 / mixed))
    if steps >= MIN_STEPS:
        yield from _walk(asks, [_thinned(cap, steps) for cap in caps], free)
        return
    for r, cap in enumerate(caps):
        grids = [_thinned(cap, MIN_STEPS) if other == r else [0] for other in range(len(caps))]
        yield from _walk(asks, grids, free)


def _thinned(cap: int, steps: int) -> Sequence[int]:
    return sorted({round(cap * i / (steps - 1)) for i in range(steps)})


def _filled(asks: tuple[Counts, ...], caps: Counts, free: Counts, mix: Counts) -> Counts:
    """The mix with as much added as fits, role after role: nothing can be added to it."""
    filled = list(mix)
    left = [f - sum(n * ask[i] for n, ask in zip(mix, asks, strict=True)) for i, f in enumerate(free)]
    for r, ask in enumerate(asks):
        room = min((have // each for have, each in zip(left, ask, strict=True) if each), default=caps[r])
        more = min(room, caps[r] - filled[r])
        filled[r] += more
        left = [have - more * each for have, each in zip(left, ask, strict=True)]
    return tuple(filled)


def _walk(asks: tuple[Counts, ...], grids: Sequence[Sequence[int]], free: Counts) -> Iterator[Counts]:
    if not grids:
        yield ()
        return
    room = min((f // ask for f, ask in zip(free, asks[0], strict=True) if ask), default=grids[0][-1])
    for count in grids[0]:
        if count > room:
            return
        left = tuple(f - count * ask for f, ask in zip(free, asks[0], strict=True))
        for rest in _walk(asks[1:], grids[1:], left):
            yield (count, *rest)
