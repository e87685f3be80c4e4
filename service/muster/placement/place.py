"""place: (Snapshot, Request, Limits) → Decision, a pure function.

Full gangs first: preferred scopes in the order given, then the required one alone. Where not all members fit,
as many as do, if these are `min_member` at least. Nothing leaves before `verify`, which shares no code.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.reasons import TooManyRoles
from muster.domain.request import Request
from muster.domain.snapshot import Snapshot
from muster.placement.evaluate import objective
from muster.placement.explain.causes import explained
from muster.placement.explain.enough import too_small
from muster.placement.explain.unsupported import unsupported
from muster.placement.gang.fewer import MAX_TRIES, shared_out
from muster.placement.gang.site import Counts, Site, site_of
from muster.placement.limits import Budget, Limits, unlike_roles
from muster.placement.naming import named
from muster.placement.search.gap import Gap
from muster.placement.search.most import most
from muster.placement.search.search import Found, search
from muster.placement.verify import verify

__all__ = ["Limits", "PlacementDefect", "place"]


MEMBERS, PREFERRED = "members", "preferred_scope"
"""Levels above the parts: how many members are placed, and which preferred scope holds them."""


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
    roles = unlike_roles(request, limits.excluded)
    if roles > limits.most_roles:
        return Unplaceable(request.gang, (TooManyRoles(roles, limits.most_roles),))
    budget = Budget(limits)
    with budget.phase("scan"):
        site = site_of(snapshot, request, limits.excluded)
    refused = unsupported(site)
    if refused is not None:
        return Unplaceable(request.gang, (refused,))
    need = site.need
    required = (request.required_scope,) if request.required_scope else ()
    with budget.phase("scan"):  # one role is counted as quickly
        hopeless = sum(map(bool, need)) > 1 and too_small(site, request.required_scope)
    found = Found(()) if hopeless else _for_counts(site, required, need, budget)
    if not found.shares and request.min_member < request.size:
        site, found = _partial(site, required, budget, found)
    if not found.shares:
        with budget.phase("explain"):
            return explained(site, limits, budget, proven=found.gap is None)
    return _checked(site, snapshot, found, budget)


def _for_counts(site: Site, required: tuple[str, ...], need: Counts, budget: Budget) -> Found:
    """The best plan for exactly these members: the first preferred scope that holds them, else none."""
    doubt: Gap | None = None
    for scope in site.request.preferred_scopes:
        found = search(site, (*required, scope), need, budget)
        if found.shares:
            return Found(found.shares, doubt or found.gap)
        doubt = doubt or (Gap(PREFERRED) if found.gap else None)
    found = search(site, required, need, budget)
    return Found(found.shares, doubt or found.gap)


def _partial(site: Site, required: tuple[str, ...], budget: Budget, whole: Found) -> tuple[Site, Found]:
    """As many members as fit, if these are enough; and the site for them."""
    if any(role.segments for role in site.request.roles):
        return _fewer(site, required, budget, whole)
    fit = most(site, required, site.need, budget)
    if fit.members < site.request.min_member:
        return site, Found((), None if fit.proven and not whole.gap else Gap(MEMBERS))
    found = _for_counts(site, required, fit.counts, budget)
    doubt = None if fit.proven and not whole.gap else Gap(MEMBERS)
    return site, Found(found.shares, doubt or found.gap)


def _fewer(site: Site, required: tuple[str, ...], budget: Budget, whole: Found) -> tuple[Site, Found]:
    """Where members come in segments: who is left out changes what the rest may do, so each count is tried.
    What fits of one role fits with fewer too, so these are halved; several are tried one after another."""
    roles, gap = site.request.roles, Gap(MEMBERS) if whole.gap else None
    tried: dict[Counts, tuple[Site, Found]] = {}

    def attempt(counts: Counts) -> Found:
        nonlocal gap
        kept = {role.name: count for role, count in zip(roles, counts, strict=True)}
        fewer = site.keeping(kept)
        tried[counts] = (fewer, _for_counts(fewer, required, fewer.need, budget))
        found = tried[counts][1]
        if found.gap and not found.shares:
            gap = Gap(MEMBERS)
        return found

    sizes = tuple(len(role.members) for role in roles)
    if len(roles) == 1:
        low, high = site.request.min_member, sizes[0] - 1
        while low <= high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if attempt((middle,)).shares else (low, middle - 1)
        best = max((counts for counts, (_, found) in tried.items() if found.shares), default=None)
    else:
        best = None
        for counts in _counts_down(sizes, site.request.min_member):
            if len(tried) == MAX_TRIES or budget.late:
                gap = Gap(MEMBERS)
                break
            if attempt(counts).shares:
                best = counts
                break
    if best is None:
        return site, Found((), gap)
    fewer, found = tried[best]
    return fewer, Found(found.shares, gap or found.gap)


def _counts_down(sizes: Counts, least: int) -> Iterator[Counts]:
    """Fewer members than all: most of all first, then most of the earlier roles."""
    for total in range(sum(sizes) - 1, least - 1, -1):
        yield from shared_out(total, sizes)


def _checked(site: Site, snapshot: Snapshot, found: Found, budget: Budget) -> Placed:
    members = named(site, found.shares)
    value, scope, part = objective(site.request, members, site.columns)
    proven = found.gap is None and not budget.truncated
    placed = Placed(
        gang=site.request.gang,
        members=members,
        objective=value,
        scope_reached=scope,
        domain=part,
        optimal=proven,
        gap=found.gap.share if found.gap and not proven else None,
        unproven=found.gap.level if found.gap and not proven else None,
        truncated=budget.truncated,
    )
    with budget.phase("verify"):
        violations = verify(snapshot, site.request, placed)
    if violations:
        raise PlacementDefect(violations)
    return placed
