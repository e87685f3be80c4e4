"""The interface of a constraint: what it does to the model, how it is dropped, its cause, what would help.

Each constraint is a module of this folder that has all of this. CONSTRAINTS in __init__.py lists them, and
the planner walks through that list. The verifier judges each constraint again without this code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from muster.domain.constraints import DropConstraint, PerScope
from muster.domain.reasons import Cause
from muster.domain.relaxations import Relaxation
from muster.domain.request import Request, Role
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules
from muster.placement.limits import takes_gpus


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a constraint may ask about a gang that does not fit."""

    request: Request
    even_empty: bool
    """Whether nothing would fit even if other pods took nothing."""
    running: int
    """Running members, if it matters that they run; else 0."""
    fit: Callable[[], tuple[int | None, int]]
    """How many members fit (None if unknown), and how many must."""
    best_part: Callable[[Role, str], tuple[str, int | None, int]]
    """The part of a scope that is best for the role alone, and the same two numbers for it."""
    no_such: Callable[..., bool]
    """(scope, role or none): whether no node, that admits the role, lies in any part of the scope."""
    joining: Callable[..., Iterator[Cause]]
    """(scope, *roles): that members of these roles must join those of them that run."""
    begun_segment: Callable[[Role], Iterator[Cause]]
    """That a segment must be completed where some of its members run."""
    admitting: Callable[[Role], Iterable[str]]
    """The nodes that admit the role."""
    wider: Callable[[str], Iterable[str | None]]
    """The scopes that are wider than this one, the narrowest first; None for no scope."""
    works: Callable[[Request], bool]
    """Whether the gang fits if it asks for this instead."""


class Constraint:
    """One constraint. `role` and `what` say which of a request is meant, as `asked` yields them."""

    binds: ClassVar[bool] = True
    """Whether the place of one member limits others. Then no member is moved without the others."""

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield what the request asks for, as (role, what): each can be dropped by itself."""
        raise NotImplementedError

    def without(self, request: Request, role: str, what: str) -> Request:
        """Return the request without it."""
        raise NotImplementedError

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        """Yield (annotation, scope, roles) for each scope whose parts can lie inside a node."""
        yield from ()

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        """Add what the request asks for to the rules of the gang."""
        raise NotImplementedError

    def causes(self, refusal: Refusal, role: str, what: str) -> Iterator[Cause]:
        """Yield why the gang does not fit, as far as it is this."""
        raise NotImplementedError

    def relaxations(self, refusal: Refusal, role: str, what: str) -> Iterator[Relaxation]:
        """Yield smaller demands with which the gang fits: each was tried."""
        yield from ()


class OfRoles(Constraint):
    """A constraint that is a field of roles; `nothing` is its value for a role without it."""

    field: ClassVar[str]
    nothing: ClassVar[object]

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        yield from ((role.name, "") for role in request.roles if getattr(role, self.field))

    def without(self, request: Request, role: str, what: str) -> Request:
        return self.changed(request, role, self.nothing)

    def changed(self, request: Request, name: str, value: object) -> Request:
        """Return the request with another value for the role."""
        change: dict[str, object] = {self.field: value}
        roles = (replace(role, **change) if role.name == name else role for role in request.roles)  # type: ignore[arg-type]
        return replace(request, roles=tuple(roles))


class ByName(Constraint):
    """A constraint that is a field of the request: objects with names, each of which can be dropped."""

    field: ClassVar[str]

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        yield from (("", name) for name in dict.fromkeys(each.name for each in getattr(request, self.field)))

    def without(self, request: Request, role: str, what: str) -> Request:
        left = tuple(each for each in getattr(request, self.field) if each.name != what)
        change: dict[str, object] = {self.field: left}
        return replace(request, **change)  # type: ignore[arg-type]

    def relaxations(self, refusal: Refusal, role: str, what: str) -> Iterator[Relaxation]:
        if refusal.works(self.without(refusal.request, role, what)):
            yield DropConstraint(what)


class ByScope(Constraint):
    """A constraint that gives numbers of members by scope; `kind` is its class in the request."""

    kind: ClassVar[type[PerScope]]

    def of(self, request: Request) -> dict[str, PerScope]:
        """Return what the request asks for, by scope."""
        return {each.scope: each for each in request.per_scope if isinstance(each, self.kind)}

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        yield from (("", scope) for scope in self.of(request))

    def without(self, request: Request, role: str, what: str) -> Request:
        return self.changed(request, what)

    def changed(self, request: Request, scope: str, *changed: PerScope) -> Request:
        """Return the request with this instead of what it asks for by the scope."""
        old = self.of(request).get(scope)
        others = (each for each in request.per_scope if each is not old)
        return replace(request, per_scope=(*others, *changed))

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        roles = tuple(role for role in request.roles if role.members and takes_gpus(role))
        yield from ((self.kind.annotation, scope, roles) for scope in self.of(request))


def role_of(request: Request, name: str) -> Role:
    """Return the role of this name."""
    return next(role for role in request.roles if role.name == name)
