"""Ways to leave members out, where segments make each of them a problem of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from muster.domain.request import Request, Role
from muster.placement.gang.instance import Counts, Instance

MAX_TRIES = 64
"""Ways that are tried for one answer."""


def ways_to_cut(request: Request) -> Iterator[Mapping[str, int]]:
    """How many members of each role to look at so that all ways to leave members out are seen.

    What is left of a role is whole segments and a shorter one. Looking at a number of members shows all that
    have no more of either: those whose shorter segment is longer need a look at a number that ends there.
    Most members come first. Holds where no segment has running members.
    """
    names = [role.name for role in request.roles]
    for counts in product(*map(_cuts, request.roles)):
        yield dict(zip(names, counts, strict=True))


def _cuts(role: Role) -> list[int]:
    """All members, and by segment size the most that end one member before a segment is whole."""
    count = len(role.members)
    shorter = {(count + 1) // segment.size * segment.size - 1 for segment in role.segments}
    return sorted({count, *(cut for cut in shorter if cut >= 0)}, reverse=True)


def begun(request: Request) -> bool:
    """Whether members that run may have begun a segment: then those left out are not the last of it."""
    segmented = {role.name for role in request.roles if role.segments}
    return any(running.role in segmented for running in request.running)


def by_role(instance: Instance, counts: Counts) -> Counts:
    """Members by role of the request, of those by block."""
    kept = dict.fromkeys((role.name for role in instance.request.roles), 0)
    for block, count in zip(instance.roles, counts, strict=True):
        kept[block.name] += count
    return tuple(kept.values())


def shared_out(total: int, sizes: Counts) -> Iterator[Counts]:
    """So many members shared out to roles of these sizes, most of the earlier roles first."""
    if not sizes:
        yield ()
        return
    first, *others = sizes
    for count in range(min(first, total), max(0, total - sum(others)) - 1, -1):
        for rest in shared_out(total - count, tuple(others)):
            yield (count, *rest)
