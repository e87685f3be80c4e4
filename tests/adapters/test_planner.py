"""The planner's thread: answers every Solve, survives defects, is told when its time is up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from local_cluster.patience import HANG_S
from muster.adapters.planner import Planner
from muster.adapters.solver.process import Defect, PlannerWithFallback
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.tracing import Tracing
from muster.domain.causes.not_planned import TookTooLong, TookTooMuchMemory
from muster.domain.causes.out_of_place import DomainTooSmall
from muster.domain.decision import Decision, Objective, Placed, Unplaceable
from muster.domain.reasons import Cause
from muster.domain.request import GangId, Request
from muster.domain.snapshot import Snapshot
from muster.gangs.messages.inputs import SolveAnswered, SolveFailed
from muster.gangs.messages.instructions import EndSolve, Lane, Moved, Solve
from muster.placement.limits import Stretch

GANG = GangId("default", "ack", "g")
REFUSED = Unplaceable(GANG, (DomainTooSmall("node", "a", 1, 2),))
PLACED = Placed(
    GANG, (), Objective(None, (), (("rack", 1),), None, (), 50.0, 100.0, 0, 3), "node", "node a", True
)


def asked(gang: str, generation: int = 1) -> Solve:
    return Solve(gang, generation, Request(GANG, (), 1), Snapshot({}))


class Bench:
    def __init__(self, planner: Planner, metrics: Metrics, attempts: Attempts):
        self.planner, self.metrics, self.attempts = planner, metrics, attempts
        self.answers: asyncio.Queue[SolveAnswered | SolveFailed] = asyncio.Queue()

    async def answer(self) -> SolveAnswered | SolveFailed:
        return await asyncio.wait_for(self.answers.get(), HANG_S)


class Deciding(PlannerWithFallback):
    """A function as the planner's thread calls it."""

    waited_s = 0.25
    processor_s = 0.125
    stretches: Mapping[str, Stretch] = {}

    def __init__(self, decide: Callable[[Solve, Callable[[], float]], Decision]) -> None:
        self._decides = decide
        self.is_loaded, self.is_closed, self.is_interrupted = False, threading.Event(), threading.Event()

    def load(self) -> None:
        self.is_loaded = True

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        return self._decides(solve, seconds_left)

    def interrupt(self) -> None:
        self.is_interrupted.set()

    def close(self) -> None:
        self.is_closed.set()


@asynccontextmanager
async def planning(decide: Callable[[Solve, Callable[[], float]], Decision]) -> AsyncIterator[Bench]:
    async with planning_in(Deciding(decide)) as bench:
        yield bench


@asynccontextmanager
async def planning_in(place: PlannerWithFallback) -> AsyncIterator[Bench]:
    metrics, attempts = Metrics(), Attempts(Tracing())

    async def put(answer: SolveAnswered | SolveFailed) -> None:
        bench.answers.put_nowait(answer)

    planner = Planner(place, put, metrics, attempts, 60.0)
    bench = Bench(planner, metrics, attempts)
    task = asyncio.create_task(planner.run())
    yield bench
    await planner.stop(HANG_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_each_solve_is_answered_in_order_with_its_generation() -> None:
    async with planning(lambda solve, seconds_left: PLACED) as bench:
        for generation in (1, 2, 3):
            bench.planner.submit(asked("g", generation))
        answers = [await bench.answer() for _ in range(3)]
    assert [answer.generation for answer in answers] == [1, 2, 3]
    decided = [answer for answer in answers if isinstance(answer, SolveAnswered)]
    assert [answer.decision is PLACED for answer in decided] == [True] * 3
    assert {(answer.waited_s, answer.processor_s) for answer in decided} == {(0.25, 0.125)}
    assert bench.metrics.value("muster_decision_seconds_count", outcome="placed") == 3


async def test_a_defect_is_answered_and_the_next_gang_is_planned() -> None:
    def place(solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        if solve.gang == "bad":
            raise ZeroDivisionError("oops")
        return REFUSED

    async with planning(place) as bench:
        bench.planner.submit(asked("bad"))
        bench.planner.submit(asked("good"))
        failed, decided = await bench.answer(), await bench.answer()
    assert isinstance(failed, SolveFailed)
    assert (failed.gang, failed.error) == ("bad", "ZeroDivisionError: oops")
    assert isinstance(decided, SolveAnswered)
    assert bench.metrics.value("muster_planner_failures_total") == 1


async def test_the_loop_goes_on_while_the_planner_computes_and_an_end_cuts_it_short() -> None:
    began, saw_end = threading.Event(), threading.Event()

    def place(solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        began.set()
        while seconds_left() > 0:
            pass
        saw_end.set()
        return REFUSED

    async with planning(place) as bench:
        bench.planner.submit(asked("g"))
        assert await asyncio.to_thread(began.wait, HANG_S)
        async with asyncio.timeout(HANG_S):
            await asyncio.sleep(0.01)
    assert saw_end.is_set()


async def test_a_decision_carries_the_id_of_its_gangs_trace() -> None:
    async with planning(lambda solve, seconds_left: PLACED) as bench:
        bench.attempts.note_move(Moved(0.0, "g", "g", "default", "planning", "complete"))
        bench.planner.submit(asked("g"))
        decided = await bench.answer()
    assert isinstance(decided, SolveAnswered)
    assert decided.trace_id == bench.attempts.trace_id("g") != ""


async def test_log_lines_about_a_gang_carry_the_id_of_its_trace() -> None:
    def place(solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        if solve.gang == "bad":
            raise ZeroDivisionError("oops")
        return PLACED

    with capture_logs() as lines:
        async with planning(place) as bench:
            for gang in ("bad", "good"):
                bench.attempts.note_move(Moved(0.0, gang, gang, "default", "planning", "complete"))
                bench.planner.submit(asked(gang))
                await bench.answer()
    id_of_event = {line["event"]: line["trace_id"] for line in lines if "trace_id" in line}
    ids = {gang: bench.attempts.trace_id(gang) for gang in ("bad", "good")}
    assert id_of_event == {"the planner failed": ids["bad"], "decided": ids["good"]}
    assert len({*ids.values()} - {""}) == 2


async def test_the_planner_is_loaded_before_the_first_gang_and_closed_at_the_end() -> None:
    place = Deciding(lambda solve, seconds_left: PLACED)
    async with planning_in(place) as bench:
        await bench.planner.load_solver()
        assert place.is_loaded
        assert not place.is_closed.is_set()
    assert place.is_closed.is_set()


async def test_only_the_decision_in_progress_is_ended() -> None:
    began, may_end = threading.Event(), threading.Event()

    def decide(solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        began.set()
        may_end.wait(HANG_S)
        return PLACED

    place = Deciding(decide)
    async with planning_in(place) as bench:
        bench.planner.end(EndSolve("g", 1))
        bench.planner.submit(asked("g"))
        assert await asyncio.to_thread(began.wait, HANG_S)
        bench.planner.end(EndSolve("g", 2))
        assert not place.is_interrupted.is_set()
        bench.planner.end(EndSolve("g", 1))
        assert place.is_interrupted.is_set()
        may_end.set()
        await bench.answer()


async def test_a_process_that_fails_is_told_in_its_own_words() -> None:
    def place(solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        raise Defect("ZeroDivisionError: oops")

    async with planning(place) as bench:
        bench.planner.submit(asked("bad"))
        failed = await bench.answer()
    assert isinstance(failed, SolveFailed)
    assert failed.error == "ZeroDivisionError: oops"


@pytest.mark.parametrize("cause", [TookTooLong(10.0), TookTooMuchMemory(1024)])
async def test_a_decision_that_was_ended_is_counted_as_that(cause: Cause) -> None:
    async with planning(lambda solve, seconds_left: Unplaceable(GANG, (cause,))) as bench:
        bench.planner.submit(replace(asked("hog"), lane=Lane.BACKGROUND))
        await bench.answer()
    assert bench.metrics.value("muster_decision_seconds_count", outcome="ended") == 1


@pytest.mark.parametrize(
    "decision",
    [replace(PLACED, truncated=True), Unplaceable(GANG, (TookTooLong(2.0),))],
    ids=["plan", "none"],
)
async def test_what_the_foreground_passes_on_is_counted_as_that(decision: Decision) -> None:
    async with planning(lambda solve, seconds_left: decision) as bench:
        bench.planner.submit(asked("slow"))
        await bench.answer()
    assert bench.metrics.value("muster_decision_seconds_count", outcome="passed on") == 1
