"""Limits on how often work is done: a rate for each owner, an amount per second, delays after failures."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


class Rate:
    """The debt of each owner, so that frequent changes or writes cost only their owner.

    An owner, which is a node or a namespace, pays seconds for each reading or write. An owner that owes more
    than `advance_s` waits. `clock` returns monotonic seconds.
    """

    def __init__(self, advance_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._advance_s = advance_s
        self._clock = clock
        self._paid: dict[str, float] = {}
        """Owner → the time when it owes nothing any more."""

    def charge(self, owner: str, cost_s: float) -> None:
        """Charge an owner for a reading or write."""
        self._paid[owner] = max(self._clock(), self._paid.get(owner, 0.0)) + cost_s

    def wait_s(self, owner: str) -> float:
        """Return the seconds until the owner's next reading or write may begin."""
        return max(0.0, self.due_at(owner) - self._clock())

    def due_at(self, owner: str) -> float:
        """Return when the owner's next reading or write may begin, in seconds of the clock."""
        return self._paid.get(owner, -math.inf) - self._advance_s

    def forget(self) -> None:
        """Forget the owners that owe nothing."""
        now = self._clock()
        self._paid = {owner: paid for owner, paid in self._paid.items() if paid > now}


class Allowance:
    """An amount that clients use up: at first `max_amount`, and `per_s` is added each second up to this
    maximum.

    `clock` returns monotonic seconds.
    """

    def __init__(self, max_amount: float, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_amount, self._per_s, self._clock = max_amount, per_s, clock
        self._available, self._renewed_at = max_amount, clock()

    @property
    def available(self) -> float:
        """Return the amount that may be used now."""
        now = self._clock()
        self._available += (now - self._renewed_at) * self._per_s
        self._available, self._renewed_at = min(self._max_amount, self._available), now
        return self._available

    def spend(self, amount: float = 1.0) -> None:
        """Take an amount, even more than is available: then later callers see a negative amount."""
        self._available -= amount


@dataclass(slots=True)
class Backoff:
    """Delays before another try, in seconds: `first_delay`, then doubled up to `limit`, each with jitter.

    A delay is random, between half of this value and the value. So a thousand clients that lost the same API
    server do not come back at the same time, and no client comes back immediately.
    """

    first_delay: float = 0.25
    limit: float = 30.0
    _next: float = field(default=0.0, init=False)

    def delay(self) -> float:
        """Return the next delay."""
        base = self._next or self.first_delay
        self._next = min(base * 2, self.limit)
        return random.uniform(base / 2, base)

    def reset(self) -> None:
        """Begin again with the first delay, after a success."""
        self._next = 0.0
