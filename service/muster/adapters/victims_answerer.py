"""Find the victims of refused gangs, outside the event loop and without delaying decisions.

The coordinator asks one question at a time, and names its victims in the refusal when the answer comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from muster.adapters.solver.on_demand import OnDemandPlanner
from muster.adapters.solver.process import Bounds, PlannerProcess
from muster.domain.clearing import Clearing, NoClearing
from muster.domain.rate import Allowance
from muster.gangs.messages.inputs import VictimsFound
from muster.gangs.messages.instructions import FindVictims

PLACE = "muster.placement.clearing:clear"
LIMIT_S = 2.0
"""Time limit of one answer."""
FIRST_S = 10.0
"""Time limit of a process's first answer. To send 35,000 pods takes more than 2 s, and all of them must be
sent again if the process is ended at its limit."""
DETERMINISTIC_TIME = 1.0
"""The solver's deterministic time for one answer: about seconds of a core."""
NICENESS = 10
MEMORY_MIB = 512
SHARE = 0.25
"""Share of one core, over time."""
BURST_S = 10.0
"""Seconds of a core that may be used in one burst."""


def _new_process() -> PlannerProcess:
    bounds = Bounds(DETERMINISTIC_TIME, MEMORY_MIB, niceness=NICENESS, spare=False, first_s=FIRST_S)
    return PlannerProcess(bounds, PLACE)


class VictimsAnswerer:
    """Answers `FindVictims` with `VictimsFound`. `submit` never waits. `run` ends only by cancellation."""

    def __init__(
        self,
        put: Callable[[VictimsFound], Awaitable[None]],
        start: Callable[[], PlannerProcess] = _new_process,
    ) -> None:
        self._put = put
        self._planner = OnDemandPlanner("victims", start, LIMIT_S)
        self._share = Allowance(BURST_S, SHARE)
        self._waiting: asyncio.Queue[FindVictims] = asyncio.Queue()
        self._closed = False

    def submit(self, question: FindVictims) -> None:
        """Queue the question."""
        if not self._closed:
            self._waiting.put_nowait(question)

    async def run(self) -> None:
        """Answer the questions one at a time, until cancelled. Rest when the share is used up."""
        while True:
            question = await self._waiting.get()
            began = time.monotonic()
            answer = await self._planner.answer(question)
            self._share.spend(time.monotonic() - began)
            clearing = answer if isinstance(answer, Clearing | NoClearing) else None
            await self._put(VictimsFound(time.monotonic(), question.number, clearing))
            await asyncio.sleep(max(0.0, -self._share.available / SHARE))

    def close(self) -> None:
        """End the process, and take no more questions."""
        self._closed = True
        self._planner.close()
