"""When gangs are to be looked at without an event: one heap for all of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping

from muster.gangs.gang import Alarm, Gang


class Alarms:
    """The alarms of all gangs. A gang has one of each kind; setting it again moves it."""

    def __init__(self, gangs: Mapping[str, Gang], now: Callable[[], float]) -> None:
        self._gangs = gangs
        self._now = now
        self._heap: list[tuple[float, str, Alarm]] = []
        self._set_at: dict[tuple[str, Alarm], float] | None = None
        """When each alarm was set, of those set since nothing can be seen; None while all can be."""

    def set(self, gang: Gang, when: float, alarm: Alarm = Alarm.PHASE) -> None:
        """Look at the gang then."""
        gang.alarms[alarm] = when
        if self._set_at is not None:
            self._set_at[gang.key, alarm] = self._now()
        heapq.heappush(self._heap, (when, gang.key, alarm))

    def hand_on(self, before: Gang, gang: Gang, alarm: Alarm) -> None:
        """Set the alarm of a gang for another one that goes on with its pods: as long ago as it was set."""
        set_at = (self._set_at or {}).get((before.key, alarm))
        self.set(gang, before.alarms[alarm], alarm)
        if self._set_at is not None:
            self._set_at[gang.key, alarm] = -math.inf if set_at is None else set_at

    def next(self) -> float | None:
        """When the first is due; None when none is set."""
        while self._heap:
            when, key, alarm = self._heap[0]
            gang = self._gangs.get(key)
            if gang is not None and gang.alarms.get(alarm) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[tuple[Gang, Alarm]]:
        """The alarms whose time has come, each taken off."""
        while (when := self.next()) is not None and when <= now:
            _, key, alarm = heapq.heappop(self._heap)
            gang = self._gangs[key]
            del gang.alarms[alarm]
            yield gang, alarm

    def stand_still(self) -> None:
        """Note that from now on nothing can be seen, until `move_on`."""
        if self._set_at is None:
            self._set_at = {}

    def move_on(self, seconds: float) -> None:
        """Put off all alarms by the seconds in which nothing could be seen; one that was set meanwhile, by
        those since then."""
        set_at, self._set_at = self._set_at or {}, None
        for gang in self._gangs.values():
            for alarm, when in gang.alarms.items():
                since_set = self._now() - set_at.get((gang.key, alarm), -math.inf)
                self.set(gang, when + min(seconds, since_set), alarm)
