"""The timers of all gangs, in one heap. Times are in seconds of the inputs' clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping

from muster.gangs.record.gang import Gang, Timer


class Timers:
    """The timers of all gangs. A gang has one of each kind; setting it again moves it."""

    def __init__(self, gangs: Mapping[str, Gang], now: Callable[[], float]) -> None:
        self._gangs = gangs
        self._now = now
        self._heap: list[tuple[float, str, Timer]] = []
        self._set_at: dict[tuple[str, Timer], float] | None = None
        """(key, timer) → when it was set, since nothing can be seen; None while all watches work."""

    def set(self, gang: Gang, when: float, timer: Timer = Timer.PHASE) -> None:
        """Set the gang's timer to expire at `when`."""
        gang.timers[timer] = when
        if self._set_at is not None:
            self._set_at[gang.key, timer] = self._now()
        heapq.heappush(self._heap, (when, gang.key, timer))

    def hand_on(self, before: Gang, gang: Gang, timer: Timer) -> None:
        """Set a gang's timer for another gang that has its pods now.

        The timer keeps the time at which it was set.
        """
        set_at = (self._set_at or {}).get((before.key, timer))
        self.set(gang, before.timers[timer], timer)
        if self._set_at is not None:
            self._set_at[gang.key, timer] = -math.inf if set_at is None else set_at

    def next(self) -> float | None:
        """Return when the first timer expires; None if none is set."""
        while self._heap:
            when, key, timer = self._heap[0]
            gang = self._gangs.get(key)
            if gang is not None and gang.timers.get(timer) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[tuple[Gang, Timer]]:
        """Remove and yield the timers that have expired."""
        while (when := self.next()) is not None and when <= now:
            _, key, timer = heapq.heappop(self._heap)
            gang = self._gangs[key]
            del gang.timers[timer]
            yield gang, timer

    def pause(self) -> None:
        """Note that nothing can be seen from now on, until `postpone`."""
        if self._set_at is None:
            self._set_at = {}

    def postpone(self, seconds: float) -> None:
        """Postpone all timers by the seconds in which nothing could be seen.

        A timer that was set meanwhile is postponed only by the time since then.
        """
        set_at, self._set_at = self._set_at or {}, None
        for gang in self._gangs.values():
            for timer, when in gang.timers.items():
                since_set = self._now() - set_at.get((gang.key, timer), -math.inf)
                self.set(gang, when + min(seconds, since_set), timer)
