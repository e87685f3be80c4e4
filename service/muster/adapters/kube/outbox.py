"""What is to be written to the API server and may wait: a bounded queue each for events, evictions, statuses.

`_put` never waits; `run` sends in a few lanes, in each one item after another, and all that concerns an
object in the same one: a slow request holds up its lane alone. A refusal is of one item, and only that one
waits, longer each time, while the others go on. If the API server does not answer, the lane waits too, and no
item is given up. It may have landed, or land yet: what is sent again, or after it, must bear that.

A server that answers others, but not this item, is not away: a webhook may be slow for this object alone.
Such a try counts as a refusal, so that an item that can never be written is given up at last.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from muster.adapters.kube.backoff import Backoff
from muster.adapters.kube.client import ApiError, KubeError

LANES = 4
"""Requests under way at a time, of each queue."""
PASSING = frozenset({401, 403, 429, 500, 502, 503, 504})
"""Refusals that may be none the next time. 401: the client reads its credentials again. 403: an API server
that has just started does not know all rights yet. 429: a disruption budget, or a busy server."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often an item is sent, at most, and the waits between in seconds: some 50 s in all."""

    tries: int = 12
    first_s: float = 0.25
    limit_s: float = 10.0

    def backoff(self) -> Backoff:
        """Return a fresh back-off with these limits."""
        return Backoff(self.first_s, self.limit_s)


@dataclass(slots=True)
class _Waiting(Generic[T]):
    item: T
    lane: asyncio.Queue[Hashable]
    backoff: Backoff
    tries: int = 0


class Outbox(ABC, Generic[T]):
    """At most `limit` items wait. `run` ends only by cancellation."""

    def __init__(self, limit: int, retry: Retry | None = None, lanes: int = LANES) -> None:
        self._limit = limit
        self._retry = retry or Retry()
        self._waiting: dict[Hashable, _Waiting[T]] = {}
        self._lanes = [asyncio.Queue[Hashable]() for _ in range(lanes)]
        """Keys of those that may be sent now, in order."""
        self._under_way = 0
        self._answered_at = -math.inf
        self._idle = asyncio.Event()
        self._idle.set()

    @abstractmethod
    async def _send(self, item: T) -> None:
        """Make the request; raises what the client raises."""

    @abstractmethod
    def _ended(self, item: T, refusal: KubeError | None) -> None:
        """Log and count that the item was sent, or is given up for this reason."""

    def _heard_at(self) -> float:
        """Return when the server last answered anything at all, in monotonic seconds."""
        return self._answered_at

    def _wanted(self, item: T) -> bool:
        """Whether it is still to be sent, now that its turn has come: else it is left out."""
        return True

    def _put(self, key: Hashable, item: T, of: Hashable = None) -> bool:
        """Queue an item, in the place of one of this key that waits. `of`: the object that it concerns, where
        the key is not that. False: there is no room."""
        if (waiting := self._waiting.get(key)) is not None:
            waiting.item = item
            return True
        if len(self._waiting) >= self._limit:
            return False
        lane = self._lanes[hash(of or key) % len(self._lanes)]
        self._waiting[key] = _Waiting(item, lane, self._retry.backoff())
        self._idle.clear()
        lane.put_nowait(key)
        return True

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(self._work(lane))

    async def drained(self) -> None:
        """Return when nothing waits any more: for a clean shutdown (give it a deadline) and tests."""
        await self._idle.wait()

    async def _work(self, lane: asyncio.Queue[Hashable]) -> None:
        pause = self._retry.backoff()
        while True:
            key = await lane.get()
            self._under_way += 1
            answered = await self._next(key)
            self._under_way -= 1
            if not (self._waiting or self._under_way):
                self._idle.set()
            if answered:
                pause.reset()
            else:
                await asyncio.sleep(pause.delay())

    async def _next(self, key: Hashable) -> bool:
        """Send an item. Return False if no answer came."""
        waiting = self._waiting.pop(key)
        if not self._wanted(waiting.item):
            return True
        began = time.monotonic()
        try:
            await self._send(waiting.item)
        except ApiError as refusal:
            self._answered_at = time.monotonic()
            waiting.tries += 1
            if refusal.status not in PASSING or waiting.tries >= self._retry.tries:
                self._ended(waiting.item, refusal)
            else:
                self._again(key, waiting, self._delay(waiting, refusal))
        except KubeError as silence:  # the watches log that
            answers_others = self._heard_at() > began
            waiting.tries += answers_others
            if waiting.tries >= self._retry.tries:
                self._ended(waiting.item, silence)
            else:
                self._again(key, waiting, waiting.backoff.delay())
            return answers_others
        else:
            self._answered_at = time.monotonic()
            self._ended(waiting.item, None)
        return True

    def _delay(self, waiting: _Waiting[T], refusal: ApiError) -> float:
        return max(waiting.backoff.delay(), min(refusal.retry_after or 0.0, self._retry.limit_s))

    def _again(self, key: Hashable, waiting: _Waiting[T], delay: float) -> None:
        if key not in self._waiting:  # else a newer item of the key has come meanwhile, and is due
            self._waiting[key] = waiting
            asyncio.get_running_loop().call_later(delay, waiting.lane.put_nowait, key)
