"""A bounded queue that gives each key a rate and a share of its own: no key can hold up the others.

Pure: times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

SWEEP_FROM = 1024
"""Lines that are kept before idle ones are looked for."""


@dataclass(frozen=True, slots=True)
class Shares:
    """`limit`: items that may wait in all. `line_limit`: items of one key that may wait. `per_s` and `burst`:
    how fast items of one key are taken. `window`: how many items of one key may be taken and not done."""

    limit: int
    line_limit: int
    per_s: float
    burst: int
    window: int


@dataclass(slots=True)
class _Line(Generic[T]):
    """The items of one key. `due` is the virtual time of its token bucket (GCRA): the bucket is full when it
    has passed. `stands`: the line has an entry among those whose turn will come."""

    waiting: deque[T] = field(default_factory=deque)
    under_way: int = 0
    due: float = -math.inf
    stands: bool = False


class FairQueue(Generic[T]):
    """Items by key, first in first out within a key, keys with a token in turn."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lines: dict[Hashable, _Line[T]] = {}
        self._turns: list[tuple[float, int, Hashable]] = []
        self._numbers = itertools.count()
        self._size = 0
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._size

    @property
    def keys(self) -> int:
        """Keys that are kept: keys with items or without a full bucket, and some idle keys."""
        return len(self._lines)

    def put(self, key: Hashable, item: T, now: float) -> T | None:
        """Queue an item. Return the item that is dropped for lack of room, None if nothing is dropped.

        A full queue drops the new item, unless its key has fewer items than another key. Then the last item
        of the key with the most items is dropped.
        """
        line = self._lines.get(key)
        if line is None:
            self._sweep(now)
            line = self._lines[key] = _Line()
        if len(line.waiting) >= min(self._shares.line_limit, self._shares.limit):
            return item
        dropped = None
        if self._size >= self._shares.limit:
            # above the average there is no need to look for the longest line: a flood costs nothing more
            if (len(line.waiting) + 1) * len(self._lines) > self._size:
                return item
            longest = max(self._lines.values(), key=lambda queue: len(queue.waiting))
            if len(longest.waiting) <= len(line.waiting) + 1:
                return item
            dropped = longest.waiting.pop()
            self._size -= 1
        line.waiting.append(item)
        self._size += 1
        self._stand(key, line, now)
        return dropped

    def ready_in(self, now: float) -> float | None:
        """Return in how many seconds an item may be taken; None if only `put` or `done` can bring one."""
        return max(0.0, self._turns[0][0] - now) if self._turns else None

    def take(self, now: float) -> T:
        """Take the next item. Raises IndexError when none may be taken at all."""
        _, _, key = heapq.heappop(self._turns)
        line = self._lines[key]
        line.stands = False
        item = line.waiting.popleft()
        self._size -= 1
        line.under_way += 1
        line.due = max(now, line.due) + 1 / self._shares.per_s
        self._stand(key, line, now)
        return item

    def done(self, key: Hashable, now: float) -> None:
        """Note that an item of this key, which was taken, is done with."""
        line = self._lines[key]
        line.under_way -= 1
        self._stand(key, line, now)

    def _stand(self, key: Hashable, line: _Line[T], now: float) -> None:
        """Give the line its next turn, where it has an item that may be taken some time."""
        if line.waiting and not line.stands and line.under_way < self._shares.window:
            at = max(now, line.due - (self._shares.burst - 1) / self._shares.per_s)
            heapq.heappush(self._turns, (at, next(self._numbers), key))
            line.stands = True

    def _sweep(self, now: float) -> None:
        """Forget idle lines with a full bucket: a new line is like them."""
        if len(self._lines) < self._sweep_at:
            return
        self._lines = {
            key: line for key, line in self._lines.items() if line.waiting or line.under_way or line.due > now
        }
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._lines))
