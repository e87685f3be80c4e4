"""The order in which gangs are planned: highest priority, then oldest, then by key."""

from __future__ import annotations

import heapq


class Queue:
    """Gang keys waiting to be planned. Each stands in it once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str]] = []
        self._entries: dict[str, tuple[int, float, str]] = {}

    def put(self, key: str, priority: int, created: float) -> None:
        """Queue a gang, or give it another place."""
        entry = (-priority, created, key)
        if self._entries.get(key) != entry:
            self._entries[key] = entry
            heapq.heappush(self._heap, entry)

    def drop(self, key: str) -> None:
        """Take a gang out, if it is in."""
        self._entries.pop(key, None)

    def pop(self) -> str | None:
        """The next gang, taken out; None when none waits."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._entries.get(entry[2]) == entry:
                del self._entries[entry[2]]
                return entry[2]
        return None

    def __len__(self) -> int:
        return len(self._entries)
