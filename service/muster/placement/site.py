"""One decision's fixed data: the nodes as places, the roles, who admits whom; and what one node can take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from muster.domain.node import Resources
from muster.domain.request import Request, Role
from muster.domain.snapshot import Snapshot
from muster.placement.candidates import Candidates, candidates
from muster.placement.fabric import Place, crossing_scopes, places
from muster.placement.limits import asks_gpus, member_room

Counts = tuple[int, ...]
"""Members by role, in the request's order of roles."""

MAX_VECTORS = 2048
"""Ways to mix the roles on one node that are looked at; beyond, a thinned grid, and nothing is proven."""


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster as one gang sees it. `scopes`: the crossing levels that mean something here."""

    request: Request
    roles: tuple[Role, ...]
    places: Mapping[str, Place]
    admitted: Mapping[str, Candidates]
    admits: tuple[frozenset[str], ...]
    scopes: tuple[str, ...]
    mixes: dict[object, Mixes] = field(default_factory=dict)
    """Memo of `mixes_on`, for this decision alone."""

    def gpus(self, counts: Counts) -> int:
        """GPUs that so many members take."""
        return sum(count * role.gpus for count, role in zip(counts, self.roles, strict=True))

    def cpu(self, counts: Counts) -> int:
        """cpu that so many members take, thousandths of a core."""
        return sum(count * role.resources.cpu_milli for count, role in zip(counts, self.roles, strict=True))


@dataclass(frozen=True, slots=True)
class Mixes:
    """How many members of each role one node can take: all ways, those that nothing can be added to, and
    whether the lists are complete."""

    all: tuple[Counts, ...]
    largest: tuple[Counts, ...]
    complete: bool


def site_of(snapshot: Snapshot, request: Request, excluded: Mapping[tuple[str, str], str]) -> Site:
    """The site of a request; roles without members are left out of nothing, they just need none."""
    seen = places(snapshot)
    admitted = {role.name: candidates(snapshot, role, excluded) for role in request.roles}
    admits = tuple(frozenset(admitted[role.name].admitted) for role in request.roles)
    return Site(
        request, request.roles, seen, admitted, admits, crossing_scopes(seen.values(), asks_gpus(request))
    )


def mixes_on(site: Site, place: Place, gpu_mask: int, need: Counts) -> Mixes:
    """What the node can take of `need`, using GPUs of the mask only. No member at all is not in the lists."""
    free = place.state.free
    gpus = min((place.state.free_gpus & gpu_mask).bit_count(), place.state.free_gpu_count)
    caps = tuple(
        min(n, member_room(role.resources, free), gpus // role.gpus if role.gpus else n)
        if n and place.name in site.admits[r]
        else 0
        for r, (role, n) in enumerate(zip(site.roles, need, strict=True))
    )
    if sum(cap > 0 for cap in caps) <= 1:  # one role: its cap says all, whatever else is free
        key: object = caps
    else:
        key = (caps, free, gpus)
    if key not in site.mixes:
        site.mixes[key] = _mixes(site.roles, caps, free, gpus)
    return site.mixes[key]


def hosts(site: Site, place: Place, gpu_mask: int, counts: Counts) -> bool:
    """Whether the node can take exactly these members at once."""
    gpus = min((place.state.free_gpus & gpu_mask).bit_count(), place.state.free_gpu_count)
    if site.gpus(counts) > gpus:
        return False
    total = Resources(pods=0)
    for r, (role, count) in enumerate(zip(site.roles, counts, strict=True)):
        if count and place.name not in site.admits[r]:
            return False
        total += role.resources.times(count)
    free = place.state.free
    return (
        total.pods <= free.pods
        and (not total.cpu_milli or total.cpu_milli <= free.cpu_milli)
        and (not total.memory_bytes or total.memory_bytes <= free.memory_bytes)
    )


def _mixes(roles: tuple[Role, ...], caps: Counts, free: Resources, gpus: int) -> Mixes:
    complete = prod(cap + 1 for cap in caps) <= MAX_VECTORS
    found = [mix for mix in _walk(roles, _grids(caps), free, gpus) if any(mix)]
    known = set(found)

    def larger(mix: Counts, r: int) -> bool:
        more = (*mix[:r], mix[r] + 1, *mix[r + 1 :])
        return more in known if complete else mix[r] < caps[r] and _fits(roles, more, free, gpus)

    largest = tuple(mix for mix in found if not any(larger(mix, r) for r in range(len(caps))))
    return Mixes(tuple(found), largest, complete)


def _grids(caps: Counts) -> list[list[int]]:
    """The counts to try of each role: all, or evenly thinned ones where all are too many."""
    if prod(cap + 1 for cap in caps) <= MAX_VECTORS:
        return [list(range(cap + 1)) for cap in caps]
    mixed = sum(cap > 0 for cap in caps)
    steps = max(2, int(MAX_VECTORS ** (1 / mixed)))
    return [sorted({round(cap * i / (steps - 1)) for i in range(steps)}) for cap in caps]


def _walk(roles: tuple[Role, ...], grids: list[list[int]], free: Resources, gpus: int) -> Iterator[Counts]:
    if not grids:
        yield ()
        return
    role = roles[0]
    room = min(member_room(role.resources, free), gpus // role.gpus if role.gpus else grids[0][-1])
    counts = [count for count in grids[0] if count <= room]
    if room < grids[0][-1] and room not in counts and room > 0:
        counts.append(room)  # on a thinned grid, the most there is room for
    for count in counts:
        left = free - role.resources.times(count)
        for rest in _walk(roles[1:], grids[1:], left, gpus - count * role.gpus):
            yield (count, *rest)


def _fits(roles: tuple[Role, ...], mix: Counts, free: Resources, gpus: int) -> bool:
    return any(True for _ in _walk(roles, [[count] for count in mix], free, gpus) if _ == mix)
