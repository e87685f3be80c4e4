"""Represent a conflict: assumptions that forbid a gang, and the cluster with more or fewer of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from muster.domain.request import Role
from muster.placement.explain.assumptions import Assumption, Assumptions, Kind, World
from muster.placement.explain.feasibility import Oracle
from muster.placement.gang.constraints.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Conflict:
    """The assumptions `kept` forbid the gang reduced to `roles` (all of Kind.ROLE). None of either can be
    left out.

    `oracle` answers further questions.
    """

    assumptions: Assumptions
    roles: frozenset[Assumption]
    kept: frozenset[Assumption]
    oracle: Oracle

    def told(self, kind: Kind | Constraint) -> list[Assumption]:
        """Return the kept assumptions of one kind, in a fixed order."""
        return sorted(
            (each for each in self.kept if each.kind is kind), key=lambda each: (each.role, each.what)
        )

    @property
    def members_of(self) -> tuple[Role, ...]:
        """The roles whose members contradict each other or the cluster."""
        names = {each.role for each in self.roles}
        return tuple(role for role in self.assumptions.roles if role.name in names)

    @property
    def name(self) -> str:
        """The names of these roles, as causes show them."""
        return ", ".join(role.name for role in self.members_of)

    @property
    def part_of_gang(self) -> str:
        """The names of these roles if the gang has other roles too, else ""."""
        return self.name if len(self.roles) < len(self.assumptions.roles) else ""

    @property
    def even_empty(self) -> bool:
        """Whether the gang would not fit even in a cluster without other pods."""
        return not self.told(Kind.TAKEN)

    @property
    def as_it_is(self) -> World:
        """The cluster and the gang with all assumptions."""
        return self.assumptions.world(self.assumptions.all)

    @property
    def nobody_admits(self) -> bool:
        """Whether no node admits some role."""
        admitted = self.as_it_is.admitted
        return not all(admitted[role.name].any() for role in self.members_of)

    def seen(self, without: Collection[Kind | Constraint] = (), refusals_told: bool = False) -> World:
        """Return the cluster for these roles, without the assumptions of some kinds.

        If it does not matter what other pods take, the cluster is empty. With `refusals_told`, or if no node
        admits some role, only the refusals of the conflict are kept.
        """
        refusals_told |= self.nobody_admits

        def holds(each: Assumption) -> bool:
            if each.kind is Kind.REFUSED and refusals_told:
                return each in self.kept
            return each.kind not in without and not (each.kind is Kind.TAKEN and self.even_empty)

        every = (each for group in self.assumptions.groups for each in group)
        return self.assumptions.world({*self.roles, *filter(holds, every)})
