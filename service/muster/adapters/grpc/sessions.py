"""One session of a shim: a bounded queue of what it is to be told, and why it ended.

The queue is what makes a shim that does not read harmless: planning never waits for it. A later
verdict of a gang replaces the one before, so its length is the number of gangs. When even that is too much,
the session ends. The shim connects anew once it reads again.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from muster.adapters.grpc.generated.muster.v1 import WatchResponse


class Cause(StrEnum):
    """Why a session ended."""

    REPLACED = "replaced"
    SLOW = "slow"
    SHUTDOWN = "shutdown"
    LEFT = "left"


class Session:
    """One Watch stream. `push` and `end` never wait; `next` is for the one task that writes the stream."""

    def __init__(self, epoch: int, bound: int, answers_in_tree: bool = False) -> None:
        self.epoch = epoch
        self.answers_in_tree = answers_in_tree
        self.cause: Cause | None = None
        self.ended = asyncio.Event()
        self._bound = bound
        self._queue: dict[str, WatchResponse] = {}
        self._arrived = asyncio.Event()

    def push(self, response: WatchResponse) -> bool:
        """Queue one response; False when the session has ended, which a full queue makes it do."""
        gang = response.verdict.gang if response.verdict is not None else ""
        if response.in_tree_question is not None:
            gang = f"?{response.in_tree_question.gang}"  # no gang's key begins like that
        if self.cause is None and gang not in self._queue and len(self._queue) >= self._bound:
            self.end(Cause.SLOW)
        if self.cause is not None:
            return False
        self._queue.pop(gang, None)
        self._queue[gang] = response
        self._arrived.set()
        return True

    def end(self, cause: Cause) -> None:
        """End it; the first cause stays. What is queued is not sent: a later session is told everything."""
        if self.cause is None:
            self.cause = cause
            self._queue.clear()
            self.ended.set()
            self._arrived.set()

    async def next(self) -> WatchResponse | None:
        """Return the next response; None when the session has ended."""
        while not self._queue and self.cause is None:
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.pop(next(iter(self._queue))) if self._queue else None
