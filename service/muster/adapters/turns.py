"""Long work on the event loop, in parts: the loop's other tasks get their turns in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE_S = 0.005
"""Seconds of work before the loop's other tasks get a turn."""

T = TypeVar("T")


async def in_parts(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items. After each `SLICE_S` of work with them, the loop's other tasks get a turn."""
    until = time.monotonic() + SLICE_S
    for item in items:
        yield item
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + SLICE_S
