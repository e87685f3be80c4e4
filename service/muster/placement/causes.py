"""Why nothing fits: the smallest set of typed causes that this finds, and what was checked to help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from muster.domain.decision import Unplaceable
from muster.domain.node import Resources
from muster.domain.reasons import (
    Cause,
    DomainTooSmall,
    MemberTooLarge,
    NodesExcluded,
    NotDecided,
    NotEnoughFree,
)
from muster.domain.request import Role, Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.candidates import Candidates
from muster.placement.limits import Budget, Limits, member_room
from muster.placement.relaxations import more_free_gpus
from muster.placement.search import most
from muster.placement.site import Site

WIDER = (Scope.GPU.value, Scope.NVLINK_DOMAIN.value, Scope.NODE.value, Scope.RACK.value, Scope.ZONE.value)
"""Scopes that are tried instead of the required one, from it on; then none."""


def explained(site: Site, snapshot: Snapshot, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """The causes that forbid the gang, each checked on its own; called only when no plan was found."""
    gang = site.request.gang
    alone = [cause for role in site.roles if role.members for cause in _of_role(site, role, snapshot)]
    if alone:
        return Unplaceable(gang, tuple(alone), _relaxations(site, budget))
    if not proven:
        return Unplaceable(gang, (NotDecided(budget.truncated),))
    need, wanted = tuple(len(role.members) for role in site.roles), _wanted(site)
    spare = Budget(limits)  # the explanation has as much time as the search had
    scope = site.request.required_scope
    anywhere, _, sure = most(site, (), need, spare)
    if sum(anywhere) < wanted and sure:
        causes: tuple[Cause, ...] = (_together(site, snapshot, sum(anywhere), wanted),)
    elif scope is not None:
        counts, best, _ = most(site, (scope,), need, spare)
        linked = scope != Scope.NVLINK_DOMAIN or not best or _has_nvlink(site, best)
        causes = (DomainTooSmall(scope, best, sum(counts), wanted, linked), *_refusing(site, scope, spare))
    else:
        causes = (NotDecided(budget.truncated),)
    return Unplaceable(gang, causes, _relaxations(site, spare))


def _wanted(site: Site) -> int:
    return min(site.request.min_member, site.request.size)


def _wanted_of(site: Site, role: Role) -> int:
    """Members of this role that must fit, whatever the others do."""
    return max(0, len(role.members) - (site.request.size - _wanted(site)))


def _of_role(site: Site, role: Role, snapshot: Snapshot) -> list[Cause]:
    """Causes that forbid this role alone, even without a scope."""
    found, wanted = site.admitted[role.name], _wanted_of(site, role)
    if not wanted:
        return []
    states = [snapshot.nodes[name] for name in found.admitted]
    fit = sum(min(wanted, _room(role, state)) for state in states)
    if fit >= wanted:
        return []
    if not states:
        by_count = sorted(found.refused.items(), key=lambda item: (-len(item[1]), item[0]))
        if not by_count:
            return [
                NotEnoughFree(
                    role.name, _named(role, "gpu" if role.gpus else "cpu"), 0, _ask(role, wanted), 0, wanted
                )
            ]
        return [NodesExcluded(role.name, by, len(names)) for by, names in by_count[:4]]
    large = _too_large(role, states)
    if large is not None:
        return [large, *_excluded_with_room(role, found, snapshot, wanted - fit, empty=True)]
    short = min(("gpu", "cpu", "memory", "pods"), key=lambda what: _room_of(role, what, states, wanted))
    free = sum(max(0, _free(what=short, state=state)) for state in states)
    cause = NotEnoughFree(role.name, _named(role, short), free, _each(role, short) * wanted, fit, wanted)
    return [cause, *_excluded_with_room(role, found, snapshot, wanted - fit)]


def _excluded_with_room(
    role: Role, found: Candidates, snapshot: Snapshot, missing: int, empty: bool = False
) -> list[Cause]:
    """Refusals without which the role would fit: each dropped alone. `empty`: on whole nodes."""
    causes: list[Cause] = []
    for by, names in found.refused.items():
        rooms = [_room(role, _emptied(snapshot.nodes[n]) if empty else snapshot.nodes[n]) for n in names]
        if not by.startswith("no ") and sum(rooms) >= missing:
            causes.append(NodesExcluded(role.name, by, sum(room > 0 for room in rooms)))
    return causes


def _refusing(site: Site, scope: str, budget: Budget) -> list[Cause]:
    """Refusals without which one part of the scope would hold the gang."""
    causes: list[Cause] = []
    need = tuple(len(role.members) for role in site.roles)
    for r, role in enumerate(site.roles):
        for by, names in list(site.admitted[role.name].refused.items())[:8]:
            if by.startswith("no "):
                continue
            admits = (*site.admits[:r], site.admits[r] | set(names), *site.admits[r + 1 :])
            counts, _, _ = most(replace(site, admits=admits, mixes={}), (scope,), need, budget)
            if sum(counts) >= _wanted(site):
                room = sum(_room(role, site.places[name].state) > 0 for name in names)
                causes.append(NodesExcluded(role.name, by, room))
    return causes


def _too_large(role: Role, states: list[NodeState]) -> Cause | None:
    """Whether one member exceeds every node that admits it, even empty."""
    if any(_room(role, _emptied(state)) for state in states):
        return None
    best = max(states, key=lambda s: (s.node.topology.gpu_count, s.node.allocatable.cpu_milli))
    for what in ("gpu", "cpu", "memory", "pods"):
        largest = max(states, key=lambda s: (_free(what, _emptied(s)), [-ord(c) for c in s.node.name]))
        if _each(role, what) > _free(what, _emptied(largest)):
            return _member_too_large(role, what, largest)
    what = next(w for w in ("cpu", "memory", "pods", "gpu") if _each(role, w) > _free(w, _emptied(best)))
    return _member_too_large(role, what, best)


def _member_too_large(role: Role, what: str, state: NodeState) -> MemberTooLarge:
    largest = _free(what, _emptied(state))
    return MemberTooLarge(role.name, _named(role, what), _each(role, what), state.node.name, largest)


def _together(site: Site, snapshot: Snapshot, fit: int, wanted: int) -> NotEnoughFree:
    """Each role fits alone, but not all at once."""
    names = set().union(*site.admits)
    states = [snapshot.nodes[name] for name in sorted(names)]

    def shortage(what: str) -> float:
        asked = sum(_each(role, what) * len(role.members) for role in site.roles)
        return sum(max(0, _free(what, state)) for state in states) / asked if asked else float("inf")

    short = min(("gpu", "cpu", "memory", "pods"), key=shortage)
    role = max(site.roles, key=lambda role: _each(role, short))
    return NotEnoughFree(
        ", ".join(role.name for role in site.roles if role.members),
        _named(role, short),
        sum(max(0, _free(short, state)) for state in states),
        sum(_each(role, short) * len(role.members) for role in site.roles),
        fit,
        wanted,
    )


def _relaxations(site: Site, budget: Budget) -> tuple[str, ...]:
    """Sentences about what would help, each tried."""
    found: list[str] = []
    need, wanted = tuple(len(role.members) for role in site.roles), _wanted(site)
    scope = site.request.required_scope
    if scope is not None:
        wider = WIDER[WIDER.index(scope) + 1 :] if scope in WIDER else ()
        for other in wider:
            if sum(most(site, (other,), need, budget)[0]) >= wanted:
                found.append(f"scope {other} instead of {scope}")
                break
        else:
            if sum(most(site, (), need, budget)[0]) >= wanted:
                found.append(f"no required scope instead of {scope}")
    roles = [role for role in site.roles if role.members]
    if len(roles) == 1:
        sentence = more_free_gpus(site, site.roles.index(roles[0]), wanted)
        if sentence:
            found.append(sentence)
    return tuple(found)


def _has_nvlink(site: Site, best: str) -> bool:
    """Whether the best part is more than a GPU without NVLink."""
    for place in site.places.values():
        for name, mask in place.domains:
            if name == best:
                return mask.bit_count() > 1 or bool(place.wide)
    return any(place.shape.topology.has_fabric or place.wide for place in site.places.values())


def _room(role: Role, state: NodeState) -> int:
    room = member_room(role.resources, state.free)
    return min(room, state.free_gpu_count // role.gpus) if role.gpus else room


def _room_of(role: Role, what: str, states: list[NodeState], wanted: int) -> int:
    """Members that fit as far as this one resource goes."""
    each = _each(role, what)
    return sum(min(wanted, max(0, _free(what, state)) // each) for state in states) if each else wanted + 1


def _emptied(state: NodeState) -> NodeState:
    return NodeState.of(state.node, ())


def _each(role: Role, what: str) -> int:
    return _amounts(role.resources, role.gpus)[what]


def _ask(role: Role, members: int) -> int:
    return _each(role, "gpu" if role.gpus else "cpu") * members


def _free(what: str, state: NodeState) -> int:
    return _amounts(state.free, state.free_gpu_count)[what]


def _amounts(resources: Resources, gpus: int) -> Mapping[str, int]:
    """cpu in thousandths of a core, memory in bytes."""
    return {
        "gpu": gpus,
        "cpu": resources.cpu_milli,
        "memory": resources.memory_bytes,
        "pods": resources.pods,
    }


def _named(role: Role, what: str) -> str:
    return role.gpu_resource if what == "gpu" else what
