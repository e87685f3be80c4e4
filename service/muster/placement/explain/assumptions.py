"""List what a gang assumes about the cluster. Each assumption can be dropped, and the gang be tried again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from muster.domain.node import Taint
from muster.domain.request import Request, Role
from muster.placement.cluster.candidates import (
    UNSCHEDULABLE,
    affinity_text,
    holding,
    profile_refusal,
    selector_text,
)
from muster.placement.cluster.columns import Bools, Columns, Ints
from muster.placement.cluster.profile import Profile
from muster.placement.exclusions import of_role
from muster.placement.explain.counterfactual import GPU, amount_of, emptied, partly, resources_of
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import Instance, instance_with, room_of

NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that the cluster sets on a node that is not ready."""


class Kind(Enum):
    """Kinds of assumptions besides constraints. The value says what holds until it is dropped."""

    ROLE = "the members of a role are needed"
    REFUSED = "nodes refuse a role for one reason"
    TAKEN = "other pods keep what they have of one resource"
    RUNNING = "members that run already count for scopes"
    SCOPE = "the gang lies in one part of a scope"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption. `what` is the reason of a refusal, the resource that is taken, or the constraint
    (`asked`).
    """

    kind: Kind | Constraint
    role: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A cluster and a request, with some assumptions dropped. `admitted` maps a role to [row] bool."""

    view: Columns
    request: Request
    admitted: Mapping[str, Bools]
    room: Mapping[str, Ints]
    """Role → [row] int64: how many of its members the node has room for, whether it admits them or not."""
    bare: Instance
    """An instance without rules: what all instances without rules have in common."""

    @property
    def instance(self) -> Instance:
        """The world as the planner sees it."""
        request = self.request
        if binds_members(request):
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
    def target(self) -> int:
        """How many members must fit."""
        return min(self.request.min_member, self.request.size)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The required scope, as a tuple of none or one."""
        return (self.request.required_scope,) if self.request.required_scope else ()

    def within(self, scope: str | None) -> World:
        """Return the world with another required scope, or none."""
        return replace(self, request=replace(self.request, required_scope=scope))


def binds_members(request: Request) -> bool:
    """Return whether members are bound to each other or to existing members by more than the gang's scope."""
    return bool(request.running) or any(constraints_of(request))


def _without_role(request: Request, assumption: Assumption) -> Request:
    """Return the request without the members of a role.

    As many fewer members must fit. Constraints that need this role's members are dropped too, so that fewer
    roles never forbid more.
    """
    gone = sum(len(role.members) for role in request.roles if role.name == assumption.role)
    roles = tuple(
        replace(role, members=()) if role.name == assumption.role else role for role in request.roles
    )
    request = replace(request, roles=roles, min_member=max(0, request.min_member - gone))
    rules = (rule for rule in request.constraints if not rule.counts_on(assumption.role))
    limits = (limit for limit in request.per_scope if not limit.counts_on(assumption.role))
    return replace(request, constraints=tuple(rules), per_scope=tuple(limits))


def _without_running(request: Request) -> Request:
    """Return the request without its existing members, and without the limits that they help to keep."""
    roles = {running.role for running in request.running}
    limits = (limit for limit in request.per_scope if not any(map(limit.counts_on, roles)))
    return replace(request, running=(), per_scope=tuple(limits))


def _without(request: Request, assumption: Assumption) -> Request:
    """Return the request without one of its own assumptions. Other assumptions are about the cluster."""
    match assumption.kind:
        case Kind.ROLE:
            return _without_role(request, assumption)
        case Kind.RUNNING:
            return _without_running(request)
        case Kind.SCOPE:
            return replace(request, required_scope=None)
        case Constraint() as constraint:
            return constraint.without(request, assumption.role, assumption.what)
    return request


class Assumptions:
    """All assumptions of a request about a cluster."""

    def __init__(self, instance: Instance, excluded: Mapping[tuple[str, str], str]) -> None:
        view, request = instance.columns, instance.request
        self._site, self.view, self._excluded = instance, view, excluded
        self.request = replace(request, min_member=min(request.min_member, request.size))
        self.roles: tuple[Role, ...] = tuple(role for role in request.roles if role.members)
        self.refused = {role.name: refusals_of(view, role, excluded) for role in self.roles}
        self._views: dict[frozenset[str], tuple[Columns, Mapping[str, Ints]]] = {}
        self._worlds: dict[frozenset[Assumption], World] = {}

    def excluding(self, pairs: Mapping[tuple[str, str], str]) -> Assumptions:
        """Return the assumptions, and that these pairs of role and node do not go together, for a reason."""
        return Assumptions(self._site, {**self._excluded, **pairs})

    @cached_property
    def all(self) -> frozenset[Assumption]:
        """All assumptions."""
        return frozenset((*self.of_roles, *(assumption for group in self.groups for assumption in group)))

    @cached_property
    def of_roles(self) -> tuple[Assumption, ...]:
        """The assumptions that the members of each role are needed."""
        return tuple(Assumption(Kind.ROLE, role.name) for role in self.roles)

    @cached_property
    def groups(self) -> tuple[tuple[Assumption, ...], ...]:
        """All other assumptions, in the order in which they are dropped.

        Refusals are dropped first, then what other pods take, then the gang's own rules. So if there are
        several explanations, the report has the explanation that waiting does not mend. Refusals of few
        nodes are dropped before refusals of many nodes.
        """
        refusals = sorted(
            (int(rows.sum()), role, reason)
            for role, by_reason in self.refused.items()
            for reason, rows in by_reason.items()
            if reason not in self._not_offered
        )
        # Where it is unknown which GPUs are taken, members without GPUs have no domain inside a node either.
        always = {GPU} if self.view.unindexed.any() else set[str]()
        taken_by_others = tuple(
            Assumption(Kind.TAKEN, what=resource)
            for resource in reversed(resources_of(self.roles))
            if resource in always or any(amount_of(role, resource) for role in self.roles)
        )
        refused = tuple(Assumption(Kind.REFUSED, role, reason) for _, role, reason in refusals)
        return (refused, taken_by_others, *((rule,) for rule in self._rules))

    @cached_property
    def _rules(self) -> tuple[Assumption, ...]:
        """The assumptions of the gang's own rules."""
        request = replace(self.request, roles=self.roles)
        rules = [Assumption(Kind.RUNNING)] if request.running else []
        for constraint in reversed(CONSTRAINTS):
            rules += [Assumption(constraint, role, what) for role, what in constraint.asked(request)]
        return (*rules, *([Assumption(Kind.SCOPE)] if request.required_scope else []))

    @cached_property
    def _not_offered(self) -> set[str]:
        return {resource_missing(role) for role in self.roles}

    def world(self, assumptions: Collection[Assumption]) -> World:
        """Return the cluster and the request with only these assumptions.

        Equal calls return the same object.
        """
        key = frozenset(assumptions)
        if key not in self._worlds:
            request = self.request
            for assumption in (*self.of_roles, *self._rules):
                if assumption not in key:
                    request = _without(request, assumption)
            resources = resources_of(self.roles)
            free = frozenset(what for what in resources if Assumption(Kind.TAKEN, what=what) not in key)
            view, room = self._free(free)
            self._worlds[key] = World(view, request, self._admitted(key), room, self._bare)
        return self._worlds[key]

    @cached_property
    def _bare(self) -> Instance:
        """An instance without rules."""
        if not binds_members(self.request):
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
        """Return the cluster with these resources free, and the room there."""
        if resources not in self._views:
            view = partly(self.view, self._empty, resources) if resources else self.view
            self._views[resources] = view, {role.name: room_of(view, role) for role in self.request.roles}
        return self._views[resources]

    def _admitted(self, assumptions: Collection[Assumption]) -> dict[str, Bools]:
        admitted = {}
        for role in self.request.roles:
            rows = np.ones(len(self.view.names), np.bool_)
            for reason, refusing in self.refused.get(role.name, {}).items():
                if reason in self._not_offered or Assumption(Kind.REFUSED, role.name, reason) in assumptions:
                    rows &= ~refusing
            admitted[role.name] = rows
        return admitted


def resource_missing(role: Role) -> str:
    """Return the reason that cannot be dropped: nodes do not offer what the role asks for."""
    return f"no {role.slice.resource if role.slice else role.gpu_resource}"


def refusals_of(view: Columns, role: Role, excluded: Mapping[tuple[str, str], str]) -> dict[str, Bools]:
    """Return reason → [row] bool: the nodes that refuse the role for this reason, also if others hold too.

    The reasons have the words of `candidates`.
    """
    refusals: dict[str, Bools] = {}

    def add(reason: str, rows: Bools) -> None:
        if rows.any():
            refusals[reason] = refusals[reason] | rows if reason in refusals else rows

    by_profile = [_reasons(profile, role) for profile in view.profiles]
    for reason in sorted(set[str]().union(*by_profile)):
        add(reason, np.array([reason in reasons for reasons in by_profile], np.bool_)[view.profile])
    for term in role.rules.required:
        add(selector_text(term), ~holding(view, term))
    if role.rules.any_of:
        holds = np.zeros(len(view.names), np.bool_)
        for terms in filter(None, role.rules.any_of):
            holds |= np.logical_and.reduce([holding(view, term) for term in terms])
        add(affinity_text(role.rules.any_of), ~holds)
    by_plugin: dict[str, list[int]] = {}
    for node, plugin in of_role(excluded, role.name).items():
        if plugin and node in view.row:
            by_plugin.setdefault(plugin, []).append(view.row[node])
    for plugin, rows in sorted(by_plugin.items()):
        add(plugin, np.isin(np.arange(len(view.names)), rows))
    return refusals


def _reasons(profile: Profile, role: Role) -> set[str]:
    """Return what refuses a role on nodes of this profile.

    Each fact of the profile is tested on a node without other faults.
    """
    resources = frozenset({role.slice.resource} if role.slice else ())
    good = Profile(frozenset({role.gpu_resource}), True, False, (), True, resources)
    profiles = [
        good._replace(gpu_memory=profile.gpu_memory, memory_resources=profile.memory_resources),
        good._replace(gpu_resources=profile.gpu_resources),
        good._replace(partitions=profile.partitions),
        good._replace(ready=profile.ready),
        good._replace(unschedulable=profile.unschedulable),
        *(good._replace(taints=(taint,)) for taint in profile.taints if not _repeats(profile, taint)),
    ]
    return {reason for fact in profiles if (reason := profile_refusal(fact, role)) is not None}


def _repeats(profile: Profile, taint: Taint) -> bool:
    """Return whether the taint only repeats a fact that is a reason by itself."""
    return (profile.unschedulable and taint.key == UNSCHEDULABLE.key) or (
        not profile.ready and taint.key in NOT_READY
    )
