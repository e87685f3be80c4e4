"""Inputs as the gangs would get them, gathered, and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from local_cluster.patience import HANG_S
from muster.gangs.messages.inputs import Input


class Heard:
    """`put` is what an Intake puts its inputs into."""

    def __init__(self) -> None:
        self.events: list[Input] = []
        self._more = asyncio.Condition()

    async def put(self, message: Input) -> None:
        async with self._more:
            self.events.append(message)
            self._more.notify_all()

    async def hears(self, condition: Callable[[Input], bool]) -> None:
        """Return once such an input has come."""
        async with self._more, asyncio.timeout(HANG_S):
            await self._more.wait_for(lambda: any(condition(event) for event in self.events))
