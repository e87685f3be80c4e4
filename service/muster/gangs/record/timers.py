"""When gangs are to be looked at without an event: one heap for all of them."""

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
        """When each timer was set, of those set since nothing can be seen; None while all can be."""

    def set(self, gang: Gang, when: float, timer: Timer = Timer.PHASE) -> None:
        """Look at the gang then."""
        gang.timers[timer] = when
        if self._set_at is not None:
            self._set_at[gang.key, timer] = self._now()
        heapq.heappush(self._heap, (when, gang.key, timer))

    def hand_on(self, before: Gang, gang: Gang, timer: Timer) -> None:
        """Set the timer of a gang for another one that goes on with its pods: as long ago as it was set."""
        set_at = (self._set_at or {}).get((before.key, timer))
        self.set(gang, before.timers[timer], timer)
        if self._set_at is not None:
            self._set_at[gang.key, timer] = -math.inf if set_at is None else set_at

    def next(self) -> float | None:
        """When the first is due; None when none is set."""
        while self._heap:
            when, key, timer = self._heap[0]
            gang = self._gangs.get(key)
            if gang is not None and gang.timers.get(timer) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[tuple[Gang, Timer]]:
        """The timers whose time has come, each taken off."""
        while (when := self.next()) is not None and when <= now:
            _, key, timer = heapq.heappop(self._heap)
            gang = self._gangs[key]
            del gang.timers[timer]
            yield gang, timer

    def pause(self) -> None:
        """Note that from now on nothing can be seen, until `postpone`."""
        if self._set_at is None:
            self._set_at = {}

    def postpone(self, seconds: float) -> None:
        """Put off all timers by the seconds in which nothing could be seen; one that was set meanwhile, by
        those since then."""
        set_at, self._set_at = self._set_at or {}, None
        for gang in self._gangs.values():
            for timer, when in gang.timers.items():
                since_set = self._now() - set_at.get((gang.key, timer), -math.inf)
                self.set(gang, when + min(seconds, since_set), timer)
