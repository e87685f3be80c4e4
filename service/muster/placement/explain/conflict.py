"""Find an irreducible conflict: assumptions that forbid a gang together.

Irreducible means two things. Under these assumptions alone, the gang does not fit. If any of them is dropped,
the gang fits. If it is not known in time whether the gang fits without an assumption, the assumption stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from muster.domain.request import Role
from muster.placement.explain.assumptions import Assumption, AssumptionKind, Assumptions, World
from muster.placement.gang.constraints.constraint import Constraint
from muster.placement.limits import Budget
from muster.placement.search.count import Fit, count

T = TypeVar("T")


class Oracle:
    """The oracle of all explanations: how many members fit. Its answers are remembered."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._fits: dict[tuple[World, int | None], Fit] = {}

    def target_fits(self, world: World) -> bool | None:
        """Return whether `world.target` members fit; None if that was not decided."""
        if not world.target:
            return True
        fit = self.up_to_target(world)
        if fit.members >= world.target:
            return True
        return False if fit.proven else None

    def up_to_target(self, world: World) -> Fit:
        """Return how many members fit; the counter stops at `world.target`."""
        return self._fits.get((world, None)) or self._count(world, world.target)

    def largest_fit(self, world: World) -> Fit:
        """Return the most members that fit."""
        return self._count(world, None)

    def most_members(self, world: World) -> int | None:
        """Return the number of the most members that fit; None if that was not decided."""
        fit = self.largest_fit(world)
        return fit.members if fit.proven else None

    def _count(self, world: World, target: int | None) -> Fit:
        key = (world, target)
        if key not in self._fits:
            fit = Fit(0, "", False)
            if not self.budget.late:  # to count takes time even without a solver, and there are many worlds
                fit = count(world.instance, world.scopes, self.budget, target)
            self._fits[key] = fit
        return self._fits[key]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An irreducible conflict: under the assumptions `obstacles`, members of `roles` alone do not fit.

    `roles` are assumptions of `AssumptionKind.ROLE`. If any role or obstacle is dropped, the gang fits.
    """

    assumptions: Assumptions
    roles: frozenset[Assumption]
    obstacles: frozenset[Assumption]
    oracle: Oracle

    def obstacles_of(self, kind: AssumptionKind | Constraint) -> list[Assumption]:
        """Return the obstacles of one kind, in a fixed order."""
        return sorted(
            (obstacle for obstacle in self.obstacles if obstacle.kind is kind),
            key=lambda obstacle: (obstacle.role, obstacle.subject),
        )

    @property
    def conflicting_roles(self) -> tuple[Role, ...]:
        """The roles of the conflict."""
        names = {assumption.role for assumption in self.roles}
        return tuple(role for role in self.assumptions.roles if role.name in names)

    @property
    def name(self) -> str:
        """The names of these roles, as causes show them."""
        return ", ".join(role.name for role in self.conflicting_roles)

    @property
    def part_of_gang(self) -> str:
        """The names of these roles if the gang has other roles too, else ""."""
        return self.name if len(self.roles) < len(self.assumptions.roles) else ""

    @property
    def even_empty(self) -> bool:
        """Whether the gang would not fit in a cluster without other pods either."""
        return not self.obstacles_of(AssumptionKind.IN_USE)

    @property
    def with_all_assumptions(self) -> World:
        """The cluster and the gang with all assumptions."""
        return self.assumptions.world(self.assumptions.all)

    @property
    def nobody_admits(self) -> bool:
        """Whether there is a role of the conflict that no node admits."""
        admitted = self.with_all_assumptions.admitted
        return not all(admitted[role.name].any() for role in self.conflicting_roles)

    def world(
        self, without: Collection[AssumptionKind | Constraint] = (), *, refusals_of_conflict: bool = False
    ) -> World:
        """Return the cluster for the roles of the conflict, without the assumptions of the kinds `without`.

        If other pods do not matter (`even_empty`), the cluster is without them. With `refusals_of_conflict`,
        or if no node admits some role, nodes refuse roles only for reasons that are obstacles.
        """
        refusals_of_conflict |= self.nobody_admits

        def holds(assumption: Assumption) -> bool:
            if assumption.kind is AssumptionKind.REFUSED and refusals_of_conflict:
                return assumption in self.obstacles
            return assumption.kind not in without and not (
                assumption.kind is AssumptionKind.IN_USE and self.even_empty
            )

        all_assumptions = (assumption for group in self.assumptions.groups for assumption in group)
        return self.assumptions.world({*self.roles, *filter(holds, all_assumptions)})


def conflict_of(assumptions: Assumptions, oracle: Oracle, proven: bool) -> Conflict | None:
    """Return an irreducible conflict.

    The result is None if neither the search (`proven`) nor the oracle has proven that the gang does not fit.
    """

    def forbids(subset: Collection[Assumption]) -> bool:
        return oracle.target_fits(assumptions.world(subset)) is False

    if not proven and not forbids(assumptions.all):
        return None
    roles = _conflicting_roles(assumptions, forbids)
    obstacles = irreducible_subset(assumptions.groups, lambda subset: forbids(subset | roles))
    return Conflict(assumptions, roles, obstacles, oracle)


def _conflicting_roles(
    assumptions: Assumptions, forbids: Callable[[Collection[Assumption]], bool]
) -> frozenset[Assumption]:
    """Return an irreducible set of roles that do not fit; a single role if that role alone does not fit."""
    role_assumptions = assumptions.role_assumptions
    all_else = assumptions.all - set(role_assumptions)
    if len(role_assumptions) > 1:
        for role in role_assumptions:
            if forbids({role, *all_else}):
                return frozenset((role,))
    if len(role_assumptions) > 2:
        return irreducible_subset(
            [(role,) for role in role_assumptions], lambda roles: forbids(roles | all_else)
        )
    return frozenset(role_assumptions)


def irreducible_subset(
    groups: Iterable[Sequence[T]], forbids: Callable[[frozenset[T]], bool]
) -> frozenset[T]:
    """Return an irreducible subset of all elements that still forbids, by a deletion filter.

    `forbids(subset)` returns whether the elements of the subset forbid the gang. All elements together must
    forbid it, and with further elements a subset must never allow more. Groups and their elements are dropped
    in the given order if possible, so elements that should stay come last. To drop a whole group takes one
    call. Each element that must stay takes log2(group size) calls.
    """
    groups = list(groups)
    subset = frozenset(element for group in groups for element in group)

    def reduce(group: Sequence[T], some_stay: bool) -> None:
        nonlocal subset
        if not group or (some_stay and len(group) == 1):
            return
        if not some_stay and forbids(subset - set(group)):
            subset -= set(group)
            return
        if len(group) > 1:
            cut = len(group) - (len(group) + 3) // 4  # the last elements are more likely to stay
            reduce(group[:cut], False)
            reduce(group[cut:], subset.isdisjoint(group[:cut]))

    for group in groups:
        reduce(group, False)
    return subset
