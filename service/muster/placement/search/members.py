"""The levels above the parts: how many members are placed, and which preferred scope holds them.

All members first: preferred scopes in the order given, then the required one alone. Where not all fit, as
many as do, if these are `min_member` at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from muster.domain.decision import Step
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.member_subsets import MAX_TRIES, shared_out
from muster.placement.limits import Budget
from muster.placement.model.objective import MEMBERS, PREFERRED_SCOPE
from muster.placement.search.max_members import most
from muster.placement.search.plan import Found, Gap
from muster.placement.search.search import search

ALL, MOST, SUBSETS = "all-members", "most-members", "member-subsets"
"""How the members are decided: all fit; a search for the most that fit; subsets one after another."""

IN_ORDER = "scopes-in-order"
"""How the preferred scope is decided."""


def best_for_most(instance: Instance, budget: Budget, *, all_fit: bool = True) -> tuple[Instance, Found]:
    """Return the best plan for as many members as fit, and the instance for these members.

    `all_fit`: False where it is proven that not all do. No shares: fewer than `min_member` fit.
    """
    required = (instance.request.required_scope,) if instance.request.required_scope else ()
    whole = _for_counts(instance, required, instance.need, ALL, budget) if all_fit else Found(())
    if whole.shares or instance.request.min_member >= instance.request.size:
        return instance, whole
    if any(role.segments for role in instance.request.roles):
        return _subsets(instance, required, budget, whole)
    fit = most(instance, required, instance.need, budget)
    doubt = None if fit.proven and not whole.gap else Gap(MEMBERS.name)
    if fit.members < instance.request.min_member:
        return instance, Found((), doubt)
    found = _for_counts(instance, required, fit.counts, MOST, budget)
    return instance, replace(found, gap=doubt or found.gap)


def _for_counts(
    instance: Instance, required: tuple[str, ...], need: Counts, method: str, budget: Budget
) -> Found:
    """The best plan for exactly these members: the first preferred scope that holds them, else none."""
    doubt: Gap | None = None
    steps: tuple[Step, ...] = (Step(MEMBERS.name, method),)
    if instance.request.preferred_scopes:
        steps += (Step(PREFERRED_SCOPE.name, IN_ORDER),)
    for scope in (*((scope,) for scope in instance.request.preferred_scopes), ()):
        found = search(instance, (*required, *scope), need, budget)
        if found.shares or not scope:
            break
        doubt = doubt or (Gap(PREFERRED_SCOPE.name) if found.gap else None)
    return Found(found.shares, doubt or found.gap, (*steps, *found.steps))


def _subsets(
    instance: Instance, required: tuple[str, ...], budget: Budget, whole: Found
) -> tuple[Instance, Found]:
    """Where members come in segments: who is left out changes what the rest may do, so each count is tried.
    What fits of one role fits with fewer too, so these are halved; several are tried one after another."""
    roles, gap = instance.request.roles, Gap(MEMBERS.name) if whole.gap else None
    tried: dict[Counts, tuple[Instance, Found]] = {}

    def attempt(counts: Counts) -> Found:
        nonlocal gap
        kept = {role.name: count for role, count in zip(roles, counts, strict=True)}
        fewer = instance.keeping(kept)
        tried[counts] = (fewer, _for_counts(fewer, required, fewer.need, SUBSETS, budget))
        found = tried[counts][1]
        if found.gap and not found.shares:
            gap = Gap(MEMBERS.name)
        return found

    sizes = tuple(len(role.members) for role in roles)
    if len(roles) == 1:
        low, high = instance.request.min_member, sizes[0] - 1
        while low <= high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if attempt((middle,)).shares else (low, middle - 1)
        best = max((counts for counts, (_, found) in tried.items() if found.shares), default=None)
    else:
        best = None
        for counts in _counts_down(sizes, instance.request.min_member):
            if len(tried) == MAX_TRIES or budget.late:
                gap = Gap(MEMBERS.name)
                break
            if attempt(counts).shares:
                best = counts
                break
    if best is None:
        return instance, Found((), gap)
    fewer, found = tried[best]
    return fewer, replace(found, gap=gap or found.gap)


def _counts_down(sizes: Counts, least: int) -> Iterator[Counts]:
    """Fewer members than all: most of all first, then most of the earlier roles."""
    for total in range(sum(sizes) - 1, least - 1, -1):
        yield from shared_out(total, sizes)
