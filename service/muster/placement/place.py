"""place: (Snapshot, Request, Limits) → Decision, a pure function.

Full gangs first: preferred scopes narrowest first, then the required one alone. Where not all members fit, as
many as do, if these are `min_member` at least. Nothing leaves before `verify`, which shares no code.
"""

from __future__ import annotations

from muster.domain.decision import Decision, Placed
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.causes import explained
from muster.placement.evaluate import objective
from muster.placement.limits import Budget, Limits
from muster.placement.naming import named
from muster.placement.search import Found, most, search
from muster.placement.site import Counts, Site, site_of
from muster.placement.verify import verify

__all__ = ["Limits", "PlacementDefect", "place"]


class PlacementDefect(Exception):
    """A plan that breaks a rule: a defect of the planner, never an answer. `violations` are sentences."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations


def place(snapshot: Snapshot, request: Request, limits: Limits | None = None) -> Decision:
    """The best plan of the gang, or why there is none.

    Raises:
        PlacementDefect: the plan that was found does not pass `verify`.
        ValueError: the gang has no members.
    """
    if not request.size:
        raise ValueError(f"gang {request.gang} has no members: there is nothing to place")
    limits = limits or Limits()
    budget = Budget(limits)
    site = site_of(snapshot, request, limits.excluded)
    need = tuple(len(role.members) for role in request.roles)
    required = (request.required_scope,) if request.required_scope else ()
    found = _for_counts(site, required, need, budget)
    if not found.shares and request.min_member < request.size:
        found = _partial(site, required, need, budget, found)
    if not found.shares:
        return explained(site, snapshot, limits, budget, proven=found.gap is None)
    return _checked(site, snapshot, found, budget)


def _for_counts(site: Site, required: tuple[str, ...], need: Counts, budget: Budget) -> Found:
    """The best plan for exactly these members: the first preferred scope that holds them, else none."""
    doubt: float | None = None
    for scope in site.request.preferred_scopes:
        found = search(site, (*required, scope), need, budget)
        if found.shares:
            return Found(found.shares, found.gap if doubt is None else doubt)
        doubt = doubt if doubt is not None else found.gap
    found = search(site, required, need, budget)
    return Found(found.shares, found.gap if doubt is None else doubt)


def _partial(site: Site, required: tuple[str, ...], need: Counts, budget: Budget, whole: Found) -> Found:
    counts, _, proven = most(site, required, need, budget)
    if sum(counts) < site.request.min_member:
        return Found((), None if proven and whole.gap is None else 1.0)
    found = _for_counts(site, required, counts, budget)
    doubt = whole.gap if whole.gap is not None or proven else 1.0
    return Found(found.shares, found.gap if doubt is None else doubt)


def _checked(site: Site, snapshot: Snapshot, found: Found, budget: Budget) -> Placed:
    members = named(site, found.shares)
    value, scope, part = objective(site.request, members, site.places)
    proven = found.gap is None and not budget.truncated
    placed = Placed(
        gang=site.request.gang,
        members=members,
        objective=value,
        scope_reached=scope,
        domain=part,
        optimal=proven,
        gap=None if proven else found.gap,
        truncated=budget.truncated,
    )
    violations = verify(snapshot, site.request, placed)
    if violations:
        raise PlacementDefect(violations)
    return placed
