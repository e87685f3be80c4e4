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
    left = list(causes)
    while left:
        cause, *left = left
        both = _both(cause, left[0]) if left else None
        if both is not None:
            left = left[1:]
        yield both or str(cause)


def _both(cause: Cause, then: Cause) -> str | None:
    match cause, then:
        case (
            DomainTooSmall(scope, best, fit, needed, even_empty=even_empty, role=role)
            | RoleScope(role, scope, best, fit, needed, even_empty),
            RunningElsewhere(_, part, running),
        ) if then.scope == scope and part == best and (fit is None or fit < needed):
            if not part:
                return f"{replace(cause, even_empty=False)}; {then}"
            runs = f"{counted('member', running)} {plural_verb('run', running)}"
            room = so_many_fit(fit, needed) if fit and not even_empty else ""
            return f"{scope} {part}, where {runs}, has no room for {needed} more{of_role(role)}{room}"
        case SegmentsTooLarge(), RunningElsewhere(scope, part, running) if part:
            run = plural_verb("run", running)
            runs = f"{counted('member', running)} of one segment {run} {within(scope, part)}"
            it = "it" if running == 1 else "them"
            return f"{cause}; {runs}, and the rest must join {it}"
        case PerScopeCause(scope), NoSuchDomain(other) if scope == other:
            return f"{cause}; no node lies in any {scope}, so each counts as one"
    return None
