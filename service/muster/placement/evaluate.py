"""What a given plan is worth: every level of the objective, counted from its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.domain.decision import MemberPlacement, Objective
from muster.domain.request import Request, Scope
from muster.domain.topology import mask_of
from muster.placement.fabric import Place, crossing_scopes, narrowest, touched_domains
from muster.placement.gpusets import value_of
from muster.placement.limits import asks_gpus
from muster.placement.rings import MB_PER_GB, NO_LINK


def used_gpus(members: Sequence[MemberPlacement]) -> dict[str, int]:
    """The mask of the gang's GPUs on each node it touches; 0 where only cpu-only members are."""
    used: dict[str, int] = {}
    for member in members:
        used[member.node] = used.get(member.node, 0) | mask_of(member.gpus)
    return used


def objective(
    request: Request, members: Sequence[MemberPlacement], places: Mapping[str, Place]
) -> tuple[Objective, str | None, str]:
    """The objective's levels, the narrowest scope that holds all members, and its part ("node a")."""
    used = used_gpus(members)
    spots = [(places[name], mask) for name, mask in used.items()]
    values = [value_of(place.shape, place.state.free_gpus, mask) for place, mask in spots]
    weakest = min((value.weakest for value in values), default=NO_LINK)
    preferred = next((scope for scope in request.preferred_scopes if _holds(scope, spots)), None)
    crossings = tuple(
        (scope, _touched(scope, spots)) for scope in crossing_scopes(places.values(), asks_gpus(request))
    )
    value = Objective(
        preferred_reached=preferred,
        crossings=crossings,
        weakest_link_gb_per_s=None if weakest in (0, NO_LINK) else weakest / MB_PER_GB,
        ring_gb_per_s=sum(value.ring for value in values) / MB_PER_GB,
        damage=sum(value.damage for value in values),
    )
    return value, *narrowest(request, spots)


def _holds(scope: str, spots: list[tuple[Place, int]]) -> bool:
    common: set[str] | None = None
    for place, mask in spots:
        inside = {part for part, gpus in place.parts(scope) if mask & ~gpus == 0}
        common = inside if common is None else common & inside
    return bool(common)


def _touched(scope: str, spots: list[tuple[Place, int]]) -> int:
    if scope == Scope.NVLINK_DOMAIN:
        return len(set().union(*(touched_domains(place, mask) for place, mask in spots)))
    names = set()
    for place, _ in spots:
        label = place.zone if scope == Scope.ZONE else place.rack if scope == Scope.RACK else place.name
        names.add((label, "" if label else place.name))
    return len(names)
