"""Explain why no plan exists: typed causes from an irreducible conflict, and relaxations."""

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
from muster.domain.quorums import Leaf, Quorum
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role
from muster.domain.words import GPU_MEMORY, LISTED, gpus_with, nearest
from muster.placement.cluster.columns import CPU, GPU, MEMORY, PODS, Bools, Columns, Ints
from muster.placement.cluster.matching import ClusterView
from muster.placement.cluster.topology import INSIDE, NARROW
from muster.placement.explain.assumptions import (
    RESOURCES,
    Assumption,
    AssumptionKind,
    Assumptions,
    World,
    amount_of,
    emptied,
    free_of,
    largest_free_piece,
    resource_missing,
    resources_of,
    taken_of,
)
from muster.placement.explain.conflict import Conflict, Oracle, conflict_of, irreducible
from muster.placement.explain.findings import findings_of
from muster.placement.explain.relaxations import relaxations
from muster.placement.gang.blocks import first_by_rank
from muster.placement.gang.constraints import CONSTRAINTS, constraints_of
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.gang.instance import Instance, instance_of, instance_with, room_of
from muster.placement.gpus.slices import ask_of, slice_room
from muster.placement.limits import Budget, Limits

MAX_CONTESTED = 1024
"""The most contested nodes that are named, because the holders of their GPUs are looked up node by node."""


def explain(instance: Instance, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """Return the causes that forbid the gang, and relaxations. Call this only if no plan was found.

    If a gang needs only some of its subgroups, the causes are about the subgroups with the fewest members.
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
    spare = Budget(limits)  # explaining gets the same time as searching
    assumptions = Assumptions(instance, limits.excluded)
    conflict = conflict_of(assumptions, Oracle(spare), proven)
    if conflict is None:
        return Unplaceable(gang, (NotDecided(budget.truncated or spare.truncated),))
    causes = tuple(_causes(conflict))
    return Unplaceable(gang, causes, relaxations(conflict), _contested_nodes(conflict, causes))


def _causes(conflict: Conflict) -> Iterator[Cause]:
    """Yield the resource that is short first, then the causes of the shortage."""
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
            yield from not_shared(conflict)
    for constraint in CONSTRAINTS:
        for obstacle in conflict.obstacles_of(constraint):
            yield from constraint.causes(findings, obstacle.role, obstacle.subject)
    for obstacle in conflict.obstacles_of(AssumptionKind.REFUSED):
        yield _nodes_excluded(conflict, roles[obstacle.role], obstacle.subject)
    for role in conflict.conflicting_roles:
        missing = assumptions.refused[role.name].get(resource_missing(role))
        if missing is not None and missing.all() and (role.gpus or role.slice):
            yield cause_not_offered(assumptions.view, role, resource_missing(role).removeprefix("no "))
    yield from gpus_not_offered(conflict)


def _nodes_excluded(conflict: Conflict, role: Role, reason: str) -> NodesExcluded:
    """Return the nodes with the role's GPU resource and room that refuse the role for this reason."""
    refusals = conflict.assumptions.refused[role.name]
    rows = refusals[reason] & (conflict.world().room[role.name] > 0)
    if resource_missing(role) in refusals:
        rows &= ~refusals[resource_missing(role)]
    return NodesExcluded(role.name, reason, int(np.count_nonzero(rows)))


def _contested_nodes(conflict: Conflict, causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the nodes whose GPUs the gang lacks because other pods have them."""
    if Assumption(AssumptionKind.IN_USE, subject=GPU) not in conflict.obstacles:
        return ()
    view, admitted = conflict.assumptions.view, conflict.with_all_assumptions.admitted
    rows = np.logical_or.reduce([admitted[role.name] for role in conflict.conflicting_roles])
    for cause in causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            row = view.row.get(cause.best.rpartition("/")[0] if cause.scope in INSIDE else cause.best)
            if row is not None and cause.scope in NARROW:
                rows &= np.arange(len(rows)) == row
            else:
                domains = view.topology.domains(cause.scope)
                rows &= domains.codes == domains.index.get(cause.best, len(domains.names))
    nodes = np.flatnonzero(rows & (view.gpu_total > view.free_count))
    return tuple(view.names[row] for row in nodes) if len(nodes) <= MAX_CONTESTED else ()


def _with_members(instance: Instance, members: Mapping[str, int]) -> Instance:
    """Return the instance for a gang of only these members by role. All of them must fit."""
    request = instance.request
    roles = tuple(first_by_rank(role, members[role.name]) for role in request.roles)
    smaller_request = replace(request, roles=roles, quorum=None)
    return instance_with(
        instance.columns, replace(smaller_request, min_member=smaller_request.size), instance.admitted
    )


def _members_missing(quorum: Quorum, waiting: Mapping[str, int]) -> Iterator[MembersMissing]:
    """Yield which members are missing: of a running gang, members of the subgroups that have begun.

    If each subgroup has enough members, the missing members are those that complete its replicas.
    """
    lacking = quorum.without_members(waiting)
    starting = [leaf for leaf, count in lacking.fewest_members() or () if count]
    lacking_leaves = starting or [
        leaf for leaf in lacking.leaves() if leaf.min_members and leaf.count_in(waiting)
    ]
    for leaf in lacking_leaves:
        present = leaf.count_in(waiting)
        yield MembersMissing(present, present + leaf.next_startable(1), _names(leaf))
    if not lacking_leaves:
        begun_incomplete = [
            leaf
            for leaf in quorum.leaves()
            if leaf.count_in(waiting) and not leaf.starts(leaf.count_in(waiting))
        ]
        for leaf in [leaf for leaf in begun_incomplete if leaf.min_members] or begun_incomplete:
            present = leaf.count_in(waiting)
            yield MembersMissing(present, max(present + 1, leaf.next_startable(present)), _names(leaf))


def _names(leaf: Leaf) -> str:
    return ", ".join(sorted(leaf.roles))


def _subgroups_needed(quorum: Quorum, request: Request) -> Iterator[SubgroupsNeeded]:
    """Say that the other causes concern only these subgroups, the smallest choice with which the gang starts.

    There is no such cause if the gang runs already, or if all subgroups must start.
    """
    if not quorum.starts({}) and not quorum.leaves_no_choice:
        roles = tuple(role.name for role in request.roles if role.members)
        yield SubgroupsNeeded(quorum.min_parts, len(quorum.parts), roles)


def not_matching(cluster: ClusterView, limits: Limits) -> Iterator[GpusNotMatching]:
    """Yield the cause that claims match too few GPUs, if the gang might fit on GPUs that the claims do not
    match.

    For `allocationMode: All`, the cause counts the nodes that have this number of matching GPUs. The last
    number that was tried is the smallest.
    """
    request, masks = cluster.request, cluster.masks
    for role in request.roles:
        if role.chosen_subrequest is not None and role.chosen_subrequest.takes_all and role.members:
            nodes = sum(map(bool, role.matching.values()))
            gpus = nodes * role.gpus
            yield from [GpusNotMatching(nodes, gpus, gpus, each=role.gpus)] if nodes else ()
            return
    if not masks or (request.quorum is None and not _fits_with_all(cluster, limits)):
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


def _fits_with_all(cluster: ClusterView, limits: Limits) -> bool:
    """Return whether the gang may fit if members may have any GPU."""
    roles = tuple(replace(role, matching={}) for role in cluster.request.roles)
    all_gpus = replace(cluster, request=replace(cluster.request, roles=roles))
    assumptions = Assumptions(instance_of(all_gpus, limits.excluded), limits.excluded)
    return Oracle(Budget(limits)).target_fits(assumptions.world(assumptions.all)) is not False


RULES: tuple[AssumptionKind | Constraint, ...] = (AssumptionKind.SCOPE, AssumptionKind.RUNNING, *CONSTRAINTS)
"""The gang's own demands, besides room."""

NEAR = 0.7
"""The least similarity of a resource that was probably meant. The names of two resources of one vendor are
more than half alike.
"""


def shortage(conflict: Conflict) -> Cause | None:
    """Return the cause that all nodes together have too little of a resource for the members.

    The result is None if no node admits the members, because other causes say so.
    """
    world = conflict.world(without=RULES)
    if conflict.nobody_admits and conflict.even_empty and conflict.obstacles_of(AssumptionKind.REFUSED):
        return None
    rows = np.flatnonzero(world.admitting)
    if not len(rows) and len(world.view.names):
        return None
    request = conflict.assumptions.request
    empty_view = emptied(world.view, replace(request, running=())) if request.running else world.view
    if conflict.even_empty and (cause := _too_large(conflict, replace(world, view=empty_view), rows)):
        return cause
    # Members that fit one by one may still break a rule, so then they are not counted.
    fit = None if request.required_scope or any(constraints_of(request)) else conflict.oracle.members(world)
    scarce_resource, *other_scarce_resources = _limits(conflict, world, rows)
    free = {
        resource: _sum(free_of(world.view, resource)[rows])
        for resource in (scarce_resource, *other_scarce_resources)
    }
    if other_scarce_resources:
        free_amounts = tuple((_name_of(conflict, resource), amount) for resource, amount in free.items())
        return FreeApart(conflict.name, free_amounts, fit, world.target, conflict.even_empty)
    if conflict.even_empty:
        return _cluster_too_small(conflict, world, empty_view, rows, scarce_resource, fit)
    name, demand = _name_of(conflict, scarce_resource), _demand(world, scarce_resource)
    numbers = (conflict.name, name, free[scarce_resource], demand, fit, world.target)
    elsewhere, largest = (
        _sum(np.delete(free_of(world.view, scarce_resource), rows)),
        _largest(world.view, rows, scarce_resource),
    )
    is_enough = free[scarce_resource] >= demand
    return FreeInPieces(*numbers, *largest, elsewhere) if is_enough else NotEnoughFree(*numbers, elsewhere)


def _cluster_too_small(
    conflict: Conflict, world: World, empty_view: Columns, rows: Ints, resource: str, fit: int | None
) -> ClusterTooSmall:
    """Return the cause that the cluster has too little of a resource, even without other pods.

    Existing members take the resource too, so they are counted among the members. `empty_view` is the cluster
    without existing members.
    """
    request = conflict.assumptions.request
    running, waiting = _running_on(world.view, request, rows, resource), [role.name for role in request.roles]
    names = {role.name for role in conflict.conflicting_roles} | {role for role, _ in running}
    roles = ", ".join((*sorted(names.difference(waiting)), *(name for name in waiting if name in names)))
    demand = _demand(world, resource) + sum(amount for _, amount in running)
    return ClusterTooSmall(
        roles,
        _name_of(conflict, resource),
        _sum(free_of(empty_view, resource)[rows]),
        demand,
        fit if fit is None else fit + len(running),
        world.target + len(running),
        *_largest(empty_view, rows, resource),
        conflict.nobody_admits,
    )


def _running_on(view: Columns, request: Request, rows: Ints, resource: str) -> list[tuple[str, int]]:
    """Return the role of each existing member on these nodes, and how much of a resource the member takes.

    Roles without waiting members come first.
    """
    if not request.running:
        return []
    roles, nodes = {role.name: role for role in request.roles}, {view.names[row] for row in rows}
    running = [member for member in request.running if member.node in nodes]
    of_past_roles = [
        (member.role, taken_of(member.usage, resource))
        for member in running
        if member.role not in roles and member.usage
    ]
    waiting = [
        (member.role, amount_of(roles[member.role], resource)) for member in running if member.role in roles
    ]
    return of_past_roles + waiting


def _limits(conflict: Conflict, world: World, rows: Ints) -> list[str]:
    """Return the resources that are short.

    If a resource alone is too little, only the scarcest such resource is returned; resources that other pods
    take come first. Otherwise the result is an irreducible set of resources that are short only together.
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
        return conflict.oracle.target_fits(_asking_only(world, subset)) is False

    limiting_resources = irreducible([(resource,) for resource in reversed(resources)], forbids)
    return [resource for resource in resources if resource in limiting_resources]


def _asking_only(world: World, resources: Collection[str]) -> World:
    """Return the world in which members ask only for these resources, and for room for a pod."""

    def reduce(role: Role) -> Role:
        cpu = role.resources.cpu_milli if CPU in resources else 0
        memory = role.resources.memory_bytes if MEMORY in resources else 0
        by_name = tuple((name, amount) for name, amount in role.resources.others if name in resources)
        of_pod = replace(role.resources, cpu_milli=cpu, memory_bytes=memory, others=by_name)
        part = role.slice if GPU_MEMORY in resources else None
        return replace(role, resources=of_pod, gpus=role.gpus if GPU in resources else 0, slice=part)

    roles = tuple(map(reduce, world.request.roles))
    room = {role.name: room_of(world.view, role) for role in roles}
    return replace(world, request=replace(world.request, roles=roles), room=room)


def _too_large(conflict: Conflict, world: World, rows: Ints) -> Cause | None:
    """Return the cause that one member exceeds every node that admits members of its role; else None."""
    for role in conflict.conflicting_roles:
        hosts = rows[world.admitted[role.name][rows]]
        if not len(hosts) or room_of(world.view, role)[hosts].any():
            continue
        if (limit := _limit_of_member(world.view, role, hosts)) is not None:
            resource, amount, node, largest = limit
            if not largest and resource not in RESOURCES and not _is_offered(world.view, resource):
                return cause_not_offered(world.view, role, resource)
            name = (
                gpus_with(role.slice.units)
                if resource == GPU and role.slice
                else _name_of(conflict, resource)
            )
            return MemberTooLarge(role.name, name, amount, node, largest, conflict.nobody_admits)
    return None


def _limit_of_member(view: Columns, role: Role, rows: Ints) -> tuple[str, int, str, int] | None:
    """Return a resource that is too small on all these nodes, the demand, a node, and the node's amount.

    The node has the most of the resource. If each resource alone is enough on some node, the node has the
    most GPUs.
    """
    for resource in resources_of((role,)):
        node, largest = _largest(view, rows, resource)
        amount = role.slice.units if resource == GPU_MEMORY and role.slice else amount_of(role, resource)
        if amount > largest:
            return resource, amount, node, largest
    row = rows[int(_most_gpus(view, role)[rows].argmax())]
    for resource in (CPU, MEMORY, PODS, *(name for name, _ in role.resources.others), GPU):
        amount, free = amount_of(role, resource), int(free_of(view, resource)[row])
        if amount > free:
            return resource, amount, view.names[row], free
    gpus = role.slice and role.slice.gpus
    return (GPU, gpus, view.names[row], int(_most_gpus(view, role)[row])) if gpus else None


def _is_offered(view: Columns, resource: str) -> bool:
    return any(state.node.allocatable.other_amount(resource) for state in view.states)


def _most_gpus(view: Columns, role: Role) -> Ints:
    """Return [row] int64: the GPUs that could serve the role."""
    if role.slice is None:
        return free_of(view, GPU)
    return np.asarray((view.gpu_memory >= role.slice.units).sum(axis=0), np.int64)


def _share_covered(conflict: Conflict, world: World, rows: Ints, resource: str) -> float:
    """Return the share of the demand that this resource covers. Below 1 the resource alone is too little.

    For one role members are counted node by node, else amounts are summed up.
    """
    free, demand = np.maximum(0, free_of(world.view, resource)[rows]), _demand(world, resource)
    if len(conflict.conflicting_roles) > 1:
        return _sum(free) / demand if demand else np.inf
    (role,) = conflict.conflicting_roles
    amount = amount_of(role, resource)
    if resource == GPU_MEMORY:
        room = slice_room(world.view.gpu_memory[:, rows], ask_of(role))
    elif amount:
        room = free // amount
    else:
        return np.inf
    return _sum(np.minimum(room, world.target)) / max(1, world.target)


def _demand(world: World, resource: str) -> int:
    """Return how much of the resource the smallest members need, as many of them as must fit."""
    amounts = sorted((amount_of(role, resource), len(role.members)) for role in world.request.roles)
    demand, missing = 0, world.target
    for amount, members in amounts:
        demand += amount * min(missing, members)
        missing -= min(missing, members)
    return demand


def _largest(view: Columns, rows: Ints, resource: str) -> tuple[str, int]:
    """Return the node with most of a resource, and the amount. GPU memory is that of a single GPU."""
    if not len(rows):
        return "", 0
    free = largest_free_piece(view, resource)[rows]
    largest = int(free.argmax())
    return view.names[rows[largest]], max(0, int(free[largest]))


def _sum(free: Ints) -> int:
    return sum(np.maximum(0, free).tolist())  # Python's integers do not overflow, however absurd an amount is


def _name_of(conflict: Conflict, resource: str) -> str:
    """Return the name of a resource for messages: GPUs have the name of their resource."""
    names = [role.gpu_resource for role in conflict.conflicting_roles if role.gpus]
    return names[0] if resource == GPU and names else resource


def cause_not_offered(view: Columns, role: Role, resource: str) -> ResourceNotOffered:
    """Return the cause that no node offers this resource."""
    nodes = [state.node for state in view.states]
    if role.slice:
        names = frozenset[str]().union(*(node.memory_resources for node in nodes if node.gpu_memory))
    else:
        names = frozenset(name for node in nodes for name, _ in node.allocatable.others)
        names = names.union(*(node.gpu_resources for node in nodes))
    names = names.difference((role.gpu_resource, *(name for name, _ in role.resources.others)))
    return ResourceNotOffered(role.name, resource, len(nodes), nearest(resource, names, NEAR))


def gpus_not_offered(conflict: Conflict) -> Iterator[GpusNotOffered]:
    """Yield for each role the nodes that would hold more members if they offered all their GPUs."""
    view, roles = conflict.assumptions.view, conflict.assumptions.roles
    broken = np.zeros(len(view.names), np.int64)
    for row in np.flatnonzero(view.totals[1] < view.gpu_total).tolist():
        broken[row] = _broken(view.states[row].node, roles)
    missing = np.array([profile.missing_gpus for profile in view.profiles], np.int64)[view.profile] + broken
    for role in conflict.conflicting_roles if missing.any() else ():
        if not role.gpus:
            continue
        holds_more = (view.free_count + missing) // role.gpus > view.free_count // role.gpus
        rows = np.flatnonzero(holds_more & ~_refusing_nodes(conflict, role))
        if len(rows):
            on_offer = int((view.gpu_total[rows] - broken[rows]).sum())
            gpus, names = on_offer + int(missing[rows].sum()), tuple(view.names[row] for row in rows[:LISTED])
            yield GpusNotOffered(role.name, role.gpu_resource, len(rows), on_offer, gpus, names)


def _broken(node: Node, roles: Sequence[Role]) -> int:
    """Return how many GPUs of a node are broken.

    In the gang's view, GPUs that its claims do not match are unhealthy too. Such GPUs do not count here.
    """
    if not node.unhealthy:
        return 0
    masks = {role.matching.get(node.name, -1) for role in roles if role.gpus or role.slice}
    return (node.unhealthy & ~node.tainted & masks.pop()).bit_count() if len(masks) == 1 else 0


def not_shared(conflict: Conflict) -> Iterator[IndicesUnknown]:
    """Yield for each role with slices the number of nodes that do not say which GPUs other pods have.

    No GPU of such a node is shared.
    """
    view = conflict.assumptions.view
    for role in conflict.conflicting_roles:
        if role.slice:
            serves = np.array([any(state.node.gpu_memory) for state in view.states], np.bool_)
            nodes = int(np.count_nonzero(serves & (view.unindexed > 0) & ~_refusing_nodes(conflict, role)))
            if nodes:
                yield IndicesUnknown("", nodes, role.name)


def _refusing_nodes(conflict: Conflict, role: Role) -> Bools:
    """Return [row]: whether a node refuses the role for more than its resource."""
    refusing = np.zeros(len(conflict.assumptions.view.names), np.bool_)
    for reason, rows in conflict.assumptions.refused[role.name].items():
        if reason != resource_missing(role):
            refusing |= rows
    return refusing
