"""The interface of exact methods: what they are given, and what they answer.

A method is asked for the next level of a plan that is decided in part. It decides this level, and as many
after it as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from muster.domain.decision import Step
from muster.placement.cluster.columns import Ints
from muster.placement.gang.instance import Counts, Instance
from muster.placement.limits import Budget
from muster.placement.model.bound import Floats
from muster.placement.model.objective import Level
from muster.placement.model.problem import Problem, Use
from muster.placement.search.plan import Gap, Share, Value


@dataclass(frozen=True, slots=True)
class Start:
    """Nothing is decided yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """Regions that are equally good so far. [row looked at]: `rows`, the `region` of each from 0, and `cap`,
    how many members it takes. `left` are the levels, widest first, that are still to be counted: there no one
    part holds all."""

    rows: Ints
    region: Ints
    cap: Ints
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """A region with its parts and nodes counted: the problem that is left and a solution of it.

    `value`: parts of each level touched, widest first, then nodes. `duals`: where the bound of the nodes was
    found. `racks`: what is left of the problem of racks, and their scope, where racks were counted as wholes.
    """

    value: tuple[int, ...]
    problem: Problem
    use: Use
    gap: Gap | None
    duals: tuple[Floats, ...] = ()
    racks: tuple[Problem, str] | None = None


class Fine(Protocol):
    """A problem with all patterns, some levels decided, and a solution of it if one is known."""

    @property
    def problem(self) -> Problem: ...

    @property
    def use(self) -> Use | None: ...

    def with_use(self, problem: Problem, use: Use | None) -> Fine:
        """Return the same with another level decided."""

    def shares(self, instance: Instance) -> tuple[Share, ...]:
        """Return the solution node by node."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A plan whose levels are all decided."""

    plan: tuple[Share, ...]

    def shares(self, instance: Instance) -> tuple[Share, ...]:
        """Return the plan node by node."""
        return self.plan


Known = Start | Regions | Counted | Fine | Complete


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """A plan whose first levels are decided: the gang, what is `known`, and the `levels` that are left.

    `value`: what the plan is worth at the levels of quality that are decided. `gap`: of the first level not
    proven best. `likely`: where the members are units of larger ones, whether a region probably holds these.
    """

    instance: Instance
    scopes: tuple[str, ...]
    need: Counts
    levels: tuple[Level, ...]
    known: Known = field(default_factory=Start)
    value: Value = ()
    gap: Gap | None = None
    steps: tuple[Step, ...] = ()
    likely: Callable[[Counted], bool] | None = None

    @property
    def active(self) -> tuple[int, ...]:
        """The roles with members to place."""
        return tuple(role for role, count in enumerate(self.need) if count)

    def shares(self) -> tuple[Share, ...]:
        """Return the plan node by node, once no levels are left."""
        assert not isinstance(self.known, Start | Regions | Counted), self.levels
        return self.known.shares(self.instance)

    def decided(self, known: Fine, value: int) -> Partial:
        """Return the plan with one more level of quality decided."""
        return replace(self, levels=self.levels[1:], known=known, value=(*self.value, value))

    def complete(self, shares: tuple[Share, ...], value: Value = ()) -> Partial:
        """Return the plan with all levels decided."""
        return replace(self, levels=(), known=Complete(shares), value=value)


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The plans that are equally good as far as they are decided; `gap` of the first level not proven."""

    plans: tuple[Partial, ...]
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Nothing fits, proven."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No plan was found, and none is excluded: `gap` names the level."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class Declined:
    """The method does not apply, for this reason. `gap`: of what it looked at and could not prove."""

    reason: str
    gap: Gap | None = None


Answer = Solved | Infeasible | Unknown | Declined


class Exact(Protocol):
    """An exact method. `given`: the kinds of `Partial.known` with which it can begin."""

    @property
    def name(self) -> str: ...

    @property
    def given(self) -> tuple[type, ...]: ...

    def solve(self, plan: Partial, level: Level, incumbent: Value | None, budget: Budget) -> Answer:
        """Decide the next level, `level`, and any number after it.

        `incumbent` is the value of the best plan so far: what is worse need not be finished.
        """
