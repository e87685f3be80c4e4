"""A plan bent, not broken: where one member could go instead while the rest stays in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.candidates import refusal
from muster.placement.evaluate import objective
from muster.placement.fabric import Place, natural, place_of, places
from muster.placement.gpusets import best_sets, value_of
from muster.placement.limits import member_room
from muster.placement.verify import verify

NONE: Mapping[tuple[str, str], str] = MappingProxyType({})
"""No pair is excluded."""


def alternates(
    snapshot: Snapshot,
    request: Request,
    placed: Placed,
    limit: int = 8,
    *,
    excluded: Mapping[tuple[str, str], str] = NONE,
) -> tuple[tuple[str, ...], ...]:
    """For each member, in the plan's order, the nodes where it may go: the planned one first, then those of
    the same part of the required scope that have room for it beside the rest of the plan, `limit` in all.

    Nearest first: same rack, same zone, then the least room. `snapshot` is the cluster without this gang.
    `excluded` are (role, node) pairs that a plugin refused, as in Limits.
    """
    after = snapshot.taking(usage for usage in _usages(request, placed))
    roles = {role.name: role for role in request.roles}
    allowed = _same_part(snapshot, request, placed)
    open_to = {
        name: [
            place
            for place in allowed
            if (name, place.name) not in excluded
            and refusal(place.state.node, role) is None
            and _fits(after, place.name, role)
        ]
        for name, role in roles.items()
    }
    memo: dict[tuple[str, str], tuple[str, ...]] = {}
    for member in placed.members:
        key = (member.role, member.node)
        if key not in memo:
            home = place_of(snapshot.nodes[member.node])
            ordered = sorted(
                (place for place in open_to[member.role] if place.name != member.node),
                key=lambda place, home=home: _distance(after, home, place),  # type: ignore[misc]
            )
            memo[key] = (member.node, *(place.name for place in ordered[: limit - 1]))
    return tuple(memo[member.role, member.node] for member in placed.members)


def move(
    snapshot: Snapshot,
    request: Request,
    placed: Placed,
    uid: str,
    node: str,
    *,
    excluded: Mapping[tuple[str, str], str] = NONE,
) -> Placed | None:
    """The plan with this one member on `node`, on the best GPUs there beside the gang's others; None where
    that breaks a rule. What comes back is verified, and no longer proven optimal.

    `snapshot` is the cluster without this gang.
    """
    member = next((m for m in placed.members if m.uid == uid), None)
    if member is None or node not in snapshot.nodes:
        return None
    if member.node == node:
        return placed
    role = next(role for role in request.roles if role.name == member.role)
    rest = tuple(m for m in placed.members if m.uid != uid)
    after = snapshot.taking(_usage(request, m) for m in rest)
    if (
        (role.name, node) in excluded
        or refusal(snapshot.nodes[node].node, role)
        or not _fits(after, node, role)
    ):
        return None
    place = place_of(snapshot.nodes[node])
    free = after.nodes[node].free_gpus
    allowed = place.all_gpus
    if request.required_scope is not None:
        allowed = _inside(place, request.required_scope, snapshot, rest)
    there = mask_of([gpu for m in rest if m.node == node for gpu in m.gpus])
    chosen = _best_beside(place, free, allowed, there, role.gpus)
    if chosen is None:
        return None
    moved = replace(member, node=node, gpus=tuple(bits(chosen)))
    members = tuple(moved if m.uid == uid else m for m in placed.members)
    value, scope, part = objective(request, members, places(snapshot))
    plan = replace(
        placed, members=members, objective=value, scope_reached=scope, domain=part, optimal=False, gap=None
    )
    return None if verify(snapshot, request, plan) else plan


def _best_beside(place: Place, free: int, allowed: int, there: int, size: int) -> int | None:
    """The GPUs, free and allowed, that make the gang's union on the node best; `there` it has already."""
    if not there:
        sets = best_sets(place.shape, free, size, allowed)
        return sets[0].mask if sets else None

    def worth(extra: int) -> tuple[int, int, int, int, int]:
        value = value_of(place.shape, free | there, there | extra)
        return (-value.domains, value.weakest, value.ring, -value.damage, -extra)

    choices = (
        mask_of(chosen) for chosen in combinations(bits(free & allowed), size)
    )  # some thousands at most
    return max(choices, key=worth, default=None)


def _inside(place: Place, scope: str, snapshot: Snapshot, rest: tuple[MemberPlacement, ...]) -> int:
    """The GPUs of the node in a part of the scope that holds the rest of the gang."""
    common: set[str] | None = None
    for member in rest:
        parts = place_of(snapshot.nodes[member.node]).parts(scope)
        inside = {name for name, mask in parts if mask_of(member.gpus) & ~mask == 0}
        common = inside if common is None else common & inside
    reach = 0
    for name, mask in place.parts(scope):
        if common is None or name in common:
            reach |= mask
    return reach


def _same_part(snapshot: Snapshot, request: Request, placed: Placed) -> list[Place]:
    """Nodes that lie, in whole or in part, in a part of the required scope that holds the plan."""
    every = list(places(snapshot).values())
    scope = request.required_scope
    if scope is None:
        return every
    common: set[str] | None = None
    by_name = {place.name: place for place in every}
    for member in placed.members:
        mask = mask_of(member.gpus)
        inside = {name for name, gpus in by_name[member.node].parts(scope) if mask & ~gpus == 0}
        common = inside if common is None else common & inside
    return [place for place in every if any(name in (common or ()) for name, _ in place.parts(scope))]


def _fits(after: Snapshot, node: str, role: Role) -> bool:
    state = after.nodes[node]
    return member_room(role.resources, state.free) > 0 and state.free_gpu_count >= role.gpus


def _distance(after: Snapshot, home: Place, place: Place) -> tuple[object, ...]:
    return (
        not place.rack or place.rack != home.rack,
        not place.zone or place.zone != home.zone,
        after.nodes[place.name].free_gpu_count,
        natural(place.name),
    )


def _usages(request: Request, placed: Placed) -> list[Usage]:
    return [_usage(request, member) for member in placed.members]


def _usage(request: Request, member: MemberPlacement) -> Usage:
    resources = next(role.resources for role in request.roles if role.name == member.role)
    return Usage(member.uid, member.node, resources, gpus=mask_of(member.gpus))
