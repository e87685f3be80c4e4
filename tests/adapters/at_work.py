"""A task of the service for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Runs(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def at_work(worker: Runs) -> AsyncIterator[None]:
    """It runs, and must not have ended by itself; cancelled afterwards."""
    task = asyncio.create_task(worker.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
