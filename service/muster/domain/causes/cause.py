"""What every cause says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


class BaseCause(ABC):
    """Say in words why a gang waits. Fields have the numbers: users see both."""

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str:
        """Return the cause as a clause: no capital, no full stop."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """Return what helps against it in general, as a sentence."""

    @property
    def stays(self) -> bool:
        """Return whether it stays whatever other pods end, and whatever members come.

        Then its sentence says "even if nothing else ran". A gang with such a cause gets no backfill
        reservation.
        """
        return bool(getattr(self, "even_empty", False))


@dataclass(frozen=True, slots=True)
class ConstraintCause(BaseCause):
    """A constraint forbids it. The causes lie with the constraints; their text is a clause, like all."""
