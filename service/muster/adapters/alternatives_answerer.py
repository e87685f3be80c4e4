"""Answer where else a gang could have gone, outside the event loop and without delaying decisions.

A separate process answers, at the lowest priority. One question is answered at a time, few questions wait,
and the process gets a small share of one core. Clients with and without a token have separate shares.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from muster.adapters.solver.on_demand import OnDemandPlanner
from muster.adapters.solver.process import Bounds, PlannerProcess
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

BUSY = "Too many ask for alternatives now. Ask again in some seconds."
NOT_FOUND = "They could not be computed. The log of the service says why."
TOO_LONG = "They could not be computed in time."


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
        self._ask, self._clock = ask, clock
        self._planner = OnDemandPlanner("alternatives", start, LIMIT_S)
        self._one_at_a_time = asyncio.Lock()
        self._shares = {asker: _Share(BURST_S, SHARE, clock) for asker in Asker}
        self._answers: OrderedDict[str, tuple[float, Alternatives]] = OrderedDict()

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
        self._planner.close()

    def _recent_answer(self, key: str) -> Alternatives | None:
        answered_at, answer = self._answers.get(key, (0.0, None))
        return answer if self._clock() < answered_at + ANSWERS_LIVE_S else None

    async def _answer(self, key: str, share: _Share) -> Alternatives:
        began = self._clock()
        question = self._ask(key)
        share.spend(self._clock() - began)
        if isinstance(question, str):
            return not_known(question)
        began = self._clock()
        try:
            reply = await self._planner.answer(question)
        finally:
            # Its time counts even if the client has gone. The lock is held until then.
            share.spend(self._clock() - began)
        no_answer = not_known(NOT_FOUND if reply is None else TOO_LONG)
        answer = reply if isinstance(reply, Alternatives) else no_answer
        self._answers[key] = (self._clock(), answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer
