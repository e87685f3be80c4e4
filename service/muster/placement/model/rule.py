"""Define the interface of a rule: what binds members of roles to the parts of a scope, as the model sees it.

The rules themselves are with the constraints that make them, in gang/constraints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from muster.placement.model.problem import Problem
    from muster.placement.model.shares import PartShare
    from muster.placement.model.variables import Variables

Ints = NDArray[np.int64]
NO_LIMIT: Ints = np.zeros(0, np.int64)
"""The `left` of rules without a limit for each part."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule(ABC):
    """A rule about the members of `roles`, and of `others`, in each part. `part` [cell] is −1 for none.

    `left` [part] is the most members that a part takes, empty without such a limit. The members in a part are
    a multiple of `step`. Methods without a solver use these two, and decline rules that say more.
    """

    part: Ints
    roles: tuple[int, ...]
    others: tuple[int, ...] = ()
    left: Ints = field(default_factory=lambda: NO_LIMIT)
    step: int = 1

    in_numbers: ClassVar[bool] = False
    """Whether `left` and `step` are all of the rule."""
    in_one_part: ClassVar[bool] = False
    """Whether the rule is that all members lie in one part."""

    @abstractmethod
    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model. The names of variables and constraints begin with `name`."""

    def share(self, problem: Problem) -> PartShare | None:
        """Return how many members each part takes, for the bound; None if the rule does not limit numbers."""
        return None

    @property
    def bound(self) -> tuple[int, ...]:
        """The roles whose members can break the rule."""
        return (*self.roles, *self.others)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        """[cell] arrays: what else tells a part apart from others."""
        return (self.of_part(self.left),) if len(self.left) else ()

    def of_part(self, value: Ints) -> Ints:
        """Return [cell] the value of the cell's part, −1 for none."""
        known = np.append(value, -1)  # the last entry is for no part
        return known[np.where(self.part < 0, len(value), self.part)]
