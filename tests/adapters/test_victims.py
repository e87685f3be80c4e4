"""Victims are found one question at a time, in a process that runs only while gangs ask."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters import victims_answerer as module
from muster.adapters.solver import process
from muster.adapters.solver.process import Defect, PlannerProcess
from muster.adapters.solver.wire import Answer
from muster.adapters.victims_answerer import VictimsAnswerer
from muster.domain.causes.not_planned import TookTooLong
from muster.domain.clearing import Clearing, NoClearing
from muster.domain.decision import Unplaceable
from muster.domain.request import GangId
from muster.gangs.messages.inputs import VictimsFound
from muster.gangs.messages.instructions import FindVictims
from tests.gangs import world as gangs

GANG = GangId("ns", "ack", "g")
NONE = NoClearing(GANG, proven=True)


class Process(PlannerProcess):
    """Answers what it is given, or fails with it."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = [*answers]
        self.closed = False

    def answer(self, solve: Any, seconds_left: object) -> Answer:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


class Asking:
    """An answerer that runs, and what it found."""

    def __init__(self, answerer_process: Process | None = None) -> None:
        self.found: asyncio.Queue[VictimsFound] = asyncio.Queue()
        start = {} if answerer_process is None else {"start": lambda: answerer_process}
        self.answerer = VictimsAnswerer(self.found.put, **start)
        self.task = asyncio.create_task(self.answerer.run())

    async def ask(self, question: FindVictims) -> VictimsFound:
        self.answerer.submit(question)
        async with asyncio.timeout(HANG_S):
            return await self.found.get()

    async def end(self) -> None:
        self.answerer.close()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def question() -> FindVictims:
    """A question about a gang on a node that a gang of lower priority has."""
    world = gangs.World().start(gangs.node("a"))
    world.see(gangs.pod("low", gang="", gpus=4, node="a", allocation=0b1111))
    world.auto = False
    world.see(gangs.pod("high", gang="", gpus=4, priority=10))
    world.solve()
    return world.victim_questions.pop()


async def test_the_real_process_finds_them(question: FindVictims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", HANG_S)
    monkeypatch.setattr(module, "LIMIT_S", HANG_S)
    asking = Asking()
    for _ in range(2):
        message = await asking.ask(question)
        assert message.number == question.number
        assert isinstance(message.answer, Clearing)
        assert [victim.name for victim in message.answer.victims] == ["ns/low"]
    await asking.end()


async def test_a_defect_and_the_end_of_time_are_no_answers(question: FindVictims) -> None:
    late = Unplaceable(GANG, (TookTooLong(2.0),))
    asking = Asking(Process(Defect("ValueError: it"), late, NONE))
    assert [(await asking.ask(question)).answer for _ in range(3)] == [None, None, NONE]
    await asking.end()


async def test_an_unexpected_error_is_no_answer_and_ends_the_process(question: FindVictims) -> None:
    failing_process = Process(MemoryError("no memory"), NONE)
    asking = Asking(failing_process)
    assert (await asking.ask(question)).answer is None
    assert failing_process.closed
    assert (await asking.ask(question)).answer == NONE
    await asking.end()


async def test_once_closed_it_starts_no_process(question: FindVictims) -> None:
    ended_process = Process(NONE)
    asking = Asking(ended_process)
    await asking.ask(question)
    asking.answerer.close()
    assert ended_process.closed
    asking.answerer.submit(question)
    await asyncio.sleep(0)
    assert asking.found.empty()
    await asking.end()
