"""Define the interface of a constraint: its rules in the model, the request without it, its cause, and its
relaxations.

Each constraint is a class of this folder that has all of this. CONSTRAINTS in __init__.py finds them, and the
planner walks through that list. The verifier checks each constraint again without this code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from muster.domain.causes.out_of_place import IndicesUnknown, NoSuchDomain
from muster.domain.constraints import DropConstraint, PerScope
from muster.domain.reasons import Cause, Relaxation
from muster.domain.request import Request, Role
from muster.placement.gang.rules import Rules
from muster.placement.gang.running import RunningMembers
from muster.placement.limits import takes_gpus


@dataclass(frozen=True, slots=True)
class RefusalFacts(ABC):
    """The facts that a constraint may ask about a gang that does not fit.

    `even_empty` is whether the gang would not fit even in a cluster without other pods. `running` is the
    number of running members if the refusal depends on them, else 0.
    """

    request: Request
    even_empty: bool
    running: int

    @abstractmethod
    def fit(self) -> tuple[int | None, int]:
        """Return how many members fit (None if unknown), and how many must."""

    @abstractmethod
    def works(self, request: Request) -> bool:
        """Return whether the gang fits if it asks for this request instead."""

    @abstractmethod
    def nodes_admitting(self, role: Role) -> list[str]:
        """Return the nodes that admit the role."""

    @abstractmethod
    def count_agreeing_nodes(self, role: Role) -> int:
        """Return how many of the nodes that admit the role have GPUs that agree on its attributes."""

    @abstractmethod
    def wider_scopes(self, scope: str) -> tuple[str | None, ...]:
        """Return the scopes that are wider than this scope, the narrowest first. The last entry is None: no
        scope.
        """

    @abstractmethod
    def is_nowhere(self, scope: str) -> bool:
        """Return whether no node of the cluster carries a label of the scope.

        Then asking for fewer members cannot help: no node has the label, or the scope is misspelt.
        """

    @abstractmethod
    def no_such(self, scope: str, role: Role | None = None) -> NoSuchDomain | IndicesUnknown | None:
        """Return the cause if no node (that admits the role) lies in any part of the scope.

        Refusals that are not part of the conflict are ignored. Inside nodes, the cause is that no part can be
        promised on any node with GPUs.
        """

    @abstractmethod
    def best_part(self, role: Role, scope: str) -> tuple[str, int | None, int]:
        """Return the part where most members of this role alone fit, how many fit (None if unknown), and how
        many must.
        """

    @abstractmethod
    def causes_of_running_members(self, scope: str, *roles: str) -> Iterator[Cause]:
        """Yield the cause that these roles must join running members, if the refusal depends on them."""

    @abstractmethod
    def begun_segment(self, role: Role) -> Iterator[Cause]:
        """Yield the cause that a segment must be completed where some of its members run.

        The cause names the first begun segment whose part lacks room for the missing members.
        """


class Constraint(ABC):
    """One kind of constraint.

    `role` and `key` say which constraint of a request is meant, as `keys_in` yields them.
    """

    order: ClassVar[int]
    """The position among CONSTRAINTS: requests of users come before limits of pods and nodes. No two are
    equal.
    """
    binds: ClassVar[bool] = True
    """Whether the place of one member limits the places of others. Then members are not moved one by one."""

    @abstractmethod
    def keys_in(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield the constraints of this kind in the request, as (role, key). Each can be dropped alone."""

    @abstractmethod
    def request_without(self, request: Request, role: str, key: str) -> Request:
        """Return the request without this constraint."""

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        """Yield (annotation, scope, roles) for each scope whose parts can lie inside a node."""
        yield from ()

    @abstractmethod
    def add(self, rules: Rules, request: Request, running: RunningMembers) -> None:
        """Add the request's constraints of this kind to the rules of the gang.

        An explanation tries the gang without some members, without running members (`request.running` is
        then empty), and on a cluster without other pods. The rules must never be stricter there.
        """

    @abstractmethod
    def causes(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Cause]:
        """Yield the causes of the refusal that this constraint accounts for."""

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Relaxation]:
        """Yield weaker constraints with which the gang fits. Each was tried."""
        yield from ()


class OfRoles(Constraint):
    """A constraint that is a field of roles. `nothing` is the field's value for a role without the
    constraint.
    """

    field: ClassVar[str]
    nothing: ClassVar[object]

    def keys_in(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each role that has the constraint."""
        yield from ((role.name, "") for role in request.roles if getattr(role, self.field))

    def request_without(self, request: Request, role: str, key: str) -> Request:
        """Return the request without the constraint of this role."""
        return self.request_with(request, role, self.nothing)

    def request_with(self, request: Request, name: str, value: object) -> Request:
        """Return the request with another value for the role."""
        change: dict[str, object] = {self.field: value}
        roles = (replace(role, **change) if role.name == name else role for role in request.roles)  # type: ignore[arg-type]
        return replace(request, roles=tuple(roles))


class ByName(Constraint):
    """A constraint that is a field of the request: a list of objects, each with a name."""

    field: ClassVar[str]

    def keys_in(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each name once."""
        yield from (("", name) for name in dict.fromkeys(rule.name for rule in getattr(request, self.field)))

    def request_without(self, request: Request, role: str, key: str) -> Request:
        """Return the request without the objects of this name."""
        rules = tuple(rule for rule in getattr(request, self.field) if rule.name != key)
        change: dict[str, object] = {self.field: rules}
        return replace(request, **change)  # type: ignore[arg-type]

    def relaxations(self, findings: RefusalFacts, role: str, key: str) -> Iterator[Relaxation]:
        """Yield the relaxation that drops the constraint, if the gang then fits."""
        if findings.works(self.request_without(findings.request, role, key)):
            yield DropConstraint(key)


class ByScope(Constraint):
    """A constraint that gives a number of members for a scope. `kind` is its class in the request."""

    kind: ClassVar[type[PerScope]]

    def by_scope(self, request: Request) -> dict[str, PerScope]:
        """Return the constraints of this kind in the request, by scope."""
        return {limit.scope: limit for limit in request.per_scope if isinstance(limit, self.kind)}

    def keys_in(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield each scope that has the constraint."""
        yield from (("", scope) for scope in self.by_scope(request))

    def request_without(self, request: Request, role: str, key: str) -> Request:
        """Return the request without the constraint for this scope."""
        return self.request_with(request, key)

    def request_with(self, request: Request, scope: str, *constraints: PerScope) -> Request:
        """Return the request with `constraints` in place of the constraint for the scope."""
        old = self.by_scope(request).get(scope)
        other_limits = (limit for limit in request.per_scope if limit is not old)
        return replace(request, per_scope=(*other_limits, *constraints))

    def scopes(self, request: Request) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
        """Yield each scope, for all roles that take GPUs."""
        roles = tuple(role for role in request.roles if role.members and takes_gpus(role))
        yield from ((self.kind.annotation, scope, roles) for scope in self.by_scope(request))


def role_of(request: Request, name: str) -> Role:
    """Return the role of this name."""
    return next(role for role in request.roles if role.name == name)
