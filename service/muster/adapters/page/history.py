"""When each gang entered its phases, as far as this service has seen it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from muster.gangs.messages.instructions import Moved

MOST_STEPS = 32
"""Of one gang: the last ones."""


@dataclass(frozen=True, slots=True)
class Step:
    """A gang entered `phase` at this time, in seconds since the Unix epoch, because of `why`."""

    at: float
    phase: str
    why: str


class History:
    """The last steps of each gang that exists. `since` is when this service began to look."""

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic):
        self._wall, self._clock = wall, clock
        self._steps: dict[str, deque[Step]] = {}
        self.since = wall()

    def __len__(self) -> int:
        return len(self._steps)

    def moved(self, move: Moved) -> None:
        """Take in that a gang has entered a phase. A gang that is finished is forgotten."""
        if move.phase == "finished":
            self._steps.pop(move.gang, None)
            return
        at = self._wall() - (self._clock() - move.at)
        steps = self._steps.setdefault(move.gang, deque(maxlen=MOST_STEPS))
        steps.append(Step(at, move.phase, move.why))

    def of(self, gang: str) -> tuple[Step, ...]:
        """Return the gang's steps, oldest first. The first ones are missing if there are MOST_STEPS."""
        return tuple(self._steps.get(gang, ()))
