"""Explain why nothing fits: typed causes from an irreducible conflict, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from muster.domain.causes.not_planned import NotDecided
from muster.domain.causes.out_of_place import DomainTooSmall, GpusNotMatching, NodesExcluded, RoleScope
from muster.domain.causes.too_little import SubgroupsNeeded
from muster.domain.causes.waiting import MembersMissing
from muster.domain.decision import Unplaceable
from muster.domain.quorums import Leaf, Quorum
from muster.domain.reasons import Cause
from muster.domain.request import Request, Role, Scope
from muster.domain.snapshot import Snapshot
from muster.domain.words import GPU_MEMORY
from muster.placement.cluster.matching import differing, masks_of
from muster.placement.cluster.topology import INSIDE
from muster.placement.explain.assumptions import Assumption, Assumptions, Kind, resource_missing
from muster.placement.explain.conflict import Conflict, Oracle, conflict_of
from muster.placement.explain.counterfactual import GPU
from muster.placement.explain.findings import findings_of
from muster.placement.explain.relaxations import relaxations
from muster.placement.explain.shortage import RULES, gpus_not_offered, not_offered, not_shared, shortage
from muster.placement.gang.blocks import first_by_rank
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.instance import Instance, instance_of, instance_with
from muster.placement.limits import Budget, Limits

MANY = 1024
"""The most contested nodes that are named: who has their GPUs is looked up node by node."""


def explain(instance: Instance, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """Return the causes that forbid the gang, and what would help. Call this only if no plan was found.

    Of a gang that needs some of its subgroups, the causes are those of the subgroups with the fewest members.
    """
    gang, quorum = instance.request.gang, instance.request.quorum
    if quorum is not None:
        if not proven:
            return Unplaceable(gang, (NotDecided(budget.truncated),))
        members = instance.request.fewest()
        if members is None:
            return Unplaceable(gang, tuple(_members_missing(quorum, instance.request.waiting)))
        fewest = _with_members(instance, members)
        refusal = explain(fewest, limits, budget, proven)
        return replace(refusal, causes=(*refusal.causes, *_subgroups_needed(quorum, fewest.request)))
    spare = Budget(limits)  # explaining gets as much time as searching had
    assumptions = Assumptions(instance, limits.excluded)
    conflict = conflict_of(assumptions, Oracle(spare), proven)
    if conflict is None:
        return Unplaceable(gang, (NotDecided(budget.truncated or spare.truncated),))
    causes = tuple(_causes(conflict))
    return Unplaceable(gang, causes, relaxations(conflict), _contested_nodes(conflict, causes))


def _causes(conflict: Conflict) -> Iterator[Cause]:
    """Yield what is short first, then what makes it short."""
    assumptions = conflict.assumptions
    roles = {role.name: role for role in assumptions.roles}
    findings = findings_of(conflict)
    if conflict.obstacles_of(Kind.SCOPE):
        scope = str(assumptions.request.required_scope)
        yield findings.domain_too_small(scope)
        yield from findings.joining(scope)
    elif not any(map(conflict.obstacles_of, RULES)):
        cause = shortage(conflict)
        if cause is not None:
            yield cause
        if Assumption(Kind.TAKEN, what=GPU_MEMORY) in conflict.obstacles:
            yield from not_shared(conflict)
    for constraint in CONSTRAINTS:
        for obstacle in conflict.obstacles_of(constraint):
            yield from constraint.causes(findings, obstacle.role, obstacle.what)
    for obstacle in conflict.obstacles_of(Kind.REFUSED):
        yield _nodes_excluded(conflict, roles[obstacle.role], obstacle.what)
    for role in conflict.members_of:
        missing = assumptions.refused[role.name].get(resource_missing(role))
        if missing is not None and missing.all() and (role.gpus or role.slice):
            yield not_offered(assumptions.view, role, resource_missing(role).removeprefix("no "))
    yield from gpus_not_offered(conflict)


def _nodes_excluded(conflict: Conflict, role: Role, reason: str) -> NodesExcluded:
    """Return the nodes that offer what is asked for and have room, but refuse for this reason."""
    refusals = conflict.assumptions.refused[role.name]
    rows = refusals[reason] & (conflict.world().room[role.name] > 0)
    if resource_missing(role) in refusals:
        rows &= ~refusals[resource_missing(role)]
    return NodesExcluded(role.name, reason, int(np.count_nonzero(rows)))


def _contested_nodes(conflict: Conflict, causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the nodes whose GPUs the gang lacks because other pods have them."""
    if Assumption(Kind.TAKEN, what=GPU) not in conflict.obstacles:
        return ()
    view, world = conflict.assumptions.view, conflict.world()
    rows = np.zeros(len(view.names), np.bool_)
    for role in conflict.members_of:
        if role.members:
            refusals = conflict.assumptions.refused[role.name].values()
            rows |= world.admitted[role.name] & ~np.logical_or.reduce([np.zeros_like(rows), *refusals])
    for cause in causes:
        if isinstance(cause, DomainTooSmall | RoleScope) and cause.best:
            row = view.row.get(cause.best.rpartition("/")[0] if cause.scope in INSIDE else cause.best)
            if row is not None and cause.scope in (*INSIDE, Scope.NODE):
                rows &= np.arange(len(rows)) == row
            else:
                domains = view.topology.domains(cause.scope)
                rows &= domains.codes == domains.index.get(cause.best, len(domains.names))
    nodes = np.flatnonzero(rows & (view.gpu_total > view.free_count))
    return tuple(view.names[row] for row in nodes) if len(nodes) <= MANY else ()


def _with_members(instance: Instance, members: Mapping[str, int]) -> Instance:
    """Return the instance for a gang of only these members by role. All of them must fit."""
    request = instance.request
    roles = tuple(first_by_rank(role, members[role.name]) for role in request.roles)
    alone = replace(request, roles=roles, quorum=None)
    return instance_with(instance.columns, replace(alone, min_member=alone.size), instance.admitted)


def _members_missing(quorum: Quorum, waiting: Mapping[str, int]) -> Iterator[MembersMissing]:
    """Yield which members must come: of a running gang, members of the subgroups that have begun.

    If each subgroup has enough members, the missing members are those that make its replicas whole.
    """
    lacking = quorum.less(waiting)
    starting = [leaf for leaf, count in lacking.fewest() or () if count]
    short = starting or [leaf for leaf in lacking.leaves() if leaf.least and leaf.of(waiting)]
    for leaf in short:
        there = leaf.of(waiting)
        yield MembersMissing(there, there + leaf.fewest(1), _names(leaf))
    if not short:
        torn = [leaf for leaf in quorum.leaves() if leaf.of(waiting) and not leaf.starts(leaf.of(waiting))]
        for leaf in [leaf for leaf in torn if leaf.least] or torn:
            there = leaf.of(waiting)
            yield MembersMissing(there, max(there + 1, leaf.fewest(there)), _names(leaf))


def _names(leaf: Leaf) -> str:
    return ", ".join(sorted(leaf.roles))


def _subgroups_needed(quorum: Quorum, request: Request) -> Iterator[SubgroupsNeeded]:
    """Yield the cause that the other causes are about the subgroups of this request.

    There is no such cause if the gang runs already, or if all subgroups must start.
    """
    if not quorum.starts({}) and not quorum.leaves_no_choice:
        roles = tuple(role.name for role in request.roles if role.members)
        yield SubgroupsNeeded(quorum.least, len(quorum.parts), roles)


def with_matching(refusal: Unplaceable, snapshot: Snapshot, request: Request, limits: Limits) -> Unplaceable:
    """Return the refusal. If the gang might fit on GPUs that its claims do not match, a cause says so."""
    if (all_matching := _all_matching(request)) is not None:
        return replace(refusal, causes=(*refusal.causes, all_matching))
    masks = masks_of(snapshot, request)
    if not masks or (request.quorum is None and not _fits_with_all(snapshot, request, limits)):
        return refusal
    matching: dict[str, int] = {}
    gpus = 0
    for name, mask in masks.items():
        node = snapshot.nodes[name].node
        every = (1 << node.topology.gpu_count) - 1
        if every & ~node.tainted & ~mask:  # else it has more than without the claims: taints are tolerated
            matching[name] = mask.bit_count()
            gpus += node.topology.gpu_count
    if not matching:
        return refusal
    unlike = len(differing(snapshot, request, matching))
    cause = GpusNotMatching(len(matching), sum(matching.values()), gpus, unlike)
    return replace(refusal, causes=(*refusal.causes, cause))


def _all_matching(request: Request) -> GpusNotMatching | None:
    """Return that members take all matching GPUs of a node, with how many nodes have as many; None if not.

    The last number that was tried is the smallest.
    """
    for role in request.roles:
        if role.chosen is not None and role.chosen.every and role.members:
            nodes = sum(map(bool, role.matching.values()))
            gpus = nodes * role.gpus
            return GpusNotMatching(nodes, gpus, gpus, each=role.gpus) if nodes else None
    return None


def _fits_with_all(snapshot: Snapshot, request: Request, limits: Limits) -> bool:
    """Return whether the gang may fit if members may have any GPU."""
    roles = tuple(replace(role, matching={}) for role in request.roles)
    instance = instance_of(snapshot, replace(request, roles=roles), limits.excluded)
    assumptions = Assumptions(instance, limits.excluded)
    return Oracle(Budget(limits)).enough(assumptions.world(assumptions.all)) is not False
