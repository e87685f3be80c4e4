"""The order in which gangs are planned: those that are bound in part before all others; then by highest
priority, then oldest; now and then who waited longest.

Each change that frees something puts all gangs that did not fit back into the queue. Where changes come
faster than the planner answers, the old ones among them would come before a young gang for ever, though it
fits. So every few turns the planner goes to the gang that it was asked about longest ago, or never.
"""

from __future__ import annotations

import heapq

FAIR_TURN = 4
"""Every so many turns the gang that was planned longest ago comes first."""

_Entry = tuple[bool, int, int, float, str, int]
"""Whether it is none of the first, turn of its last answer (or 0), negative priority, when it was created,
its key, number of the entry."""


class Queue:
    """Gang keys waiting to be planned. Each stands in it once."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._by_priority: list[_Entry] = []
        self._by_last_turn: list[_Entry] = []
        self._last_turn: dict[str, int] = {}
        self._turn = 0
        self._number = 0

    def put(self, key: str, priority: int, created: float, first: bool = False) -> None:
        """Queue a gang, or give it another place; `first` goes before all that are not."""
        self._number += 1
        self._entries[key] = self._number
        heapq.heappush(self._by_priority, (not first, 0, -priority, created, key, self._number))
        last_turn = 0 if first else self._last_turn.get(key, 0)
        heapq.heappush(self._by_last_turn, (not first, last_turn, -priority, created, key, self._number))
        self._tidy()  # a standby takes nothing out

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def drop(self, key: str) -> None:
        """Take a gang out, if it is in."""
        self._entries.pop(key, None)

    def forget(self, key: str) -> None:
        """The gang is no more: its key may be used again by a new one."""
        self.drop(key)
        self._last_turn.pop(key, None)

    def pop(self, only_first: bool = False) -> str | None:
        """The next gang, taken out; None when none waits. `only_first`: of those that go before all."""
        if only_first and not self._any_first():
            return None
        self._turn += 1
        key = self._first(self._by_last_turn if self._turn % FAIR_TURN == 0 else self._by_priority)
        if key is None:
            return None
        del self._entries[key]
        self._last_turn[key] = self._turn
        self._tidy()
        return key

    def _tidy(self) -> None:
        """Forget entries that stand no more, when they are the most."""
        for heap in (self._by_priority, self._by_last_turn):
            if len(heap) > 2 * len(self._entries) + FAIR_TURN:
                heap[:] = [entry for entry in heap if self._stands(entry)]
                heapq.heapify(heap)

    def _any_first(self) -> bool:
        heap = self._by_priority
        while heap and not self._stands(heap[0]):
            heapq.heappop(heap)
        return bool(heap) and not heap[0][0]

    def _first(self, heap: list[_Entry]) -> str | None:
        while heap:
            entry = heapq.heappop(heap)
            if self._stands(entry):
                return entry[4]
        return None

    def _stands(self, entry: _Entry) -> bool:
        return self._entries.get(entry[4]) == entry[5]
