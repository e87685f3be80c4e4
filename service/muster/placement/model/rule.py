"""What binds members of roles to the parts of a scope, as the model sees it.

The rules lie with the constraints that make them, in gang/constraints.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule about the members of `roles`, and of `others`, in each part; `part` by cell, −1 for none.

    `left` [part] is the most members that a part takes (empty without such a limit), and members in a part
    are a multiple of `step`. Methods without a solver use these, and decline a rule that is more than that.
    """

    part: Ints
    roles: tuple[int, ...]
    others: tuple[int, ...] = ()
    left: Ints = field(default_factory=lambda: NO_LIMIT)
    step: int = 1

    in_numbers: ClassVar[bool] = False
    """Whether `left` and `step` say all of the rule."""
    in_one_part: ClassVar[bool] = False
    """Whether the rule is that all members lie in one part."""

    def add(self, variables: Variables, name: str) -> None:
        """Add the rule to the model, under names that begin with this one."""
        raise NotImplementedError

    def share(self, problem: Problem) -> PartShare | None:
        """Return how many members each part takes; None if the rule does not say it in numbers."""
        return None

    @property
    def bound(self) -> tuple[int, ...]:
        """The roles whose members can break the rule."""
        return (*self.roles, *self.others)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        """What else of a part tells it apart from others, by cell."""
        return (self.of_part(self.left),) if len(self.left) else ()

    def of_part(self, value: Ints) -> Ints:
        """Return the value [part] of each cell's part, −1 for none."""
        known = np.append(value, -1)  # the last one is of no part
        return known[np.where(self.part < 0, len(value), self.part)]
