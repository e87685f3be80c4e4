"""What a gang assumes of the cluster, as a list: each can be dropped alone, and the gang be tried again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from muster.domain.request import Request, Role
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.explain.counterfactual import amount_of, emptied, partly, resources_of
from muster.placement.explain.refusals import refused_by, resource_missing
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import Instance, instance_with, room_of


class Kind(Enum):
    """What is assumed besides constraints, and what it is to drop it."""

    ROLE = "the members of a role are needed"
    REFUSED = "nodes refuse a role for one reason"
    TAKEN = "other pods keep what they have of one resource"
    RUNNING = "members that run already count for scopes"
    SCOPE = "the gang lies in one part of a scope"


@dataclass(frozen=True, slots=True)
class Assumption:
    """`what`: the reason of a refusal, the resource that is taken, or which constraint is meant (`asked`)."""

    kind: Kind | Constraint
    role: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A cluster and a request, not all of it real. `admitted`: role → the nodes [row] that admit it."""

    view: Columns
    request: Request
    admitted: Mapping[str, Bools]
    room: Mapping[str, Ints]
    """Role → how many members of it each node [row] has room for, whether it admits them or not."""
    bare: Instance
    """What all instances have in common that no rule binds."""

    @property
    def instance(self) -> Instance:
        """As the planner sees it."""
        request = self.request
        if bound(request):
            return instance_with(self.view, request, self.admitted)
        admits = np.stack([self.admitted[role.name] for role in request.roles])
        room = np.where(admits, np.stack([self.room[role.name] for role in request.roles]), 0)
        return replace(
            self.bare,
            columns=self.view,
            request=request,
            roles=request.roles,
            admits=admits,
            room=room,
            admitted=self.admitted,
        )

    @property
    def wanted(self) -> int:
        """Members that must fit."""
        return min(self.request.min_member, self.request.size)

    @property
    def scopes(self) -> tuple[str, ...]:
        return (self.request.required_scope,) if self.request.required_scope else ()

    def within(self, scope: str | None) -> World:
        """The same with another required scope, or none."""
        return replace(self, request=replace(self.request, required_scope=scope))


def bound(request: Request) -> bool:
    """Whether more than the scope of the gang binds its members to each other or to running ones."""
    return bool(request.running) or any(constraints_of(request))


def _without_role(request: Request, dropped: Assumption) -> Request:
    """The others are needed as far as they are when this role has all its members. Constraints for which they
    need its members go with it, so that fewer roles never forbid more."""
    gone = sum(len(role.members) for role in request.roles if role.name == dropped.role)
    roles = tuple(replace(role, members=()) if role.name == dropped.role else role for role in request.roles)
    request = replace(request, roles=roles, min_member=max(0, request.min_member - gone))
    rules = (rule for rule in request.constraints if not rule.counts_on(dropped.role))
    limits = (limit for limit in request.per_scope if not limit.counts_on(dropped.role))
    return replace(request, constraints=tuple(rules), per_scope=tuple(limits))


def _without(request: Request, dropped: Assumption) -> Request:
    """The request without one of its own assumptions; the others lie in the cluster."""
    match dropped.kind:
        case Kind.ROLE:
            return _without_role(request, dropped)
        case Kind.RUNNING:
            return replace(request, running=())
        case Kind.SCOPE:
            return replace(request, required_scope=None)
        case Constraint() as constraint:
            return constraint.without(request, dropped.role, dropped.what)
    return request


class Assumptions:
    """All that a request assumes of a cluster."""

    def __init__(self, instance: Instance, excluded: Mapping[tuple[str, str], str]) -> None:
        view, request = instance.columns, instance.request
        self._site, self.view = instance, view
        self.request = replace(request, min_member=min(request.min_member, request.size))
        self.roles: tuple[Role, ...] = tuple(role for role in request.roles if role.members)
        self.refused = {role.name: refused_by(view, role, excluded) for role in self.roles}
        self._views: dict[frozenset[str], tuple[Columns, Mapping[str, Ints]]] = {}
        self._worlds: dict[frozenset[Assumption], World] = {}

    @property
    def all(self) -> frozenset[Assumption]:
        """All assumptions."""
        return frozenset((*self.needed, *(each for group in self.groups for each in group)))

    @property
    def needed(self) -> tuple[Assumption, ...]:
        """That the members of each role are needed."""
        return tuple(Assumption(Kind.ROLE, role.name) for role in self.roles)

    @property
    def groups(self) -> tuple[tuple[Assumption, ...], ...]:
        """All others, the first to be left out first.

        Refusals come before what is taken, and that before the gang's own rules: of several explanations the
        one is told that no waiting mends. Of refusals those of many nodes stay rather than those of few.
        """
        refusals = [
            (int(rows.sum()), Assumption(Kind.REFUSED, role, by))
            for role, reasons in self.refused.items()
            for by, rows in reasons.items()
            if by not in self._missing
        ]
        refusals.sort(key=lambda one: (one[0], one[1].role, one[1].what))
        taken = tuple(
            Assumption(Kind.TAKEN, what=resource)
            for resource in reversed(resources_of(self.roles))
            if any(amount_of(role, resource) for role in self.roles)
        )
        return (tuple(each for _, each in refusals), taken, *((rule,) for rule in self._rules()))

    def _rules(self) -> list[Assumption]:
        request = replace(self.request, roles=self.roles)
        found = [Assumption(Kind.RUNNING)] if request.running else []
        for constraint in reversed(CONSTRAINTS):
            found += [Assumption(constraint, role, what) for role, what in constraint.asked(request)]
        return found + ([Assumption(Kind.SCOPE)] if request.required_scope else [])

    @property
    def _missing(self) -> set[str]:
        return {resource_missing(role) for role in self.roles}

    def world(self, kept: Collection[Assumption]) -> World:
        """The cluster and the request with these assumptions alone; the same one when asked again."""
        kept = frozenset(kept)
        if kept not in self._worlds:
            request = self.request
            for each in (*self.needed, *self._rules()):
                if each not in kept:
                    request = _without(request, each)
            resources = resources_of(self.roles)
            free = frozenset(what for what in resources if Assumption(Kind.TAKEN, what=what) not in kept)
            view, room = self._free(free)
            self._worlds[kept] = World(view, request, self._admitted(kept), room, self._bare)
        return self._worlds[kept]

    @cached_property
    def _bare(self) -> Instance:
        """A instance that no rule binds."""
        if not bound(self.request):
            return self._site
        request = replace(self.request, running=())
        for constraint, role, what in constraints_of(request):
            request = constraint.without(request, role, what)
        roles = tuple(replace(role, members=()) for role in request.roles)
        request = replace(request, roles=roles)
        everywhere = np.ones(len(self.view.names), np.bool_)
        return instance_with(self.view, request, {role.name: everywhere for role in roles})

    @cached_property
    def _empty(self) -> Columns:
        return emptied(self.view, self.request)

    def _free(self, resources: frozenset[str]) -> tuple[Columns, Mapping[str, Ints]]:
        """The cluster with these resources free, and the room there."""
        if resources not in self._views:
            view = partly(self.view, self._empty, resources) if resources else self.view
            self._views[resources] = view, {role.name: room_of(view, role) for role in self.request.roles}
        return self._views[resources]

    def _admitted(self, kept: Collection[Assumption]) -> dict[str, Bools]:
        admitted = {}
        for role in self.request.roles:
            rows = np.ones(len(self.view.names), np.bool_)
            for by, refused in self.refused.get(role.name, {}).items():
                if by in self._missing or Assumption(Kind.REFUSED, role.name, by) in kept:
                    rows &= ~refused
            admitted[role.name] = rows
        return admitted
