"""One session of a shim: a queue of what it is to be told, and why it ended.

Planning never waits for the shim: the queue takes everything, and the stream is written as fast as the shim
reads. A later verdict of a gang replaces the one before, so the length is that of the gangs. No number of
gangs ends a session, since the next session would be told of as many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import StrEnum

from muster.adapters.grpc.generated.muster.v1 import WatchResponse


class Cause(StrEnum):
    """Why a session ended."""

    REPLACED = "replaced"
    SLOW = "slow"
    """The shim has read nothing for long."""
    SHUTDOWN = "shutdown"
    LEFT = "left"


class Session:
    """One Watch stream. `push` and `end` never wait; `next` is for the one task that writes the stream."""

    def __init__(self, epoch: int, answers_in_tree: bool = False) -> None:
        self.epoch = epoch
        self.answers_in_tree = answers_in_tree
        self.cause: Cause | None = None
        self.ended = asyncio.Event()
        self._queue: OrderedDict[str, WatchResponse] = OrderedDict()
        self._arrived = asyncio.Event()

    def push(self, response: WatchResponse) -> bool:
        """Queue one response; False when the session has ended."""
        gang = response.verdict.gang if response.verdict is not None else ""
        if response.in_tree_question is not None:
            gang = f"?{response.in_tree_question.gang}"  # no gang's key begins like that
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
        return self._queue.popitem(last=False)[1] if self._queue else None
