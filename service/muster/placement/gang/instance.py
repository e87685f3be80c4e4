"""Build the instance: one gang on one cluster as arrays.

An instance has the cluster as columns, which nodes admit which roles, and how many members one node takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd, lcm

import numpy as np

from muster.domain.causes.not_planned import NotSupported
from muster.domain.constraints import Subgroup
from muster.domain.node import Resources
from muster.domain.request import Request, Role, Scope
from muster.placement.cluster.candidates import Excluded, admits
from muster.placement.cluster.columns import (
    CPU,
    GPU,
    LARGEST,
    MEMORY,
    PODS,
    Bools,
    Columns,
    Ints,
    gpu_counts,
)
from muster.placement.cluster.fabric import Shape
from muster.placement.cluster.matching import GangCluster, attributes_of
from muster.placement.gang.blocks import blocks_of
from muster.placement.gang.constraints import CONSTRAINTS, rules_of
from muster.placement.gang.on_node import unusable_gpus
from muster.placement.gang.rules import Rules
from muster.placement.gang.running import RunningMembers, running_members_of
from muster.placement.gpus.costs import Cost, costs_of
from muster.placement.gpus.damage import Prices, is_priced, prices_of
from muster.placement.gpus.node_rules import Counts, NodeRule, is_packing_allowed, searched_domains
from muster.placement.gpus.slices import Asks, ask_of, slice_room
from muster.placement.limits import takes_gpus
from muster.placement.model.objective import WIDE, WithoutGpus

UNSATISFIABLE_AMOUNT = 2 * LARGEST - 1
"""A request for this amount or more fits nowhere, because amounts in columns end at LARGEST."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One gang on one cluster, as arrays.

    `roles` are the gang's roles, cut into blocks because of segments. `fabric_scopes` are the scopes above
    the node, widest first, whose touched parts are counted.
    """

    columns: Columns
    request: Request
    roles: tuple[Role, ...]
    admits: Bools
    """[role, row] Whether the node admits the role."""
    room: Ints
    """[role, row] How many members of the role alone the node holds; 0 if it does not admit the role."""
    fabric_scopes: tuple[str, ...]
    running: RunningMembers
    rules: Rules
    admits_without_rules: Mapping[str, Bools]
    """By role of the request, [row] bool: `admits` before constraints exclude nodes."""
    penalty: Ints | None = None
    """[role, row] int64: 100 − the score of the node for a member; None if no role has scores."""

    @property
    def asks(self) -> Asks:
        """The GPUs or slices that a member asks for, by role."""
        return tuple(map(ask_of, self.roles))

    @property
    def sliced(self) -> bool:
        """Whether any member shares GPUs."""
        return any(role.slice and role.members for role in self.roles)

    @property
    def policy_costs(self) -> tuple[Cost, ...]:
        """The costs of policies and slices, in their order; () if only NVLink domains count between nodes
        and links.

        With further levels, `gpus.choices` chooses the GPUs of each node.
        """
        return costs_of(self.request.terms, self.sliced)

    @property
    def prices(self) -> Prices | None:
        """The prices of typical requests, if they price the damage; None if damage is F."""
        return prices_of(self.columns) if is_priced(self.request, self.columns) else None

    @property
    def has_gpus(self) -> bool:
        """Whether any member has GPUs, new or running."""
        return bool(self.running.with_gpus) or any(takes_gpus(r) and r.members for r in self.roles)

    @property
    def without_gpus(self) -> WithoutGpus:
        """Whether new members are without GPUs, and whether other members have GPUs."""
        if all(takes_gpus(role) or not role.members for role in self.roles):
            return WithoutGpus.NO_MEMBER
        return WithoutGpus.SOME_MEMBERS if self.has_gpus else WithoutGpus.ALL_MEMBERS

    def restricted_to(self, rows: Bools) -> Instance:
        """Return the instance in which only the nodes `rows` [row] bool admit members."""
        return replace(self, admits=self.admits & rows, room=self.room * rows)

    def unusable_gpus(self, rows: Ints, counts: Ints) -> Ints:
        """Return [row, packing] the GPUs of these nodes that members without GPUs make unusable."""
        has_gang_gpus = np.isin(rows, list(self.running.with_gpus))
        return unusable_gpus(self.columns, self.roles, rows, counts, has_gang_gpus)

    def unit(self, role: int) -> int:
        """Return a number of members whose multiples satisfy the unit of each node's rule."""
        return lcm(*self.rules.units_of(role))

    def common_unit(self, role: int) -> int:
        """Return the largest common unit: each node takes a multiple of this number, whatever its rule."""
        units, rules = self.rules.units_of(role), np.flatnonzero(np.bincount(self.rules.in_node))
        return gcd(*(units[rule] for rule in rules.tolist()))

    def with_first_members(self, counts: Mapping[str, int]) -> Instance:
        """Return the instance for only `counts` members of each role, the first by rank."""
        return instance_with(self.columns, self.request, self.admits_without_rules, counts)

    def with_subgroup(self, subgroup: Subgroup) -> Instance:
        """Return the instance for the same members, with one more subgroup."""
        request = replace(self.request, subgroups=(*self.request.subgroups, subgroup))
        return instance_with(self.columns, request, self.admits_without_rules, self.by_role(self.need))

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes whose parts make cells: those of the fabric, and wide NVLink domains."""
        gpus = any(takes_gpus(role) and role.members for role in self.roles)
        return (*self.fabric_scopes, WIDE) if gpus and self.columns.wide_domains.names else self.fabric_scopes

    @property
    def binds_only_by_scopes(self) -> bool:
        """Whether only the gang's own scopes bind members to each other or to running members.

        `rules.caps` may still limit how many members of a role a node takes.
        """
        return not self.rules.model and len(self.rules.node_rules) == 1 and not self.running

    def presolved_for_all_members(self, need: Counts) -> Instance:
        """Presolve: return the instance without parts too small for a role that must lie in one part.

        Every plan for all these members stays possible.
        """
        if not self.rules.together:
            return self
        room = self.room.copy()
        for name, blocks in self.rules.together:
            part = self.rules.cells[name]
            in_part, count = part >= 0, int(part.max(initial=0)) + 1
            for block in blocks:
                holds = np.bincount(part[in_part], room[block][in_part], count) >= need[block]
                room[block] *= in_part & holds[np.maximum(part, 0)]
        return replace(self, room=room)

    def node_rule(self, row: int) -> tuple[NodeRule | None, Shape, int]:
        """Return the rule that binds members on the node, the node's shape, and the mask of its free GPUs."""
        columns = self.columns
        return (
            self.rules.node_rules[self.rules.in_node[row]],
            columns.shapes[columns.shape[row]],
            int(columns.free_gpus[row]),
        )

    @property
    def need(self) -> Counts:
        """The number of members of each role."""
        return tuple(len(role.members) for role in self.roles)

    def starts(self, counts: Counts) -> bool:
        """Return whether these members, by block, start as many subgroups as the gang needs."""
        return self.request.starts(self.by_role(counts))

    def by_role(self, counts: Counts) -> dict[str, int]:
        """Return the number of members of each role of the request, from the numbers of its blocks."""
        members = dict.fromkeys((role.name for role in self.request.roles), 0)
        for block, count in zip(self.roles, counts, strict=True):
            members[block.name] += count
        return members

    def gpus(self, counts: Ints) -> Ints:
        """Return the number of whole GPUs that `counts` members take. The last axis is the role."""
        return counts @ np.array([role.gpus for role in self.roles], np.int64)

    def cpu(self, counts: Ints) -> Ints:
        """Return the cpu in thousandths of a core that `counts` members take. The last axis is the role."""
        return counts @ np.array([role.resources.cpu_milli for role in self.roles], np.int64)


def instance_of(cluster: GangCluster, excluded: Excluded) -> Instance:
    """Return the instance of a gang. Roles without members stay in it."""
    columns = cluster.columns_with_groups
    by_name = {role.name: admits(columns, role, excluded) for role in cluster.request.roles}
    return instance_with(columns, cluster.request, by_name)


def instance_with(
    columns: Columns,
    request: Request,
    admits_without_rules: Mapping[str, Bools],
    counts: Mapping[str, int] | None = None,
) -> Instance:
    """Return the instance of a gang. `admits_without_rules` is as in `Instance`.

    `counts` limits the members of each role to the first ones by rank. None means all members.
    """
    running = running_members_of(columns, request)
    present = replace(request, running=tuple(member.running for member in running.members))
    blocks = blocks_of(present, counts)
    rules = rules_of(columns, request, blocks, running)
    penalty = _penalties(columns, blocks.roles)
    admits = np.stack([admits_without_rules[role.name] for role in blocks.roles]) & ~rules.excluded
    room = np.where(admits, np.stack([room_of(columns, role) for role in blocks.roles]), 0)
    if rules.caps is not None:
        room = np.minimum(room, rules.caps)
    instance = Instance(
        columns,
        request,
        blocks.roles,
        admits,
        room,
        columns.topology.scopes,
        running,
        rules,
        admits_without_rules,
        penalty,
    )
    return replace(instance, room=_ruled_room(instance)) if len(rules.node_rules) > 1 else instance


def _penalties(columns: Columns, roles: tuple[Role, ...]) -> Ints | None:
    if not any(role.scores and role.members for role in roles):
        return None
    penalty = np.full((len(roles), len(columns.names)), 100, np.int64)
    for block, role in enumerate(roles):
        scores = {columns.row[node]: score for node, score in role.scores.items() if node in columns.row}
        penalty[block, list(scores)] -= np.clip(np.array(list(scores.values()), np.int64), 0, 100)
    return penalty


def _ruled_room(instance: Instance) -> Ints:
    """Return the room that the rules of the nodes leave for each role alone."""
    columns = instance.columns
    room: Ints = np.minimum(instance.room, np.array(instance.need)[:, None])
    ruled = instance.rules.in_node.astype(np.int64) * len(columns.shapes) + columns.shape
    for code in np.unique(ruled[instance.rules.in_node > 0]).tolist():
        rows = np.flatnonzero(ruled == code)
        rule, shape, _ = instance.node_rule(int(rows[0]))
        for r in range(len(room)):
            if rule is not None:
                room[r][rows] = _room_under_rule(rule, shape, r, room[r][rows], columns.free_gpus[rows])
    return room


def _room_under_rule(rule: NodeRule, shape: Shape, r: int, room: Ints, free: Ints) -> Ints:
    """Return [row] how many members of role `r` alone each of these nodes takes, at most `room`.

    All these nodes have this rule and this shape.
    """
    if rule.max_alone(r) >= 0:
        room = np.asarray(np.minimum(room, rule.max_alone(r)))
    simple = not rule.one_domain_blocks and not rule.max_by_domain and rule.pinned[r] < 0
    unit, gpus = rule.domain_unit[r], rule.gpus[r]
    if simple:
        if unit and gpus:
            by_domain = (gpu_counts(free & domain) for domain in shape.domains)
            room = np.minimum(room, sum(count // (unit * gpus) * unit for count in by_domain))
        step = rule.unit_of(r)
        return np.asarray(room // step * step)
    members = np.zeros_like(room)
    for room_before, free_mask in {*zip(room.tolist(), free.tolist(), strict=True)}:
        packings_alone = [
            tuple(n if block == r else 0 for block in range(len(rule.gpus)))
            for n in range(room_before, 0, -1)
        ]
        domains = searched_domains(rule, shape, free_mask)
        may_fit = (p for p in packings_alone if is_packing_allowed(rule, p, domains) is not False)
        max_members = next((packing[r] for packing in may_fit), 0)
        members[(room == room_before) & (free == free_mask)] = max_members
    return members


def amounts_of(resources: Resources, gpus: int = 0) -> dict[str, int]:
    """Return the request of a pod by resource, in the units of `Columns.free_amount`, without zeros.

    As in kube-scheduler, a resource that the pod does not ask for is not checked.
    """
    native_amounts = {GPU: gpus, CPU: resources.cpu_milli, MEMORY: resources.memory_bytes}
    amounts = {name: amount for name, amount in native_amounts.items() if amount > 0}
    return {**amounts, PODS: max(1, resources.pods), **dict(resources.others)}


def room_of(columns: Columns, role: Role) -> Ints:
    """Return [row] int64: how many members of the role fit into the free resources."""
    amounts = amounts_of(role.resources, role.gpus)
    rooms = [
        np.maximum(0, columns.free_amount(name)) // min(amount, UNSATISFIABLE_AMOUNT)
        for name, amount in amounts.items()
    ]
    if role.slice:
        rooms.append(slice_room(columns.gpu_memory, ask_of(role)))
    return np.asarray(np.minimum.reduce(rooms))


def fits_at_once(instance: Instance, need: Counts) -> Bools:
    """Return [row] bool: whether the node takes all these members together, by sums of resources."""
    columns, total = instance.columns, Counter[str]()
    admitted = np.ones(len(columns.names), bool)
    for r, (role, count) in enumerate(zip(instance.roles, need, strict=True)):
        if count:
            amounts = amounts_of(role.resources, role.gpus)
            total.update({name: count * amount for name, amount in amounts.items()})
            admitted &= instance.admits[r]
    for name, amount in total.items():
        admitted &= columns.free_amount(name) >= amount
    if instance.sliced or instance.rules.caps is not None:
        admitted &= (instance.room >= np.array(need)[:, None]).all(axis=0)
    for may_hold in instance.rules.gang_on_node_checks:
        admitted &= may_hold(need)
    return admitted


def unsupported_rule(instance: Instance, scopes: tuple[str, ...] = ()) -> NotSupported | None:
    """Return the first rule of the request that is not supported; None if all are.

    `scopes` are preferred scopes that are tried for the whole gang.

    With slices, a rule about NVLink domains is supported only if each affected node is one NVLink domain. If
    GPUs must agree on attributes, no such rule is supported, because groups take the domains' place.
    """
    request = instance.request
    if attributes := attributes_of(request.roles):
        return _unsupported_with_attributes(instance, attributes, scopes)
    if not instance.sliced:
        return None
    several = (instance.columns.topology.domains_of_whole_nodes() < 0) & (instance.columns.gpu_total > 0)
    for annotation, scope, roles in _scopes_of(request):
        bound = any((instance.admits_without_rules[role.name] & several).any() for role in roles)
        if scope == Scope.GPU or (scope == Scope.NVLINK_DOMAIN and bound):
            return NotSupported(annotation, scope)
    return None


def _unsupported_with_attributes(
    instance: Instance, attributes: tuple[tuple[str, ...], ...], scopes: tuple[str, ...]
) -> NotSupported | None:
    request, (first, *other_attributes) = instance.request, map(" and ".join, attributes)
    if instance.sliced:
        return NotSupported("matchAttribute", first)
    if other_attributes:
        return NotSupported("matchAttribute", other_attributes[0], first)
    rules = [("scope", scope) for scope in (request.required_scope, *scopes) if scope]
    rules += [(rule, scope) for rule, scope, _ in _scopes_of(request)]
    rule_inside = next((rule for rule in rules if rule[1] == Scope.NVLINK_DOMAIN), None)
    return NotSupported(*rule_inside, first) if rule_inside is not None else None


def _scopes_of(request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    for constraint in CONSTRAINTS:
        yield from constraint.scopes(request)
