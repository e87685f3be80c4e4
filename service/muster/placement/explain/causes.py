"""Explain why there is no plan: causes from an irreducible conflict, and relaxations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from muster.domain.causes.not_planned import MembersMissing, NotDecided
from muster.domain.causes.out_of_place import (
    DomainTooSmall,
    GpusNotMatching,
    IndicesUnknown,
    NodesExcluded,
    RoleScope,
)
from muster.domain.causes.too_little import (
    ClusterTooSmall,
    FreeApart,
    FreeInPieces,
    GpusNotOffered,
    MemberTooLarge,
    NotEnoughFree,
    ResourceNotOffered,
    SubgroupsNeeded,
)
from muster.domain.decision import Unplaceable
from muster.domain.node import Node
from muster.domain.quorums import Quorum
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role
from muster.domain.words import GPU_MEMORY, LISTED, gpus_with, nearest
from muster.placement.cluster.columns import CPU, GPU, MEMORY, PODS, Bools, Columns, Ints
from muster.placement.cluster.matching import GangCluster
from muster.placement.cluster.topology import INSIDE, NARROW
from muster.placement.explain.assumptions import (
    RESOURCES,
    Assumption,
    AssumptionKind,
    Assumptions,
    World,
    amount_of,
    amount_taken,
    free_of,
    largest_free_piece,
    missing_resource_reason,
    resources_of,
    without_other_pods,
)
from muster.placement.explain.conflict import Conflict, Oracle, conflict_of, irreducible_subset
from muster.placement.explain.findings import findings_of
from muster.placement.explain.relaxations import relaxations
from muster.placement.gang.blocks import first_by_rank
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import Instance, instance_of, instance_with, room_of
from muster.placement.gpus.slices import ask_of, slice_room
from muster.placement.limits import Budget, Limits

MAX_CONTESTED = 1024
"""Up to this number, contested nodes are named: the pods that have their GPUs are looked up node by node."""


def explain(instance: Instance, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """Return the causes for which the gang does not fit, and relaxations, once no plan was found.

    If a gang needs only some of its subgroups, the causes are about the smallest choice of subgroups with
    which the gang starts.
    """
    gang, quorum = instance.request.gang, instance.request.quorum
    if quorum is not None:
        if not proven:
            return Unplaceable(gang, (NotDecided(budget.truncated),))
        members = instance.request.fewest_members()
        if members is None:
            return Unplaceable(gang, tuple(_members_missing(quorum, instance.request.waiting_by_role)))
        fewest = _with_members(instance, members)
        refusal = explain(fewest, limits, budget, proven)
        return replace(refusal, causes=(*refusal.causes, *_subgroups_needed(quorum, fewest.request)))
    explain_budget = Budget(limits)  # as much time as for the search
    assumptions = Assumptions(instance, limits.excluded)
    conflict = conflict_of(assumptions, Oracle(explain_budget), proven)
    if conflict is None:
        return Unplaceable(gang, (NotDecided(budget.truncated or explain_budget.truncated),))
    causes = tuple(_causes(conflict))
    return Unplaceable(gang, causes, relaxations(conflict), _contested_nodes(conflict, causes))


def _causes(conflict: Conflict) -> Iterator[Cause]:
    """Yield the causes of the conflict: first the scope or resource that is too small, then the reasons."""
    assumptions = conflict.assumptions
    roles = {role.name: role for role in assumptions.roles}
    findings = findings_of(conflict)
    if conflict.obstacles_of(AssumptionKind.SCOPE):
        scope = str(assumptions.request.required_scope)
        yield findings.domain_too_small(scope)
        yield from findings.causes_of_running_members(scope)
    elif not any(map(conflict.obstacles_of, RULES)):
        cause = shortage(conflict)
        if cause is not None:
            yield cause
        if Assumption(AssumptionKind.IN_USE, subject=GPU_MEMORY) in conflict.obstacles:
            yield from gpus_not_shared(conflict)
    for constraint in CONSTRAINTS:
        for obstacle in conflict.obstacles_of(constraint):
            yield from constraint.causes(findings, obstacle.role, obstacle.subject)
    for obstacle in conflict.obstacles_of(AssumptionKind.REFUSED):
        yield _nodes_excluded(conflict, roles[obstacle.role], obstacle.subject)
    for role in conflict.conflicting_roles:
        missing = assumptions.refused[role.name].get(missing_resource_reason(role))
        if missing is not None and missing.all() and (role.gpus or role.slice):
            yield cause_not_offered(
                assumptions.columns, role, missing_resource_reason(role).removeprefix("no ")
            )
    yield from gpus_not_offered(conflict)


def _nodes_excluded(conflict: Conflict, role: Role, reason: str) -> NodesExcluded:
    """Return the cause that nodes with room and the role's GPU resource refuse the role for this reason."""
    refusals = conflict.assumptions.refused[role.name]
    rows = refusals[reason] & (conflict.world().room[role.name] > 0)
    if missing_resource_reason(role) in refusals:
        rows &= ~refusals[missing_resource_reason(role)]
    return NodesExcluded(role.name, reason, int(np.count_nonzero(rows)))


def _contested_nodes(conflict: Conflict, causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the nodes whose GPUs the gang lacks because other pods have them."""
    if Assumption(AssumptionKind.IN_USE, subject=GPU) not in conflict.obstacles:
        return ()
    columns, admitted = conflict.assumptions.columns, conflict.with_all_assumptions.admitted
    rows = np.logical_or.reduce([admitted[role.name] for role in conflict.conflicting_roles])
    for cause in causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            row = columns.row.get(cause.best.rpartition("/")[0] if cause.scope in INSIDE else cause.best)
            if row is not None and cause.scope in NARROW:
                rows &= np.arange(len(rows)) == row
            else:
                domains = columns.topology.domains(cause.scope)
                rows &= domains.codes == domains.index.get(cause.best, len(domains.names))
    nodes = np.flatnonzero(rows & (columns.gpu_total > columns.free_count))
    return tuple(columns.names[row] for row in nodes) if len(nodes) <= MAX_CONTESTED else ()


def _with_members(instance: Instance, members: Mapping[str, int]) -> Instance:
    """Return the instance for a gang of only these numbers of members by role. All of them must fit."""
    request = instance.request
    roles = tuple(first_by_rank(role, members[role.name]) for role in request.roles)
    smaller_request = replace(request, roles=roles, quorum=None)
    return instance_with(
        instance.columns,
        replace(smaller_request, min_member=smaller_request.size),
        instance.admits_without_rules,
    )


def _members_missing(quorum: Quorum, waiting: Mapping[str, int]) -> Iterator[MembersMissing]:
    """Yield which members are missing, subgroup by subgroup.

    These are members with which the gang starts; in a gang that runs, members of the subgroups that have
    begun. If each subgroup has enough members, these are members that complete its replicas.
    """
    lacking = quorum.without_members(waiting)
    starting = [leaf for leaf, count in lacking.fewest_members() or () if count]
    lacking_leaves = starting or [
        leaf for leaf in lacking.leaves() if leaf.min_members and leaf.count_in(waiting)
    ]
    needed = [(leaf, leaf.count_in(waiting) + leaf.next_startable(1)) for leaf in lacking_leaves]
    if not lacking_leaves:
        present = [(leaf, leaf.count_in(waiting)) for leaf in quorum.leaves()]
        incomplete = [(leaf, count) for leaf, count in present if count and not leaf.starts(count)]
        incomplete = [(leaf, count) for leaf, count in incomplete if leaf.min_members] or incomplete
        needed = [(leaf, max(count + 1, leaf.next_startable(count))) for leaf, count in incomplete]
    for leaf, count in needed:
        yield MembersMissing(leaf.count_in(waiting), count, ", ".join(sorted(leaf.roles)))


def _subgroups_needed(quorum: Quorum, request: Request) -> Iterator[SubgroupsNeeded]:
    """Yield the cause that the others are only about the smallest choice of subgroups that starts the gang.

    There is no such cause if the gang runs already, or if all subgroups must start.
    """
    if not quorum.starts({}) and not quorum.leaves_no_choice:
        roles = tuple(role.name for role in request.roles if role.members)
        yield SubgroupsNeeded(quorum.min_parts, len(quorum.parts), roles)


def gpus_not_matching(cluster: GangCluster, limits: Limits) -> Iterator[GpusNotMatching]:
    """Yield the cause that claims match too few GPUs, if the gang might fit on GPUs that the claims do not
    match.

    With `allocationMode: All`, the cause counts the nodes that have as many matching GPUs as the subrequest
    that was tried last. This number is the smallest.
    """
    request, masks = cluster.request, cluster.masks
    for role in request.roles:
        if role.chosen_subrequest is not None and role.chosen_subrequest.takes_all and role.members:
            nodes = sum(map(bool, role.matching.values()))
            gpus = nodes * role.gpus
            yield from [GpusNotMatching(nodes, gpus, gpus, each=role.gpus)] if nodes else ()
            return
    if not masks or (request.quorum is None and not _may_fit_on_any_gpus(cluster, limits)):
        return
    matching: dict[str, int] = {}
    gpus = 0
    for name, mask in masks.items():
        node = cluster.snapshot.nodes[name].node
        all_gpus_mask = (1 << node.topology.gpu_count) - 1
        if all_gpus_mask & ~node.tainted & ~mask:  # else the claims only add GPUs, by tolerating taints
            matching[name] = mask.bit_count()
            gpus += node.topology.gpu_count
    if matching:
        yield GpusNotMatching(
            len(matching), sum(matching.values()), gpus, cluster.count_differing_nodes(matching)
        )


def _may_fit_on_any_gpus(cluster: GangCluster, limits: Limits) -> bool:
    """Return whether the gang may fit if members may have any GPU."""
    roles = tuple(replace(role, matching={}) for role in cluster.request.roles)
    all_gpus = replace(cluster, request=replace(cluster.request, roles=roles))
    assumptions = Assumptions(instance_of(all_gpus, limits.excluded), limits.excluded)
    return Oracle(Budget(limits)).target_fits(assumptions.world(assumptions.all)) is not False


RULES: tuple[AssumptionKind | Constraint, ...] = (AssumptionKind.SCOPE, AssumptionKind.RUNNING, *CONSTRAINTS)
"""The gang's own demands, other than resources."""

NEAR = 0.7
"""The least similarity of a name to be suggested. Names of two resources of one vendor have more than half in
common.
"""


def shortage(conflict: Conflict) -> Cause | None:
    """Return the cause that all nodes together have too little of a resource for the members.

    The result is None if no node admits the members, because other causes say so.
    """
    world = conflict.world(without=RULES)
    if conflict.nobody_admits and conflict.even_empty and conflict.obstacles_of(AssumptionKind.REFUSED):
        return None
    rows = np.flatnonzero(world.admitting_rows)
    if not len(rows) and len(world.columns.names):
        return None
    request = conflict.assumptions.request
    empty_columns = (
        without_other_pods(world.columns, replace(request, running=())) if request.running else world.columns
    )
    if conflict.even_empty and (
        cause := _member_too_large(conflict, replace(world, columns=empty_columns), rows)
    ):
        return cause
    # Members that fit by their resources may still break a rule. So if there are rules, no number is claimed.
    has_rules = request.required_scope or any(constraints_of(request))
    fit = None if has_rules else conflict.oracle.most_members(world)
    scarce_resource, *other_scarce_resources = _scarce_resources(conflict, world, rows)
    free = {
        resource: _sum_of_free(free_of(world.columns, resource)[rows])
        for resource in (scarce_resource, *other_scarce_resources)
    }
    if other_scarce_resources:
        free_amounts = tuple((_name_of(conflict, resource), amount) for resource, amount in free.items())
        return FreeApart(conflict.name, free_amounts, fit, world.target, conflict.even_empty)
    if conflict.even_empty:
        return _cluster_too_small(conflict, world, empty_columns, rows, scarce_resource, fit)
    name, demand = _name_of(conflict, scarce_resource), _demand(world, scarce_resource)
    numbers = (conflict.name, name, free[scarce_resource], demand, fit, world.target)
    elsewhere = _sum_of_free(np.delete(free_of(world.columns, scarce_resource), rows))
    largest = _node_with_most(world.columns, rows, scarce_resource)
    is_enough = free[scarce_resource] >= demand
    return FreeInPieces(*numbers, *largest, elsewhere) if is_enough else NotEnoughFree(*numbers, elsewhere)


def _cluster_too_small(
    conflict: Conflict, world: World, empty_columns: Columns, rows: Ints, resource: str, fit: int | None
) -> ClusterTooSmall:
    """Return the cause that the cluster has too little of a resource, even without other pods.

    Running members take the resource too, so they are counted among the members. `empty_columns` are the
    nodes without other pods and without running members.
    """
    request = conflict.assumptions.request
    running = _taken_by_running(world.columns, request, rows, resource)
    waiting = [role.name for role in request.roles]
    names = {role.name for role in conflict.conflicting_roles} | {role for role, _ in running}
    roles = ", ".join((*sorted(names.difference(waiting)), *(name for name in waiting if name in names)))
    demand = _demand(world, resource) + sum(amount for _, amount in running)
    return ClusterTooSmall(
        roles,
        _name_of(conflict, resource),
        _sum_of_free(free_of(empty_columns, resource)[rows]),
        demand,
        fit if fit is None else fit + len(running),
        world.target + len(running),
        *_node_with_most(empty_columns, rows, resource),
        conflict.nobody_admits,
    )


def _taken_by_running(columns: Columns, request: Request, rows: Ints, resource: str) -> list[tuple[str, int]]:
    """Return the role of each running member on these nodes, and how much of a resource the member takes.

    Roles without waiting members come first.
    """
    if not request.running:
        return []
    roles, nodes = {role.name: role for role in request.roles}, {columns.names[row] for row in rows}
    running = [member for member in request.running if member.node in nodes]
    past_roles = [
        (member.role, amount_taken(member.usage, resource))
        for member in running
        if member.role not in roles and member.usage
    ]
    waiting_roles = [
        (member.role, amount_of(roles[member.role], resource)) for member in running if member.role in roles
    ]
    return past_roles + waiting_roles


def _scarce_resources(conflict: Conflict, world: World, rows: Ints) -> list[str]:
    """Return the scarce resources.

    If the cluster has too little of a single resource, the result is the scarcest such resource; resources
    that other pods take come first. Otherwise it is an irreducible set of resources that are scarce together.
    """
    resources = [
        resource
        for resource in resources_of(conflict.conflicting_roles)
        if any(amount_of(role, resource) for role in conflict.conflicting_roles)
    ]
    in_use = {obstacle.subject for obstacle in conflict.obstacles_of(AssumptionKind.IN_USE)}
    resources.sort(key=lambda resource: resource not in in_use)
    shares = {resource: _share_covered(conflict, world, rows, resource) for resource in resources}
    short_resources = [resource for resource in resources if shares[resource] < 1]
    if short_resources:
        return [min(short_resources, key=lambda resource: (resource not in in_use, shares[resource]))]

    def forbids(subset: frozenset[str]) -> bool:
        return conflict.oracle.target_fits(_with_requests_for(world, subset)) is False

    limiting_resources = irreducible_subset([(resource,) for resource in reversed(resources)], forbids)
    return [resource for resource in resources if resource in limiting_resources]


def _with_requests_for(world: World, resources: Collection[str]) -> World:
    """Return the world in which members ask only for these resources, and for room for a pod."""

    def reduce(role: Role) -> Role:
        cpu = role.resources.cpu_milli if CPU in resources else 0
        memory = role.resources.memory_bytes if MEMORY in resources else 0
        others = tuple((name, amount) for name, amount in role.resources.others if name in resources)
        request = replace(role.resources, cpu_milli=cpu, memory_bytes=memory, others=others)
        gpu_slice = role.slice if GPU_MEMORY in resources else None
        return replace(role, resources=request, gpus=role.gpus if GPU in resources else 0, slice=gpu_slice)

    roles = tuple(map(reduce, world.request.roles))
    room = {role.name: room_of(world.columns, role) for role in roles}
    return replace(world, request=replace(world.request, roles=roles), room=room)


def _member_too_large(conflict: Conflict, world: World, rows: Ints) -> Cause | None:
    """Return the cause that one member exceeds every node that admits members of its role; else None."""
    for role in conflict.conflicting_roles:
        hosts = rows[world.admitted[role.name][rows]]
        if not len(hosts) or room_of(world.columns, role)[hosts].any():
            continue
        if (limit := _scarce_for_member(world.columns, role, hosts)) is not None:
            resource, amount, node, largest = limit
            allocatables = (state.node.allocatable for state in world.columns.states)
            if (
                not largest
                and resource not in RESOURCES
                and not any(a.other_amount(resource) for a in allocatables)
            ):
                return cause_not_offered(world.columns, role, resource)
            name = _name_of(conflict, resource)
            if resource == GPU and role.slice:
                name = gpus_with(role.slice.units)
            return MemberTooLarge(role.name, name, amount, node, largest, conflict.nobody_admits)
    return None


def _scarce_for_member(columns: Columns, role: Role, rows: Ints) -> tuple[str, int, str, int] | None:
    """Return a resource that is too small for a member on all these nodes, and the demand. Then follow the
    node with the most of the resource, and that amount.

    If each resource alone is enough on some node, the result is about the node with the most GPUs.
    """
    for resource in resources_of((role,)):
        node, largest = _node_with_most(columns, rows, resource)
        amount = role.slice.units if resource == GPU_MEMORY and role.slice else amount_of(role, resource)
        if amount > largest:
            return resource, amount, node, largest
    row = rows[int(_suitable_gpus(columns, role)[rows].argmax())]
    for resource in (CPU, MEMORY, PODS, *(name for name, _ in role.resources.others), GPU):
        amount, free = amount_of(role, resource), int(free_of(columns, resource)[row])
        if amount > free:
            return resource, amount, columns.names[row], free
    gpus = role.slice and role.slice.gpus
    return (GPU, gpus, columns.names[row], int(_suitable_gpus(columns, role)[row])) if gpus else None


def _suitable_gpus(columns: Columns, role: Role) -> Ints:
    """Return [row] int64: the GPUs that could serve the role."""
    if role.slice is None:
        return free_of(columns, GPU)
    return np.asarray((columns.gpu_memory >= role.slice.units).sum(axis=0), np.int64)


def _share_covered(conflict: Conflict, world: World, rows: Ints, resource: str) -> float:
    """Return which share of the demand for a resource these nodes have. Below 1, they have too little.

    For one role, members are counted node by node. For several roles, amounts are summed up.
    """
    free, demand = np.maximum(0, free_of(world.columns, resource)[rows]), _demand(world, resource)
    if len(conflict.conflicting_roles) > 1:
        return _sum_of_free(free) / demand if demand else np.inf
    (role,) = conflict.conflicting_roles
    amount = amount_of(role, resource)
    if resource == GPU_MEMORY:
        room = slice_room(world.columns.gpu_memory[:, rows], ask_of(role))
    elif amount:
        room = free // amount
    else:
        return np.inf
    return _sum_of_free(np.minimum(room, world.target)) / max(1, world.target)


def _demand(world: World, resource: str) -> int:
    """Return how much of the resource the smallest `world.target` members need."""
    amounts = sorted((amount_of(role, resource), len(role.members)) for role in world.request.roles)
    demand, missing = 0, world.target
    for amount, members in amounts:
        demand += amount * min(missing, members)
        missing -= min(missing, members)
    return demand


def _node_with_most(columns: Columns, rows: Ints, resource: str) -> tuple[str, int]:
    """Return the node with the largest free piece of a resource, and the amount."""
    if not len(rows):
        return "", 0
    free = largest_free_piece(columns, resource)[rows]
    largest = int(free.argmax())
    return columns.names[rows[largest]], max(0, int(free[largest]))


def _sum_of_free(free: Ints) -> int:
    return sum(np.maximum(0, free).tolist())  # Python's integers never overflow, as those of numpy may


def _name_of(conflict: Conflict, resource: str) -> str:
    """Return the name of a resource for messages; for GPUs, the name that the members' requests have."""
    names = [role.gpu_resource for role in conflict.conflicting_roles if role.gpus]
    return names[0] if resource == GPU and names else resource


def cause_not_offered(columns: Columns, role: Role, resource: str) -> ResourceNotOffered:
    """Return the cause that no node offers this resource."""
    nodes = [state.node for state in columns.states]
    if role.slice:
        names = frozenset[str]().union(*(node.memory_resources for node in nodes if node.gpu_memory))
    else:
        names = frozenset(name for node in nodes for name, _ in node.allocatable.others)
        names = names.union(*(node.gpu_resources for node in nodes))
    names = names.difference((role.gpu_resource, *(name for name, _ in role.resources.others)))
    return ResourceNotOffered(role.name, resource, len(nodes), nearest(resource, names, NEAR))


def gpus_not_offered(conflict: Conflict) -> Iterator[GpusNotOffered]:
    """Yield for each role the cause that nodes would hold more members if they offered all their GPUs."""
    columns, roles = conflict.assumptions.columns, conflict.assumptions.roles
    broken = np.zeros(len(columns.names), np.int64)
    for row in np.flatnonzero(columns.totals[1] < columns.gpu_total).tolist():
        broken[row] = _count_broken_gpus(columns.states[row].node, roles)
    missing = (
        np.array([profile.missing_gpus for profile in columns.profiles], np.int64)[columns.profile] + broken
    )
    for role in conflict.conflicting_roles if missing.any() else ():
        if not role.gpus:
            continue
        holds_more = (columns.free_count + missing) // role.gpus > columns.free_count // role.gpus
        rows = np.flatnonzero(holds_more & ~_refusing_nodes(conflict, role))
        if len(rows):
            on_offer = int((columns.gpu_total[rows] - broken[rows]).sum())
            gpus, names = (
                on_offer + int(missing[rows].sum()),
                tuple(columns.names[row] for row in rows[:LISTED]),
            )
            yield GpusNotOffered(role.name, role.gpu_resource, len(rows), on_offer, gpus, names)


def _count_broken_gpus(node: Node, roles: Sequence[Role]) -> int:
    """Return how many GPUs of a node are broken.

    For the gang, GPUs that its claims do not match are unhealthy too. Such GPUs do not count here.
    """
    if not node.unhealthy:
        return 0
    masks = {role.matching.get(node.name, -1) for role in roles if role.gpus or role.slice}
    return (node.unhealthy & ~node.tainted & masks.pop()).bit_count() if len(masks) == 1 else 0


def gpus_not_shared(conflict: Conflict) -> Iterator[IndicesUnknown]:
    """Yield for each role with slices the cause that some nodes do not say which GPUs other pods have.

    No GPU of such a node is shared.
    """
    columns = conflict.assumptions.columns
    for role in conflict.conflicting_roles:
        if role.slice:
            serves = np.array([any(state.node.gpu_memory) for state in columns.states], np.bool_)
            nodes = int(np.count_nonzero(serves & (columns.unindexed > 0) & ~_refusing_nodes(conflict, role)))
            if nodes:
                yield IndicesUnknown("", nodes, role.name)


def _refusing_nodes(conflict: Conflict, role: Role) -> Bools:
    """Return [row] bool: whether the node refuses the role for another reason than a missing resource."""
    refusing = np.zeros(len(conflict.assumptions.columns.names), np.bool_)
    for reason, rows in conflict.assumptions.refused[role.name].items():
        if reason != missing_resource_reason(role):
            refusing |= rows
    return refusing
