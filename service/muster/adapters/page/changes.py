"""The last changes of the map, each with its generation, so that a browser goes on where it was cut off.

All browsers read the same log. None has a queue of its own: one that is too slow finds that its place in the
log is gone, and starts anew.
"""

from __future__ import annotations

import secrets
from collections import deque

MOST_CHANGES = 256
MOST_BYTES = 4 << 20
"""Of all changes in the log."""


class Log:
    """Changes as bytes. An id has the id of the log and a generation, because another process has another
    log."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_changes: int = MOST_CHANGES) -> None:
        self._most_bytes, self._most_changes = most_bytes, most_changes
        self._name = secrets.token_hex(4)
        self._changes: deque[bytes] = deque()
        self._bytes = 0
        self.generation = 0

    @property
    def id(self) -> str:
        """Return the id of the newest generation."""
        return self.id_of(self.generation)

    def id_of(self, generation: int) -> str:
        """Return the id of a generation."""
        return f"{self._name}-{generation}"

    def add(self, change: bytes) -> None:
        """Add a change. The oldest changes go while there are too many, or too many bytes."""
        self.generation += 1
        self._changes.append(change)
        self._bytes += len(change)
        while len(self._changes) > self._most_changes or self._bytes > self._most_bytes:
            self._bytes -= len(self._changes.popleft())

    def clear(self) -> None:
        """Begin a generation to which no change leads: every browser starts anew."""
        self.generation += 1
        self._changes.clear()
        self._bytes = 0

    def position(self, id_: str) -> int | None:
        """Return the generation of an id; None if changes after it are not all here."""
        name, _, number = id_.rpartition("-")
        if name != self._name or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return int(number) if self.has_all_after(int(number)) else None

    def has_all_after(self, generation: int) -> bool:
        """Return whether changes lead from this generation to the newest one."""
        return self.generation - len(self._changes) <= generation <= self.generation

    def after(self, generation: int) -> bytes | None:
        """Return the change that follows a generation; None if it is the newest one."""
        return self._changes[generation - self.generation] if generation < self.generation else None
