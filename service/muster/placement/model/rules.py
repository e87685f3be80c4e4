"""What binds members of roles to parts. The model makes constraints of these, a file a kind.

Each has `part`, by cell, −1 for none; `bound`, the roles that it is about; and `told_by`: what else of a part
tells it apart from others, by cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class MaxPerPart:
    """The members of these roles in each part are at most `left` of it; `part` by cell, -1 for none."""

    part: Ints
    roles: tuple[int, ...]
    left: Ints

    @property
    def bound(self) -> tuple[int, ...]:
        return self.roles

    @property
    def told_by(self) -> tuple[Ints, ...]:
        return (_of_part(self.part, self.left),)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The members of `role` in each part are a multiple of `size`; `part` by cell, -1 for none."""

    part: Ints
    role: int
    size: int

    @property
    def bound(self) -> tuple[int, ...]:
        return (self.role,)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class RoleScope:
    """All members of these roles lie in one part; `part` by cell, -1 where they may not be."""

    part: Ints
    roles: tuple[int, ...]

    @property
    def bound(self) -> tuple[int, ...]:
        return self.roles

    @property
    def told_by(self) -> tuple[Ints, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """No part holds a member of `roles` and another one of `others`; a role in both has one member there."""

    part: Ints
    roles: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def bound(self) -> tuple[int, ...]:
        return (*self.roles, *self.others)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """Members of `roles` lie only in parts that are `opened`, or that a member of `others` opens.

    A member of both opens a part only where `first` says that it may, and only one part.
    """

    part: Ints
    roles: tuple[int, ...]
    others: tuple[int, ...]
    opened: Bools
    first: bool

    @property
    def bound(self) -> tuple[int, ...]:
        return (*self.roles, *self.others)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        return (_of_part(self.part, self.opened.astype(np.int64)),)


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """A part that receives a member of `roles` holds at most `most` more than the emptiest `eligible` part.

    What counts are `there` [part] and the members of `counted` in cells of that part by `counts`, which is
    −1 where they do not count. The smallest number lies between `lowest` and `highest`.
    """

    part: Ints
    counts: Ints
    roles: tuple[int, ...]
    counted: tuple[int, ...]
    there: Ints
    eligible: Bools
    most: int
    lowest: int
    highest: int

    @property
    def bound(self) -> tuple[int, ...]:
        return (*self.roles, *self.counted)

    @property
    def told_by(self) -> tuple[Ints, ...]:
        counts = (self.counts >= 0).astype(np.int64)
        return (_of_part(self.part, self.there), _of_part(self.part, self.eligible.astype(np.int64)), counts)


def _of_part(part: Ints, value: Ints) -> Ints:
    """Return the value of each cell's part, −1 for none."""
    return np.where(part >= 0, value[np.maximum(part, 0)], -1) if len(value) else np.full(len(part), -1)
