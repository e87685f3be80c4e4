"""Count every level of the objective for a given plan, from its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from muster.domain.decision import MemberPlacement, Objective, Placed
from muster.domain.node import Resources, Usage
from muster.domain.request import Request, Scope
from muster.domain.snapshot import NodeState
from muster.domain.topology import mask_of
from muster.domain.words import natural_key
from muster.placement.cluster.columns import Columns, Ints
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.matching import GangCluster
from muster.placement.cluster.topology import INSIDE, NONE, narrow_to_wide
from muster.placement.gang.on_node import context_of, fit_of, gpus_of, unusable_gpus
from muster.placement.gang.running import RunningMemberOnNode, RunningMembers, running_members_of
from muster.placement.gpus.costs import Cost, GpuWays, cost_of, costs_of
from muster.placement.gpus.damage import fragmentation, is_priced, prices_of
from muster.placement.gpus.gpusets import GpuSet, gpu_set_of
from muster.placement.gpus.node_rules import NodeRule
from muster.placement.limits import asks_gpus, takes_gpus
from muster.placement.model.objective import OBJECTIVE, VALUES, Worth
from muster.placement.rails import gpus_of_gang, rails_on


def used_gpus(columns: Columns, members: Sequence[MemberPlacement]) -> tuple[Ints, Ints, Ints]:
    """Return [node] the rows of these members' nodes and the masks of their GPUs, and [member] the node."""
    row_of = columns.row
    rows, index = np.unique(np.array([row_of[m.node] for m in members], np.int64), return_inverse=True)
    masks = np.zeros(len(rows), np.int64)
    np.bitwise_or.at(masks, index, np.array([_mask_of(member.gpus) for member in members], np.int64))
    return rows, masks, index


_mask_of = lru_cache(maxsize=1 << 14)(mask_of)
"""`mask_of` with a cache, because many members have equal GPU indices."""


def objective_of(plan: EvaluatedPlan) -> Objective:
    """Return the plan's value at each level.

    Running members count for the values of the whole gang: parts, scopes, and the links on nodes with a new
    member.
    """
    return Objective(**{row.field: row.count(plan) for row in VALUES})


def narrowest_common_part(plan: EvaluatedPlan) -> tuple[str | None, str]:
    """Return the narrowest scope in which one part holds all members, and that part ("node a").

    Without such a scope, the result is None and "".
    """
    request, parts = plan.request, plan.parts
    has_gpus = parts.masks.any() or any(parts.running.masks.values())
    scopes = [scope for scope in (request.required_scope, *request.preferred_scopes) if scope]
    for scope in narrow_to_wide(plan.columns.levels, scopes):
        common = parts.common_parts(scope)
        if common and (scope != Scope.GPU or has_gpus):
            return scope, f"{scope} {min(common, key=natural_key)}"
    return None, ""


def evaluate(cluster: GangCluster, members: tuple[MemberPlacement, ...]) -> Placed:
    """Return the plan of these members with its values. The plan is not marked as proven."""
    request, columns = cluster.request, cluster.columns
    plan = EvaluatedPlan(request, members, columns)
    scope, part = narrowest_common_part(plan)
    return Placed(
        request.gang,
        members,
        objective_of(plan),
        scope,
        part,
        optimal=False,
        unknown_links=unknown_links(request, members, columns),
        unknown_indices=unknown_indices(members, columns),
    )


def worths(request: Request, members: Sequence[MemberPlacement], columns: Columns) -> list[Worth]:
    """Return the values of a plan that alternatives compare, the most important level first."""
    plan = EvaluatedPlan(request, members, columns)
    return [worth for row in OBJECTIVE for worth in row.worths_of(plan, row.count(plan))]


def unknown_links(request: Request, members: Sequence[MemberPlacement], columns: Columns) -> tuple[str, ...]:
    """Return the nodes of the plan where the gang has several GPUs and no link between GPUs is known."""
    if all(shape.topology.is_known for shape in columns.shapes):
        return ()
    running_masks, (rows, masks, _) = running_members_of(columns, request).masks, used_gpus(columns, members)
    return tuple(
        sorted(
            columns.names[row]
            for row, mask in zip(rows.tolist(), masks.tolist(), strict=True)
            if mask and (mask | running_masks.get(row, 0)).bit_count() > 1
            if not columns.states[row].node.topology.is_known
        )
    )


def unknown_indices(members: Sequence[MemberPlacement], columns: Columns) -> tuple[str, ...]:
    """Return the nodes of the plan's GPUs where it is not known which GPUs other pods have."""
    if not columns.unindexed.any():
        return ()
    rows, masks, _ = used_gpus(columns, members)
    return tuple(
        sorted(columns.names[row] for row in rows[(masks > 0) & (columns.unindexed[rows] > 0)].tolist())
    )


@dataclass(frozen=True)
class EvaluatedPlan:
    """A plan as the rows of OBJECTIVE count it."""

    request: Request
    members: Sequence[MemberPlacement]
    columns: Columns

    @cached_property
    def parts(self) -> TouchedParts:
        """The parts that hold the gang, or that it touches."""
        return TouchedParts(
            self.columns,
            *used_gpus(self.columns, self.members),
            running_members_of(self.columns, self.request),
        )

    @cached_property
    def gpu_sets(self) -> Sequence[tuple[GpuSet, int]]:
        """The gang's GPUs on nodes with a new member, with the damage of the new members' GPUs, and the
        number of nodes with equal values.
        """
        columns, parts = self.columns, self.parts
        node_arrays = (columns.shape[parts.rows], columns.free_gpus[parts.rows], parts.masks)
        running_masks = (parts.running.masks.get(row, 0) for row in parts.rows.tolist())
        kinds = Counter(zip(*(line.tolist() for line in node_arrays), running_masks, strict=True))
        return [
            (_gang_gpu_set(columns.shapes[shape], *gpus), nodes) for (shape, *gpus), nodes in kinds.items()
        ]

    @cached_property
    def crossings(self) -> tuple[tuple[str, int], ...]:
        """The scopes whose parts count, widest first, each with the number of touched parts."""
        scopes = self.columns.topology.counted_scopes(asks_gpus(self.request))
        return tuple((scope, self.parts.count_touched(scope)) for scope in scopes)

    @cached_property
    def policy_costs(self) -> tuple[Cost, ...]:
        """The levels of policies and slices."""
        return costs_of(self.request.terms, self._has_slices)

    def role_preferences(self) -> tuple[tuple[str, str | None], ...]:
        """Return for each preference of roles the first of its scopes that holds them."""
        reached = []
        for preference in self.request.role_preferences:
            running = tuple(pod for pod in self.request.running if pod.role in preference.roles)
            members = [member for member in self.members if member.role in preference.roles]
            parts = EvaluatedPlan(replace(self.request, running=running), members, self.columns).parts
            scope = next((scope for scope in preference.scopes if parts.common_parts(scope)), None)
            reached.append((preference.name, scope))
        return tuple(reached)

    def cost_totals(self) -> tuple[tuple[str, int], ...]:
        """Return the values of the levels that policies and slices add, without NVLink domains."""
        columns, running, shared = self.columns, self.parts.running, dict[str, int]()
        for member in self.members if self._has_slices else ():
            if member.units:
                shared[member.node] = shared.get(member.node, 0) | mask_of(member.gpus)
        totals = {cost: 0 for cost in self.policy_costs if cost is not Cost.NVLINK_DOMAINS}
        rows, masks = self.parts.rows.tolist(), self.parts.masks.tolist()
        for row, mask in zip(rows, masks, strict=True) if totals else ():
            slices = shared.get(columns.names[row], 0)
            context = context_of(
                columns,
                running,
                self.policy_costs,
                row,
                running.rule_for_new_members(columns, row, NodeRule((), (), (), ())),
            )
            gpu_ways = GpuWays(np.array([slices]), np.array([mask & ~slices]))
            for cost in totals:
                totals[cost] += int(cost_of(cost, gpus_of(columns, row), gpu_ways, context)[0])
        return tuple((cost.value, total) for cost, total in totals.items())

    def damage(self) -> int:
        """Return the damage: by how much the free GPUs become less usable, at prices or by F."""
        if is_priced(self.request, self.columns):
            return _priced_damage(self.request, self.members, self.columns)
        shared = self.parts.rows.tolist() if len(self.columns.gpu_memory) else ()
        whole_gpu_damage = sum(nodes * gpus.damage for gpus, nodes in self.gpu_sets)
        return whole_gpu_damage + sum(
            _damage_to_shared_gpus(self.columns, row, self.members) for row in shared
        )

    def unusable_gpus(self) -> int | None:
        """Return the GPUs that members without GPUs make unusable; None if every member has GPUs."""
        rows, counts, roles = self.parts.rows, self._counts, self.request.roles
        if not counts[:, [not takes_gpus(role) for role in roles]].any():
            return None
        has_gang_gpus = np.isin(rows, list(self.parts.running.with_gpus))
        return int(unusable_gpus(self.columns, roles, rows, counts[:, None], has_gang_gpus).sum())

    def best_fit(self) -> int:
        """Return the best fit: the shares that stay free on the nodes, plus the costs to open the nodes."""
        roles, counts = self.request.roles, self._counts
        # As in the search, a role that does not start has no members. It does not decide whether GPUs or
        # memory count.
        roles = tuple(
            role if counts[:, i].any() else replace(role, members=()) for i, role in enumerate(roles)
        )
        return int(fit_of(self.columns, roles, self.parts.rows, counts[:, None]).sum())

    def rails(self) -> int | None:
        """Return on how many network rails the GPUs of the whole gang lie.

        The result is None if members share GPUs, if all GPUs lie on one node, or if no rail is known.
        """
        rows, masks = gpus_of_gang(self.parts.running, self.parts.rows, self.parts.masks)
        if self._has_slices or len(np.unique(rows)) < 2:
            return None
        return rails_on(self.columns, rows, masks).bit_count() or None

    @property
    def _has_slices(self) -> bool:
        return any(role.slice and role.members for role in self.request.roles)

    @cached_property
    def _counts(self) -> Ints:
        """[node, role] The members on the nodes of `parts`."""
        index = {role.name: i for i, role in enumerate(self.request.roles)}
        nodes, roles = len(self.parts.rows), len(self.request.roles)
        pairs = self.parts.index * roles + np.array([index[m.role] for m in self.members], np.int64)
        return np.bincount(pairs, minlength=nodes * roles).reshape(nodes, roles)


_cached_gpu_set = lru_cache(maxsize=1 << 14)(gpu_set_of)
"""`gpu_set_of` with a cache, because many nodes of a gang have equal GPUs."""


def _gang_gpu_set(shape: Shape, free: int, mask: int, running_mask: int) -> GpuSet:
    """Return the links of all the gang's GPUs on such a node, and the damage of the new ones."""
    own = _cached_gpu_set(shape, free, mask)
    return (
        replace(_cached_gpu_set(shape, free | running_mask, mask | running_mask), damage=own.damage)
        if running_mask
        else own
    )


def _priced_damage(request: Request, members: Sequence[MemberPlacement], columns: Columns) -> int:
    """Return the damage, priced by the typical requests."""
    prices, cpu = prices_of(columns), {role.name: role.resources.cpu_milli for role in request.roles}
    by_node: dict[str, list[MemberPlacement]] = {}
    for member in members:
        by_node.setdefault(member.node, []).append(member)
    damage = 0
    for node, members_on_node in by_node.items():
        rows = np.array([columns.row[node]])
        total = sum(cpu[member.role] for member in members_on_node)
        first = members_on_node[0]
        if first.units:
            damage += int(prices.damage_of_slice(rows, first.units, total)[0, first.gpus[0]])
        else:
            gpus = sum(len(member.gpus) for member in members_on_node)
            damage += int(prices.damage_of_gpus(rows, np.array([gpus]), np.array([total]))[0, 0])
    return damage


def _damage_to_shared_gpus(columns: Columns, row: int, members: Sequence[MemberPlacement]) -> int:
    """Return the damage to shared GPUs of the node; 0 if the node serves no slices."""
    shape, name, state = columns.shapes[columns.shape[row]], columns.names[row], columns.states[row]
    state_with_members = state
    for member in members if shape.memory else ():
        if member.node == name:
            state_with_members = state_with_members.with_usage(
                Usage(member.uid, name, Resources(), mask_of(member.gpus), units=member.units)
            )

    def damage_of_slices(state: NodeState) -> int:
        unusable_whole_gpus = fragmentation(shape, state.free_gpus)
        return fragmentation(shape, state.free_gpus, state.free_memory) - unusable_whole_gpus

    return damage_of_slices(state_with_members) - damage_of_slices(state)


@dataclass(frozen=True)
class TouchedParts:
    """The parts that hold, or are touched by, placed and running members.

    `rows`, `masks` and `index` are those of `used_gpus`.
    """

    columns: Columns
    rows: Ints
    masks: Ints
    index: Ints
    running: RunningMembers

    @cached_property
    def _touched_rows(self) -> Ints:
        """The rows of the touched nodes. If the gang has GPUs, only nodes with GPUs of the gang count."""
        with_gpus = {*self.running.with_gpus, *self.rows[self.masks > 0].tolist()}
        return np.array([*(with_gpus or {*self.rows.tolist(), *self.running.masks})], np.int64)

    def common_parts(self, scope: str) -> frozenset[str]:
        """Return the parts of the scope that hold all members."""
        common = self.running.parts(self.columns, scope)
        for holding_parts in self._parts_by_node(scope):
            common = holding_parts if common is None else common & holding_parts
            if not common:
                break
        return common or frozenset()

    def _parts_by_node(self, scope: str) -> Iterator[frozenset[str]]:
        """Yield for each node the parts that hold its members. Nodes of one domain are looked at once."""
        if scope in INSIDE:
            for row, mask in zip(self.rows.tolist(), self.masks.tolist(), strict=True):
                parts = self.columns.topology.parts(row, scope)
                yield frozenset(part for part, gpus in parts if mask & ~gpus == 0)
            return
        domains = self.columns.topology.domains(scope)
        for code in set(domains.codes[self.rows].tolist()):
            yield frozenset((domains.names[code],) if code != NONE else ())

    def count_touched(self, scope: str) -> int:
        """Return how many parts are touched. A node without the label is a part of its own.

        If the gang has GPUs, only members with GPUs count.
        """
        if scope == Scope.NVLINK_DOMAIN:
            return self._count_nvlink_domains()
        codes: list[int] = self.columns.topology.domains(scope).codes[self._touched_rows].tolist()
        return len({*codes} - {NONE}) + codes.count(NONE)

    def _count_nvlink_domains(self) -> int:
        """Return how many NVLink domains are touched.

        Equal nodes are evaluated once, and multiplied by their number.
        """
        topology, shapes = self.columns.topology, self.columns.shapes
        counted_by_name = topology.in_wide[self.rows] | np.isin(self.rows, [*self.running.masks])
        names = set[str]().union(
            *map(
                topology.touched_nvlink_domains,
                self.rows[counted_by_name].tolist(),
                self.masks[counted_by_name].tolist(),
            ),
            *map(self._domains_touched_by, self.running.members),
        )
        node_arrays = (
            self.columns.shape[self.rows[~counted_by_name]].tolist(),
            self.masks[~counted_by_name].tolist(),
        )
        nodes_by_kind: Counter[tuple[int, int]] = Counter(zip(*node_arrays, strict=True))
        return len(names) + sum(
            nodes * sum(domain & mask > 0 for domain in shapes[shape].domains)
            for (shape, mask), nodes in nodes_by_kind.items()
        )

    def _domains_touched_by(self, member: RunningMemberOnNode) -> set[str]:
        topology = self.columns.topology
        domains = topology.parts(member.row, Scope.NVLINK_DOMAIN)
        if member.has_unknown_gpus:
            return {name for name, _ in domains} if len(domains) == 1 else set()
        return topology.touched_nvlink_domains(member.row, member.running.gpus)
