"""Find where members could lie, and where running members force new members to lie.

Causes about domains, and the causes of constraints, report these findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.domain.causes.out_of_place import DomainTooSmall, IndicesUnknown, NoSuchDomain, RunningElsewhere
from muster.domain.levels import preset_with, scope_meant
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role, Scope
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.columns import CPU, GPU, Bools, Columns, values_in
from muster.placement.cluster.topology import INSIDE, NARROW
from muster.placement.explain.assumptions import Assumption, AssumptionKind, World, free_of
from muster.placement.explain.conflict import Conflict
from muster.placement.gang.blocks import blocks_of
from muster.placement.gang.constraints.constraint import RefusalFacts
from muster.placement.gang.running import RunningMemberOnNode, common_parts, running_members_of
from muster.placement.gpus.slices import ask_of, slice_room


def findings_of(conflict: Conflict) -> _Findings:
    """Return the findings about this conflict."""
    request = conflict.assumptions.request
    running = len(request.running) if conflict.obstacles_of(AssumptionKind.RUNNING) else 0
    return _Findings(request, conflict.even_empty, running, conflict)


@dataclass(frozen=True, slots=True)
class _Findings(RefusalFacts):
    """The findings about one conflict. `RefusalFacts` documents the methods."""

    conflict: Conflict

    @property
    def columns(self) -> Columns:
        return self.conflict.assumptions.columns

    def fit(self) -> tuple[int | None, int]:
        world = self.conflict.world()
        return self.conflict.oracle.most_members(world), world.target

    def works(self, request: Request) -> bool:
        return (
            self.conflict.oracle.target_fits(replace(self.conflict.with_all_assumptions, request=request))
            is True
        )

    def nodes_admitting(self, role: Role) -> list[str]:
        return [self.columns.names[row] for row in np.flatnonzero(self.conflict.world().admitted[role.name])]

    def count_agreeing_nodes(self, role: Role) -> int:
        rows = np.flatnonzero(self.conflict.world().admitted[role.name])
        return sum(bool(self.columns.states[row].node.topology.groups) for row in rows.tolist())

    def wider_scopes(self, scope: str) -> tuple[str | None, ...]:
        return wider_scopes(self.columns, scope)

    def is_nowhere(self, scope: str) -> bool:
        return scope not in NARROW and not self.columns.topology.domains(scope).names

    def no_such(self, scope: str, role: Role | None = None) -> NoSuchDomain | IndicesUnknown | None:
        if scope == Scope.NODE:
            return None
        world = self.conflict.world(refusals_of_conflict=scope not in INSIDE)
        name, columns = role.name if role else "", world.columns
        if scope in INSIDE:
            rows = (world.admitted[name] if role else world.admitting_rows) & (columns.gpu_total > 0)
            promised = (rows & _promised_rows(columns, scope)).any()
            return IndicesUnknown(scope, int(rows.sum()), name) if rows.any() and not promised else None
        rows = columns.topology.index(scope) >= 0
        if role is not None:
            rows &= world.admitted[name]
        return None if rows.any() else self._no_such_domain(scope, name)

    def _no_such_domain(self, scope: str, role: str) -> NoSuchDomain:
        if not self.is_nowhere(scope):
            return NoSuchDomain(scope, role)
        columns = self.columns
        labels = next((level.labels for level in columns.levels if level.scope == scope), (scope,))
        scopes = {*Scope, *(level.scope for level in columns.levels)}
        node_labels = {key for state in columns.states for key, value in state.node.labels.items() if value}
        preset = preset_with(scope, node_labels)
        meant = "" if any(preset) else scope_meant(scope, scopes, node_labels)
        return NoSuchDomain(scope, role, labels, meant, *preset)

    def domain_too_small(self, scope: str) -> Cause:
        """Return the cause that no part of the gang's required scope holds these roles."""
        cause = self._nearest_part(self.conflict.world(), scope)
        # If no node that admits the role lies in a part, the part that comes nearest on other nodes is
        # reported, because it tells the user more.
        if isinstance(cause, NoSuchDomain):
            return self._nearest_part(self.conflict.world(refusals_of_conflict=True), scope)
        return cause

    def _nearest_part(self, world: World, scope: str) -> Cause:
        """Return the cause that names the part which comes nearest to holding the members."""
        fit, running = self.conflict.oracle.largest_fit(world), self.running_members()
        if running:
            part = self._part_of_running(scope, running)
        else:
            part = fit.part if fit.members else _part_with_most_free(world, scope)
        if part or running:
            has_links = scope != Scope.NVLINK_DOMAIN or not part or _has_nvlink(world.columns, part)
            members = fit.members if fit.proven else None
            has_matrix = (
                has_links or world.columns.states[world.columns.row[_node_of(part)]].node.topology.is_known
            )
            roles = self.conflict.part_of_gang
            numbers = (members, world.target, has_links, self.even_empty)
            return DomainTooSmall(scope, part, *numbers, roles, has_matrix)
        unsure = world.admitting_rows & ~_promised_rows(world.columns, scope)
        if scope in INSIDE and unsure.any():
            return IndicesUnknown(scope, int(unsure.sum()))
        return self._no_such_domain(scope, self.conflict.part_of_gang)

    def best_part(self, role: Role, scope: str) -> tuple[str, int | None, int]:
        role_conflict = replace(self.conflict, roles=frozenset((Assumption(AssumptionKind.ROLE, role.name),)))
        running, world = self.running_members(role.name), role_conflict.world().with_scope(scope)
        running_of_role = tuple(member for member in world.request.running if member.role == role.name)
        world = replace(world, request=replace(world.request, running=running_of_role))
        fit = self.conflict.oracle.largest_fit(world)
        members = min(fit.members, world.target) if fit.proven else None
        return self._part_of_running(scope, running) if running else fit.part, members, world.target

    def running_members(self, *roles: str) -> tuple[RunningMemberOnNode, ...]:
        """Return the running members of these roles, or of all roles; () if the conflict does not depend on
        running members.
        """
        if not self.running:
            return ()
        members = running_members_of(self.columns, self.request).members
        return tuple(member for member in members if not roles or member.running.role in roles)

    def _part_of_running(self, scope: str, members: Sequence[RunningMemberOnNode]) -> str:
        """Return the part of a scope that holds all these members; "" if no such part is known."""
        return min(common_parts(self.columns, scope, members) or ("",))

    def causes_of_running_members(self, scope: str, *roles: str) -> Iterator[RunningElsewhere]:
        running = self.running_members(*roles)
        if running:
            yield RunningElsewhere(scope, self._part_of_running(scope, running), len(running))

    def begun_segment(self, role: Role) -> Iterator[RunningElsewhere]:
        on_node = {member.running: member for member in self.running_members(role.name)}
        if not on_node:
            return
        role_request = replace(
            self.request, roles=(replace(role, required_scope=None),), running=tuple(on_node)
        )
        blocks = blocks_of(role_request)
        segments = []
        for block_group in blocks.together:
            if block_group.running:
                members = [on_node[running] for running in block_group.running]
                part = self._part_of_running(block_group.scope, members)
                missing = sum(len(blocks.roles[block].members) for block in block_group.blocks)
                lacking_members = missing - self._room_in_part(role, block_group.scope, part)
                segments.append((lacking_members, RunningElsewhere(block_group.scope, part, len(members))))
        segments.sort(key=lambda segment: segment[0] <= 0)
        yield from (cause for _, cause in segments[:1])

    def _room_in_part(self, role: Role, scope: str, part: str) -> int:
        """Return for how many members of the role the part has room, if no other new member lies there."""
        world = self.conflict.world()
        columns, room = world.columns, np.where(world.admitted[role.name], world.room[role.name], 0)
        if not part:
            return 0
        if scope not in INSIDE:
            domains = columns.topology.domains(scope)
            return int(room[domains.codes == domains.index[part]].sum())
        members = 0
        for row in np.flatnonzero(room).tolist():
            for name, mask in columns.topology.parts(row, scope):
                if name == part:
                    free = (int(columns.free_gpus[row]) & mask).bit_count()
                    fit = free // role.gpus if role.gpus else int(room[row])
                    if role.slice:
                        memory = values_in(columns.gpu_memory[:, [row]], mask)
                        fit = int(slice_room(memory, ask_of(role))[0])
                    members += min(int(room[row]), fit)
        return members


def wider_scopes(columns: Columns, scope: str) -> tuple[str | None, ...]:
    """Return the scopes that are wider than this scope, the narrowest first, and None for no scope."""
    all_scopes = (*NARROW, *reversed(columns.topology.scopes))
    return (*(all_scopes[all_scopes.index(scope) + 1 :] if scope in all_scopes else ()), None)


def _promised_rows(columns: Columns, scope: str) -> Bools:
    """Return [row] bool: whether parts of a scope inside the node can be promised to a member.

    For that, the indices of taken GPUs must be known.
    """
    return columns.promised if scope == Scope.NVLINK_DOMAIN else np.asarray(columns.unindexed == 0)


def _part_with_most_free(world: World, scope: str) -> str:
    """Return the part of the scope with the most free GPUs, GPU memory or cpu; "" if there is no part."""
    columns, hosts = world.columns, world.admitting_rows
    has_slices = any(role.slice for role in world.request.roles)
    unsliced_resource = GPU if any(role.gpus for role in world.request.roles) else CPU
    free = np.maximum(0, free_of(columns, GPU_MEMORY if has_slices else unsliced_resource))
    if scope in INSIDE:
        rows = np.flatnonzero(hosts & _promised_rows(columns, scope))
        return _inner_part_with_most_free(columns, scope, rows.tolist(), has_slices)
    domains = columns.topology.domains(scope)
    rows = np.flatnonzero(hosts & (domains.codes >= 0))
    if not len(rows):
        return ""
    return domains.names[int(np.bincount(domains.codes[rows], free[rows] + 1.0).argmax())]


def _inner_part_with_most_free(columns: Columns, scope: str, rows: list[int], has_slices: bool) -> str:
    """Return the part inside a node with the most free GPUs, or the most free GPU memory.

    Equal nodes are looked at once. In an NVLink domain over several nodes, each node counts by itself.
    """
    most_units, most_free, kinds = -1, "", set[tuple[int, ...]]()
    for row in rows:
        free = (
            columns.gpu_memory[:, row].tolist()
            if has_slices
            else [*np.binary_repr(columns.free_gpus[row])[::-1]]
        )
        kind = (int(columns.shape[row]), *map(int, free))
        if kind in kinds:
            continue
        kinds.add(kind)
        for part, mask in columns.topology.parts(row, scope):
            free_units = sum(amount for gpu, amount in enumerate(kind[1:]) if mask >> gpu & 1)
            if free_units > most_units:
                most_units, most_free = free_units, part
    return most_free


def _node_of(domain: str) -> str:
    """Return the node whose part the domain is."""
    return domain.rpartition("/")[0]


def _has_nvlink(columns: Columns, domain: str) -> bool:
    """Return whether the NVLink domain has links: whether it is not just a GPU of a node without NVLink."""
    row = columns.row.get(_node_of(domain))
    if row is None or columns.topology.in_wide[row]:  # a domain over several nodes
        return True
    return all(mask.bit_count() > 1 for name, mask in columns.topology.nvlink_domains(row) if name == domain)
