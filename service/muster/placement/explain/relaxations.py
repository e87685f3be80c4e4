"""Find what would help: changes that remove one cause each, tried on the whole gang and the real cluster.

The cheapest come first: what costs nothing, then a little that other pods have, then what the gang must give
up, and last much that other pods have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from muster.domain.node import is_state
from muster.domain.relaxations import (
    DropSelector,
    FewerMembers,
    Relaxation,
    Tolerate,
    Uncordon,
    WiderScope,
)
from muster.domain.request import Request, Role
from muster.placement.cluster.columns import Ints
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Kind, World, binds_members
from muster.placement.explain.conflict import Conflict, irreducible
from muster.placement.explain.findings import findings_of
from muster.placement.explain.freeing import is_little, more_free
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.constraints.constraint import Findings

LISTED = 3
"""The most relaxations that are reported. The search ends when they are found."""

SAY_MIN_MEMBER = frozenset({"annotations", "koordinator", "ack-pod-group"})
"""The dialects in which users say how many members must fit."""

TAINT = "taint "
SELECTORS = ("selector ", "affinity ")

CORDONED = "cordoned"
ALONE = 8
"""Nodes that are tried one by one, each as if it were the only one to be uncordoned."""
PARTS = 4
"""Parts of the required scope whose nodes are tried: those where the fewest nodes should be enough."""
MANY = 64
"""Up to this many nodes, it is tried whether some can be left out."""

Works = Callable[[Sequence[int]], bool]
"""Return whether the gang fits if these rows admit pods again."""


def relaxations(conflict: Conflict) -> tuple[Relaxation, ...]:
    """Return a few relaxations that work, cheapest first."""
    return tuple(islice(_that_work(_on_whole_gpus(conflict)), LISTED))


def _on_whole_gpus(conflict: Conflict) -> Conflict:
    """Return the conflict in a cluster that hides nodes with parts of GPUs from members that link GPUs.

    The planner counts a MIG device, or a share of a GPU, as the device plugin counts it: as a GPU. But no
    process can use several MIG devices or shares.
    """
    assumptions = conflict.assumptions
    view = assumptions.view
    offering = np.array([profile.offers_parts for profile in view.profiles], bool)[view.profile]
    nodes = [view.names[row] for row in np.flatnonzero(offering).tolist()]
    roles = [role for role in assumptions.roles if _links_gpus(assumptions.request, role)] if nodes else []
    if not roles:
        return conflict
    exclusions = {(role.name, node): "parts of GPUs" for role in roles for node in nodes}
    return replace(conflict, assumptions=assumptions.excluding(exclusions))


def _links_gpus(request: Request, role: Role) -> bool:
    inside = request.required_scope in INSIDE or role.required_scope in INSIDE
    return role.gpus > 1 or (role.gpus == 1 and inside)


def _that_work(conflict: Conflict) -> Iterator[Relaxation]:
    release = more_free(conflict)
    if (uncordon := _uncordon(conflict)) is not None:
        yield uncordon
    if release is not None and is_little(release):
        yield release
    findings = findings_of(conflict)
    yield from _wider(conflict, findings)
    for constraint in CONSTRAINTS:
        for obstacle in conflict.obstacles_of(constraint):
            yield from constraint.relaxations(findings, obstacle.role, obstacle.what)
    yield from _admitting(conflict)
    yield from _fewer(conflict)
    if release is not None and not is_little(release):
        yield release


def _admitting(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield changes of a role with which more nodes admit it. A node's state is not to be tolerated."""
    assumptions = conflict.assumptions
    for obstacle in conflict.obstacles_of(Kind.REFUSED):
        role, reason = obstacle.role, obstacle.what
        taint = reason.removeprefix(TAINT) if reason.startswith(TAINT) else ""
        if is_state(taint) or not (taint or reason.startswith(SELECTORS)):
            continue
        world = assumptions.world(assumptions.all - {obstacle})
        if conflict.oracle.enough(world) is True:
            rows = world.admitted[role] & ~conflict.as_it_is.admitted[role]
            nodes = int(np.count_nonzero(rows & (world.room[role] > 0)))
            yield Tolerate(role, taint, nodes) if taint else DropSelector(role, reason, nodes)


def _wider(conflict: Conflict, findings: Findings) -> Iterator[Relaxation]:
    """Yield the narrowest wider scope of the gang that works, unless a label is missing on all nodes."""
    scope = str(conflict.assumptions.request.required_scope)
    if not conflict.obstacles_of(Kind.SCOPE) or findings.is_nowhere(scope):
        return
    for wider in findings.wider(scope):
        world = conflict.as_it_is.within(wider)
        if conflict.oracle.enough(world) is True:
            yield WiderScope(scope, wider or "", conflict.oracle.up_to_target(world).part, world.target)
            return


def _fewer(conflict: Conflict) -> Iterator[Relaxation]:
    """Yield that fewer members are required, if the user says how many must fit.

    Other dialects count exactly. A gang with existing members has started already. And of several roles,
    nothing says which one the user can do without.
    """
    world, request = conflict.as_it_is, conflict.assumptions.request
    if request.gang.dialect not in SAY_MIN_MEMBER or len(request.roles) > 1 or request.running:
        return
    members = conflict.oracle.most(world).members
    if 0 < members < world.target:
        yield FewerMembers(members, world.target)


def _uncordon(conflict: Conflict) -> Uncordon | None:
    """Return the nodes to uncordon, without any that can stay cordoned; None if that does not help."""
    cordons = {assumption for assumption in conflict.assumptions.all if assumption.what == CORDONED}
    if cordons.isdisjoint(conflict.obstacles):
        return None
    world, oracle = conflict.as_it_is, conflict.oracle
    open_world = conflict.assumptions.world(conflict.assumptions.all - cordons)
    if oracle.enough(open_world) is not True:
        return None
    rows = _most_useful_first(world, open_world)
    if not rows:
        return None
    alike = len(world.request.roles) == 1 and not binds_members(world.request)
    fewest = _fewest(rows, alike, lambda nodes: oracle.enough(_with_open(world, open_world, nodes)) is True)
    return Uncordon(tuple(sorted(world.view.names[row] for row in fewest)))


def _with_open(world: World, open_world: World, rows: Sequence[int]) -> World:
    """Return the world in which these rows admit what they admit in `open_world`."""
    is_open = np.isin(np.arange(len(world.view.names)), rows)
    admitting = {
        name: np.where(is_open, open_world.admitted[name], now) for name, now in world.admitted.items()
    }
    return replace(world, admitted=admitting)


def _fewest(parts: Sequence[Sequence[int]], alike: bool, works: Works) -> Sequence[int]:
    """Return as few rows as are found in a bounded number of tries. No row of these can be left out.

    `alike` is whether all members are alike and nothing binds them. Then the first rows that work are the
    fewest.
    """
    every = [row for part in parts for row in part]
    for row in every[:ALONE]:
        if works((row,)):
            return (row,)
    in_parts = (_prefix(part, works) for part in islice(parts, PARTS))
    fewest = min(in_parts, key=lambda rows: len(rows) or len(every)) or _prefix(every, works) or every
    if alike or len(fewest) > MANY:
        return fewest
    return sorted(irreducible([tuple(reversed(fewest))], lambda rows: works(sorted(rows))))


def _prefix(rows: Sequence[int], works: Works) -> Sequence[int]:
    """Return the fewest first rows that work; () if all together do not."""
    if not works(rows):
        return ()
    low, high = 1, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if works(rows[:middle]) else (middle + 1, high)
    return rows[:high]


def _most_useful_first(world: World, open_world: World) -> list[list[int]]:
    """Return the rows that admit members only if uncordoned, by part of the required scope.

    First comes the part where the fewest rows should be enough, and in each part the row with most room.
    """
    now, then = _room(world), _room(open_world)
    part = world.view.topology.regions(world.request.required_scope)
    in_part = part >= 0
    rows = np.flatnonzero((then > now) & in_part)
    missing = world.target - np.bincount(part[in_part], now[in_part])
    by_part: list[tuple[int, list[int]]] = []
    for code in np.unique(part[rows]).tolist():
        inside = rows[part[rows] == code]
        inside = inside[np.argsort(now[inside] - then[inside], kind="stable")]
        nodes = int(np.searchsorted(np.cumsum((then - now)[inside]), missing[code])) + 1
        by_part.append((nodes if nodes <= len(inside) else len(then), inside.tolist()))
    by_part.sort(key=lambda nodes_and_rows: nodes_and_rows[0])
    return [inside for _, inside in by_part]


def _room(world: World) -> Ints:
    """Return [row] int64: for how many members the row has room, each role counted alone."""
    rooms = [
        np.where(world.admitted[role.name], np.clip(world.room[role.name], 0, len(role.members)), 0)
        for role in world.request.roles
    ]
    return np.asarray(np.sum(rooms, axis=0), np.int64)
