"""Aggregate roles that ask for multiples of each other, and gather interchangeable roles on few parts.

If each size divides the next larger size, the gang is planned as one role of the smallest size (a unit). The
members are assigned to that plan at the end. Members fit on any node whose capacity equals their sum, because
sizes that divide each other leave no gaps. Wherever the larger members go, the smaller members get the same
number of units.

If roles have equal requests and no rules, their members may change places: no level of the objective changes.
Nodes are filled with such roles along the fabric, role after role, in a few orders. The order in which roles
touch the fewest parts is taken. Then members are exchanged between nodes while the number of parts falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, permutations, product
from typing import ClassVar

import numpy as np

from muster.placement.cluster.columns import PODS, Bools, Ints
from muster.placement.gang.instance import Instance, amounts_of
from muster.placement.gpus.node_rules import Counts
from muster.placement.limits import Budget
from muster.placement.model.objective import Level
from muster.placement.search.plan import (
    Decide,
    Declined,
    Infeasible,
    MethodAnswer,
    NodePlan,
    PartialPlan,
    Solved,
    Undecided,
    Value,
)


@dataclass(frozen=True, slots=True)
class RoleAggregation:
    """Decide the gang as one role of the smallest size, then assign the members."""

    decide: Decide
    name: ClassVar = "role-aggregation"
    accepted_states: ClassVar = (Undecided,)

    def solve(self, plan: PartialPlan, level: Level, incumbent: Value | None, budget: Budget) -> MethodAnswer:
        """Decide all levels if the members can be assigned to the best plan of units."""
        with budget.phase("scan"):
            aggregation = aggregate_roles(plan.instance, plan.need)
        if isinstance(aggregation, Declined):
            return aggregation
        units, gap = self.decide(replace(plan, need=aggregation.units), incumbent, budget)
        if units is None:
            return Declined("no plan of units was found") if gap else Infeasible()
        nodes = aggregation.assign(plan.instance, units.nodes())
        if not nodes:
            return Declined("the members can't be dealt out to the plan of units")
        steps = tuple(replace(step, method=f"{self.name}, {step.method}") for step in units.steps)
        return Solved((replace(plan.complete(nodes, units.value), steps=steps),), gap)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The members of each role (`need`), and `sizes`: how many members of the role `unit` ask for as much as
    a member of the role. For example 4, if `unit` asks for 2 GPUs and the role for 8; 0 if not aggregated.
    """

    need: Counts
    sizes: Counts
    unit: int

    @property
    def units(self) -> Counts:
        """The members by role, in which all aggregated members are members of the role `unit`."""
        units = [0 if size else count for count, size in zip(self.need, self.sizes, strict=True)]
        units[self.unit] = sum(count * size for count, size in zip(self.need, self.sizes, strict=True))
        return tuple(units)

    def assign(self, instance: Instance, nodes: Iterable[NodePlan]) -> tuple[NodePlan, ...]:
        """Return the plans of members, given the plans of units; () if these do not hold the members.

        The largest members are assigned first, along the fabric, so that each role stays together.
        """
        parts = [instance.columns.topology.index(scope) for scope in instance.fabric_scopes]
        roles = sorted(np.flatnonzero(self.sizes).tolist(), key=lambda role: -self.sizes[role])
        missing, assigned_plans = list(self.need), []
        for node in sorted(nodes, key=lambda node: (*(part[node.row] for part in parts), node.row)):
            room, counts = node.counts[self.unit], list(node.counts)
            for role in roles:
                counts[role] = min(missing[role], room // self.sizes[role])
                missing[role] -= counts[role]
                room -= counts[role] * self.sizes[role]
            assigned_plans.append(replace(node, counts=tuple(counts)))
        return () if any(missing[role] for role in roles) else tuple(assigned_plans)


def aggregate_roles(instance: Instance, need: Counts) -> Aggregation | Declined:
    """Return the roles aggregated by size, or why they cannot be aggregated."""
    active = [role for role, count in enumerate(need) if count and instance.roles[role].gpus]
    capped = instance.rules.caps is not None or instance.penalty is not None
    if len(active) < 2:
        return Declined("fewer than two roles with GPUs")
    if not instance.binds_only_by_scopes or instance.policy_costs or capped:
        return Declined("rules, policies, slices or preferences")
    unit = min(active, key=lambda role: instance.roles[role].gpus)
    sizes = tuple(_size_in_units(instance, role, unit) if role in active else 0 for role in range(len(need)))
    sorted_sizes = sorted(filter(None, sizes))
    if len(sorted_sizes) < 2 or any(larger % smaller for smaller, larger in pairwise(sorted_sizes)):
        return Declined("the requests are not multiples of one another")
    # Many small members need more pods than few large members. So each node must have room for enough pods.
    other_members = [
        np.minimum(room, need[role]) for role, room in enumerate(instance.room) if not sizes[role]
    ]
    members = instance.columns.free_count // instance.roles[unit].gpus + sum(other_members)
    pods = max(1, *(role.resources.pods for role in instance.roles))
    lacks_pods = instance.columns.pods < members * pods
    if (lacks_pods & (instance.room[unit] > 0)).any():
        return Declined("pods per node are scarce")
    return Aggregation(need, sizes, unit)


def _size_in_units(instance: Instance, role: int, unit: int) -> int:
    """Return a member's size in members of `unit`; 0 if requests or rooms on nodes are no multiples."""
    large, small = instance.roles[role], instance.roles[unit]
    size = large.gpus // small.gpus
    units = {name: size * amount for name, amount in amounts_of(small.resources, small.gpus).items()}
    is_multiple = {**amounts_of(large.resources, large.gpus), PODS: 0} == {**units, PODS: 0}
    return size if is_multiple and np.array_equal(instance.room[role], instance.room[unit] // size) else 0


# Roles that ask for the same


MAX_ORDERS = 6
"""The most orders of roles that are tried: all orders of three roles."""

MAX_EXCHANGES = 200
"""The most exchanges that are tried, so that they take no longer than the decision."""

MAX_EXCHANGE_CELLS = 64
"""The most nodes × roles of a plan in which members are exchanged. In larger plans the exchanges take longer
than the decision.
"""

FILL_ORDERS = (0, -1, 1)
"""The orders of parts, as a sign of their size: 0 fabric order, −1 largest first, 1 smallest first."""

RoleParts = tuple[int, ...]
"""The number of parts that each role touches, summed over roles: for each level, widest first, then nodes."""


def gather_roles_on_few_parts(instance: Instance, nodes: tuple[NodePlan, ...]) -> tuple[NodePlan, ...]:
    """Return the same plan with interchangeable roles on fewer parts each, if that is possible."""
    groups = _interchangeable_roles(instance) if len(nodes) > 1 else []
    if not groups or instance.rules.model or any(node.by_domain for node in nodes):
        return nodes
    rows = np.array([node.row for node in nodes], np.int64)
    if any(instance.rules.node_rules[rule] is not None for rule in instance.rules.in_node[rows].tolist()):
        return nodes
    counts = np.array([node.counts for node in nodes], np.int64)
    parts = [instance.columns.topology.index_or_own(scope)[rows] for scope in instance.fabric_scopes]
    for group in groups:
        counts[:, group] = _fewest_parts(counts[:, group], parts, rows)
    return tuple(replace(node, counts=tuple(n)) for node, n in zip(nodes, counts.tolist(), strict=True))


def _interchangeable_roles(instance: Instance) -> list[list[int]]:
    """Return groups of roles with equal requests that the same nodes admit."""
    if instance.penalty is not None or instance.rules.caps is not None:
        return []
    by_request: dict[object, list[int]] = {}
    for r, role in enumerate(instance.roles):
        if role.members:
            ask = (role.resources, role.gpus, role.gpu_resource, role.slice, role.match_attributes)
            by_request.setdefault((*ask, instance.admits[r].tobytes()), []).append(r)
    return [group for group in by_request.values() if len(group) > 1]


def _fewest_parts(counts: Ints, parts: Sequence[Ints], rows: Ints) -> Ints:
    """Return [node, role] the assignment with the fewest parts among those tried, `counts` included."""
    need, room = counts.sum(axis=0), counts.sum(axis=1)
    fewest, parts_touched, lower_bounds = (
        counts,
        _count_parts_by_role(counts > 0, parts),
        _lower_bounds(need, room, parts),
    )
    for filled in _fillings(need, room, parts, rows):
        if parts_touched == lower_bounds:
            break
        value = _count_parts_by_role(filled > 0, parts)
        if value < parts_touched:
            fewest, parts_touched = filled, value
    tries = MAX_EXCHANGES if counts.size <= MAX_EXCHANGE_CELLS else 0
    while parts_touched > lower_bounds and tries > 0:
        for exchanged in islice(_exchanges(fewest), tries):
            tries -= 1
            value = _count_parts_by_role(exchanged > 0, parts)
            if value < parts_touched:
                fewest, parts_touched = exchanged, value
                break
        else:
            break
    return fewest


def _exchanges(counts: Ints) -> Iterator[Ints]:
    """Yield the assignments in which two nodes have exchanged members of two roles, as many as possible."""
    nodes, roles = counts.shape
    for pair, (a, b) in product(permutations(range(nodes), 2), permutations(range(roles), 2)):
        members = int(min(counts[pair[0], a], counts[pair[1], b]))
        if members:
            exchanged = counts.copy()
            exchanged[pair, a] += (-members, members)
            exchanged[pair, b] += (members, -members)
            yield exchanged


def _fillings(need: Ints, room: Ints, parts: Sequence[Ints], rows: Ints) -> Iterator[Ints]:
    """Yield assignments that fill the nodes one after another, role after role."""
    for sign in FILL_ORDERS:
        sizes = [np.bincount(part, room)[part] for part in parts]
        keys = [key for size, part in zip(sizes, parts, strict=True) for key in (sign * size, part)]
        order = np.lexsort((rows, sign * room, *keys[::-1]))
        for ordered in islice(permutations(range(len(need))), MAX_ORDERS):
            filled, roles = np.zeros((len(room), len(need)), np.int64), np.array(ordered)
            filled[np.ix_(order, roles)] = _fill_in_order(room[order], need[roles])
            yield filled


def _fill_in_order(room: Ints, need: Ints) -> Ints:
    """Return [node, role] the members of each node if nodes are filled one after another, role after role."""
    node_ends, role_ends = np.cumsum(room), np.cumsum(need)
    ends = np.minimum(node_ends[:, None], role_ends)
    begins = np.maximum((node_ends - room)[:, None], role_ends - need)
    return np.asarray(np.maximum(0, ends - begins))


def _count_parts_by_role(has_members: Bools, parts: Sequence[Ints]) -> RoleParts:
    """Return how many parts the roles touch if `has_members` [node, role]."""
    node, role = np.nonzero(has_members)
    parts_by_level = [len(np.unique(part[node] * has_members.shape[1] + role)) for part in parts]
    return (*parts_by_level, len(node))


def _lower_bounds(need: Ints, room: Ints, parts: Sequence[Ints]) -> RoleParts:
    """Return lower bounds of the parts that roles touch: each role lies in the largest parts."""
    sizes = [*(np.bincount(part, room) for part in parts), room]
    reached = (np.cumsum(np.sort(size)[::-1]) for size in sizes)
    return tuple(int((np.searchsorted(sums, need) + 1).sum()) for sums in reached)
