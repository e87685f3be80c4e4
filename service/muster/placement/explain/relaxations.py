"""Find relaxations: changes with which the gang fits. Each change is tried on the whole gang and the real
cluster.

The cheapest changes come first: changes that cost nothing, then resources that few other pods must release,
then demands that the gang drops, and last many resources of other pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from muster.domain.decision import DropSelector, FewerMembers, MoreFree, Tolerate, Uncordon, WiderScope
from muster.domain.node import is_state_taint
from muster.domain.reasons import Relaxation
from muster.domain.request import Request, Role
from muster.domain.topology import bits, mask_of
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import GPU, LARGEST, Columns, Ints, gpu_counts, values_in
from muster.placement.cluster.fabric import ALL_GPUS
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, AssumptionKind, World, binds_members
from muster.placement.explain.conflict import Conflict, irreducible_subset
from muster.placement.explain.findings import findings_of
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.constraints.constraint import RefusalFacts
from muster.placement.gang.instance import room_of
from muster.placement.gpus.slices import MemberAsk, slice_room
from muster.placement.search.regions import position_in_run

MAX_LISTED = 3
"""The most relaxations that are reported. The search ends when this number is found."""

SAY_MIN_MEMBER = frozenset({"annotations", "koordinator", "ack-pod-group"})
"""The dialects in which users state how many members must fit."""

TAINT = "taint "
SELECTORS = ("selector ", "affinity ")

CORDONED = "cordoned"
TRIED_ALONE = 8
"""The most nodes that are each tried as the only node to be uncordoned."""
TRIED_PARTS = 4
"""The most parts of the required scope that are tried: those in which the fewest nodes should be enough."""
MAX_REDUCED = 64
"""If more nodes than this are to be uncordoned, it is not tried whether some of them can stay cordoned."""

Works = Callable[[Sequence[int]], bool]
"""A function that returns whether the gang fits if these rows admit pods again."""


def relaxations(conflict: Conflict) -> tuple[Relaxation, ...]:
    """Return a few relaxations that work, cheapest first."""
    return tuple(islice(_working_relaxations(_conflict_on_whole_gpus(conflict)), MAX_LISTED))


def _conflict_on_whole_gpus(conflict: Conflict) -> Conflict:
    """Return the conflict in a cluster that hides nodes with parts of GPUs from members that link GPUs.

    The planner counts a MIG device, or a share of a GPU, as the device plugin counts it: as a GPU. But no
    process can use several MIG devices or shares.
    """
    assumptions = conflict.assumptions
    columns = assumptions.columns
    offering = np.array([profile.offers_parts for profile in columns.profiles], bool)[columns.profile]
    nodes = [columns.names[row] for row in np.flatnonzero(offering).tolist()]
    roles = [role for role in assumptions.roles if _links_gpus(assumptions.request, role)] if nodes else []
    if not roles:
        return conflict
    reasons = dict.fromkeys(nodes, "parts of GPUs")
    return replace(conflict, assumptions=assumptions.with_excluded([role.name for role in roles], reasons))


def _links_gpus(request: Request, role: Role) -> bool:
    is_inside_node = request.required_scope in INSIDE or role.required_scope in INSIDE
    return role.gpus > 1 or (role.gpus == 1 and is_inside_node)


def _working_relaxations(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield the relaxations with which the gang fits, the cheapest first."""
    release = more_free(conflict)
    if (uncordon := _uncordon(conflict)) is not None:
        yield uncordon
    if release is not None and is_little(release):
        yield release
    findings = findings_of(conflict)
    yield from _wider_scope(conflict, findings)
    for constraint in CONSTRAINTS:
        for obstacle in conflict.obstacles_of(constraint):
            yield from constraint.relaxations(findings, obstacle.role, obstacle.subject)
    yield from _admit_on_more_nodes(conflict)
    yield from _fewer_members(conflict)
    if release is not None and not is_little(release):
        yield release


def _admit_on_more_nodes(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield changes of a role with which more nodes admit the role, and the gang fits.

    A toleration is never suggested for a taint that reports a node's state (not-ready …).
    """
    assumptions = conflict.assumptions
    for obstacle in conflict.obstacles_of(AssumptionKind.REFUSED):
        role, reason = obstacle.role, obstacle.subject
        taint = reason.removeprefix(TAINT) if reason.startswith(TAINT) else ""
        if is_state_taint(taint) or not (taint or reason.startswith(SELECTORS)):
            continue
        world = assumptions.world(assumptions.all - {obstacle})
        if conflict.oracle.target_fits(world) is True:
            rows = world.admitted[role] & ~conflict.with_all_assumptions.admitted[role]
            nodes = int(np.count_nonzero(rows & (world.room[role] > 0)))
            yield Tolerate(role, taint, nodes) if taint else DropSelector(role, reason, nodes)


def _wider_scope(conflict: Conflict, findings: RefusalFacts) -> Iterator[Relaxation]:
    """Yield the narrowest wider scope with which the gang fits, unless no node has a label of the scope."""
    scope = str(conflict.assumptions.request.required_scope)
    if not conflict.obstacles_of(AssumptionKind.SCOPE) or findings.is_nowhere(scope):
        return
    for wider in findings.wider_scopes(scope):
        world = conflict.with_all_assumptions.with_scope(wider)
        if conflict.oracle.target_fits(world) is True:
            yield WiderScope(scope, wider or "", conflict.oracle.up_to_target(world).part, world.target)
            return


def _fewer_members(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield that fewer members are required, if the user can lower this number.

    In other dialects than `SAY_MIN_MEMBER`, users cannot. A gang with running members has started already.
    With several roles, it is not known which role the user can reduce.
    """
    world, request = conflict.with_all_assumptions, conflict.assumptions.request
    if request.gang.dialect not in SAY_MIN_MEMBER or len(request.roles) > 1 or request.running:
        return
    members = conflict.oracle.largest_fit(world).members
    if 0 < members < world.target:
        yield FewerMembers(members, world.target)


def _uncordon(conflict: Conflict) -> Uncordon | None:
    """Return the nodes that must be uncordoned, none too many; None if to uncordon does not help."""
    cordons = {assumption for assumption in conflict.assumptions.all if assumption.subject == CORDONED}
    if cordons.isdisjoint(conflict.obstacles):
        return None
    world, oracle = conflict.with_all_assumptions, conflict.oracle
    open_world = conflict.assumptions.world(conflict.assumptions.all - cordons)
    if oracle.target_fits(open_world) is not True:
        return None
    rows = _most_useful_first(world, open_world)
    if not rows:
        return None
    are_members_alike = len(world.request.roles) == 1 and not binds_members(world.request)
    fewest = _fewest_rows(
        rows,
        are_members_alike,
        lambda nodes: oracle.target_fits(_with_open_rows(world, open_world, nodes)) is True,
    )
    return Uncordon(tuple(sorted(world.columns.names[row] for row in fewest)))


def _with_open_rows(world: World, open_world: World, rows: Sequence[int]) -> World:
    """Return the world in which these rows admit the roles that they admit in `open_world`, uncordoned."""
    is_open = np.isin(np.arange(len(world.columns.names)), rows)
    admitting = {
        name: np.where(is_open, open_world.admitted[name], current_rows)
        for name, current_rows in world.admitted.items()
    }
    return replace(world, admitted=admitting)


def _fewest_rows(parts: Sequence[Sequence[int]], are_members_alike: bool, works: Works) -> Sequence[int]:
    """Return a small set of rows with which the gang fits, found in a bounded number of tries. No row of the
    set can be left out.

    `are_members_alike` is whether all members are alike and no rule binds them. Then the shortest prefix of
    the rows with which the gang fits has the fewest rows.
    """
    all_rows = [row for part in parts for row in part]
    for row in all_rows[:TRIED_ALONE]:
        if works((row,)):
            return (row,)
    in_parts = (_shortest_prefix(part, works) for part in islice(parts, TRIED_PARTS))
    fewest = (
        min(in_parts, key=lambda rows: len(rows) or len(all_rows))
        or _shortest_prefix(all_rows, works)
        or all_rows
    )
    if are_members_alike or len(fewest) > MAX_REDUCED:
        return fewest
    return sorted(irreducible_subset([tuple(reversed(fewest))], lambda rows: works(sorted(rows))))


def _shortest_prefix(rows: Sequence[int], works: Works) -> Sequence[int]:
    """Return the fewest first rows with which the gang fits; () if it does not fit with all rows."""
    if not works(rows):
        return ()
    low, high = 1, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if works(rows[:middle]) else (middle + 1, high)
    return rows[:high]


def _most_useful_first(world: World, open_world: World) -> list[list[int]]:
    """Return the rows that have more room if uncordoned, by part of the required scope.

    The part where the fewest rows should be enough comes first, and in each part the row that gains the most
    room.
    """
    current_room, opened_room = _room_by_row(world), _room_by_row(open_world)
    part = world.columns.topology.regions(world.request.required_scope)
    in_part = part >= 0
    rows = np.flatnonzero((opened_room > current_room) & in_part)
    missing = world.target - np.bincount(part[in_part], current_room[in_part])
    by_part: list[tuple[int, list[int]]] = []
    for code in np.unique(part[rows]).tolist():
        rows_of_part = rows[part[rows] == code]
        rows_of_part = rows_of_part[
            np.argsort(current_room[rows_of_part] - opened_room[rows_of_part], kind="stable")
        ]
        nodes = int(np.searchsorted(np.cumsum((opened_room - current_room)[rows_of_part]), missing[code])) + 1
        by_part.append((nodes if nodes <= len(rows_of_part) else len(opened_room), rows_of_part.tolist()))
    by_part.sort(key=lambda nodes_and_rows: nodes_and_rows[0])
    return [rows_of_part for _, rows_of_part in by_part]


def _room_by_row(world: World) -> Ints:
    """Return [row] int64: for how many members the row has room, summed over roles that are counted alone."""
    rooms = [
        np.where(world.admitted[role.name], np.clip(world.room[role.name], 0, len(role.members)), 0)
        for role in world.request.roles
    ]
    return np.asarray(np.sum(rooms, axis=0), np.int64)


LITTLE_GPUS = 8
"""The most GPUs that are realistic to free: the GPUs of one node."""
MAX_NODES = 64
"""The most nodes that a relaxation may name. No user can free GPUs on more nodes."""
MAX_MORE_MEMBERS = 16
"""The most further members that one node is tried with."""


@dataclass(frozen=True, slots=True)
class _Release:
    """The units to free, as row → [pool] int64: in each pool of the node, among the GPUs of `mask`."""

    units: dict[int, Ints]
    mask: int = ALL_GPUS

    @property
    def total_units(self) -> int:
        """All units to free."""
        return sum(int(units.sum()) for units in self.units.values())


def more_free(conflict: Conflict) -> MoreFree | None:
    """Return on which nodes how many GPUs, or how much of their memory, must become free.

    The result is None if the conflict is about several roles, or if free GPUs alone do not help.
    """
    (role, *other_roles), assumptions = conflict.conflicting_roles, conflict.assumptions
    resource = GPU_MEMORY if role.slice else GPU
    others_keep = Assumption(AssumptionKind.IN_USE, subject=resource)
    if other_roles or not (role.slice or role.gpus) or others_keep not in conflict.obstacles:
        return None
    search = _ReleaseSearch(
        conflict.world(), assumptions.world(assumptions.all - {others_keep}).columns, role
    )
    is_inside_node = search.world.request.required_scope in INSIDE
    releases = (search.inside_node() if is_inside_node else None, search.across_nodes())
    release = min(filter(None, releases), key=lambda release: release.total_units, default=None)
    if release is None:
        return None
    gang = conflict.with_all_assumptions
    columns = search.with_free(gang.columns, release)
    room = {role.name: room_of(columns, role) for role in gang.request.roles}
    if conflict.oracle.target_fits(replace(gang, columns=columns, room=room)) is not True:
        return None
    nodes = tuple((columns.names[row], int(units.sum())) for row, units in sorted(release.units.items()))
    return MoreFree(GPU_MEMORY if role.slice else role.gpu_resource, release.total_units, nodes)


def is_little(release: MoreFree) -> bool:
    """Return whether it is realistic to free this: GPUs or GPU memory of a single node."""
    return len(release.nodes) == 1 if release.resource == GPU_MEMORY else release.amount <= LITTLE_GPUS


@dataclass(frozen=True, slots=True, eq=False)
class _ReleaseSearch:
    """The search for the GPUs, or GPU memory, that must become free for one role. In `empty`, other pods have
    none of them.

    The GPUs of a node are pools of units. For slices, each GPU is a pool of memory. For members that take
    GPUs whole, all GPUs together are one pool.
    """

    world: World
    empty: Columns
    role: Role

    @property
    def room_without_gpus(self) -> Ints:
        """[row] For how many members the node has room if GPUs do not count."""
        return room_of(self.world.columns, replace(self.role, gpus=0, slice=None))

    @property
    def ask(self) -> MemberAsk:
        """The request of one member: `units` of each of `gpus` pools."""
        part = self.role.slice
        return MemberAsk(part.gpus, part.units) if part else MemberAsk(1, self.role.gpus)

    def pools(self, rows: Ints, mask: int = ALL_GPUS) -> tuple[Ints, Ints]:
        """Return [pool, node] the units free now, and without other pods, among the GPUs of `mask`."""
        columns, empty = self.world.columns, self.empty
        if not self.role.slice:
            free_now, free_if_empty = (
                np.maximum(0, gpu_counts(cluster.free_gpus[rows] & mask) - cluster.unindexed[rows])
                for cluster in (columns, empty)
            )
            return free_now[None], free_if_empty[None]
        free_now, free_if_empty = (
            values_in(cluster.gpu_memory[:, rows], mask) for cluster in (columns, empty)
        )
        # If the indices of taken GPUs are unknown, these GPUs must become free, not their memory.
        return free_now, np.where(columns.unindexed[rows] == 0, free_if_empty, free_now)

    def prices(self, free_now: Ints, free_if_empty: Ints, members: Ints) -> Ints:
        """Return [node] the units that must become free so that the node holds `members` [node].

        The price is LARGEST if the node can never hold that many. A place is what a member takes of one pool;
        each member needs places in different pools. The next place in a pool is cheaper by the pool's free
        units that are too few for a place. Each later place costs all its units.
        """
        ask = self.ask
        places = np.minimum(free_now // ask.units, members)
        further = np.minimum(free_if_empty // ask.units, members) - places
        missing = np.maximum(0, members * ask.gpus - places.sum(axis=0))
        next_places = np.sort(np.where(further > 0, (places + 1) * ask.units - free_now, LARGEST), axis=0)
        cheaper = np.minimum(missing, (further > 0).sum(axis=0))
        price = np.where(np.arange(len(free_now))[:, None] < cheaper, next_places, 0).sum(axis=0)
        return np.where(missing <= further.sum(axis=0), price + (missing - cheaper) * ask.units, LARGEST)

    def units_to_free(self, row: int, members: int, mask: int = ALL_GPUS) -> Ints:
        """Return [pool] the units that must become free so that the node holds these members."""
        ask = self.ask
        free_now, free_if_empty = (units[:, 0] for units in self.pools(np.array([row]), mask))
        release, places = np.zeros_like(free_now), np.minimum(free_now // ask.units, members)
        while places.sum() < members * ask.gpus:
            missing = (places + 1) * ask.units - free_now - release
            possible = (places < members) & ((places + 1) * ask.units <= free_if_empty)
            pool = int(np.where(possible, missing, LARGEST).argmin())
            release[pool] += missing[pool]
            places[pool] += 1
        return release

    def across_nodes(self) -> _Release | None:
        """Return the fewest units to free, in the part of the required scope where they are fewest.

        Each node offers further members, each for a price. On a node the first further member is the
        cheapest, because it uses GPUs that are already free.
        """
        world, columns, scope, ask = (
            self.world,
            self.world.columns,
            self.world.request.required_scope,
            self.ask,
        )
        part, room = columns.topology.regions(scope), world.room[self.role.name]
        usable = world.admitted[self.role.name] & (part >= 0)
        if scope in INSIDE:
            usable &= columns.topology.in_wide
        missing = world.target - np.bincount(part[usable], np.minimum(room, world.target)[usable])
        limit = self.room_without_gpus
        rows = np.flatnonzero(usable & (limit > room))
        free_now, free_if_empty = self.pools(rows)
        more_members = np.minimum(limit[rows], slice_room(free_if_empty, ask)) - room[rows]
        more_members = np.clip(more_members, 0, min(MAX_MORE_MEMBERS, world.target))
        parts = (missing > 0) & (np.bincount(part[rows], more_members, len(missing)) >= missing)
        if not parts.any():
            return None
        dearest = ask.gpus * ask.units  # a member costs 1 to this many units
        parts &= missing <= missing[parts].min() * dearest
        indices = np.flatnonzero(parts[part[rows]])
        rows, more_members = rows[indices], more_members[indices]
        free_now, free_if_empty = free_now[:, indices], free_if_empty[:, indices]
        price, cost = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        offering, prices = [rows[:0]], [price[:0]]
        for members in range(1, 1 + int(more_members.max())):
            cost_of_fewer, cost = cost, self.prices(free_now, free_if_empty, room[rows] + members)
            price = np.where(more_members >= members, np.maximum(price, cost - cost_of_fewer), 0)
            offering.append(rows[more_members >= members])
            prices.append(price[more_members >= members])
        nodes = _rows_of_cheapest_offers(
            np.concatenate(offering), np.concatenate(prices), part, missing.astype(np.int64)
        )
        counts = np.unique(nodes, return_counts=True)
        if len(counts[0]) > MAX_NODES:
            return None
        release = zip(*(column.tolist() for column in counts), strict=True)
        return _Release({row: self.units_to_free(row, int(room[row]) + members) for row, members in release})

    def inside_node(self) -> _Release | None:
        """Return the fewest units to free so that a part inside a node holds all members."""
        world, columns = self.world, self.world.columns
        usable = world.admitted[self.role.name] & columns.promised & ~columns.topology.in_wide
        usable &= self.room_without_gpus >= world.target
        candidates: list[tuple[int, int, int]] = []
        for shape in np.unique(columns.shape[usable]).tolist():
            rows = np.flatnonzero(usable & (columns.shape == shape))
            for _, mask in columns.topology.parts(int(rows[0]), str(world.request.required_scope)):
                price = self.prices(*self.pools(rows, mask), np.full(len(rows), world.target))
                cheapest_index = int(price.argmin())
                candidates.append((int(price[cheapest_index]), int(rows[cheapest_index]), mask))
        least, row, mask = min(candidates, default=(LARGEST, 0, 0))
        return _Release({row: self.units_to_free(row, world.target, mask)}, mask) if least < LARGEST else None

    def with_free(self, columns: Columns, release: _Release) -> Columns:
        """Return the cluster with these units free."""
        if self.role.slice:
            memory = columns.gpu_memory.copy()
            for row, units in release.units.items():
                memory[:, row] += units
            return replace(columns, gpu_memory=memory)
        amounts = columns.amounts.copy()
        for row, units in release.units.items():
            free = int(amounts[0, row])
            # Pods may hold more GPUs than the node has (overcommitted records). These GPUs must be released
            # too.
            gpus = int(units.sum()) + max(0, int(amounts[2, row]) - free.bit_count())
            unknown = min(int(amounts[2, row]), gpus)
            gpus_of_pods = bits(int(self.empty.free_gpus[row]) & ~free & release.mask)
            free |= mask_of(list(gpus_of_pods)[: gpus - unknown])
            still_unknown = int(amounts[2, row]) - unknown
            amounts[:3, row] = free, max(0, free.bit_count() - still_unknown), still_unknown
        return replace(columns, amounts=amounts)


def _rows_of_cheapest_offers(row: Ints, price: Ints, part: Ints, missing: Ints) -> Ints:
    """Return the rows of the cheapest offers, in the part where these cost least: one row for each offer.

    Offer i is one more member on the node `row[i]` for `price[i]`. A node's cheaper offers come first. Each
    part needs `missing` [part] offers. `part` [row] is the part of each row.
    """
    order = np.lexsort((row, price, part[row]))
    row, price, part = row[order], price[order], part[row[order]]
    is_first = position_in_run(part) < missing[part]
    cost = np.bincount(part, price * is_first)
    nodes: Ints = row[(part == part[cost[part].argmin()]) & is_first]
    return nodes
