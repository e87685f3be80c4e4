"""The clauses of several causes together: one for two causes that say one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from muster.domain.causes.out_of_place import (
    DomainTooSmall,
    NoSuchDomain,
    RoleScope,
    RunningElsewhere,
    SegmentsTooLarge,
    within,
)
from muster.domain.constraints import PerScopeCause
from muster.domain.reasons import Cause
from muster.domain.words import counted, of_role, plural_verb, so_many_fit


def clauses(causes: tuple[Cause, ...]) -> Iterator[str]:
    """Yield a clause for each cause; one for two causes if the second says what the first is about."""
    later = list(causes)
    while later:
        cause, *later = later
        joined_clause = _join(cause, later[0]) if later else None
        if joined_clause is not None:
            later = later[1:]
        yield joined_clause or str(cause)


def _join(cause: Cause, then: Cause) -> str | None:
    match cause, then:
        case (
            DomainTooSmall(scope, domain, fit, members_needed, even_empty=even_empty, role=role)
            | RoleScope(role, scope, domain, fit, members_needed, even_empty),
            RunningElsewhere(_, part, running),
        ) if then.scope == scope and part == domain and (fit is None or fit < members_needed):
            if not part:
                return f"{replace(cause, even_empty=False)}; {then}"
            runs = f"{counted('member', running)} {plural_verb('run', running)}"
            room = so_many_fit(fit, members_needed) if fit and not even_empty else ""
            return f"{scope} {part}, where {runs}, has no room for {members_needed} more{of_role(role)}{room}"
        case SegmentsTooLarge(), RunningElsewhere(scope, part, running) if part:
            run = plural_verb("run", running)
            runs = f"{counted('member', running)} of one segment {run} {within(scope, part)}"
            pronoun = "it" if running == 1 else "them"
            return f"{cause}; {runs}, and the rest must join {pronoun}"
        case PerScopeCause(scope), NoSuchDomain(missing) if scope == missing:
            return f"{cause}; no node lies in any {scope}, so each counts as one"
    return None
