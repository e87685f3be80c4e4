"""Decide a gang: (Snapshot, Request, Limits) → Decision, a pure function.

Each decision has the stages that docs/objective.md numbers. The gang and the cluster are read as an
`Instance`. `search.search` chooses how many members to place. It presolves the problem for these members, and
asks the exact methods for every level of the objective: the first method that accepts decides the level. Then
GPUs of equal value are chosen by rails, and the plan gets named members and its values. `verify` checks the
plan with code of its own. If no plan exists, `explain` finds the causes.
"""

from __future__ import annotations

from dataclasses import replace

from muster.domain.causes.not_planned import NotPlanned, TooManyRoles
from muster.domain.decision import Decision, Placed, Step, Unplaceable
from muster.domain.pod import COMPOSITE
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.cluster.matching import GangCluster, variants_by_subrequest
from muster.placement.evaluate import evaluate
from muster.placement.explain.causes import explain, gpus_not_matching
from muster.placement.gang.instance import instance_of, unsupported_rule
from muster.placement.limits import Budget, Limits, count_unlike_roles
from muster.placement.model.objective import NVLINK_DOMAINS, RAILS
from muster.placement.naming import place_members
from muster.placement.rails import RAIL_SETS, on_fewest_rails
from muster.placement.search.plan import Gap
from muster.placement.search.search import best_for_most
from muster.placement.verify import verify

__all__ = ["Limits", "PlacementDefect", "place"]


class PlacementDefect(Exception):
    """Report that a plan breaks a rule, which is a defect of the planner. `violations` are sentences."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations


def place(snapshot: Snapshot, request: Request, limits: Limits | None = None) -> Decision:
    """Return the best plan of the gang, or the causes if there is no plan.

    The subrequests of the gang's claims are tried in order, and the first subrequest that fits is planned. If
    no subrequest fits, the causes are those of the last subrequest, which allows the most.

    Raises:
        PlacementDefect: The plan that was found does not pass `verify`.
        ValueError: The gang has no members.
    """
    if not request.size:
        raise ValueError(f"gang {request.gang} has no members: there is nothing to place")
    limits = limits or Limits()
    for variant in variants_by_subrequest(snapshot, request):
        decision = _decide(snapshot, variant, limits)
        # A `NotPlanned` cause ends the tries: time is up, or the planner does not support the gang.
        if isinstance(decision, Placed) or any(isinstance(cause, NotPlanned) for cause in decision.causes):
            break
    return decision


def _decide(snapshot: Snapshot, request: Request, limits: Limits) -> Placed | Unplaceable:
    """Read the gang, search for places, name the members, evaluate the plan and verify it.

    Raises:
        PlacementDefect: The plan does not pass `verify`.
    """
    roles = count_unlike_roles(request, limits.excluded)
    if roles > limits.most_roles:
        gang = request.gang
        tree = f"{COMPOSITE} {gang.namespace}/{gang.name}" if gang.dialect == COMPOSITE else ""
        return Unplaceable(gang, (TooManyRoles(roles, limits.most_roles, tree),))
    cluster, budget = GangCluster(snapshot, request), Budget(limits)
    with budget.phase("scan"):
        instance = instance_of(cluster, limits.excluded)
    refused = unsupported_rule(instance)
    if refused is not None:
        return Unplaceable(request.gang, (refused,))
    instance, answer = best_for_most(instance, budget)
    if not answer.nodes:
        with budget.phase("explain"):
            refusal = explain(instance, limits, budget, proven=answer.gap is None)
            return replace(refusal, causes=(*refusal.causes, *gpus_not_matching(cluster, limits)))
    gap = answer.gap
    if gap is None and cluster.attributes:
        # Groups of GPUs that agree on attributes were counted in place of NVLink domains. So that level is
        # unproven.
        gap = Gap(NVLINK_DOMAINS.name)
    proven = gap is None and not budget.truncated
    plan = evaluate(cluster, place_members(instance, on_fewest_rails(instance, answer.nodes)))
    rail_steps = () if plan.objective.rails is None else (Step(RAILS, RAIL_SETS),)
    plan = replace(
        plan,
        optimal=proven,
        gap=gap.fraction if gap and not proven else None,
        unproven=gap.level if gap and not proven else None,
        truncated=budget.truncated,
        steps=(*answer.steps, *rail_steps),
    )
    with budget.phase("verify"):
        violations = verify(snapshot, request, plan)
    if violations:
        raise PlacementDefect(violations)
    return plan
