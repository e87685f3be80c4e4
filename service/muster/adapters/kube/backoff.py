"""How long to wait before trying again: exponential, with jitter, up to a limit.

Full jitter on the upper half: a thousand clients that lost the same API server do not come back at once,
and none comes back immediately.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays in seconds: `first`, doubling up to `limit`, each drawn from its upper half."""

    first: float = 0.25
    limit: float = 30.0
    _next: float = field(default=0.0, init=False)

    def delay(self) -> float:
        """Return the next delay."""
        base = self._next or self.first
        self._next = min(base * 2, self.limit)
        return random.uniform(base / 2, base)

    def reset(self) -> None:
        """After a success the next failure waits shortly again."""
        self._next = 0.0
