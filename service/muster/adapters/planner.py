"""Run a planner next to the event loop, one for each lane. Its thread turns `Solve` into `SolveAnswered`.

The thread waits for a process of its own (`adapters/solver`), which decides and can be ended. The thread
encodes the messages, and decides itself if no process can be started. Because of this work the interpreter's
switch interval is lowered: see `SWITCH_INTERVAL_S`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from muster.adapters.solver.process import Defect, PlannerWithFallback
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.domain.causes.not_planned import Ended
from muster.domain.decision import Decision, Placed
from muster.gangs.messages.inputs import SolveAnswered, SolveFailed
from muster.gangs.messages.instructions import EndSolve, Lane, Solve
from muster.placement.limits import PHASES

SWITCH_INTERVAL_S = 0.0005
"""With Python's default of 5 ms, a call of the shim would wait this time, several times over, while a planner
computes. The calls have deadlines of milliseconds. The cost of more switches is below 1 % of the planner's
time."""

PASSED_ON = "passed on"
"""Outcome if the foreground planner did not decide in time, so that the background planner decides."""

log = structlog.get_logger(__name__)


class Planner:
    """Runs one planner. `submit` never waits. The coordinator asks about one gang at a time, so the queue
    stays short. `run` ends only by cancellation."""

    def __init__(
        self,
        place: PlannerWithFallback,
        put: Callable[[SolveAnswered | SolveFailed], Awaitable[None]],
        metrics: Metrics,
        attempts: Attempts,
        time_limit_s: float,
    ) -> None:
        self._place = place
        self._put = put
        self._metrics = metrics
        self._attempts = attempts
        self._time_limit_s = time_limit_s
        self._waiting: asyncio.Queue[tuple[Solve, float]] = asyncio.Queue()
        self._stopping = False
        self._deciding: tuple[str, int] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")

    def submit(self, solve: Solve) -> None:
        """Queue the instruction."""
        self._waiting.put_nowait((solve, time.monotonic()))

    def end(self, instruction: EndSolve) -> None:
        """End the decision about this instruction, if it is in progress."""
        if self._deciding == (instruction.gang, instruction.generation):
            self._place.interrupt()

    async def load_solver(self) -> None:
        """Return once the solver is loaded, in the planner's thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._place.load)

    async def run(self) -> None:
        """Decide the queued gangs one at a time, until cancelled."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        loop = asyncio.get_running_loop()
        while True:
            solve, queued_at = await self._waiting.get()
            self._deciding, began = (solve.gang, solve.generation), time.monotonic()
            trace_id = self._attempts.trace_id(solve.gang)
            answer = await loop.run_in_executor(self._thread, self._decide, solve, trace_id)
            self._deciding = None
            decision = answer.decision if isinstance(answer, SolveAnswered) else None
            passed_on = decision is not None and _is_passed_on(solve, decision)
            stretches = self._place.stretches
            if decision is not None and not solve.reserves:
                self._count(solve, decision, time.monotonic() - began)
            self._metrics.snapshot_age.observe(time.monotonic() - queued_at)
            for phase in stretches.keys() & {*PHASES}:
                self._metrics.planner_phase_seconds.labels(phase).observe(stretches[phase].seconds)
            if not solve.reserves:
                self._attempts.note_solution(solve, began, decision, stretches, passed_on)
            await self._put(answer)

    async def stop(self, deadline_s: float) -> None:
        """Stop: take no more instructions, and end the decision in progress."""
        self._stopping = True
        self._waiting = asyncio.Queue()
        self._place.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        try:
            await asyncio.wait_for(asyncio.to_thread(self._thread.shutdown), deadline_s)
        except TimeoutError:
            log.warning("the planner still solves at exit", waited_s=deadline_s)

    def _decide(self, solve: Solve, trace_id: str) -> SolveAnswered | SolveFailed:
        """Decide about one gang, in the planner's thread."""
        began = time.monotonic()

        def seconds_left() -> float:
            return 0.0 if self._stopping else began + self._time_limit_s - time.monotonic()

        about = {"gang": str(solve.request.gang), "generation": solve.generation, "trace_id": trace_id}
        try:
            decision = self._place(solve, seconds_left)
        except Exception as defect:  # one gang's defect must not stop the others
            if self._stopping:
                return SolveFailed(time.monotonic(), solve.gang, solve.generation, "the service ends")
            self._metrics.planner_failed()
            log.exception("the planner failed", **about)
            error = str(defect) if isinstance(defect, Defect) else f"{type(defect).__name__}: {defect}"
            return SolveFailed(time.monotonic(), solve.gang, solve.generation, error)
        took = time.monotonic() - began
        outcome = _outcome(solve, decision)
        event = "decided on a reservation" if solve.reserves else "decided"
        log.info(event, **about, outcome=outcome, lane=solve.lane.value, took_ms=round(took * 1000, 1))
        now, waited_s, processor_s = time.monotonic(), self._place.waited_s, self._place.processor_s
        return SolveAnswered(now, solve.gang, solve.generation, decision, trace_id, waited_s, processor_s)

    def _count(self, solve: Solve, decision: Decision, took_s: float) -> None:
        outcome = _outcome(solve, decision)
        trace_id = self._attempts.exported_trace_id(solve.gang)
        if isinstance(decision, Placed):
            methods = (step.method for step in decision.steps)
            self._metrics.count_decision(outcome, took_s, (), methods, decision.gap, trace_id)
        else:
            causes = (type(cause).__name__ for cause in decision.causes)
            self._metrics.count_decision(outcome, took_s, causes, (), None, trace_id)


def _is_passed_on(solve: Solve, decision: Decision) -> bool:
    return solve.lane is Lane.FOREGROUND and decision.truncated


def _outcome(solve: Solve, decision: Decision) -> str:
    if _is_passed_on(solve, decision):
        return PASSED_ON
    if isinstance(decision, Placed):
        return "placed"
    ended = any(isinstance(cause, Ended) for cause in decision.causes)
    return "ended" if ended else "unplaceable"
