"""Find which members to leave out of a gang with segments when not all of them fit.

The last members by rank are left out. Then a segment may be shorter, so each number of members is a problem
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from muster.domain.request import Request, Role
from muster.placement.gang.instance import Counts, Instance

MAX_TRIES = 64
"""The most numbers of members that are tried for one answer."""


def ways_to_cut(request: Request) -> Iterator[Mapping[str, int]]:
    """Yield numbers of members by role, such that solving with each of them covers all ways to leave members
    out.

    A role with a number of members has whole segments and a shorter one. Solving for that number also covers
    all plans with fewer whole segments and with a shorter last one. Only a longer last segment needs another
    try. The largest numbers come first. This holds only if no segment has existing members.
    """
    names = [role.name for role in request.roles]
    for counts in product(*map(_cuts, request.roles)):
        yield dict(zip(names, counts, strict=True))


def _cuts(role: Role) -> list[int]:
    """Return the numbers of members to try: all, and those that end one member before a whole segment."""
    count = len(role.members)
    shorter = {(count + 1) // segment.size * segment.size - 1 for segment in role.segments}
    return sorted({count, *(cut for cut in shorter if cut >= 0)}, reverse=True)


def begun(request: Request) -> bool:
    """Return whether existing members may have begun a segment.

    Then the members that are left out need not be the last of the segment.
    """
    segmented = {role.name for role in request.roles if role.segments}
    return any(running.role in segmented for running in request.running)


def fewer_fit(request: Request) -> bool:
    """Return whether one member can always be left out of those that keep the request's constraints."""
    return all(constraint.fewer_fit for constraint in (*request.constraints, *request.per_scope))


def by_role(instance: Instance, counts: Counts) -> Counts:
    """Return the number of members for each role of the request, given the number for each block."""
    kept = dict.fromkeys((role.name for role in instance.request.roles), 0)
    for block, count in zip(instance.roles, counts, strict=True):
        kept[block.name] += count
    return tuple(kept.values())


def shared_out(total: int, sizes: Counts) -> Iterator[Counts]:
    """Yield the ways to divide `total` members among roles of these sizes, earlier roles first."""
    if not sizes:
        yield ()
        return
    first, *others = sizes
    for count in range(min(first, total), max(0, total - sum(others)) - 1, -1):
        for rest in shared_out(total - count, tuple(others)):
            yield (count, *rest)
