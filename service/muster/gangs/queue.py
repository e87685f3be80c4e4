"""The order in which gangs are planned: by highest priority; at equal priority those that are bound in part
first, then the oldest; now and then who waited longest.

Before all of them go partially bound gangs that hold a place for each waiting member: to plan these takes
nothing from others. To be bound in part gives no other precedence over a higher priority, because a user can
bring it about: by deleting a member between Permit and its Binding.

Each change that frees something puts all gangs that did not fit back into the queue. Where changes come
faster than the planner answers, the old ones among them would come before a young gang for ever, though it
fits. So every few turns the planner goes to the gang that it was asked about longest ago, or never.
"""

from __future__ import annotations

import heapq

FAIR_TURN = 4
"""Every so many turns the gang that was planned longest ago comes first."""

_Entry = tuple[bool, int, int, bool, float, str, int]
"""Whether it is none of the first, turn of its last answer (or 0), negative priority, whether it is not bound
in part, when it was created, its key, number of the entry."""


class Queue:
    """Gang keys waiting to be planned. Each stands in it once."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._by_priority: list[_Entry] = []
        self._by_last_turn: list[_Entry] = []
        self._last_turn: dict[str, int] = {}
        self._turn = 0
        self._number = 0

    def put(
        self, key: str, priority: int, created: float, partial: bool = False, first: bool = False
    ) -> None:
        """Queue a gang, or give it another place; `first` goes before all that are not."""
        self._number += 1
        self._entries[key] = self._number
        place = (-priority, not partial, created, key, self._number)
        last_turn = 0 if first else self._last_turn.get(key, 0)
        heapq.heappush(self._by_priority, (not first, 0, *place))
        heapq.heappush(self._by_last_turn, (not first, last_turn, *place))
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

    def pop(self, only_partial: bool = False) -> str | None:
        """Take out the next gang and return its key; None if none waits.

        `only_partial`: None too unless the first by priority is bound in part.
        """
        if only_partial and not self._partial_is_next():
            return None
        self._turn += 1
        by_age = self._turn % FAIR_TURN == 0 and not only_partial
        key = self._first(self._by_last_turn if by_age else self._by_priority)
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

    def _partial_is_next(self) -> bool:
        heap = self._by_priority
        while heap and not self._stands(heap[0]):
            heapq.heappop(heap)
        return bool(heap) and not heap[0][3]

    def _first(self, heap: list[_Entry]) -> str | None:
        while heap:
            entry = heapq.heappop(heap)
            if self._stands(entry):
                return entry[5]
        return None

    def _stands(self, entry: _Entry) -> bool:
        return self._entries.get(entry[5]) == entry[6]
