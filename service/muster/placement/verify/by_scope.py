"""Check what binds members to each other: scopes of roles and subgroups, segments, most members in a part.

Which preferred scopes of roles hold is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.domain.constraints import MaxPer
from muster.domain.decision import Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.verify import spots
from muster.placement.verify.fabric import Fabric
from muster.placement.verify.members import in_rank_order
from muster.placement.verify.spots import Spot, Spots


def by_scope(
    fabric: Fabric, snapshot: Snapshot, request: Request, placed: Placed, old: Spots
) -> Iterator[str]:
    """Yield a sentence for each such constraint that the plan breaks. Existing members (`old`) count."""
    bound = any(role.segments or role.required_scope for role in request.roles)
    if bound or request.per_scope or request.subgroups or request.role_preferences:
        new = spots.placed(snapshot, placed.members)
        yield from _role_scopes(fabric, request, new, old)
        yield from _subgroups(fabric, request, new, old)
        yield from _role_preferences(fabric, request, placed, (*new.values(), *old.values()))
        yield from _segments(fabric, request, new, old)
        yield from _max_per(fabric, request, new, old)


def _role_scopes(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    wrong = []
    for role in request.roles:
        if role.required_scope is None or not any(spot.role == role.name for spot in new.values()):
            continue
        members = [spot for spot in (*new.values(), *old.values()) if spot.role == role.name]
        if not fabric.common(members, role.required_scope):
            wrong.append(f"no one {role.required_scope} holds all members of role {role.name}")
    return wrong


def _subgroups(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    wrong = []
    for group in request.subgroups:
        members = [spot for spot in (*new.values(), *old.values()) if spot.role in group.roles]
        placed = any(spot.role in group.roles for spot in new.values())
        if placed and not fabric.common(members, group.scope):
            wrong.append(f"{group.name}: no one {group.scope} holds all its members")
    return wrong


def _role_preferences(
    fabric: Fabric, request: Request, placed: Placed, members: Sequence[Spot]
) -> Iterator[str]:
    held = []
    for preference in request.role_preferences:
        mine = [spot for spot in members if spot.role in preference.roles]
        scopes = (scope for scope in preference.scopes if fabric.common(mine, scope))
        held.append((preference.name, next(scopes, None)))
    stated = list(placed.objective.role_preferences)
    if stated != held:
        yield f"the preferred scopes that hold roles are {held}, not {stated}"


def _segments(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    """Return the segments that do not lie in one part.

    A member that is left out of the plan keeps its position by rank, and lies nowhere.
    """
    wrong = []
    for role in request.roles:
        if not role.segments:
            continue
        stay = [r.member for r in request.running if r.role == role.name and r.member.uid in old]
        order = [member.uid for member in in_rank_order([*role.members, *stay])]
        for segment in role.segments:
            for start in range(0, len(order), segment.size):
                uids = order[start : start + segment.size]
                placed = [new[uid] for uid in uids if uid in new]
                there = [*placed, *(old[uid] for uid in uids if uid in old)]
                if placed and not fabric.common(there, segment.scope):
                    last = start + len(uids) - 1
                    wrong.append(
                        f"no one {segment.scope} holds members {start} to {last} by rank of role {role.name}"
                    )
    return wrong


def _max_per(fabric: Fabric, request: Request, new: Spots, old: Spots) -> list[str]:
    wrong = []
    for rule in request.per_scope:
        if not isinstance(rule, MaxPer) or rule.scope == "gpu":
            continue  # a GPU never holds two members that take it whole
        mine, others = (fabric.count(each.values(), rule.scope) for each in (new, old))
        wrong += [
            f"{count + others[part]} members lie in {rule.scope} {''.join(part)}, at most {rule.members} may"
            for part, count in sorted(mine.items())
            if count + others[part] > rule.members
        ]
    return wrong
