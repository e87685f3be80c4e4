"""Decide a gang: (Snapshot, Request, Limits) → Decision, a pure function.

There is one way through. `search.search` chooses how many members to place. For these it presolves, and asks
the exact methods for every level of the objective: the first one that accepts decides it. Then members get
names, and `verify` checks the plan without any of that code. If nothing fits, the reason is explained.
"""

from __future__ import annotations

from muster.domain.causes.not_planned import NotPlanned, TooManyRoles
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.matching import attributes_of, by_subrequest, view_of
from muster.placement.evaluate import objective, unknown_indices, unknown_links
from muster.placement.explain.causes import explain, with_matching
from muster.placement.gang.instance import Instance, instance_of, unsupported
from muster.placement.limits import Budget, Limits, unlike_roles
from muster.placement.model.objective import NVLINK_DOMAINS
from muster.placement.naming import named
from muster.placement.search.plan import Found, Gap
from muster.placement.search.search import best_for_most
from muster.placement.verify import verify

__all__ = ["Limits", "PlacementDefect", "place"]


class PlacementDefect(Exception):
    """Report that a plan breaks a rule. It is a defect of the planner. `violations` are sentences."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations


def place(snapshot: Snapshot, request: Request, limits: Limits | None = None) -> Decision:
    """Return the best plan of the gang, or why there is none.

    The subrequests of its claims are tried in order, and the first one that fits is planned. If none fits,
    the last one is explained, since it allows the most.

    Raises:
        PlacementDefect: The plan that was found does not pass `verify`.
        ValueError: The gang has no members.
    """
    if not request.size:
        raise ValueError(f"gang {request.gang} has no members: there is nothing to place")
    limits = limits or Limits()
    for each in by_subrequest(snapshot, request):
        decision = _with_one_subrequest(snapshot, each, limits)
        if isinstance(decision, Placed) or any(isinstance(cause, NotPlanned) for cause in decision.causes):
            break
    return decision


def _with_one_subrequest(snapshot: Snapshot, request: Request, limits: Limits) -> Placed | Unplaceable:
    roles = unlike_roles(request, limits.excluded)
    if roles > limits.most_roles:
        return Unplaceable(request.gang, (TooManyRoles(roles, limits.most_roles),))
    budget = Budget(limits)
    with budget.phase("scan"):
        instance = instance_of(snapshot, request, limits.excluded)
    refused = unsupported(instance)
    if refused is not None:
        return Unplaceable(request.gang, (refused,))
    instance, found = best_for_most(instance, budget)
    if not found.shares:
        with budget.phase("explain"):
            unplaced = explain(instance, limits, budget, proven=found.gap is None)
            return with_matching(unplaced, snapshot, request, limits)
    return _checked(instance, snapshot, found, budget)


def _checked(instance: Instance, snapshot: Snapshot, found: Found, budget: Budget) -> Placed:
    """Return the plan with its members and values.

    Raises:
        PlacementDefect: The plan does not pass `verify`.
    """
    members, view = named(instance, found.shares), view_of(snapshot, instance.request)
    value, scope, part = objective(instance.request, members, view)
    gap = found.gap
    if gap is None and attributes_of(instance.request):  # its groups were counted in place of NVLink domains
        gap = Gap(NVLINK_DOMAINS.name)
    proven = gap is None and not budget.truncated
    placed = Placed(
        gang=instance.request.gang,
        members=members,
        objective=value,
        scope_reached=scope,
        domain=part,
        optimal=proven,
        gap=gap.share if gap and not proven else None,
        unproven=gap.level if gap and not proven else None,
        truncated=budget.truncated,
        steps=found.steps,
        unknown_links=unknown_links(instance.request, members, view),
        unknown_indices=unknown_indices(members, view),
    )
    with budget.phase("verify"):
        violations = verify(snapshot, instance.request, placed)
    if violations:
        raise PlacementDefect(violations)
    return placed
