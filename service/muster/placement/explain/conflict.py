"""Assumptions that forbid a gang, and the cluster as seen with more or fewer of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from muster.domain.request import Role
from muster.placement.explain.assumptions import Assumption, Assumptions, Kind, World
from muster.placement.explain.feasibility import Oracle
from muster.placement.gang.constraints.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Conflict:
    """`kept` forbid the gang as far as it consists of `roles` (all of Kind.ROLE); none of either can be left
    out. `oracle` is for what is still to be worked out."""

    assumptions: Assumptions
    roles: frozenset[Assumption]
    kept: frozenset[Assumption]
    oracle: Oracle

    def told(self, kind: Kind | Constraint) -> list[Assumption]:
        """The assumptions of one kind that are kept, in a fixed order."""
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
        """Their names, as causes have them."""
        return ", ".join(role.name for role in self.members_of)

    @property
    def part_of_gang(self) -> str:
        """Their names where the gang has other roles too."""
        return self.name if len(self.roles) < len(self.assumptions.roles) else ""

    @property
    def even_empty(self) -> bool:
        """Whether nothing would fit even if other pods took nothing."""
        return not self.told(Kind.TAKEN)

    @property
    def as_it_is(self) -> World:
        """The cluster and the gang with all that is assumed."""
        return self.assumptions.world(self.assumptions.all)

    @property
    def nobody_admits(self) -> bool:
        """Whether some role is admitted by no node."""
        admitted = self.as_it_is.admitted
        return not all(admitted[role.name].any() for role in self.members_of)

    def seen(self, without: Collection[Kind | Constraint] = (), refusals_told: bool = False) -> World:
        """The cluster as these roles find it: as it is, or, where what others take does not matter, empty;
        without the assumptions of some kinds. `refusals_told`: of refusals only those that matter, as also
        where no node admits them."""
        refusals_told |= self.nobody_admits

        def holds(each: Assumption) -> bool:
            if each.kind is Kind.REFUSED and refusals_told:
                return each in self.kept
            return each.kind not in without and not (each.kind is Kind.TAKEN and self.even_empty)

        every = (each for group in self.assumptions.groups for each in group)
        return self.assumptions.world({*self.roles, *filter(holds, every)})
