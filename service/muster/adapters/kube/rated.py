"""An outbox with rates: in all, and for each namespace.

What a namespace has above its rate waits before the outbox, in a line of that namespace alone. So one that
floods delays and drops its own items alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from muster.adapters.kube.client import KubeClient, KubeError
from muster.adapters.kube.fairqueue import FairQueue, Shares
from muster.adapters.kube.outbox import Outbox, Retry

WINDOW = 16
"""Items of a namespace that are being sent or sent again: where its items are refused, the others go on."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rates:
    """`queue`: how many may wait. `per_s` and `burst`: how fast they are sent. `namespace_…`: the same for
    one namespace."""

    queue: int = 10_000
    per_s: float = 50.0
    burst: int = 100
    namespace_queue: int = 1_000
    namespace_per_s: float = 20.0
    namespace_burst: int = 50


class RatedOutbox(Outbox[T], Generic[T]):
    """Sends at these rates. `run` ends only by cancellation."""

    def __init__(self, client: KubeClient, rates: Rates, retry: Retry | None = None) -> None:
        super().__init__(sys.maxsize, retry)  # what may wait is bounded before it
        self._client = client
        self._rates = rates
        self._unsent = FairQueue[T](
            Shares(rates.queue, rates.namespace_queue, rates.namespace_per_s, rates.namespace_burst, WINDOW)
        )
        self._changed = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._tokens = float(rates.burst)
        self._filled = time.monotonic()

    @abstractmethod
    def _budget(self, item: T) -> str:
        """Return whose rate and room it takes: mostly its namespace's."""

    @abstractmethod
    def _key(self, item: T) -> tuple[Hashable, Hashable]:
        """Return the item's own key, and what it is about."""

    @abstractmethod
    def _done(self, item: T, refusal: KubeError | None) -> None:
        """Log and count that the item was sent, or is given up for this reason."""

    def _offer(self, item: T) -> T | None:
        """Queue an item. Return the one that is dropped for lack of room, this one or another."""
        dropped = self._unsent.put(self._budget(item), item, time.monotonic())
        if self._unsent:
            self._all_sent.clear()
            self._changed.set()
        return dropped

    async def run(self) -> None:
        """Send what is queued; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._feed())

    async def until_empty(self) -> None:
        """Return when nothing waits any more."""
        await self._all_sent.wait()
        await super().until_empty()

    async def _feed(self) -> None:
        """Pass on what its namespace's budget and the common rate allow, one namespace after another."""
        while True:
            ready_in = self._unsent.ready_in(time.monotonic())
            if ready_in == 0:
                await self._take_token()
                item = self._unsent.take(time.monotonic())
                key, of = self._key(item)
                self._put(self._budget(item), key, item, of=of)
                if not self._unsent:
                    self._all_sent.set()
                continue
            self._changed.clear()
            await self._until_changed(ready_in)

    async def _until_changed(self, within_s: float | None) -> None:
        # not wait_for: before Python 3.12 it loses a cancellation that comes with the change
        timer = None
        if within_s is not None:
            timer = asyncio.get_running_loop().call_later(within_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _take_token(self) -> None:
        now = time.monotonic()
        grown = self._tokens + (now - self._filled) * self._rates.per_s
        self._tokens, self._filled = min(float(self._rates.burst), grown) - 1, now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rates.per_s)

    def _heard_at(self) -> float:
        return time.monotonic() - self._client.silent_s

    def _after_send(self, item: T, refusal: KubeError | None) -> None:
        self._finish(item)
        self._done(item, refusal)

    def _finish(self, item: T) -> None:
        """Note that an item is done with, so that its namespace may send another."""
        self._unsent.done(self._budget(item), time.monotonic())
        self._changed.set()
