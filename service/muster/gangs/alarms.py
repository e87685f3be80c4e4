"""When gangs are to be looked at without an event: one heap for all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from muster.gangs.gang import Alarm, Gang


class Alarms:
    """The alarms of all gangs. A gang has one of each kind; setting it again moves it."""

    def __init__(self, gangs: Mapping[str, Gang]) -> None:
        self._gangs = gangs
        self._heap: list[tuple[float, str, Alarm]] = []

    def set(self, gang: Gang, when: float, alarm: Alarm = Alarm.PHASE) -> None:
        """Look at the gang then."""
        gang.alarms[alarm] = when
        heapq.heappush(self._heap, (when, gang.key, alarm))

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

    def move_on(self, seconds: float) -> None:
        """All of them come so much later."""
        for gang in self._gangs.values():
            for alarm, when in gang.alarms.items():
                self.set(gang, when + seconds, alarm)
