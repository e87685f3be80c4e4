"""The order in which gangs are planned.

The highest priority comes first; at equal priority, partially bound gangs and then the oldest. Before all
others come partially bound gangs that hold a place for each waiting member: planning them takes nothing from
other gangs. Apart from that, a partially bound gang does not come before a higher priority, because users can
make a gang partially bound: they delete a member between Permit and its Binding.

Each change that frees something puts all gangs that did not fit back into the queue. If changes come faster
than the planner answers, old gangs among them would come before a young gang for ever, though the young one
fits. So every few turns the planner is asked about the gang that it was asked about longest ago, or never.

Members beyond those that a gang needs count as younger than they are, by a fixed time. So gangs that lack
members which they need come first, but only those that came within that time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator

FAIR_TURN = 4
"""In one of this many turns, the gang that was planned longest ago comes first."""

_Entry = tuple[bool, int, int, bool, float, str, int]
"""An entry, in the order of comparison. False comes before True.

The fields: whether it is not one of the first, turn of its last answer (or 0), negative priority, whether it
is not partially bound. Then: when it was created, its key, number of the entry.
"""


def _below(entry: _Entry, floor: int | None) -> bool:
    return floor is not None and entry[0] and -entry[2] < floor


def namespace_of(key: str) -> str:
    """Return the namespace of a gang's key."""
    return key.partition("/")[0]


class _Order:
    """Entries in one order. `is_current`: whether an entry still counts.

    Entries of resting and held namespaces are stored apart, so that other turns need not look at them.
    """

    def __init__(self, is_current: Callable[[_Entry], bool]) -> None:
        self._is_current = is_current
        self._heap: list[_Entry] = []
        self._apart: dict[str, list[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._apart.values()))

    def push(self, entry: _Entry) -> None:
        """Add an entry."""
        heapq.heappush(self._heap, entry)

    def first(self, resting: Collection[str], held: Collection[str]) -> _Entry | None:
        """Return the first entry of a namespace that does not rest; else the first of all; None if empty.

        Entries of `held` namespaces are left out, except for partially bound gangs.
        """
        for namespace in self._apart.keys() - {*resting, *held}:
            for entry in self._apart.pop(namespace):
                heapq.heappush(self._heap, entry)
        while self._heap:
            entry = self._heap[0]
            namespace = namespace_of(entry[5])
            if not self._is_current(entry):
                heapq.heappop(self._heap)
            elif entry[0] and (namespace in resting or (entry[3] and namespace in held)):
                heapq.heappush(self._apart.setdefault(namespace, []), heapq.heappop(self._heap))
            else:
                return entry
        heads = ((namespace, self._head(heap)) for namespace, heap in self._apart.items())
        open_to = (head for namespace, head in heads if head and not (head[3] and namespace in held))
        return min(open_to, default=None)

    def tidy(self, current: int) -> None:
        """Remove entries that no longer count, once they outnumber the others."""
        if len(self) > 2 * current + FAIR_TURN:
            for heap in (self._heap, *self._apart.values()):
                heap[:] = filter(self._is_current, heap)
                heapq.heapify(heap)

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None


class Queue:
    """Gang keys waiting to be planned, each once."""

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
        """Queue a gang, or move it. `first`: before all that are not."""
        self._number += 1
        self._entries[key] = self._number
        place = (-priority, not partial, created, key, self._number)
        last_turn = 0 if first else self._last_turn.get(key, 0)
        self._by_priority.push((not first, 0, *place))
        self._by_last_turn.push((not first, last_turn, *place))
        self._tidy()  # without a session nothing is popped

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def drop(self, key: str) -> None:
        """Remove a gang, if it is in the queue."""
        self._entries.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget a gang that is gone: a new gang may have its key."""
        self.drop(key)
        self._last_turn.pop(key, None)

    def pop(
        self,
        only_partial: bool = False,
        resting: Collection[str] = (),
        floor: int | None = None,
        held: Collection[str] = (),
    ) -> str | None:
        """Remove the next gang and return its key; None if none waits.

        `only_partial`: None too unless the first by priority is partially bound. Gangs of `resting`
        namespaces come after those of others, except for those that are `first`. `floor`: only a gang of at
        least this priority, or one that is `first`. `held`: namespaces whose gangs are left out,
        except for partially bound ones.
        """
        entry = self._by_priority.first(resting, held)
        if only_partial and (entry is None or entry[3]):
            return None
        self._turn += 1
        if entry is None or _below(entry, floor):
            return None
        if self._turn % FAIR_TURN == 0 and not only_partial:
            fair = self._by_last_turn.first(resting, held)
            entry = entry if fair is None or _below(fair, floor) else fair
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
