"""A gang's unbound members as a Request: roles by equal requests, members in a fixed order.

Role names come from the claim (`role`); where it has none, or one name stands for several different
requests, a number is added: role-1, role-2, the most GPUs first. One role that nobody named has no name.
Equal members give equal requests, whatever order their pods were seen in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from muster.domain.pod import Pod
from muster.domain.request import Member, Request, Role
from muster.gangs.roster import Group

_NUMBERS = re.compile(r"([0-9]+)")


def request(group: Group) -> Request:
    """What is still to be placed of a complete group.

    Members that are bound already count: only the rest must fit. That it lies in the scope of the bound ones
    is not asked yet.
    """
    claims = [pod.claim for pod in group.unbound if pod.claim is not None]
    return Request(
        gang=group.gang,
        roles=tuple(_roles(group.unbound)),
        min_member=min(len(group.unbound), max(1, group.needed - len(group.bound))),
        required_scope=claims[0].required_scope,
        preferred_scopes=claims[0].preferred_scopes,
        priority=priority(group),
        created=created(group),
    )


def priority(group: Group) -> int:
    """The highest of its waiting members."""
    return max((pod.priority for pod in group.unbound), default=0)


def created(group: Group) -> float:
    """When its oldest present pod was created, in seconds since the epoch."""
    return min((pod.created for pod in (*group.bound, *group.unbound)), default=0.0)


def _roles(pods: Iterable[Pod]) -> list[Role]:
    alike: dict[tuple[str, int, str, str, str], list[Pod]] = {}
    for pod in pods:
        role = pod.claim.role if pod.claim is not None else None
        # Rules and resources by their repr: they need an order, and any fixed one will do.
        key = (role or "", -pod.gpus, pod.gpu_resource, repr(pod.resources), repr(pod.rules))
        alike.setdefault(key, []).append(pod)
    keys = sorted(alike)
    return [_role(name, alike[key]) for name, key in zip(_names([key[0] for key in keys]), keys, strict=True)]


def _names(said: list[str]) -> list[str]:
    """A name for each role: as said where that is unique, else with a number."""
    if len(said) == 1:
        return said
    names, seen = [], dict.fromkeys(said, 0)
    for name in said:
        seen[name] += 1
        names.append(name if name and said.count(name) == 1 else f"{name or 'role'}-{seen[name]}")
    return names


def _role(name: str, pods: list[Pod]) -> Role:
    first = pods[0]
    members = tuple(Member(pod.uid, pod.name, pod.rank) for pod in sorted(pods, key=_order))
    return Role(name, members, first.resources, first.gpus, first.gpu_resource, first.rules)


def _order(pod: Pod) -> tuple[object, ...]:
    """By rank, then by name with its numbers read as numbers."""
    parts = tuple((int(p), "") if p.isdigit() else (-1, p) for p in _NUMBERS.split(pod.name))
    return (pod.rank is None, pod.rank or 0, parts, pod.uid)
