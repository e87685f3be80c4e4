"""Answer where else a gang could have gone, outside the event loop and without delaying decisions.

A separate process answers, at the lowest priority. It starts with the first question, and ends if no question
comes for some time. One question is answered at a time, few questions wait, and the process gets a small
share of one core. Clients with and without a token have separate shares.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import structlog

from muster.adapters.solver.process import Bounds, CantStart, Defect, PlannerClosed, PlannerProcess
from muster.domain.alternatives import Alternatives, not_known
from muster.domain.rate import Allowance
from muster.gangs.reporting.places import AskAlternatives

PLACE = "muster.placement.alternatives:alternatives"
LIMIT_S = 2.0
"""Time limit for the alternatives of one gang."""
DETERMINISTIC_TIME = 0.1
"""The solver's deterministic time for one alternative: about seconds of a core."""
NICENESS = 19
MEMORY_MIB = 512
SHARE = 0.1
"""Share of one core, over time."""
BURST_S = 10.0
"""Seconds of a core that may be used in one burst."""
WAITING = 4
"""Largest number of waiting questions of one kind of clients. Further questions are refused."""
MAX_ANSWERS = 64
ANSWERS_LIVE_S = 5.0
"""Number of answers that are kept, and for how many seconds, because people look at one gang in several
windows."""
IDLE_S = 60.0
"""Seconds without a question after which the process ends."""

BUSY = "Too many ask for alternatives now. Ask again in some seconds."
NOT_FOUND = "They could not be computed. The log of the service says why."
TOO_LONG = "They could not be computed in time."

log = structlog.get_logger(__name__)


class Asker(Enum):
    """The kind of client: the page, or /explain, which needs no token."""

    PAGE = "page"
    EXPLAIN = "explain"


class _Share(Allowance):
    """The budget of one kind of clients: seconds of a core, which return slowly, and waiting places."""

    waiting = 0

    @property
    def is_used_up(self) -> bool:
        return self.available <= 0 or self.waiting >= WAITING


def _new_process() -> PlannerProcess:
    return PlannerProcess(Bounds(DETERMINISTIC_TIME, MEMORY_MIB, niceness=NICENESS, spare=False), PLACE)


class AlternativesAnswerer:
    """Answers questions. `ask` returns the question about a gang by its key, or why there is no question."""

    def __init__(
        self,
        ask: Callable[[str], AskAlternatives | str],
        start: Callable[[], PlannerProcess] = _new_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._start, self._clock = ask, start, clock
        self._process: PlannerProcess | None = None
        self._one_at_a_time = asyncio.Lock()
        self._shares = {asker: _Share(BURST_S, SHARE, clock) for asker in Asker}
        self._answers: OrderedDict[str, tuple[float, Alternatives]] = OrderedDict()
        self._idle: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alternatives")

    async def of(self, key: str, asker: Asker) -> Alternatives:
        """Return the alternatives of a gang, or why they are not known."""
        share = self._shares[asker]
        if (answer_before := self._recent_answer(key)) is not None:
            return answer_before
        if share.is_used_up:
            return not_known(BUSY)
        share.waiting += 1
        try:
            async with self._one_at_a_time:
                return self._recent_answer(key) or await self._answer(key, share)
        finally:
            share.waiting -= 1

    def close(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _recent_answer(self, key: str) -> Alternatives | None:
        answered_at, answer = self._answers.get(key, (0.0, None))
        return answer if self._clock() < answered_at + ANSWERS_LIVE_S else None

    async def _answer(self, key: str, share: _Share) -> Alternatives:
        began = self._clock()
        question = self._ask(key)
        share.spend(self._clock() - began)
        if isinstance(question, str):
            return not_known(question)
        if self._idle is not None:
            self._idle.cancel()
        self._process = self._process or self._start()
        began = self._clock()
        answering = asyncio.get_running_loop().run_in_executor(
            self._thread, self._wait_for_answer, self._process, question
        )
        try:
            answer = await asyncio.shield(answering)
        finally:
            # Its time counts even if the client has gone. The lock is held until then.
            await asyncio.wait([answering])
            share.spend(self._clock() - began)
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)
        self._answers[key] = (self._clock(), answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _wait_for_answer(self, process: PlannerProcess, question: AskAlternatives) -> Alternatives:
        """Wait for the process, in a thread."""
        until = time.monotonic() + LIMIT_S
        try:
            answer = process.answer(question, lambda: until - time.monotonic())
        except (CantStart, Defect, PlannerClosed) as problem:
            log.warning("no alternatives", gang=question.gang, why=str(problem))
            return not_known(NOT_FOUND)
        return answer if isinstance(answer, Alternatives) else not_known(TOO_LONG)
