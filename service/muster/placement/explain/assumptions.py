"""List the assumptions under which a gang does not fit. Each assumption can be dropped, and the gang tried
again.

To drop the assumption that other pods keep a resource, nodes are shown as if these pods used none of the
resource. The gang's running members stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import overload

import numpy as np

from muster.domain.node import Taint, Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.candidates import (
    UNSCHEDULABLE,
    Excluded,
    affinity_text,
    meets_affinity,
    nodes_satisfying,
    profile_refusal,
    selector_text,
)
from muster.placement.cluster.columns import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    Bools,
    Columns,
    Ints,
    Profile,
    free_amounts,
    memory_of,
    values_in,
)
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.topology import Codes, place_of
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import Instance, amounts_of, instance_with, room_of

RESOURCES = (GPU, GPU_MEMORY, CPU, MEMORY, PODS)
"""The resources that each cluster has. Further resources have their own names, as in `Resources.others`."""


def resources_of(roles: Iterable[Role]) -> tuple[str, ...]:
    """Return `RESOURCES`, then the other resources that these roles ask for, by name."""
    return (*RESOURCES, *sorted({name for role in roles for name, _ in role.resources.others}))


def free_of(columns: Columns, resource: str) -> Ints:
    """Return [row] int64: the free amount of a resource. GPU memory is summed over the node's GPUs."""
    return (
        np.asarray(columns.gpu_memory.sum(axis=0))
        if resource == GPU_MEMORY
        else columns.free_amount(resource)
    )


def largest_free_piece(columns: Columns, resource: str) -> Ints:
    """Return [row] int64: the largest free piece of a resource. Of GPU memory, a piece lies on one GPU."""
    return columns.gpu_memory.max(axis=0, initial=0) if resource == GPU_MEMORY else free_of(columns, resource)


def amount_of(role: Role, resource: str) -> int:
    """Return one member's request for a resource, in the units of `free_of`."""
    if resource == GPU_MEMORY:
        return role.slice.units * role.slice.gpus if role.slice else 0
    return amounts_of(role.resources, role.gpus).get(resource, 0)


def amount_taken(usage: Usage, resource: str) -> int:
    """Return the amount of a resource that a pod takes, in the units of `free_of`."""
    gpus = usage.gpus.bit_count() + usage.unindexed_gpus
    if resource == GPU_MEMORY:
        return gpus * usage.units
    return amounts_of(usage.resources, 0 if usage.units else gpus).get(resource, 0)


@dataclass(frozen=True, slots=True)
class EmptyStates(Sequence[NodeState]):
    """The nodes' states as if only running members had GPUs. Each state is made on request."""

    states: Sequence[NodeState]
    running: Mapping[int, Sequence[Usage]]

    @overload
    def __getitem__(self, row: int) -> NodeState: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[NodeState]: ...
    def __getitem__(self, row: int | slice) -> NodeState | Sequence[NodeState]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return NodeState.of(self.states[row].node, self.running.get(row, ()))

    def __iter__(self) -> Iterator[NodeState]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.states)


LINES = {GPU: slice(0, 3), CPU: slice(3, 4), MEMORY: slice(4, 5), PODS: slice(5, 6)}
"""The lines of `Columns.amounts` for each resource."""


def without_other_pods(columns: Columns, request: Request) -> Columns:
    """Return the cluster as if other pods took nothing. The gang's running members still take resources.

    Unhealthy GPUs stay unusable.
    """
    running = _usage_of_running(columns, request)
    states = EmptyStates(columns.states, running)
    free = columns.totals[: len(columns.amounts)].copy()
    gpu_memory = _total_gpu_memory(columns)
    for row in running:
        free[:, row] = free_amounts(states[row])
        gpu_memory[:, row] = memory_of(states[row], len(gpu_memory))
    shape, shapes, promised = _shapes_with_free_gpus(columns, states, free[2])
    return replace(
        columns,
        amounts=free,
        gpu_memory=gpu_memory,
        states=states,
        shape=shape,
        shapes=shapes,
        promised=promised,
        other_amounts={},
        _places={},
    )


def with_resources_of(columns: Columns, empty: Columns, resources: Collection[str]) -> Columns:
    """Return `columns` with the amounts of these resources as in `empty`."""
    free = columns.amounts.copy()
    for resource in LINES.keys() & set(resources):
        free[LINES[resource]] = empty.amounts[LINES[resource]]
    other_amounts = {
        name: (empty if name in resources else columns).free_amount(name) for name in columns.other_amounts
    }
    memory = (empty if GPU_MEMORY in resources else columns).gpu_memory
    return replace(
        empty if GPU in resources else columns, amounts=free, gpu_memory=memory, other_amounts=other_amounts
    )


def _total_gpu_memory(columns: Columns) -> Ints:
    """Return [gpu, row] the memory of each healthy GPU."""
    gpu_count = len(columns.gpu_memory)
    memory_by_shape = np.zeros((gpu_count, len(columns.shapes)), np.int64)
    for i, shape in enumerate(columns.shapes):
        memory_by_shape[: len(shape.memory), i] = shape.memory[:gpu_count]
    return values_in(memory_by_shape[:, columns.shape], columns.totals[0])


def _usage_of_running(columns: Columns, request: Request) -> Mapping[int, list[Usage]]:
    """Return the usage of running members, by row."""
    roles = {role.name: role for role in request.roles}
    usages: dict[int, list[Usage]] = {}
    for running in request.running:
        usage = running.usage
        if running.role in roles:
            role = roles[running.role]
            gpus, units = (role.slice.gpus, role.slice.units) if role.slice else (role.gpus, 0)
            unknown = 0 if running.gpus else gpus
            usage = Usage(running.member.uid, running.node, role.resources, running.gpus, unknown, units)
        if usage is not None and running.node in columns.row:
            usages.setdefault(columns.row[running.node], []).append(usage)
    return usages


def _shapes_with_free_gpus(
    columns: Columns, states: EmptyStates, unindexed: Ints
) -> tuple[Codes, tuple[Shape, ...], Bools]:
    """Return the shapes once GPUs with unknown indices are free: the codes by row, the shapes, and by row
    whether parts are promised. `unindexed` [row] counts the GPUs whose indices are still unknown.
    """
    rows = np.flatnonzero(columns.unindexed != unindexed)
    if not len(rows):
        return columns.shape, columns.shapes, columns.promised
    shape, promised = columns.shape.copy(), columns.promised.copy()
    code_by_shape = {node_shape: code for code, node_shape in enumerate(columns.shapes)}
    by_kind: dict[tuple[int, bool, int], tuple[int, bool]] = {}
    in_wide = columns.topology.in_wide
    for row in rows.tolist():
        kind = (id(columns.states[row].node.topology), bool(in_wide[row]), int(unindexed[row]))
        if kind not in by_kind:
            place = place_of(states[row])
            by_kind[kind] = (code_by_shape.setdefault(place.shape, len(code_by_shape)), place.promised)
        shape[row], promised[row] = by_kind[kind]
    return shape, tuple(code_by_shape), promised


NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that the cluster sets on a node that is not ready."""


class AssumptionKind(Enum):
    """The kinds of assumptions that are no constraints. The value is the assumption as a sentence."""

    ROLE = "the members of a role are needed"
    REFUSED = "nodes refuse a role for one reason"
    IN_USE = "other pods keep one resource"
    RUNNING = "members that run already count for scopes"
    SCOPE = "the gang lies in one part of a scope"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption. `subject` is the reason of a refusal, the resource that is taken, or the constraint
    (`keys_in`).
    """

    kind: AssumptionKind | Constraint
    role: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A cluster and a request, with some assumptions dropped. `admitted` is role → [row] bool."""

    columns: Columns
    request: Request
    admitted: Mapping[str, Bools]
    room: Mapping[str, Ints]
    """Role → [row] int64: how many members the node has room for, whether it admits the role or not."""
    bare: Instance
    """An instance without rules, from which the instances of worlds without rules are made."""

    @property
    def instance(self) -> Instance:
        """The world as the planner sees it."""
        request = self.request
        if binds_members(request):
            return instance_with(self.columns, request, self.admitted)
        admits = np.stack([self.admitted[role.name] for role in request.roles])
        room = np.where(admits, np.stack([self.room[role.name] for role in request.roles]), 0)
        return replace(
            self.bare,
            columns=self.columns,
            request=request,
            roles=request.roles,
            admits=admits,
            room=room,
            admits_without_rules=self.admitted,
        )

    @property
    def target(self) -> int:
        """The number of members that must fit."""
        return min(self.request.min_member, self.request.size)

    @property
    def admitting_rows(self) -> Bools:
        """[row] Whether the node admits members of any role."""
        rows: Bools = np.logical_or.reduce(
            [self.admitted[role.name] for role in self.request.roles if role.members]
        )
        return rows

    @property
    def scopes(self) -> tuple[str, ...]:
        """The required scope as a tuple; () without a required scope."""
        return (self.request.required_scope,) if self.request.required_scope else ()

    def with_scope(self, scope: str | None) -> World:
        """Return the world with another required scope; None for no required scope."""
        return replace(self, request=replace(self.request, required_scope=scope))


def binds_members(request: Request) -> bool:
    """Return whether members are bound to each other or to running members by more than the gang's scope."""
    return bool(request.running) or any(constraints_of(request))


def _drop_role(request: Request, assumption: Assumption) -> Request:
    """Return the request without the members of a role.

    `min_member` falls by the number of these members. Constraints that depend on this role are dropped too.
    So dropping a role can only make it easier to fit (monotone).
    """
    members_dropped = sum(len(role.members) for role in request.roles if role.name == assumption.role)
    roles = tuple(
        replace(role, members=()) if role.name == assumption.role else role for role in request.roles
    )
    request = replace(request, roles=roles, min_member=max(0, request.min_member - members_dropped))
    rules = (rule for rule in request.constraints if not rule.depends_on(assumption.role))
    limits = (limit for limit in request.per_scope if not limit.depends_on(assumption.role))
    return replace(request, constraints=tuple(rules), per_scope=tuple(limits))


def _drop_running(request: Request) -> Request:
    """Return the request without its running members, and without the limits that depend on them."""
    roles = {running.role for running in request.running}
    limits = (limit for limit in request.per_scope if not any(map(limit.depends_on, roles)))
    return replace(request, running=(), per_scope=tuple(limits))


def _drop(request: Request, assumption: Assumption) -> Request:
    """Return the request without this assumption; unchanged if the assumption is about the cluster."""
    match assumption.kind:
        case AssumptionKind.ROLE:
            return _drop_role(request, assumption)
        case AssumptionKind.RUNNING:
            return _drop_running(request)
        case AssumptionKind.SCOPE:
            return replace(request, required_scope=None)
        case Constraint() as constraint:
            return constraint.request_without(request, assumption.role, assumption.subject)
    return request


class Assumptions:
    """All assumptions about a request and a cluster."""

    def __init__(self, instance: Instance, excluded: Excluded) -> None:
        columns, request = instance.columns, instance.request
        self._instance, self.columns, self._excluded = instance, columns, excluded
        self.request = replace(request, min_member=min(request.min_member, request.size))
        self.roles: tuple[Role, ...] = tuple(role for role in request.roles if role.members)
        self.refused = {role.name: refusals_of(columns, role, excluded) for role in self.roles}
        self._views: dict[frozenset[str], tuple[Columns, Mapping[str, Ints]]] = {}
        self._worlds: dict[frozenset[Assumption], World] = {}

    def with_excluded(self, roles: Iterable[str], nodes: Mapping[str, str]) -> Assumptions:
        """Return these assumptions, and that each of these nodes refuses these roles for its reason."""
        excluded = {role: {**self._excluded.get(role, {}), **nodes} for role in roles}
        return Assumptions(self._instance, {**self._excluded, **excluded})

    @cached_property
    def all(self) -> frozenset[Assumption]:
        """All assumptions."""
        return frozenset((*self.role_assumptions, *(item for group in self.groups for item in group)))

    @cached_property
    def role_assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions that the members of each role are needed."""
        return tuple(Assumption(AssumptionKind.ROLE, role.name) for role in self.roles)

    @cached_property
    def groups(self) -> tuple[tuple[Assumption, ...], ...]:
        """All other assumptions, in the order in which they are dropped.

        Refusals are dropped first, then the usage of other pods, then the gang's own rules. So if there are
        several explanations, an explanation that waiting does not solve is reported. Refusals of few nodes
        are dropped before refusals of many nodes.
        """
        refusals = sorted(
            (int(rows.sum()), role, reason)
            for role, by_reason in self.refused.items()
            for reason, rows in by_reason.items()
            if reason not in self._not_offered
        )
        # On nodes with GPUs of unknown index, members without GPUs have no domain inside the node either.
        matters_to_all = {GPU} if self.columns.unindexed.any() else set[str]()
        taken_by_others = tuple(
            Assumption(AssumptionKind.IN_USE, subject=resource)
            for resource in reversed(resources_of(self.roles))
            if resource in matters_to_all or any(amount_of(role, resource) for role in self.roles)
        )
        refused = tuple(Assumption(AssumptionKind.REFUSED, role, reason) for _, role, reason in refusals)
        return (refused, taken_by_others, *((rule,) for rule in self._rules))

    @cached_property
    def _rules(self) -> tuple[Assumption, ...]:
        """The assumptions of the gang's own rules."""
        request = replace(self.request, roles=self.roles)
        rules = [Assumption(AssumptionKind.RUNNING)] if request.running else []
        for constraint in reversed(CONSTRAINTS):
            rules += [Assumption(constraint, role, key) for role, key in constraint.keys_in(request)]
        return (*rules, *([Assumption(AssumptionKind.SCOPE)] if request.required_scope else []))

    @cached_property
    def _not_offered(self) -> set[str]:
        """The reasons that cannot be dropped: a GPU resource is missing."""
        return {missing_resource_reason(role) for role in self.roles}

    def world(self, assumptions: Collection[Assumption]) -> World:
        """Return the cluster and the request with only these assumptions.

        Equal calls return the same object.
        """
        key = frozenset(assumptions)
        if key not in self._worlds:
            request = self.request
            for assumption in (*self.role_assumptions, *self._rules):
                if assumption not in key:
                    request = _drop(request, assumption)
            resources = resources_of(self.roles)
            free = frozenset(
                resource
                for resource in resources
                if Assumption(AssumptionKind.IN_USE, subject=resource) not in key
            )
            columns, room = self._columns_with_free(free)
            self._worlds[key] = World(columns, request, self._admitted_rows(key), room, self._bare)
        return self._worlds[key]

    @cached_property
    def _bare(self) -> Instance:
        """The instance for `World.bare`."""
        if not binds_members(self.request):
            return self._instance
        request = replace(self.request, running=())
        for constraint, role, key in constraints_of(request):
            request = constraint.request_without(request, role, key)
        roles = tuple(replace(role, members=()) for role in request.roles)
        request = replace(request, roles=roles)
        everywhere = np.ones(len(self.columns.names), np.bool_)
        return instance_with(self.columns, request, {role.name: everywhere for role in roles})

    @cached_property
    def _empty(self) -> Columns:
        return without_other_pods(self.columns, self.request)

    def _columns_with_free(self, resources: frozenset[str]) -> tuple[Columns, Mapping[str, Ints]]:
        """Return the cluster with these resources free, and the room there."""
        if resources not in self._views:
            columns = with_resources_of(self.columns, self._empty, resources) if resources else self.columns
            self._views[resources] = (
                columns,
                {role.name: room_of(columns, role) for role in self.request.roles},
            )
        return self._views[resources]

    def _admitted_rows(self, assumptions: Collection[Assumption]) -> dict[str, Bools]:
        """Return role → [row] bool: whether the node admits the role, given only these assumptions."""
        admitted = {}
        for role in self.request.roles:
            rows = np.ones(len(self.columns.names), np.bool_)
            for reason, refusing in self.refused.get(role.name, {}).items():
                if (
                    reason in self._not_offered
                    or Assumption(AssumptionKind.REFUSED, role.name, reason) in assumptions
                ):
                    rows &= ~refusing
            admitted[role.name] = rows
        return admitted


def missing_resource_reason(role: Role) -> str:
    """Return the reason that cannot be dropped: nodes do not offer the role's GPU resource."""
    return f"no {role.slice.resource if role.slice else role.gpu_resource}"


def refusals_of(columns: Columns, role: Role, excluded: Excluded) -> dict[str, Bools]:
    """Return reason → [row] bool: whether the node refuses the role for this reason, alone or among others.

    The reasons are the sentences of `candidates`.
    """
    refusals: dict[str, Bools] = {}

    def add(reason: str, rows: Bools) -> None:
        if rows.any():
            refusals[reason] = refusals[reason] | rows if reason in refusals else rows

    by_profile = [_refusal_reasons(profile, role) for profile in columns.profiles]
    for reason in sorted(set[str]().union(*by_profile)):
        add(reason, np.array([reason in reasons for reasons in by_profile], np.bool_)[columns.profile])
    for term in role.rules.required:
        add(selector_text(term), ~nodes_satisfying(columns, term))
    if role.rules.any_of:
        add(affinity_text(role.rules.any_of), ~meets_affinity(columns, role))
    by_plugin: dict[str, list[int]] = {}
    for node, plugin in excluded.get(role.name, {}).items():
        if plugin and node in columns.row:
            by_plugin.setdefault(plugin, []).append(columns.row[node])
    for plugin, rows in sorted(by_plugin.items()):
        add(plugin, np.isin(np.arange(len(columns.names)), rows))
    return refusals


def _refusal_reasons(profile: Profile, role: Role) -> set[str]:
    """Return the reasons for which nodes of this profile refuse a role.

    Each fact of the profile is tested alone, on a profile that otherwise admits the role.
    """
    resources = frozenset({role.slice.resource} if role.slice else ())
    good = Profile(frozenset({role.gpu_resource}), True, False, (), True, resources)
    profiles = [
        good._replace(gpu_memory=profile.gpu_memory, memory_resources=profile.memory_resources),
        good._replace(gpu_resources=profile.gpu_resources),
        good._replace(partitions=profile.partitions),
        good._replace(ready=profile.ready),
        good._replace(unschedulable=profile.unschedulable),
        *(good._replace(taints=(taint,)) for taint in profile.taints if not _repeats_reason(profile, taint)),
    ]
    return {reason for fact in profiles if (reason := profile_refusal(fact, role)) is not None}


def _repeats_reason(profile: Profile, taint: Taint) -> bool:
    """Return whether the taint only repeats another reason: that the node is cordoned or not ready."""
    return (profile.unschedulable and taint.key == UNSCHEDULABLE.key) or (
        not profile.ready and taint.key in NOT_READY
    )
