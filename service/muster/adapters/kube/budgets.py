"""Turn PodDisruptionBudgets from the watch into inputs. Changes without effect are left out.

A controller writes the status of a budget for each pod that becomes ready or ends. Most of these writes do
not change how many pods may go. After a change of a selector, the pods of its namespace are matched again. So
such changes of one namespace have a rate, and beyond it the last change of each budget waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from muster.dialects.objects import PodDisruptionBudget
from muster.dialects.pods import budgets
from muster.domain.preemption import DisruptionBudget
from muster.domain.rate import Rate
from muster.gangs.messages.inputs import BudgetSeen, BudgetsUnread, Input

CHANGE_S = 0.5
"""Time in which a namespace may change which pods one of its budgets covers."""
ADVANCE_S = 32.0
"""Time that a namespace may use in advance: enough for the first list of budgets, and one more budget than
are matched."""


class BudgetIntake:
    """`on_…` are the watch's sinks; `put` takes the inputs, in order. `clock` returns monotonic seconds."""

    def __init__(
        self, put: Callable[[Input], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._put = put
        self._rate = Rate(ADVANCE_S, clock)
        self._passed: dict[str, DisruptionBudget] = {}
        """Namespace and name → budget, by the last inputs."""
        self._waiting: dict[str, dict[str, DisruptionBudget | None]] = {}
        """Namespace → budgets whose last change waits."""
        self.sender: asyncio.Task[None] | None = None
        """Sends the waiting changes."""

    async def on_absence(self, absent: bool) -> None:
        """Note whether the account may not read budgets."""
        await self._put(BudgetsUnread(time.monotonic(), absent))

    async def on_budget(self, key: str, obj: PodDisruptionBudget | None) -> None:
        """Take in a budget's change, and pass it on now or later if it has an effect."""
        namespace = key.partition("/")[0]
        budget = budgets.read(obj) if obj is not None else None
        self._drop_waiting(namespace, key)
        passed_budget = self._passed.get(key)
        if budget == passed_budget:
            return
        if budget is not None and passed_budget is not None and budget.selector == passed_budget.selector:
            await self._pass_on(key, budget)
        elif not self._rate.wait_s(namespace):
            await self._charge(namespace, key, budget)
        else:
            self._waiting.setdefault(namespace, {})[key] = budget
            if self.sender is None or self.sender.done():
                self.sender = asyncio.create_task(self._send_waiting(), name="disruption budgets")

    async def _send_waiting(self) -> None:
        while self._waiting:
            namespace = min(self._waiting, key=self._rate.wait_s)
            if wait_s := self._rate.wait_s(namespace):
                await asyncio.sleep(wait_s)
                continue
            key, budget = next(iter(self._waiting[namespace].items()))
            self._drop_waiting(namespace, key)
            await self._charge(namespace, key, budget)

    def _drop_waiting(self, namespace: str, key: str) -> None:
        waiting = self._waiting.get(namespace, {})
        waiting.pop(key, None)
        if not waiting:
            self._waiting.pop(namespace, None)

    async def _charge(self, namespace: str, key: str, budget: DisruptionBudget | None) -> None:
        self._rate.charge(namespace, CHANGE_S)
        await self._pass_on(key, budget)

    async def _pass_on(self, key: str, budget: DisruptionBudget | None) -> None:
        if budget is None:
            self._passed.pop(key, None)
            self._rate.forget()
        else:
            self._passed[key] = budget
        await self._put(BudgetSeen(time.monotonic(), key, budget))
