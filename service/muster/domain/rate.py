"""How often objects of one owner are read: frequent changes cost their owner alone.

An owner, which is a node or a namespace, pays seconds for each reading, and may owe some seconds. An owner
that owes more waits until the debt is small enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Rate:
    """What each owner owes. It may owe `advance_s`. `clock` returns monotonic seconds."""

    def __init__(self, advance_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._advance_s = advance_s
        self._clock = clock
        self._paid: dict[str, float] = {}
        """By owner, when it owes nothing any more."""

    def charge(self, owner: str, cost_s: float) -> None:
        """Charge an owner for a reading."""
        self._paid[owner] = max(self._clock(), self._paid.get(owner, 0.0)) + cost_s

    def rest_s(self, owner: str) -> float:
        """Return in how many seconds something of the owner may be read."""
        return max(0.0, self.due(owner) - self._clock())

    def due(self, owner: str) -> float:
        """Return when something of the owner may be read, in seconds of the clock."""
        return self._paid.get(owner, -math.inf) - self._advance_s

    def forget(self) -> None:
        """Forget who owes nothing."""
        now = self._clock()
        self._paid = {owner: paid for owner, paid in self._paid.items() if paid > now}


class Budget:
    """How much may be used: `most` at once, and `per_s` more with each second. `clock` as for `Rate`."""

    def __init__(self, most: float, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._per_s, self._clock = most, per_s, clock
        self._available, self._at = most, clock()

    @property
    def available(self) -> float:
        """Return what may be used now."""
        now = self._clock()
        self._available, self._at = min(self._most, self._available + (now - self._at) * self._per_s), now
        return self._available

    def spend(self, amount: float = 1.0) -> None:
        """Take an amount, also one that is not there: later ones wait for it."""
        self._available -= amount
