"""Apply the rules about members inside one node: segments, single domains, and limits.

These rules bind how many members lie in each NVLink domain of the node. So for a packing of members, all ways
to divide GPUs among the domains are found. Each way is a vector of GPUs by domain. Only GPU sets with such a
vector may be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import lcm, prod
from operator import le

from muster.placement.cluster.fabric import Shape

MAX_WAYS = 1 << 14
"""The most ways to divide the GPUs of one node that are tried.

Only nodes with many small domains have more, and only if some members must lie in one domain. Then the best
of the first ways is taken.
"""

MAX_STATES = 1 << 9
"""The most ways that are kept while members of several GPUs, which may span domains, are
placed one by one.
"""

Counts = tuple[int, ...]
Spread = tuple[Counts | tuple[Counts, ...] | None, ...]
"""How the members of each block lie: members by domain, or for each member its GPUs by domain.

None means that the block's members may lie anywhere.
"""


@dataclass(frozen=True, slots=True)
class InNode:
    """What binds a gang's members on one node.

    By block: `gpus` is the number of GPUs of a member. The node takes a multiple of `unit` members, and each
    NVLink domain a multiple of `domain_unit`; 0 means that domains do not matter. `pinned` is the only domain
    that the block may use, −1 for any. `single` are blocks that share one domain.

    `most` is how many members the node takes, and `domain_most` how many members with GPUs each domain takes;
    −1 is no limit. `there` masks the GPUs of existing members, and `touched` all GPUs of their domains.
    """

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
    """(blocks, blocks): members of the first ones stay off a node with members of the second ones."""
    limits: tuple[tuple[Counts, int], ...] = ()
    """(blocks, most): the node takes at most this many members of these blocks together."""

    @property
    def binds_domains(self) -> bool:
        """Whether it matters which domain a member is in."""
        return (
            any(self.domain_unit)
            or any(p >= 0 for p in self.pinned)
            or bool(self.single)
            or bool(self.domain_most)
        )

    @property
    def binds(self) -> bool:
        """Whether the rule says anything."""
        numbers = max(self.unit) > 1 or self.most >= 0 or bool(self.apart or self.limits)
        return numbers or self.binds_domains or bool(self.touched)

    def unit_of(self, block: int) -> int:
        """Return the unit of the block: the node takes a multiple of this number of members."""
        return lcm(self.unit[block], max(1, self.domain_unit[block]))

    def admits(self, packing: Counts) -> bool:
        """Return whether the numbers of the packing are allowed. Domains are not checked."""
        return (
            (self.most < 0 or sum(packing) <= self.most)
            and all(count % unit == 0 for count, unit in zip(packing, self.unit, strict=True))
            and all(sum(packing[b] for b in blocks) <= most for blocks, most in self.limits)
            and all(_apart(packing, blocks, repelled) for blocks, repelled in self.apart)
        )

    def takes_one(self, blocks: Sequence[int]) -> bool:
        """Return whether the node takes at most one member of all these blocks."""
        return any({*blocks} <= {*first} & {*repelled} for first, repelled in self.apart)

    def alone(self, block: int) -> int:
        """Return how many members of this block alone the limits allow, −1 for no limit."""
        most = [most for blocks, most in self.limits if block in blocks]
        most += [1 for first, repelled in self.apart if block in first and block in repelled]
        most += [self.most] if self.most >= 0 else []
        return min(most, default=-1)


def _apart(packing: Counts, blocks: Counts, repelled: Counts) -> bool:
    first, second = sum(packing[b] for b in blocks), sum(packing[b] for b in repelled)
    return not first or not second or first == second == 1 == sum(packing[b] for b in blocks if b in repelled)


def few_ways(rule: InNode, free: Counts) -> bool:
    """Return whether all ways to divide the free GPUs among domains are tried."""
    across = rule.domain_most and max(rule.gpus) > 1
    return not rule.binds_domains or prod(n + 1 for n in free) <= (MAX_STATES if across else MAX_WAYS)


def free_by_domain(shape: Shape, free: int) -> Counts:
    """Return the number of free GPUs in each domain of the shape."""
    return tuple((free & domain).bit_count() for domain in shape.domains)


def allowed(rule: InNode, packing: Counts, free: Counts) -> bool:
    """Return whether the node may take the packing. `free` is the number of free GPUs by domain."""
    return rule.admits(packing) and (not rule.binds_domains or _exists(rule, packing, free))


@lru_cache(maxsize=1 << 15)
def _exists(rule: InNode, packing: Counts, free: Counts) -> bool:
    none = (0,) * len(free)
    return next(_walk(rule, packing, free, 0, none, none, ()), None) is not None


@lru_cache(maxsize=1 << 14)
def spreads(rule: InNode, packing: Counts, free: Counts) -> dict[Counts, Spread]:
    """Return the ways to divide GPUs among domains: GPUs by domain → members by domain.

    `free` is the number of free GPUs by domain.
    """
    spread_by_vector: dict[Counts, Spread] = {}
    none = (0,) * len(free)
    for vector, _, spread in islice(_walk(rule, packing, free, 0, none, none, ()), MAX_WAYS):
        spread_by_vector.setdefault(vector, spread)
    return spread_by_vector


def _walk(
    rule: InNode,
    packing: Counts,
    free: Counts,
    block: int,
    vector: Counts,
    touched: Counts,
    spread: Spread,
) -> Iterator[tuple[Counts, Counts, Spread]]:
    if block == len(packing):
        yield vector, touched, spread
        return
    for more_used, more_touched, way in _placed(rule, packing, free, block, vector, touched, spread):
        yield from _walk(rule, packing, free, block + 1, more_used, more_touched, (*spread, way))


def _placed(
    rule: InNode,
    packing: Counts,
    free: Counts,
    block: int,
    vector: Counts,
    touched: Counts,
    spread: Spread,
) -> Iterator[tuple[Counts, Counts, Counts | tuple[Counts, ...] | None]]:
    """Yield the ways to add one block's members to those of the blocks before it."""
    count, gpus = packing[block], rule.gpus[block]
    bound = rule.domain_unit[block] or rule.pinned[block] >= 0 or any(block in group for group in rule.single)
    if not count or (not gpus and not bound):
        yield vector, touched, None
    elif bound or (rule.domain_most and gpus == 1):  # a single GPU never spans domains
        unit = rule.domain_unit[block] or 1
        if count % unit == 0:
            of_group = unit * gpus
            room = tuple(
                (f - u) // of_group if of_group else count // unit for f, u in zip(free, vector, strict=True)
            )
            for groups in _compositions(count // unit, room):
                members = tuple(n * unit for n in groups)
                counted = tuple(t + n for t, n in zip(touched, members, strict=True)) if gpus else touched
                if _allowed(rule, block, members, spread) and _within(rule, counted):
                    yield tuple(u + n * gpus for u, n in zip(vector, members, strict=True)), counted, members
    elif rule.domain_most:
        yield from _member_by_member(rule, free, count, gpus, vector, touched)
    else:
        free_left = tuple(f - u for f, u in zip(free, vector, strict=True))
        for share in _compositions(count * gpus, free_left):
            yield tuple(u + s for u, s in zip(vector, share, strict=True)), touched, None


def _allowed(rule: InNode, block: int, members: Counts, spread: Spread) -> bool:
    if rule.pinned[block] >= 0 and any(n and d != rule.pinned[block] for d, n in enumerate(members)):
        return False
    for group in rule.single:
        if block in group:
            every = [members, *(spread[b] or () for b in group if b < block)]
            if len({d for by_domain in every for d, n in enumerate(by_domain) if n}) > 1:
                return False
    return True


def _member_by_member(
    rule: InNode, free: Counts, count: int, gpus: int, vector: Counts, touched: Counts
) -> Iterator[tuple[Counts, Counts, tuple[Counts, ...]]]:
    """Yield the ways to place members that may span domains. A member counts in each
    domain that it touches.
    """
    states: dict[tuple[Counts, Counts], tuple[Counts, ...]] = {(vector, touched): ()}
    for _ in range(count):
        more: dict[tuple[Counts, Counts], tuple[Counts, ...]] = {}
        for (have, counts), shares in states.items():
            lines = zip(free, have, counts, rule.domain_most, strict=True)
            open_gpus = tuple(f - u if t < most else 0 for f, u, t, most in lines)
            for share in _compositions(gpus, open_gpus):
                if len(more) == MAX_STATES:
                    break
                vector_after = tuple(u + s for u, s in zip(have, share, strict=True))
                counted = tuple(t + (s > 0) for t, s in zip(counts, share, strict=True))
                more.setdefault((vector_after, counted), (*shares, share))
        states = more
    for (have, counts), shares in sorted(states.items()):
        yield have, counts, shares


def _within(rule: InNode, touched: Counts) -> bool:
    return not rule.domain_most or all(map(le, touched, rule.domain_most))


def _compositions(total: int, most: Counts) -> Iterator[Counts]:
    """Yield the ways to write `total` as a sum of parts, each at most its entry of `most`, in order."""
    if not most:
        if total == 0:
            yield ()
        return
    later_parts = most[1:]
    for first in range(min(total, most[0]), max(0, total - sum(later_parts)) - 1, -1):
        for later_summands in _compositions(total - first, later_parts):
            yield (first, *later_summands)
