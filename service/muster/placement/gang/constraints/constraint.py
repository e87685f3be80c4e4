"""Define the interface of a constraint: its rules in the model, how it is dropped, its cause, and what would
help.

Each constraint is a module of this folder that has all of this. CONSTRAINTS in __init__.py finds them, and
the planner walks through that list. The verifier checks each constraint again without this code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from muster.domain.causes.out_of_place import IndicesUnknown, NoSuchDomain
from muster.domain.constraints import DropConstraint, PerScope
from muster.domain.reasons import Cause
from muster.domain.relaxations import Relaxation
from muster.domain.request import Request, Role
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules
from muster.placement.limits import takes_gpus


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that a constraint may ask about a gang that does not fit."""

    request: Request
    even_empty: bool
    """Whether the gang would not fit even in a cluster without other pods."""
    running: int
    """The number of existing members, if the refusal depends on them; else 0."""
    fit: Callable[[], tuple[int | None, int]]
    """Return how many members fit (None if unknown), and how many must."""
    best_part: Callable[[Role, str], tuple[str, int | None, int]]
    """Given a role and a scope: return the part that is best for this role alone, and how many fit and must.
    """
    no_such: Callable[..., NoSuchDomain | IndicesUnknown | None]
    """Given a scope and perhaps a role: return the cause if no node that admits the role lies in any part of
    the scope. Inside nodes, it is the cause if no part can be promised.
    """
    is_nowhere: Callable[[str], bool]
    """Return whether no node of the cluster carries a label of the scope: a smaller demand is no advice then.
    """
    joining: Callable[..., Iterator[Cause]]
    """Given a scope and names of roles: yield the cause that their members must join
    existing members, if so.
    """
    begun_segment: Callable[[Role], Iterator[Cause]]
    """Yield the cause that a segment must be completed where some of its members run, if so."""
    admitting: Callable[[Role], Iterable[str]]
    """Return the nodes that admit the role."""
    agreeing: Callable[[Role], int]
    """Return on how many nodes that admit the role some GPUs agree on its attributes."""
    wider: Callable[[str], Iterable[str | None]]
    """Return the scopes that are wider than this one, the narrowest first. The last is None: no scope."""
    works: Callable[[Request], bool]
    """Return whether the gang fits if it asks for this request instead."""


class Constraint(ABC):
    """One kind of constraint.

    `role` and `what` say which constraint of a request is meant, as `asked` yields them.
    """

    order: ClassVar[int]
    """The place among CONSTRAINTS: what users ask for before what pods and nodes limit. No two are equal."""
    binds: ClassVar[bool] = True
    """Whether the place of one member limits the places of others. Then members are not moved one by one."""

    @abstractmethod
    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield the constraints of this kind in the request, as (role, what). Each can be dropped alone."""

    @abstractmethod
    def without(self, request: Request, role: str, what: str) -> Request:
        """Return the request without this constraint."""

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        """Yield (annotation, scope, roles) for each scope whose parts can lie inside a node."""
        yield from ()

    @abstractmethod
    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        """Add what the request asks for to the rules of the gang."""

    @abstractmethod
    def causes(self, findings: Findings, role: str, what: str) -> Iterator[Cause]:
        """Yield the causes of the refusal that this constraint accounts for."""

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[Relaxation]:
        """Yield weaker constraints with which the gang fits. Each of them was tried."""
        yield from ()


class OfRoles(Constraint):
    """A constraint that is a field of roles. `nothing` is the field's value for a role without the
    constraint.
    """

    field: ClassVar[str]
    nothing: ClassVar[object]

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each role that has the constraint."""
        yield from ((role.name, "") for role in request.roles if getattr(role, self.field))

    def without(self, request: Request, role: str, what: str) -> Request:
        """Return the request without the constraint of this role."""
        return self.changed(request, role, self.nothing)

    def changed(self, request: Request, name: str, value: object) -> Request:
        """Return the request with another value for the role."""
        change: dict[str, object] = {self.field: value}
        roles = (replace(role, **change) if role.name == name else role for role in request.roles)  # type: ignore[arg-type]
        return replace(request, roles=tuple(roles))


class ByName(Constraint):
    """A constraint that is a field of the request: a list of objects, each with a name."""

    field: ClassVar[str]

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each name once."""
        yield from (("", name) for name in dict.fromkeys(each.name for each in getattr(request, self.field)))

    def without(self, request: Request, role: str, what: str) -> Request:
        """Return the request without the objects of this name."""
        left = tuple(each for each in getattr(request, self.field) if each.name != what)
        change: dict[str, object] = {self.field: left}
        return replace(request, **change)  # type: ignore[arg-type]

    def relaxations(self, findings: Findings, role: str, what: str) -> Iterator[Relaxation]:
        """Yield that the constraint is dropped, if the gang fits without it."""
        if findings.works(self.without(findings.request, role, what)):
            yield DropConstraint(what)


class ByScope(Constraint):
    """A constraint that gives a number of members for each scope. `kind` is its class in the request."""

    kind: ClassVar[type[PerScope]]

    def of(self, request: Request) -> dict[str, PerScope]:
        """Return the constraints of this kind in the request, by scope."""
        return {each.scope: each for each in request.per_scope if isinstance(each, self.kind)}

    def asked(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each scope that has the constraint."""
        yield from (("", scope) for scope in self.of(request))

    def without(self, request: Request, role: str, what: str) -> Request:
        """Return the request without the constraint for this scope."""
        return self.changed(request, what)

    def changed(self, request: Request, scope: str, *changed: PerScope) -> Request:
        """Return the request with these constraints in place of the one for the scope."""
        old = self.of(request).get(scope)
        others = (each for each in request.per_scope if each is not old)
        return replace(request, per_scope=(*others, *changed))

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        """Yield each scope, for all roles that take GPUs."""
        roles = tuple(role for role in request.roles if role.members and takes_gpus(role))
        yield from ((self.kind.annotation, scope, roles) for scope in self.of(request))


def role_of(request: Request, name: str) -> Role:
    """Return the role of this name."""
    return next(role for role in request.roles if role.name == name)
