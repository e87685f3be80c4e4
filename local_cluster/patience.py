"""How long a wait may last: a guard against hangs, longer on a machine that is slow now.

Tests and the local cluster judge by what happens. A guard only ends a wait for what never comes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

HANG_S = 300.0
"""On a quiet machine: hundreds of times as long as what is waited for."""


def slowness() -> float:
    """Return how many processes share a core, over the last minute; at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1.0, os.getloadavg()[0] / cores)


def stretched(quiet_s: float) -> float:
    """Return the seconds that take the place of `quiet_s` of a quiet machine now."""
    return quiet_s * slowness()


@dataclass
class Guard:
    """Counts down from when it is made. A machine that becomes slow meanwhile has longer."""

    quiet_s: float = HANG_S
    _began: float = field(default_factory=time.monotonic)
    _slowest: float = 1.0

    @property
    def whole_s(self) -> float:
        """Return for how long it lasts, as far as is known by now."""
        self._slowest = max(self._slowest, slowness())
        return self.quiet_s * self._slowest

    @property
    def left_s(self) -> float:
        """Return the seconds that are left; none if negative."""
        return self._began + self.whole_s - time.monotonic()

    @property
    def over(self) -> bool:
        """Return whether nothing is left."""
        return self.left_s <= 0
