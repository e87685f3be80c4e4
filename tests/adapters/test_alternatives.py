"""However many ask for alternatives, one question is answered at a time, and no decision waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters import alternatives_answerer as module
from muster.adapters.alternatives_answerer import AlternativesAnswerer, Asker
from muster.adapters.solver import on_demand, process
from muster.adapters.solver.process import Defect, PlannerProcess
from muster.domain.alternatives import Alternatives, Question, not_known
from muster.domain.causes.not_planned import TookTooLong
from muster.domain.decision import Decision, Unplaceable
from muster.domain.request import GangId, Request
from muster.domain.snapshot import Snapshot
from muster.gangs.reporting.places import AskAlternatives
from tests.gangs import world as gangs

GANG = GangId("ns", "ack", "g")


def asking(key: str) -> AskAlternatives | str:
    """Gangs whose key begins with "none" have no place."""
    if key.startswith("none"):
        return "The gang has no place now."
    return AskAlternatives(key, Snapshot({}), Question(Request(GANG, (), 1), ()), {})


class Process(PlannerProcess):
    """Answers once it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.began = threading.Event()
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.closed = threading.Event()
        self.closed_by: threading.Thread | None = None
        self.answers: Callable[[], Decision | Alternatives] = lambda: not_known("")

    def answer(self, solve: Any, seconds_left: object) -> Decision | Alternatives:
        self.asked.append(solve.gang)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.began.set()
        assert self.may_go_on.wait(HANG_S)
        self.at_once -= 1
        return self.answers()

    def close(self) -> None:
        self.closed_by = threading.current_thread()
        self.closed.set()
        self.may_go_on.set()


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.processes: list[Process] = []
        self.holds = False
        self.started = asyncio.Event()
        self.answerer = AlternativesAnswerer(asking, self.start, lambda: self.now)

    def start(self) -> Process:
        process = Process()
        if not self.holds:
            process.may_go_on.set()
        self.processes.append(process)
        self.started.set()
        return process

    async def why_not(self, key: str, asker: Asker = Asker.PAGE) -> str:
        async with asyncio.timeout(HANG_S):
            return (await self.answerer.of(key, asker)).why_not


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.answerer.close()


async def test_no_process_runs_before_the_first_question_and_a_gang_without_a_place_needs_none(
    world: World,
) -> None:
    assert await world.why_not("none") == "The gang has no place now."
    assert not world.processes
    assert await world.why_not("a") == ""
    assert await world.why_not("b") == ""
    (process,) = world.processes
    assert process.asked == ["a", "b"]


async def test_one_question_is_answered_at_a_time_and_few_wait(world: World) -> None:
    world.holds = True
    tasks = [asyncio.create_task(world.why_not(f"g{at}")) for at in range(3 * module.WAITING)]
    refused = [asyncio.create_task(world.why_not(f"h{at}", Asker.EXPLAIN)) for at in range(2)]
    await world.started.wait()
    world.processes[0].may_go_on.set()
    refusals = await asyncio.gather(*tasks)
    assert refusals.count("") == module.WAITING
    assert refusals.count(module.BUSY) == 2 * module.WAITING
    assert await asyncio.gather(*refused) == ["", ""], "the page's clients take no place of the others"
    assert world.processes[0].most_at_once == 1


async def test_those_who_ask_about_one_gang_at_once_get_one_answer(world: World) -> None:
    refusals = await asyncio.gather(*(world.why_not("a") for _ in range(module.WAITING)))
    assert set(refusals) == {""}
    assert world.processes[0].asked == ["a"]
    world.now += module.ANSWERS_LIVE_S
    await world.why_not("a")
    assert world.processes[0].asked == ["a", "a"]


async def test_answers_that_are_kept_are_bounded(world: World) -> None:
    for at in range(2 * module.MAX_ANSWERS):
        await world.why_not(f"g{at}")
    assert len(world.answerer._answers) == module.MAX_ANSWERS


async def test_who_has_used_up_its_share_waits_and_others_do_not(world: World) -> None:
    def slow() -> Decision | Alternatives:
        world.now += 2.0
        return not_known("")

    await world.why_not("first")
    world.processes[0].answers = slow
    refusals = [await world.why_not(f"g{at}") for at in range(10)]
    assert refusals[0] == ""
    assert refusals[-1] == module.BUSY
    assert len(world.processes[0].asked) < 10
    assert await world.why_not("x", Asker.EXPLAIN) == ""
    world.now += module.BURST_S / module.SHARE
    assert await world.why_not("y") == ""


async def test_the_process_ends_when_nobody_asks_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "IDLE_S", 0.0)
    await world.why_not("a")
    await asyncio.to_thread(world.processes[0].closed.wait, HANG_S)
    assert world.processes[0].closed_by is not threading.current_thread(), "the event loop does not wait"
    assert await world.why_not("b") == ""
    assert len(world.processes) == 2


async def test_a_defect_and_the_end_of_time_are_said(world: World) -> None:
    def fails() -> Decision | Alternatives:
        raise Defect("ValueError: it")

    await world.why_not("first")
    world.processes[0].answers = fails
    assert await world.why_not("a") == module.NOT_FOUND
    world.processes[0].answers = lambda: Unplaceable(GANG, (TookTooLong(2.0),))
    assert await world.why_not("b") == module.TOO_LONG


async def test_who_goes_away_leaves_the_next_one_its_turn(world: World) -> None:
    world.holds = True
    cancelled_task = asyncio.create_task(world.why_not("a"))
    await world.started.wait()
    await asyncio.to_thread(world.processes[0].began.wait, HANG_S)
    cancelled_task.cancel()
    after = asyncio.create_task(world.why_not("b"))
    await asyncio.sleep(0)
    assert world.processes[0].asked == ["a"], "one at a time, also if the one who asked is gone"
    world.processes[0].may_go_on.set()
    assert await after == ""
    with pytest.raises(asyncio.CancelledError):
        await cancelled_task


async def test_the_real_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", HANG_S)
    answerer = AlternativesAnswerer(real)
    try:
        async with asyncio.timeout(HANG_S):
            answer = await answerer.of("ns/ack/g", Asker.PAGE)
    finally:
        answerer.close()
    assert (answer.why_not, answer.domain) == ("", "node a")
    assert [(alternative.domain, alternative.says) for alternative in answer.tried] == [
        ("node b", "none of 1 members fit; 1 GPU is free there")
    ]


def real(key: str) -> AskAlternatives | str:
    world = gangs.World().start(gangs.node("a", 4), gangs.node("b", 2))
    world.see(gangs.foreign("f", "b"), gangs.pod("p0", of=1, gpus=2))
    (only,) = world.coordinator.keys()
    return world.coordinator.alternatives(only)
