"""A planner's process that runs only while somebody asks: people about a gang, or refused gangs.

It starts with the first question, and ends if no question comes for some time. It answers one question at a
time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from muster.adapters.solver.process import AnyQuestion, CantStart, Defect, PlannerClosed, PlannerProcess
from muster.adapters.solver.wire import Answer

IDLE_S = 60.0
"""Seconds without a question after which the process ends."""

log = structlog.get_logger(__name__)


class OnDemandPlanner:
    """Answers one question at a time. `start` starts the process, and an answer takes at most `limit_s`.

    A process's first answer may take longer, as its `Bounds` say.
    """

    def __init__(self, name: str, start: Callable[[], PlannerProcess], limit_s: float) -> None:
        self._start, self._limit_s = start, limit_s
        self._process: PlannerProcess | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def answer(self, question: AnyQuestion) -> Answer | None:
        """Return the answer; None after a defect, or if no process can be started.

        If the caller is cancelled, the question is answered all the same before this returns.
        """
        if self._idle is not None:
            self._idle.cancel()
        self._process = self._process or self._start()
        loop = asyncio.get_running_loop()
        answering = loop.run_in_executor(self._thread, self._wait_for_answer, self._process, question)
        try:
            return await asyncio.shield(answering)
        finally:
            await asyncio.wait([answering])
            self._idle = loop.call_later(IDLE_S, self._end_idle)

    def close(self) -> None:
        """End the process, also while it answers. This waits for the process."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _end_idle(self) -> None:
        """End the process, and let the thread wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            self._thread.submit(process.close)

    def _wait_for_answer(self, process: PlannerProcess, question: AnyQuestion) -> Answer | None:
        """Wait for the process, in a thread."""
        until = time.monotonic() + self._limit_s
        try:
            return process.answer(question, lambda: until - time.monotonic())
        except (CantStart, Defect, PlannerClosed) as problem:
            log.warning("no answer", gang=question.gang, why=str(problem))
            return None
        except Exception:  # one question must not end the service
            log.exception("no answer", gang=question.gang)
            self._process = None  # what the process was sent is not known
            process.close()
            return None
