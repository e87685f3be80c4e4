"""Rules about members inside one node: segments, single domains, at most so many.

They bind how many members lie in each NVLink domain of the node. So for a packing of members all ways are
found to share GPUs out to the domains; each is a vector of GPUs by domain, and only sets of such a vector may
be taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import lcm, prod

import numpy as np

from muster.domain.topology import bits, mask_of
from muster.placement.cluster.fabric import MAX_RING_GPUS, Shape
from muster.placement.gpus.fragmentation import fragmentation
from muster.placement.gpus.gpusets import GpuSet, best_sets, value_of
from muster.placement.gpus.rings import popcounts, rings

MAX_WAYS = 1 << 14
"""Ways to share the GPUs of one node out that are looked at. More there are only on nodes of many small
domains, where members that must lie in one stand beside others; the best of the first ones is taken then."""

MAX_STATES = 1 << 9
"""Ways that are kept while members of several GPUs, which may lie across domains, are placed one by one."""

Counts = tuple[int, ...]
Spread = tuple[Counts | tuple[Counts, ...] | None, ...]
"""By block: its members by domain; or, member by member, the GPUs by domain; None where they may lie
anywhere."""


@dataclass(frozen=True, slots=True)
class InNode:
    """What binds a gang's members on one node.

    By block: `gpus` of a member; `unit`: members come in multiples of it on the node; `domain_unit`: and in
    each NVLink domain (0: not bound to domains); `pinned`: to this domain alone (−1: to none). `single`:
    blocks that share one domain. `most`: members that the node takes, `domain_most` each domain (−1: no
    limit): only members with GPUs count there. `there`: GPUs of running members; `touched`: those of the
    domains that these lie in."""

    gpus: Counts
    unit: Counts
    domain_unit: Counts
    pinned: Counts
    single: tuple[Counts, ...] = ()
    most: int = -1
    domain_most: Counts = ()
    there: int = 0
    touched: int = 0
    apart: tuple[tuple[Counts, Counts], ...] = ()
    """Members of the first blocks stay off a node with members of the second ones, but for themselves."""
    limits: tuple[tuple[Counts, int], ...] = ()
    """Members of these blocks that the node takes at most, all together."""

    @property
    def binds_domains(self) -> bool:
        """Whether it matters which domain a member is in."""
        return (
            any(self.domain_unit)
            or any(p >= 0 for p in self.pinned)
            or bool(self.single)
            or bool(self.domain_most)
        )

    def unit_of(self, block: int) -> int:
        """The block's members come in multiples of this on the node."""
        return lcm(self.unit[block], max(1, self.domain_unit[block]))

    def admits(self, packing: Counts) -> bool:
        """Whether a node may take the packing, as far as numbers go."""
        return (
            (self.most < 0 or sum(packing) <= self.most)
            and all(count % unit == 0 for count, unit in zip(packing, self.unit, strict=True))
            and all(sum(packing[b] for b in blocks) <= most for blocks, most in self.limits)
            and all(_apart(packing, mine, others) for mine, others in self.apart)
        )

    def takes_one(self, blocks: Sequence[int]) -> bool:
        """Whether the node takes one member of all these blocks at most."""
        return any({*blocks} <= {*mine} & {*others} for mine, others in self.apart)

    def alone(self, block: int) -> int:
        """How many members of one block the limits leave, −1 for no limit."""
        most = [most for blocks, most in self.limits if block in blocks]
        most += [1 for mine, others in self.apart if block in mine and block in others]
        most += [self.most] if self.most >= 0 else []
        return min(most, default=-1)


def _apart(packing: Counts, mine: Counts, others: Counts) -> bool:
    first, second = sum(packing[b] for b in mine), sum(packing[b] for b in others)
    return not first or not second or first == second == 1 == sum(packing[b] for b in mine if b in others)


def few_ways(rule: InNode, free: Counts) -> bool:
    """Whether all ways to share GPUs out to domains with so many free ones are looked at."""
    across = rule.domain_most and max(rule.gpus) > 1
    return not rule.binds_domains or prod(n + 1 for n in free) <= (MAX_STATES if across else MAX_WAYS)


def free_by_domain(shape: Shape, free: int) -> Counts:
    """Free GPUs in each domain of the shape."""
    return tuple((free & domain).bit_count() for domain in shape.domains)


def allowed(rule: InNode, packing: Counts, free: Counts) -> bool:
    """Whether the node may take the packing, `free` GPUs by domain given."""
    return rule.admits(packing) and (not rule.binds_domains or _exists(rule, packing, free))


@lru_cache(maxsize=1 << 15)
def _exists(rule: InNode, packing: Counts, free: Counts) -> bool:
    none = (0,) * len(free)
    return next(_walk(rule, packing, free, 0, none, none, ()), None) is not None


@lru_cache(maxsize=1 << 14)
def spreads(rule: InNode, packing: Counts, free: Counts) -> dict[Counts, Spread]:
    """The ways to share GPUs out to domains with so many free ones: GPUs by domain → members by domain."""
    found: dict[Counts, Spread] = {}
    none = (0,) * len(free)
    for used, _, spread in islice(_walk(rule, packing, free, 0, none, none, ()), MAX_WAYS):
        found.setdefault(used, spread)
    return found


def _walk(
    rule: InNode, packing: Counts, free: Counts, block: int, used: Counts, touched: Counts, spread: Spread
) -> Iterator[tuple[Counts, Counts, Spread]]:
    if block == len(packing):
        yield used, touched, spread
        return
    for more_used, more_touched, placed in _placed(rule, packing, free, block, used, touched, spread):
        yield from _walk(rule, packing, free, block + 1, more_used, more_touched, (*spread, placed))


def _placed(
    rule: InNode, packing: Counts, free: Counts, block: int, used: Counts, touched: Counts, spread: Spread
) -> Iterator[tuple[Counts, Counts, Counts | tuple[Counts, ...] | None]]:
    """The ways to put one block's members beside those before."""
    count, gpus = packing[block], rule.gpus[block]
    bound = rule.domain_unit[block] or rule.pinned[block] >= 0 or any(block in group for group in rule.single)
    if not count or (not gpus and not bound):
        yield used, touched, None
    elif bound or (rule.domain_most and gpus == 1):  # one GPU lies across nothing
        unit = rule.domain_unit[block] or 1
        if count % unit == 0:
            each = unit * gpus
            room = tuple((f - u) // each if each else count // unit for f, u in zip(free, used, strict=True))
            for placed in _compositions(count // unit, room):
                members = tuple(n * unit for n in placed)
                if _allowed(rule, block, members, spread):
                    yield from _added(rule, free, used, touched, members, gpus, members)
    elif rule.domain_most:
        yield from _member_by_member(rule, free, count, gpus, used, touched)
    else:
        left = tuple(f - u for f, u in zip(free, used, strict=True))
        for share in _compositions(count * gpus, left):
            yield tuple(u + s for u, s in zip(used, share, strict=True)), touched, None


def _allowed(rule: InNode, block: int, members: Counts, spread: Spread) -> bool:
    if rule.pinned[block] >= 0 and any(n and d != rule.pinned[block] for d, n in enumerate(members)):
        return False
    for group in rule.single:
        if block in group:
            every = [members, *(spread[b] or () for b in group if b < block)]
            if len({d for one in every for d, n in enumerate(one) if n}) > 1:
                return False
    return True


def _added(
    rule: InNode, free: Counts, used: Counts, touched: Counts, members: Counts, gpus: int, placed: Counts
) -> Iterator[tuple[Counts, Counts, Counts]]:
    more = tuple(u + n * gpus for u, n in zip(used, members, strict=True))
    counted = tuple(t + (n if gpus else 0) for t, n in zip(touched, members, strict=True))
    if all(m <= f for m, f in zip(more, free, strict=True)) and _within(rule, counted):
        yield more, counted, placed


def _member_by_member(
    rule: InNode, free: Counts, count: int, gpus: int, used: Counts, touched: Counts
) -> Iterator[tuple[Counts, Counts, tuple[Counts, ...]]]:
    """Members that may lie across domains, and count in each that they touch."""
    states: dict[tuple[Counts, Counts], tuple[Counts, ...]] = {(used, touched): ()}
    for _ in range(count):
        more: dict[tuple[Counts, Counts], tuple[Counts, ...]] = {}
        for (have, counts), shares in states.items():
            left = tuple(f - u for f, u in zip(free, have, strict=True))
            for share in _compositions(gpus, left):
                taken = tuple(u + s for u, s in zip(have, share, strict=True))
                counted = tuple(t + (s > 0) for t, s in zip(counts, share, strict=True))
                if len(more) < MAX_STATES and _within(rule, counted):
                    more.setdefault((taken, counted), (*shares, share))
        states = more
    for (have, counts), shares in sorted(states.items()):
        yield have, counts, shares


def _within(rule: InNode, touched: Counts) -> bool:
    limits = rule.domain_most or (-1,) * len(touched)
    return all(limit < 0 or t <= limit for t, limit in zip(touched, limits, strict=True))


def _compositions(total: int, most: Counts) -> Iterator[Counts]:
    """The ways to write `total` as a sum of so many parts, each up to its `most`, in order."""
    if not most:
        if total == 0:
            yield ()
        return
    rest = most[1:]
    for first in range(min(total, most[0]), max(0, total - sum(rest)) - 1, -1):
        for others in _compositions(total - first, rest):
            yield (first, *others)


@lru_cache(maxsize=1 << 14)
def sets_under(
    rule: InNode, shape: Shape, free: int, packing: Counts, allowed: int = -1
) -> tuple[tuple[GpuSet, Spread], ...]:
    """The GPU sets for a packing under the rule that can be in a best plan, in the order of best_sets; with
    each, how its members lie. Values are those of the gang's GPUs on the node, the running ones with them."""
    size = sum(count * gpus for count, gpus in zip(packing, rule.gpus, strict=True))
    anywhere: Spread = (None,) * len(packing)
    if not rule.binds_domains and not rule.touched:
        return tuple((chosen, anywhere) for chosen in best_sets(shape, free, size, allowed))
    ways = spreads(rule, packing, free_by_domain(shape, free & allowed)) if rule.binds_domains else None
    if ways is not None and not ways:
        return ()
    every = [
        (_value(shape, free, mask, rule), ways[vector] if ways is not None else anywhere)
        for mask in _masks(shape, free & allowed, size)
        if ways is None or (vector := free_by_domain(shape, mask)) in ways
    ]
    fewest = min((chosen.domains for chosen, _ in every), default=0)
    every = [pair for pair in every if pair[0].domains == fewest]
    small = shape.topology.gpu_count <= MAX_RING_GPUS

    def order(chosen: GpuSet) -> tuple[int, int, int, int]:
        rest = -int(rings(shape.topology).inside[free & ~chosen.mask]) if small else 0
        return -chosen.ring, chosen.damage, rest, chosen.mask

    every.sort(key=lambda pair: order(pair[0]))
    best: list[tuple[GpuSet, Spread]] = []
    for pair in every:  # the largest ring first: each later one must have a faster weakest link to matter
        if not best or pair[0].weakest > best[-1][0].weakest:
            best.append(pair)
    return tuple(reversed(best))


def _value(shape: Shape, free: int, mask: int, rule: InNode) -> GpuSet:
    """What the set is worth beside the GPUs that the gang has there already; `domains` counts the new
    ones."""
    damage = fragmentation(shape, free & ~mask) - fragmentation(shape, free)
    domains = sum(1 for domain in shape.domains if domain & mask and not domain & rule.touched)
    union = value_of(shape, free | rule.there, mask | rule.there)
    return GpuSet(mask, domains, union.weakest, union.ring, damage)


def _masks(shape: Shape, free: int, size: int) -> list[int]:
    count = shape.topology.gpu_count
    if count > MAX_RING_GPUS:  # too many to try: the lowest ones, domain by domain
        gpus = list(bits(free))[:size]
        return [mask_of(gpus)] if len(gpus) == size else []
    masks = np.flatnonzero(popcounts(count) == size)
    return [int(mask) for mask in masks[(masks & ~free) == 0]]
