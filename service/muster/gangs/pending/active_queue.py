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
from collections.abc import Callable, Collection

FAIR_TURN = 4
"""Every so many turns the gang that was planned longest ago comes first."""

_Entry = tuple[bool, int, int, bool, float, str, int]
"""Whether it is none of the first, turn of its last answer (or 0), negative priority, whether it is not bound
in part, when it was created, its key, number of the entry."""


def namespace_of(key: str) -> str:
    """The namespace of a gang's key."""
    return key.partition("/")[0]


class _Order:
    """Entries in one order. Those of namespaces that rest lie apart: each is moved once, and not looked at
    for each turn of the others. `stands`: whether an entry still counts."""

    def __init__(self, is_current: Callable[[_Entry], bool]) -> None:
        self._is_current = is_current
        self._heap: list[_Entry] = []
        self._apart: dict[str, list[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._apart.values()))

    def push(self, entry: _Entry) -> None:
        heapq.heappush(self._heap, entry)

    def first(self, resting: Collection[str]) -> _Entry | None:
        """The first entry of a namespace that does not rest; where there is none, the first of all."""
        for namespace in self._apart.keys() - resting:
            for entry in self._apart.pop(namespace):
                heapq.heappush(self._heap, entry)
        while self._heap:
            entry = self._heap[0]
            namespace = namespace_of(entry[5])
            if not self._is_current(entry):
                heapq.heappop(self._heap)
            elif entry[0] and namespace in resting:
                heapq.heappush(self._apart.setdefault(namespace, []), heapq.heappop(self._heap))
            else:
                return entry
        return min(filter(None, map(self._head, self._apart.values())), default=None)

    def tidy(self, current: int) -> None:
        """Forget entries that stand no more, when they are the most."""
        if len(self) > 2 * current + FAIR_TURN:
            for heap in (self._heap, *self._apart.values()):
                heap[:] = filter(self._is_current, heap)
                heapq.heapify(heap)

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None


class Queue:
    """Gang keys waiting to be planned. Each stands in it once."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self._by_priority = _Order(self._is_current)
        self._by_last_turn = _Order(self._is_current)
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
        self._by_priority.push((not first, 0, *place))
        self._by_last_turn.push((not first, last_turn, *place))
        self._tidy()  # a standby takes nothing out

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def drop(self, key: str) -> None:
        """Take a gang out, if it is in."""
        self._entries.pop(key, None)

    def forget(self, key: str) -> None:
        """The gang is no more: its key may be used again by a new one."""
        self.drop(key)
        self._last_turn.pop(key, None)

    def pop(self, only_partial: bool = False, resting: Collection[str] = ()) -> str | None:
        """Take out the next gang and return its key; None if none waits.

        `only_partial`: None too unless the first by priority is bound in part. Gangs of namespaces that are
        `resting` come after those of others, except for those that are `first`.
        """
        entry = self._by_priority.first(resting)
        if only_partial and (entry is None or entry[3]):
            return None
        self._turn += 1
        if entry is None:
            return None
        if self._turn % FAIR_TURN == 0 and not only_partial:
            entry = self._by_last_turn.first(resting) or entry
        key = entry[5]
        del self._entries[key]
        self._last_turn[key] = self._turn
        self._tidy()
        return key

    def _tidy(self) -> None:
        for order in (self._by_priority, self._by_last_turn):
            order.tidy(len(self._entries))

    def _is_current(self, entry: _Entry) -> bool:
        return self._entries.get(entry[5]) == entry[6]
