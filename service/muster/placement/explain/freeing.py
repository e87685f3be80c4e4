"""Find the fewest GPUs, or the least memory of shared GPUs, that must become free so that a gang fits.

Everything else stays as it is. The GPUs of a node are pools of units. For slices, each GPU is a pool of
memory. For members that take GPUs whole, all GPUs together are one pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from muster.domain.relaxations import MoreFree
from muster.domain.request import Role
from muster.domain.topology import bits, mask_of
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import LARGEST, Columns, Ints, gpus_in
from muster.placement.cluster.fabric import ALL_GPUS
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, Kind, World
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.counterfactual import GPU
from muster.placement.gang.instance import room_of
from muster.placement.gpus.slices import Ask, slice_room
from muster.placement.search.runs import place_in_run

FEW = 8
"""The most GPUs that count as little to set free: one node's."""
MANY = 64
"""The most nodes on which something may have to become free. On more of them, the advice is useless."""
MOST = 16
"""The most further members that are looked for on one node."""


@dataclass(frozen=True, slots=True)
class _Release:
    """row → [pool] int64: the units to free in each pool of the node, among the GPUs of `mask`."""

    units: dict[int, Ints]
    mask: int = ALL_GPUS

    @property
    def total(self) -> int:
        """All units to free."""
        return sum(int(units.sum()) for units in self.units.values())


def more_free(conflict: Conflict) -> MoreFree | None:
    """Return which GPUs, or how much of their memory, must become free for a conflict of one role.

    The result is None if free GPUs alone do not help.
    """
    (role, *more), assumptions = conflict.members_of, conflict.assumptions
    resource = GPU_MEMORY if role.slice else GPU
    others_keep = Assumption(Kind.TAKEN, what=resource)
    if more or not (role.slice or role.gpus) or others_keep not in conflict.obstacles:
        return None
    search = _Search(conflict.world(), assumptions.world(assumptions.all - {others_keep}).view, role)
    inside = search.world.request.required_scope in INSIDE
    ways = (search.inside_node() if inside else None, search.across_nodes())
    release = min(filter(None, ways), key=lambda release: release.total, default=None)
    if release is None:
        return None
    gang = conflict.as_it_is
    view = search.with_free(gang.view, release)
    room = {role.name: room_of(view, role) for role in gang.request.roles}
    if conflict.oracle.enough(replace(gang, view=view, room=room)) is not True:
        return None
    nodes = tuple((view.names[row], int(units.sum())) for row, units in sorted(release.units.items()))
    return MoreFree(GPU_MEMORY if role.slice else role.gpu_resource, release.total, nodes)


def is_little(release: MoreFree) -> bool:
    """Return whether someone may well set this free: one node's GPUs, or memory on one node."""
    return len(release.nodes) == 1 if release.resource == GPU_MEMORY else release.amount <= FEW


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The search for what must become free for one role. `empty` is the cluster without other pods."""

    world: World
    empty: Columns
    role: Role

    @property
    def limit(self) -> Ints:
        """[row] How many members the node has room for apart from GPUs."""
        return room_of(self.world.view, replace(self.role, gpus=0, slice=None))

    @property
    def ask(self) -> Ask:
        """What one member takes: `units` of each of `gpus` pools."""
        part = self.role.slice
        return Ask(part.gpus, part.units) if part else Ask(1, self.role.gpus)

    def pools(self, rows: Ints, mask: int = ALL_GPUS) -> tuple[Ints, Ints]:
        """Return [pool, node] the units free now, and without other pods, among the GPUs of `mask`."""
        view, empty = self.world.view, self.empty
        if not self.role.slice:
            now, then = (
                np.maximum(0, gpus_in(of.free_gpus[rows], mask) - of.unindexed[rows]) for of in (view, empty)
            )
            return now[None], then[None]
        now, then = (
            of.gpu_memory[:, rows] * (mask >> np.arange(len(of.gpu_memory))[:, None] & 1)
            for of in (view, empty)
        )
        # If the indices of taken GPUs are unknown, these GPUs must become free, not their memory.
        return now, np.where(view.unindexed[rows] == 0, then, now)

    def price(self, now: Ints, then: Ints, members: Ints) -> Ints:
        """Return [node] the units that must become free so that the node holds `members` [node].

        The price is LARGEST if the node never can hold that many. Each member needs places in different
        pools. The next place in a pool is cheaper by what is left over there. Each later place costs all its
        units.
        """
        ask = self.ask
        places = np.minimum(now // ask.units, members)
        further = np.minimum(then // ask.units, members) - places
        missing = np.maximum(0, members * ask.gpus - places.sum(axis=0))
        next_places = np.sort(np.where(further > 0, (places + 1) * ask.units - now, LARGEST), axis=0)
        cheaper = np.minimum(missing, (further > 0).sum(axis=0))
        price = np.where(np.arange(len(now))[:, None] < cheaper, next_places, 0).sum(axis=0)
        return np.where(missing <= further.sum(axis=0), price + (missing - cheaper) * ask.units, LARGEST)

    def units(self, row: int, members: int, mask: int = ALL_GPUS) -> Ints:
        """Return [pool] the units that must become free so that the node holds these members."""
        ask, (now, then) = self.ask, (pools[:, 0] for pools in self.pools(np.array([row]), mask))
        release, places = np.zeros_like(now), np.minimum(now // ask.units, members)
        while places.sum() < members * ask.gpus:
            missing = (places + 1) * ask.units - now - release
            possible = (places < members) & ((places + 1) * ask.units <= then)
            pool = int(np.where(possible, missing, LARGEST).argmin())
            release[pool] += missing[pool]
            places[pool] += 1
        return release

    def across_nodes(self) -> _Release | None:
        """Return the cheapest units to free, member by member, in the part where that is cheapest.

        On each node the first member costs least, because it uses what is left over there.
        """
        world, view, scope, ask = self.world, self.world.view, self.world.request.required_scope, self.ask
        part, room = view.topology.regions(scope), world.room[self.role.name]
        usable = world.admitted[self.role.name] & (part >= 0)
        if scope in INSIDE:
            usable &= view.topology.in_wide
        missing = world.target - np.bincount(part[usable], np.minimum(room, world.target)[usable])
        limit = self.limit
        rows = np.flatnonzero(usable & (limit > room))
        now, then = self.pools(rows)
        more = np.minimum(limit[rows], slice_room(then, ask)) - room[rows]
        more = np.clip(more, 0, min(MOST, world.target))
        parts = (missing > 0) & (np.bincount(part[rows], more, len(missing)) >= missing)
        if not parts.any():
            return None
        dearest = ask.gpus * ask.units  # a member costs 1 to this many units
        parts &= missing <= missing[parts].min() * dearest
        at = np.flatnonzero(parts[part[rows]])
        rows, now, then, more = rows[at], now[:, at], then[:, at], more[at]
        price, cost = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        offering, prices = [rows[:0]], [price[:0]]
        for members in range(1, 1 + int(more.max())):
            before, cost = cost, self.price(now, then, room[rows] + members)
            price = np.where(more >= members, np.maximum(price, cost - before), 0)
            offering.append(rows[more >= members])
            prices.append(price[more >= members])
        nodes = _cheapest(np.concatenate(offering), np.concatenate(prices), part, missing.astype(np.int64))
        counts = np.unique(nodes, return_counts=True)
        if len(counts[0]) > MANY:
            return None
        release = zip(*(column.tolist() for column in counts), strict=True)
        return _Release({row: self.units(row, int(room[row]) + members) for row, members in release})

    def inside_node(self) -> _Release | None:
        """Return the units to free in the part of a node that lacks least for all members."""
        world, view = self.world, self.world.view
        usable = world.admitted[self.role.name] & view.promised & ~view.topology.in_wide
        usable &= self.limit >= world.target
        ways: list[tuple[int, int, int]] = []
        for shape in np.unique(view.shape[usable]).tolist():
            rows = np.flatnonzero(usable & (view.shape == shape))
            for _, mask in view.topology.parts(int(rows[0]), str(world.request.required_scope)):
                price = self.price(*self.pools(rows, mask), np.full(len(rows), world.target))
                at = int(price.argmin())
                ways.append((int(price[at]), int(rows[at]), mask))
        least, row, mask = min(ways, default=(LARGEST, 0, 0))
        return _Release({row: self.units(row, world.target, mask)}, mask) if least < LARGEST else None

    def with_free(self, view: Columns, release: _Release) -> Columns:
        """Return the cluster with this free."""
        if self.role.slice:
            memory = view.gpu_memory.copy()
            for row, units in release.units.items():
                memory[:, row] += units
            return replace(view, gpu_memory=memory)
        amounts = view.amounts.copy()
        for row, units in release.units.items():
            free = int(amounts[0, row])
            # Pods may have more GPUs than are there. They must give these back as well.
            gpus = int(units.sum()) + max(0, int(amounts[2, row]) - free.bit_count())
            unknown = min(int(amounts[2, row]), gpus)
            of_pods = bits(int(self.empty.free_gpus[row]) & ~free & release.mask)
            free |= mask_of(list(of_pods)[: gpus - unknown])
            still_unknown = int(amounts[2, row]) - unknown
            amounts[:3, row] = free, max(0, free.bit_count() - still_unknown), still_unknown
        return replace(view, amounts=amounts)


def _cheapest(row: Ints, price: Ints, part: Ints, missing: Ints) -> Ints:
    """Return the nodes of the cheapest offers in the part where these cost least, a node for each member.

    Offer i is one more member on the node `row[i]` for `price[i]`. A node's cheaper offers come first. The
    offers make up for what is `missing` [part]. `part` [row] is the part of each row.
    """
    order = np.lexsort((row, price, part[row]))
    row, price, part = row[order], price[order], part[row[order]]
    is_first = place_in_run(part) < missing[part]
    cost = np.bincount(part, price * is_first)
    nodes: Ints = row[(part == part[cost[part].argmin()]) & is_first]
    return nodes
