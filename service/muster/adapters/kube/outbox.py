"""Writes to the API server that may wait: a bounded queue for each kind of write.

`_put` never waits. Each namespace has a few lines (queues in order), and all writes about one object go
through the same line. The lines take turns, and `run` sends in a few lanes, one item of a line at a time. So
10,000 items of one namespace delay those of others by a few requests, and a slow request delays only its own
line. A namespace above its rate waits until it may send again. A namespace has a limit of items that wait. If
the whole queue is full, the namespace with the most items loses its last one.

A refusal concerns one item, and only this item waits, longer each time, while others are sent. If the API
server does not answer, the lane waits too, and no item is given up. The write may have succeeded, or may
still succeed. So writes must be safe to repeat and to reorder.

If the server answers others, but not this item, it is not away: a webhook may be slow for this object alone.
Such a try counts as a refusal, so that an item that can never be written is given up in the end.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from muster.adapters.kube.client import ApiError, KubeClient, KubeError
from muster.config import Rates
from muster.domain.rate import Backoff, Rate

PASSING = frozenset({401, 403, 429, 500, 502, 503, 504})
"""Status codes of refusals after which a later try may succeed. 401: the client reads its credentials again.
403: an API server that has just started does not know all rights yet. 429: a disruption budget, or a busy
server."""

T = TypeVar("T")
_LineId = tuple[str, int]
"""A namespace, and the number of its line."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The largest number of tries for an item, and the pauses between them in seconds: some 50 s in all."""

    tries: int = 12
    first_s: float = 0.25
    limit_s: float = 10.0

    def backoff(self) -> Backoff:
        """Return a fresh back-off with these limits."""
        return Backoff(self.first_s, self.limit_s)


@dataclass(slots=True)
class _WaitingItem(Generic[T]):
    item: T
    key: Hashable
    line: _LineId
    backoff: Backoff
    tries: int = 0

    @property
    def namespace(self) -> str:
        """Return the namespace of the line."""
        return self.line[0]


class Outbox(ABC, Generic[T]):
    """Sends items at these rates. `run` ends only by cancellation."""

    retry = Retry()
    lanes = 8
    """Number of requests that run at the same time. A namespace may have half of them, because its requests
    may be slow."""

    def __init__(self, client: KubeClient, rates: Rates) -> None:
        self._client = client
        self._rates = rates
        self._rate = Rate((rates.burst - 1) / rates.per_s)
        """The common rate of all namespaces."""
        self._rate_of_namespace = Rate((rates.namespace_burst - 1) / rates.namespace_per_s)
        self._waiting: dict[str, OrderedDict[Hashable, _WaitingItem[T]]] = {}
        """Namespace → key → waiting item. Items that wait for their next try are included."""
        self._size = 0
        self._lines: dict[_LineId, OrderedDict[Hashable, _WaitingItem[T]]] = {}
        """Line → items that may be sent now, in order. A line is here while it waits for its turn, and during
        its turn."""
        self._turns = asyncio.Queue[_LineId]()
        self._idle = asyncio.Event()
        self._idle.set()

    @abstractmethod
    async def _send(self, item: T) -> None:
        """Make the request. Raises the exceptions of the client."""

    @abstractmethod
    def _after_send(self, item: T, refusal: KubeError | None) -> None:
        """Log and count that the item was sent, or is given up for this reason."""

    def _note_refusal(self, item: T, refusal: ApiError) -> None:
        """Take note of each refusal, also if the item is tried again."""

    def _is_due(self, item: T) -> bool:
        """Return whether the item is still to be sent, when its turn has come. If not, it is left out."""
        return True

    def _put(self, namespace: str, key: Hashable, item: T, subject: Hashable = None) -> T | None:
        """Queue an item. It replaces a waiting item with the same key.

        `namespace`: the namespace whose rate and room it takes; "" for objects of no namespace. `subject`:
        the object that the item is about, if the key does not name the object. Return the item that is
        dropped for lack of room, which may be this item; None if no item is.
        """
        if (waiting := self._find(namespace, key)) is not None:
            waiting.item = item
            return None
        last, count = None, len(self._waiting.get(namespace, ()))
        if count >= self._rates.namespace_queue:
            return item
        if self._size >= self._rates.queue:
            last = self._last_of_longest(count)
            if last is None:
                return item
            self._take_out(last)
        line = (namespace, hash(subject or key) % max(1, self.lanes // 2))
        waiting = _WaitingItem(item, key, line, self.retry.backoff())
        self._keep(waiting)
        self._put_into_line(waiting)
        return last.item if last else None

    async def run(self) -> None:
        """Send queued items, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.lanes):
                group.create_task(self._work())

    async def until_empty(self) -> None:
        """Return when no item waits any more: for a clean shutdown (with a deadline) and tests."""
        await self._idle.wait()

    async def _work(self) -> None:
        pause = self.retry.backoff()
        while True:
            turn = await self._turns.get()
            line, namespace = self._lines[turn], turn[0]
            if line and (rest_s := self._rate_of_namespace.wait_s(namespace)):
                asyncio.get_running_loop().call_later(rest_s, self._turns.put_nowait, turn)
                continue
            if line:
                await self._until_allowed(namespace)
            if line:  # else all its items were dropped meanwhile
                if await self._try_to_send(line[next(iter(line))]):
                    pause.reset()
                else:  # meanwhile its line has no other lane: a slow namespace has half of the lanes at most
                    await asyncio.sleep(pause.delay())
            if line:
                self._turns.put_nowait(turn)
            else:
                del self._lines[turn]
            if not (self._size or self._lines):
                self._idle.set()

    async def _until_allowed(self, namespace: str) -> None:
        """Take one item's part of the rates, and wait until the common rate allows the item."""
        self._rate_of_namespace.charge(namespace, 1 / self._rates.namespace_per_s)
        self._rate_of_namespace.forget()
        rest_s = self._rate.wait_s("")
        self._rate.charge("", 1 / self._rates.per_s)
        if rest_s:
            await asyncio.sleep(rest_s)

    async def _try_to_send(self, waiting: _WaitingItem[T]) -> bool:
        """Send an item. Return False if no answer came."""
        self._take_out(waiting)
        if not self._is_due(waiting.item):
            return True
        began = time.monotonic()
        try:
            await self._send(waiting.item)
        except ApiError as refusal:
            waiting.tries += 1
            self._note_refusal(waiting.item, refusal)
            if refusal.status not in PASSING or waiting.tries >= self.retry.tries:
                self._after_send(waiting.item, refusal)
            else:
                asked_delay = min(refusal.retry_after or 0.0, self.retry.limit_s)
                self._retry_later(waiting, max(waiting.backoff.delay(), asked_delay))
        except KubeError as silence:  # the watches log the silence
            answers_others = time.monotonic() - self._client.silent_s > began
            waiting.tries += answers_others
            if waiting.tries >= self.retry.tries:
                self._after_send(waiting.item, silence)
            else:
                self._retry_later(waiting, waiting.backoff.delay())
            return answers_others
        else:
            self._after_send(waiting.item, None)
        return True

    def _retry_later(self, waiting: _WaitingItem[T], delay: float) -> None:
        if self._find(waiting.namespace, waiting.key) is None:  # else a newer item has come meanwhile
            self._keep(waiting)
            asyncio.get_running_loop().call_later(delay, self._put_into_line, waiting)

    def _find(self, namespace: str, key: Hashable) -> _WaitingItem[T] | None:
        items_by_key = self._waiting.get(namespace)
        return items_by_key.get(key) if items_by_key else None

    def _keep(self, waiting: _WaitingItem[T]) -> None:
        self._waiting.setdefault(waiting.namespace, OrderedDict())[waiting.key] = waiting
        self._size += 1
        self._idle.clear()

    def _take_out(self, waiting: _WaitingItem[T]) -> None:
        items_by_key = self._waiting[waiting.namespace]
        del items_by_key[waiting.key]
        if not items_by_key:
            del self._waiting[waiting.namespace]
        self._size -= 1
        if line := self._lines.get(waiting.line):
            line.pop(waiting.key, None)

    def _put_into_line(self, waiting: _WaitingItem[T]) -> None:
        """Put the item into its line, unless it was dropped while it waited for its next try."""
        if self._find(waiting.namespace, waiting.key) is not waiting:
            return
        if waiting.line not in self._lines:
            self._lines[waiting.line] = OrderedDict()
            self._turns.put_nowait(waiting.line)
        self._lines[waiting.line][waiting.key] = waiting

    def _last_of_longest(self, has: int) -> _WaitingItem[T] | None:
        """Return the last item of the namespace with the most items, which is dropped to make room.

        Return None if that namespace has hardly more than `has` items.
        """
        # A namespace above the average can't displace others, so a flood does not search for the longest.
        if (has + 1) * len(self._waiting) > self._size:
            return None
        longest = max(self._waiting.values(), key=len)
        return longest[next(reversed(longest))] if len(longest) > has + 1 else None
