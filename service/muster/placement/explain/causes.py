"""Find why nothing fits: an irreducible set of assumptions that forbid the gang, reported as typed causes.

Irreducible means two things. With only these assumptions, nothing fits. If any one of them is dropped too,
enough members fit. This holds as far as the budget reached: an assumption stays if no answer was found in
time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from muster.domain.causes.not_planned import NotDecided
from muster.domain.causes.out_of_place import NodesExcluded
from muster.domain.decision import Unplaceable
from muster.domain.reasons import Cause
from muster.domain.request import Role
from muster.domain.words import GPU_MEMORY
from muster.placement.explain.assumptions import Assumption, Assumptions, Kind
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.contested import contested
from muster.placement.explain.deletion_filter import irreducible
from muster.placement.explain.domains import domain_cause
from muster.placement.explain.feasibility import Oracle
from muster.placement.explain.findings import findings_of
from muster.placement.explain.not_offered import gpus_not_offered, not_offered, not_shared
from muster.placement.explain.refused_roles import resource_missing
from muster.placement.explain.relaxations import relaxations
from muster.placement.explain.running import joining
from muster.placement.explain.shortage import RULES, shortage
from muster.placement.explain.subgroups import fewest, subgroups_needed
from muster.placement.gang.constraints import CONSTRAINTS
from muster.placement.gang.instance import Instance
from muster.placement.limits import Budget, Limits

Forbids = Callable[[Collection[Assumption]], bool]
"""Return whether these assumptions leave no plan."""


def explained(instance: Instance, limits: Limits, budget: Budget, proven: bool) -> Unplaceable:
    """Return the causes that forbid the gang, and what would help. Call this only if no plan was found.

    Of a gang that needs some of its subgroups, the causes are those of the ones with the fewest members.
    """
    if instance.request.quorum is not None:
        if not proven:
            return Unplaceable(instance.request.gang, (NotDecided(budget.truncated),))
        chosen = fewest(instance)
        if isinstance(chosen, Instance):
            refused = explained(chosen, limits, budget, proven)
            needed = subgroups_needed(instance.request, chosen.request)
            return replace(refused, causes=(*refused.causes, *needed))
        return Unplaceable(instance.request.gang, chosen)
    gang, spare = instance.request.gang, Budget(limits)  # explaining gets as much time as searching had
    assumptions = Assumptions(instance, limits.excluded)
    conflict = conflict_of(assumptions, Oracle(spare), proven)
    if conflict is None:
        return Unplaceable(gang, (NotDecided(budget.truncated or spare.truncated),))
    causes = tuple(_causes(conflict))
    return Unplaceable(gang, causes, relaxations(conflict), contested(conflict, causes))


def conflict_of(assumptions: Assumptions, oracle: Oracle, proven: bool) -> Conflict | None:
    """Return an irreducible conflict.

    It is None if neither the search has `proven` that nothing fits, nor the oracle finds so.
    """

    def forbids(kept: Collection[Assumption]) -> bool:
        return oracle.enough(assumptions.world(kept)) is False

    if not proven and not forbids(assumptions.all):
        return None
    roles = _roles(assumptions, forbids)
    kept = irreducible(assumptions.groups, lambda some: forbids(some | roles))
    return Conflict(assumptions, roles, kept, oracle)


def _roles(assumptions: Assumptions, forbids: Forbids) -> frozenset[Assumption]:
    """Return roles that suffice to explain the refusal: a single one if that role alone does not fit."""
    needed = assumptions.needed
    others = assumptions.all - set(needed)
    if len(needed) > 1:
        for role in needed:
            if forbids({role, *others}):
                return frozenset((role,))
    if len(needed) > 2:
        return irreducible([(role,) for role in needed], lambda roles: forbids(roles | others))
    return frozenset(needed)


def _causes(conflict: Conflict) -> Iterator[Cause]:
    """Yield what is short first, then what makes it short."""
    assumptions = conflict.assumptions
    roles = {role.name: role for role in assumptions.roles}
    if conflict.told(Kind.SCOPE):
        scope = str(assumptions.request.required_scope)
        yield domain_cause(conflict, scope)
        yield from joining(conflict, scope)
    elif not any(map(conflict.told, RULES)):
        cause = shortage(conflict)
        if cause is not None:
            yield cause
        if any(each.what == GPU_MEMORY for each in conflict.told(Kind.TAKEN)):
            yield from not_shared(conflict)
    findings = findings_of(conflict)
    for constraint in CONSTRAINTS:
        for told in conflict.told(constraint):
            yield from constraint.causes(findings, told.role, told.what)
    for told in conflict.told(Kind.REFUSED):
        yield _excluded(conflict, roles[told.role], told.what)
    for role in conflict.members_of:
        missing = assumptions.refused[role.name].get(resource_missing(role))
        if missing is not None and missing.all() and (role.gpus or role.slice):
            yield not_offered(assumptions.view, role, resource_missing(role).removeprefix("no "))
    yield from gpus_not_offered(conflict)


def _excluded(conflict: Conflict, role: Role, by: str) -> NodesExcluded:
    """Return the nodes that offer what is asked for and have room, but refuse for this reason."""
    refused = conflict.assumptions.refused[role.name]
    rows = refused[by] & (conflict.seen().room[role.name] > 0)
    if resource_missing(role) in refused:
        rows &= ~refused[resource_missing(role)]
    return NodesExcluded(role.name, by, int(np.count_nonzero(rows)))
