"""The control loop: order of inputs, calls in between, one session, deadlines as ticks, a defect ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import pytest

from local_cluster.patience import HANG_S
from muster.adapters import control_loop, turns
from muster.adapters.control_loop import MAX_PER_CHUNK, ControlLoop
from muster.adapters.grpc.generated.muster import v1
from muster.adapters.grpc.server import Session, SessionEnd
from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.metrics import Metrics
from muster.adapters.telemetry.tracing import Tracing
from muster.domain.node import Resources, Usage
from muster.domain.podgroup import PodGroupStatus
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import calls
from muster.gangs.messages.inputs import Input, NodeGone, PodGone, SessionClosed, SessionOpened, Synced, Tick
from muster.gangs.messages.instructions import (
    AskInTree,
    EmitEvent,
    EventReason,
    Evict,
    Instruction,
    Outcome,
    PushVerdict,
    ShowWaiting,
    WriteStatus,
)
from muster.gangs.reporting.places import Owner
from muster.gangs.reporting.tally import Tally

REF = calls.PlanRef(1, "g", 1)


class Recorded(Coordinator):
    """Gangs that record what they hear; `gives` is what they tell to do for a type of event."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Input] = []
        self.gives: dict[type, list[Instruction]] = {}
        self.deadline: float | None = None
        self.fails: type | None = None
        self.order: list[str] = []
        self.gangs = 0
        self.shown: list[int] = []
        """How many gangs were looked at, each time."""
        self.unknown = 0
        """How many inputs it takes until all gangs are known."""

    def handle(self, message: Input) -> list[Instruction]:
        if self.fails is type(message):
            raise RuntimeError("a defect")
        self.heard.append(message)
        self.unknown = max(0, self.unknown - 1)
        if isinstance(message, Tick):
            self.deadline = None
        return self.gives.get(type(message), [])

    def answer(self, call: calls.Call[Any]) -> Any:
        match call:
            case calls.Filter():
                self.heard.append(PodGone(0.0, "a call"))
                return calls.FilterAnswer(reason="asked"), []
            case calls.Unreserve():
                self.deadline = time.monotonic()
        return None, [verdict(f"from {type(call).__name__}")]

    @property
    def catches_up(self) -> bool:
        return self.unknown > 0

    def next_deadline(self) -> float | None:
        return self.deadline

    def keys(self) -> list[str]:
        return [f"g{number:04}" for number in range(self.gangs)]

    def keys_of(self, namespace: str, name: str) -> list[str]:
        return [key for key in self.keys() if key == name]

    def tally(self, keys: Iterable[str] | None = None, tally_before: Tally | None = None) -> Tally:
        self.shown.append(len(list(keys or ())))
        return tally_before or Tally()

    def summary(self, keys: Iterable[str] | None = None) -> tuple[Any, ...]:
        self.shown.append(len(list(keys or ())))
        return tuple(keys or ())

    def owners(self, nodes: Sequence[str]) -> list[tuple[Owner, ...]]:
        return [(Owner("ns", node, 1),) for node in nodes]


def verdict(gang: str) -> PushVerdict:
    return PushVerdict(gang, 1, Outcome.PLANNED, "default", (("p", "u"),), 1)


class Bench:
    def __init__(self) -> None:
        self.gangs, self.metrics = Recorded(), Metrics()
        self.emitted: list[EmitEvent] = []
        self.evicted: list[Evict] = []
        self.statuses: list[WriteStatus] = []
        self.told: list[ShowWaiting] = []
        self.led: list[bool] = []
        self.bindings: list[Any] = []
        self.loop = ControlLoop(
            self.gangs,
            self.metrics,
            Attempts(Tracing()),
            {
                EmitEvent: self.emitted.append,
                Evict: self.evicted.append,
                WriteStatus: self.statuses.append,
                ShowWaiting: self.told.append,
            },
            self.in_flight,
            inbox=8,
            on_lead=lambda: self.led.append(self.loop.leads),
        )
        self.task = asyncio.create_task(self.loop.run())

    def in_flight(self, bindings: Any) -> tuple[Usage, ...]:
        return tuple(Usage(uid, node, Resources()) for uid, node, _ in bindings)

    async def heard(self, condition: Callable[[list[Input]], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition(self.gangs.heard):  # noqa: ASYNC110 - it is the other task's turn
                await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    new_bench = Bench()
    yield new_bench
    new_bench.loop.shut_down()
    new_bench.task.cancel()
    await asyncio.gather(new_bench.task, return_exceptions=True)


async def next_verdict(session: Session) -> str:
    response = await asyncio.wait_for(session.next_response(), HANG_S)
    assert response is not None
    assert response.verdict is not None
    return response.verdict.gang


async def test_events_keep_their_order_through_a_full_inbox(bench: Bench) -> None:
    await asyncio.gather(*(bench.loop.put(NodeGone(0.0, str(number))) for number in range(100)))
    await bench.heard(lambda heard: len(heard) == 100)
    assert [event.name for event in bench.gangs.heard if isinstance(event, NodeGone)] == [
        str(number) for number in range(100)
    ]


async def test_a_call_does_not_queue_behind_events(bench: Bench) -> None:
    for number in range(8):
        await bench.loop.put(NodeGone(0.0, str(number)))
    assert bench.loop.answer(calls.Filter(0.0, REF)).reason == "asked"
    assert len(bench.gangs.heard) < 8


async def test_nothing_is_synced_before_synced_was_handled(bench: Bench) -> None:
    waiting = asyncio.ensure_future(bench.loop.wait_for_sync())
    await bench.loop.put(NodeGone(0.0, "before"))
    assert not bench.loop.is_synced
    await bench.loop.sync(Synced(1.0))
    await asyncio.wait_for(waiting, HANG_S)
    assert bench.gangs.heard == [NodeGone(0.0, "before"), Synced(1.0)]


async def test_sessions_wait_until_all_gangs_are_known(bench: Bench) -> None:
    bench.gangs.unknown = 4
    synced = asyncio.create_task(bench.loop.wait_for_sync())
    await bench.loop.put(PodGone(0.0, "before"))
    await bench.loop.sync(Synced(0.0))
    await synced
    assert [type(message) for message in bench.gangs.heard] == [PodGone, Synced, Tick, Tick]


async def test_gangs_are_counted_in_several_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_loop, "MAX_PER_CHUNK", 4)
    bench.gangs.gangs = 10
    await bench.loop.count()
    assert bench.gangs.shown == [0, 4, 4, 2]


async def test_a_session_opens_with_its_in_flight_bindings_and_gets_what_follows(bench: Bench) -> None:
    bench.gangs.gives = {SessionOpened: [verdict("replayed")]}
    session = Session(5)
    await bench.loop.open_session(session, [v1.InFlightBinding(uid="u", node="a")])
    opened = bench.gangs.heard[0]
    assert isinstance(opened, SessionOpened)
    assert (opened.epoch, opened.in_flight) == (5, (Usage("u", "a", Resources()),))
    assert await next_verdict(session) == "replayed"
    assert bench.led == [True]


async def test_a_newer_session_replaces_the_older_which_closes_nothing(bench: Bench) -> None:
    older, newer = Session(5), Session(6)
    await bench.loop.open_session(older, [])
    bench.gangs.gives = {SessionOpened: [verdict("for the newer")]}
    await bench.loop.open_session(newer, [])
    assert older.cause is SessionEnd.REPLACED
    await bench.loop.close_session(older)
    await bench.loop.sync(Synced(0.0))
    assert not any(isinstance(event, SessionClosed) for event in bench.gangs.heard)
    assert await next_verdict(newer) == "for the newer"


async def test_a_closed_session_is_told_and_verdicts_are_counted_as_undelivered(bench: Bench) -> None:
    session = Session(5)
    await bench.loop.open_session(session, [])
    await bench.loop.close_session(session)
    await bench.heard(lambda heard: isinstance(heard[-1], SessionClosed))
    bench.loop.answer(calls.Reserve(0.0, REF, 0, "a"))
    assert bench.metrics.value("muster_verdicts_undelivered_total") == 1


async def test_instructions_of_calls_are_carried_out(bench: Bench) -> None:
    session = Session(5)
    await bench.loop.open_session(session, [])
    bench.loop.answer(calls.Reserve(0.0, REF, 0, "a"))
    bench.loop.answer(calls.Permit(0.0, REF, 1))
    bench.loop.answer(calls.Unreserve(0.0, REF, 0, "a", calls.BindingFate.REFUSED))
    assert [await next_verdict(session) for _ in range(3)] == [
        "from Reserve",
        "from Permit",
        "from Unreserve",
    ]


async def test_events_for_users_go_to_the_poster(bench: Bench) -> None:
    event = EmitEvent("default", (("p", "u"),), EventReason.PLACED, "placed")
    bench.gangs.gives = {NodeGone: [event]}
    await bench.loop.put(NodeGone(0.0, "a"))
    await bench.heard(bool)
    assert bench.emitted == [event]


async def test_statuses_go_to_the_writer(bench: Bench) -> None:
    status = WriteStatus("default", "train", "u", PodGroupStatus("Running"))
    bench.gangs.gives = {NodeGone: [status]}
    await bench.loop.put(NodeGone(0.0, "n"))
    await bench.heard(lambda heard: len(heard) == 1)
    assert bench.statuses == [status]


async def test_evictions_go_to_the_evictor(bench: Bench) -> None:
    evict = Evict("default", (("p", "u"),), "only 1 of 2 members could be bound in time")
    bench.gangs.gives = {NodeGone: [evict]}
    await bench.loop.put(NodeGone(0.0, "a"))
    await bench.heard(bool)
    assert bench.evicted == [evict]


async def test_a_deadline_becomes_a_tick_also_after_a_call(bench: Bench) -> None:
    bench.gangs.deadline = time.monotonic() + 0.02
    await bench.loop.put(NodeGone(0.0, "a"))
    await bench.heard(lambda heard: isinstance(heard[-1], Tick) if heard else False)
    bench.loop.answer(calls.Unreserve(0.0, REF, 0, "a", calls.BindingFate.REFUSED))
    await bench.heard(lambda heard: sum(isinstance(event, Tick) for event in heard) == 2)


async def test_an_earlier_deadline_replaces_a_later_one(bench: Bench) -> None:
    bench.gangs.deadline = time.monotonic() + 3600
    await bench.loop.put(NodeGone(0.0, "a"))
    await bench.heard(bool)
    bench.gangs.deadline = time.monotonic()
    await bench.loop.put(NodeGone(0.0, "b"))
    await bench.heard(lambda heard: isinstance(heard[-1], Tick))


async def test_a_defect_in_the_gangs_ends_the_owner(bench: Bench) -> None:
    bench.gangs.fails = NodeGone
    await bench.loop.put(NodeGone(0.0, "a"))
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(bench.task, HANG_S)


async def test_the_loop_goes_on_while_many_gangs_are_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    bench.gangs.gangs = 100
    counts: list[int] = []

    async def others() -> None:
        while True:
            counts.append(len(bench.gangs.shown))
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert await bench.loop.summary() == bench.gangs.keys()
    task.cancel()
    assert set(counts) >= set(range(1, 100)), "a turn after each gang, if each takes long"


async def test_owners_are_told_of_each_node_in_several_turns(bench: Bench) -> None:
    nodes = [f"n{at}" for at in range(3 * MAX_PER_CHUNK + 1)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    meanwhile = asyncio.create_task(others())
    owners = await bench.loop.owners(nodes)
    meanwhile.cancel()
    assert owners == {node: (Owner("ns", node, 1),) for node in nodes}
    assert turns >= 3


async def test_questions_about_in_tree_plugins_reach_the_session_and_its_reports_the_gangs(
    bench: Bench,
) -> None:
    session = Session(epoch=1, answers_in_tree=True)
    bench.gangs.gives = {SessionOpened: [AskInTree("g", 4, "ns", (("p", "u"),))]}
    await bench.loop.sync(Synced(0.0))
    await bench.loop.open_session(session, [])
    begun = bench.gangs.heard[-1]
    assert isinstance(begun, SessionOpened)
    assert begun.answers_in_tree
    response = await asyncio.wait_for(session.next_response(), HANG_S)
    assert response is not None
    assert response.in_tree_question is not None
    assert (response.in_tree_question.gang, response.in_tree_question.question) == ("g", 4)
    bench.loop.answer(calls.InTreeReport(0.0, 1, "g", 4, ()))
    assert await next_verdict(session) == "from InTreeReport"
