"""Apply the rules about members inside one node: segments, single domains, and limits.

These rules limit how many members lie in each NVLink domain of the node. So a packing is allowed only if its
members can be divided among the domains' free GPUs. A GPU set is allowed only if it can hold them like this.
A *block* is the members of a role that the rules treat alike, for example its full segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from operator import mul
from typing import NamedTuple

from muster.placement.cluster.fabric import Shape

MAX_STEPS = 1 << 12
"""The most steps of the search for domains of all members of a node.

Only nodes with many GPUs and members of many sizes need more. The search then ends without an answer.
"""

Counts = tuple[int, ...]
"""Numbers of members or GPUs: by role in the order of `Instance.roles`, by block, or by part of a node."""
MembersByDomain = tuple[Counts | tuple[Counts, ...] | None, ...]
"""How the members of each block lie: members by domain, or for each member its GPUs by domain.

None: the block's members may lie in any domain.
"""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """The rule that binds a gang's members on one node. −1 stands for no limit."""

    gpus: Counts
    """By block: the GPUs of a member."""
    unit: Counts
    """By block: the node takes a multiple of this number of members."""
    domain_unit: Counts
    """By block: each NVLink domain takes a multiple of this number. 0: members may span domains."""
    pinned: Counts
    """By block: the only NVLink domain that the block may use, −1 for any domain."""
    one_domain_blocks: tuple[Counts, ...] = ()
    """Blocks whose members all lie in one NVLink domain."""
    max_members: int = -1
    """The most members on the node."""
    max_by_domain: Counts = ()
    """By NVLink domain: the most members with GPUs; () without such limits."""
    running_mask: int = 0
    """The mask of the GPUs of running members."""
    running_domains: int = 0
    """The mask of all GPUs of the NVLink domains of running members. These domains cost nothing more."""
    repulsions: tuple[tuple[Counts, Counts], ...] = ()
    """(blocks, blocks): members of the first blocks stay off a node with members of the second blocks."""
    limits: tuple[tuple[Counts, int], ...] = ()
    """(blocks, max_members): the node takes at most this many members of these blocks together."""

    @property
    def binds_domains(self) -> bool:
        """Whether it matters which domain a member is in."""
        return (
            any(self.domain_unit)
            or any(p >= 0 for p in self.pinned)
            or bool(self.one_domain_blocks)
            or bool(self.max_by_domain)
        )

    @property
    def tells_domains_apart(self) -> bool:
        """Whether it matters which of two equal domains members are in."""
        return any(p >= 0 for p in self.pinned) or len(set(self.max_by_domain)) > 1

    @property
    def binds(self) -> bool:
        """Whether the rule limits anything."""
        numbers = max(self.unit) > 1 or self.max_members >= 0 or bool(self.repulsions or self.limits)
        return numbers or self.binds_domains or bool(self.running_domains)

    def unit_of(self, block: int) -> int:
        """Return the unit of the block: the node takes a multiple of this number of members."""
        return lcm(self.unit[block], max(1, self.domain_unit[block]))

    def admits(self, packing: Counts) -> bool:
        """Return whether the numbers of the packing are allowed. Domains are not checked."""
        return (
            (self.max_members < 0 or sum(packing) <= self.max_members)
            and all(count % unit == 0 for count, unit in zip(packing, self.unit, strict=True))
            and all(sum(packing[b] for b in blocks) <= max_members for blocks, max_members in self.limits)
            and all(_keeps_apart(packing, blocks, repelled) for blocks, repelled in self.repulsions)
        )

    def takes_one(self, blocks: Sequence[int]) -> bool:
        """Return whether the node takes at most one member of all these blocks."""
        return any({*blocks} <= {*first} & {*repelled} for first, repelled in self.repulsions)

    def max_alone(self, block: int) -> int:
        """Return how many members of this block alone the limits allow, −1 for no limit."""
        limits = [max_members for blocks, max_members in self.limits if block in blocks]
        limits += [1 for first, repelled in self.repulsions if block in first and block in repelled]
        limits += [self.max_members] if self.max_members >= 0 else []
        return min(limits, default=-1)


def _keeps_apart(packing: Counts, blocks: Counts, repelled: Counts) -> bool:
    first, second = sum(packing[b] for b in blocks), sum(packing[b] for b in repelled)
    return not first or not second or first == second == 1 == sum(packing[b] for b in blocks if b in repelled)


def _free_by_domain(shape: Shape, free: int) -> Counts:
    """Return the number of free GPUs in each domain of the shape."""
    return tuple((free & domain).bit_count() for domain in shape.domains)


def searched_domains(rule: NodeRule, shape: Shape, gpus: int) -> Counts:
    """Return the number of these GPUs in each domain, the fullest first if the rule treats domains alike.

    So nodes and GPU sets that differ only in the order of their domains are searched once.
    """
    by_domain = _free_by_domain(shape, gpus)
    return by_domain if rule.tells_domains_apart else tuple(sorted(by_domain, reverse=True))


def _domain_order(rule: NodeRule, by_domain: Counts) -> Sequence[int]:
    """Return the domains' indices in the order of `searched_domains`."""
    domains = range(len(by_domain))
    return domains if rule.tells_domains_apart else sorted(domains, key=lambda domain: -by_domain[domain])


def is_packing_allowed(rule: NodeRule, packing: Counts, domains: Counts) -> bool | None:
    """Return whether the node may take the packing; None if the search ends without an answer.

    `domains` are the free GPUs, as `searched_domains` returns them.
    """
    if not rule.admits(packing) or not rule.binds_domains:
        return rule.admits(packing)
    counts_by_item, proven = _search(rule, packing, domains)
    return counts_by_item is not None if proven else None


def domains_of_members(rule: NodeRule, packing: Counts, shape: Shape, gpus: int) -> MembersByDomain:
    """Return the domains in which the members of an allowed packing lie, if the packing gets these GPUs."""
    by_domain: list[Counts | tuple[Counts, ...] | None] = [None] * len(packing)
    if rule.binds_domains:
        order = _domain_order(rule, _free_by_domain(shape, gpus))
        counts_by_item, _ = _search(rule, packing, searched_domains(rule, shape, gpus))
        assert counts_by_item is not None, "the packing is not allowed"
        own_ways = [tuple(way[order.index(domain)] for domain in range(len(order))) for way in counts_by_item]
        placed_blocks = [block for block, _ in _items(rule, packing)]
        for block in set(placed_blocks):
            of_block = tuple(
                way for placed, way in zip(placed_blocks, own_ways, strict=True) if placed == block
            )
            by_domain[block] = of_block if _may_span(rule, block) else of_block[0]
    return tuple(by_domain)


class _Domain(NamedTuple):
    """A domain during the search. Domains with equal values can be swapped."""

    free: int
    max_members: int
    """The most further members with GPUs, if the rule limits them; else 0."""
    name: int = -1
    """The domain's index if blocks must lie in this domain, else −1."""


class _State(NamedTuple):
    """What domains still take. `homes` has the domain of each of `one_domain_blocks`, −1 if not chosen."""

    domains: tuple[_Domain, ...]
    homes: Counts

    def with_sorted_domains(self) -> _State:
        """Return one state for all states that differ only by swapped domains."""
        return _State(tuple(sorted(self.domains)), self.homes)


@lru_cache(maxsize=1 << 15)
def _search(rule: NodeRule, packing: Counts, domains: Counts) -> tuple[tuple[Counts, ...] | None, bool]:
    """Return where each item lies, None if no way is found, and whether that is proven.

    The search places item after item, and skips states from which it has found no way before.
    """
    items = _items(rule, packing)
    if sum(map(mul, packing, rule.gpus)) > sum(domains):
        return None, True
    if not items:
        return (), True
    limits = rule.max_by_domain or (0,) * len(domains)
    names = (domain if domain in rule.pinned else -1 for domain in range(len(domains)))
    start = _State(tuple(map(_Domain, domains, limits, names)), (-1,) * len(rule.one_domain_blocks))
    counts_by_item, dead = list[Counts](), set[tuple[int, _State]]()
    path = [(start, _ways_of_block(rule, *items[0], start))]
    for _ in range(MAX_STEPS):
        state, ways_on = path[-1]
        way, next_state = next(ways_on, (None, state))
        if way is None:
            dead.add((len(counts_by_item), state.with_sorted_domains()))
            path.pop()
            if not path:
                return None, True
            counts_by_item.pop()
        elif (len(counts_by_item) + 1, next_state.with_sorted_domains()) not in dead:
            counts_by_item.append(way)
            if len(counts_by_item) == len(items):
                return tuple(counts_by_item), True
            path.append((next_state, _ways_of_block(rule, *items[len(counts_by_item)], next_state)))
    return None, False


def _items(rule: NodeRule, packing: Counts) -> list[tuple[int, int]]:
    """Return the items to place: a block, and how many of its members are placed at once.

    Members that may span domains are placed one by one. Members that may lie anywhere are not placed.
    """
    items = list[tuple[int, int]]()
    for block, count in enumerate(packing):
        if count and _may_span(rule, block):
            items += [(block, 1)] * count if rule.max_by_domain else []
        elif count and (_is_bound(rule, block) or (rule.max_by_domain and rule.gpus[block])):
            items.append((block, count))
    return items


def _is_bound(rule: NodeRule, block: int) -> bool:
    """Return whether each member of the block must lie inside a domain."""
    in_single = any(block in blocks for blocks in rule.one_domain_blocks)
    return rule.domain_unit[block] > 0 or rule.pinned[block] >= 0 or in_single


def _may_span(rule: NodeRule, block: int) -> bool:
    return rule.gpus[block] > 1 and not _is_bound(rule, block)


def _ways_of_block(rule: NodeRule, block: int, count: int, state: _State) -> Iterator[tuple[Counts, _State]]:
    """Yield the ways to place members of a block, each with the state after. A way is the members by domain,
    or for a member that may span domains, its GPUs by domain.
    """
    domains, gpus, unit = state.domains, rule.gpus[block], max(1, rule.domain_unit[block])
    if _may_span(rule, block):
        open_gpus = tuple(domain.free if domain.max_members else 0 for domain in domains)
        for share in _compositions(gpus, open_gpus, domains):
            yield share, _state_after(rule, state, share, tuple(part > 0 for part in share))
        return
    if count % unit:
        return
    room = tuple(_room(rule, domain, unit, gpus) if gpus else count // unit for domain in domains)
    homes = _homes(rule, block, state)
    if homes is None:
        for units in _compositions(count // unit, room, domains):
            members = tuple(n * unit for n in units)
            yield members, _state_after(rule, state, tuple(n * gpus for n in members), members)
        return
    for home in homes:
        if room[home] * unit >= count:
            members = tuple(count * (domain == home) for domain in range(len(domains)))
            next_state = _state_after(rule, state, tuple(n * gpus for n in members), members if gpus else ())
            yield members, _state_at_home(rule, block, home, next_state)


def _room(rule: NodeRule, domain: _Domain, unit: int, gpus: int) -> int:
    """Return how many units of members with GPUs the domain takes."""
    room = domain.free // (unit * gpus)
    return min(room, domain.max_members // unit) if rule.max_by_domain else room


def _homes(rule: NodeRule, block: int, state: _State) -> Sequence[int] | None:
    """Return the domains that may hold all members of the block; None if members may lie in several."""
    groups = [group for group, blocks in enumerate(rule.one_domain_blocks) if block in blocks]
    fixed = {rule.pinned[block], *(state.homes[group] for group in groups)} - {-1}
    if fixed:
        return tuple(fixed) if len(fixed) == 1 else ()
    if groups:  # of equal domains the first
        return tuple(dict.fromkeys(map(state.domains.index, state.domains)))
    # For members without GPUs all domains are equal, so the first stands for all.
    return None if rule.gpus[block] else range(len(state.domains))[:1]


def _state_after(rule: NodeRule, state: _State, gpus: Counts, members: Counts) -> _State:
    """Return the state after these members with these GPUs, both by domain."""
    members = members if rule.max_by_domain and members else (0,) * len(gpus)
    domains = (
        _Domain(domain.free - used, domain.max_members - count, domain.name)
        for domain, used, count in zip(state.domains, gpus, members, strict=True)
    )
    return _State(tuple(domains), state.homes)


def _state_at_home(rule: NodeRule, block: int, home: int, state: _State) -> _State:
    """Return the state in which the blocks that lie together with this block are bound to its domain."""
    homes = tuple(
        home if block in blocks else old
        for blocks, old in zip(rule.one_domain_blocks, state.homes, strict=True)
    )
    if homes == state.homes:
        return state
    named_domains = (
        domain._replace(name=home) if index == home else domain for index, domain in enumerate(state.domains)
    )
    return _State(tuple(named_domains), homes)


def _compositions(total: int, limits: Counts, domains: Sequence[_Domain]) -> Iterator[Counts]:
    """Yield the ways to write `total` as a sum of parts, each at most its entry of `limits`, in order.

    Of ways that differ only by a swap of equal domains, only the first is yielded.
    """
    if not limits:
        if total == 0:
            yield ()
        return
    later = domains[1:]
    for first in range(min(total, limits[0]), max(0, total - sum(limits[1:])) - 1, -1):
        later_most = tuple(
            min(limit, first) if domain == domains[0] else limit
            for limit, domain in zip(limits[1:], later, strict=True)
        )
        for later_summands in _compositions(total - first, later_most, later):
            yield (first, *later_summands)
