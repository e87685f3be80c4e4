"""The planner's process: whatever a gang does to it, the decision ends in time, and the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S, stretched
from muster.adapters.solver import process as processes
from muster.adapters.solver.process import (
    LONG_S,
    Bounds,
    CantStart,
    Defect,
    PlannerClosed,
    PlannerInService,
    PlannerProcess,
    PlannerWithFallback,
)
from muster.domain.causes.not_planned import NotDecided, TookTooLong, TookTooMuchMemory
from muster.domain.causes.out_of_place import DomainTooSmall
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.domain.request import GangId, Request
from muster.domain.snapshot import Snapshot
from muster.gangs.messages.instructions import Solve
from tests.gangs.world import node

HOGS = "tests.adapters.hogs:place"
ROOT = Path(__file__).parents[2]
MIB = 64


@pytest.fixture(autouse=True)
def _tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def process() -> Iterator[PlannerProcess]:
    process = PlannerProcess(Bounds(memory_mib=MIB), HOGS)
    process.load()
    yield process
    process.close()


def asked(name: str, snapshot: Snapshot | None = None) -> Solve:
    return Solve(name, 1, Request(GangId("default", "ack", name), (), 1), snapshot or Snapshot({}))


def within(seconds: float) -> Callable[[], float]:
    until = time.monotonic() + seconds
    return lambda: until - time.monotonic()


def ask(process: PlannerProcess, name: str, seconds: float = HANG_S) -> Decision:
    return process(asked(name), within(seconds))


def its_pid(process: PlannerProcess) -> int:
    decision = ask(process, "says its process")
    assert isinstance(decision, Unplaceable)
    (cause,) = decision.causes
    assert isinstance(cause, DomainTooSmall)
    return int(cause.best)


def is_gone(pid: int) -> bool:
    """Neither running nor left as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_the_next_process_loads_while_a_long_decision_is_made(process: PlannerProcess) -> None:
    assert ask(process, "sleeps in C", seconds=LONG_S + stretched(0.5))
    started = process.started
    assert started == 2
    its_pid(process)
    assert process.started == started + 1  # the spare of the one that has taken over


@pytest.mark.parametrize("name", ["spins", "sleeps in C"])
def test_a_decision_that_does_not_end_is_ended_and_the_next_one_is_made(
    process: PlannerProcess, name: str
) -> None:
    before = its_pid(process)
    decision = ask(process, name, seconds=0.2)
    assert isinstance(decision, Unplaceable)
    (cause,) = decision.causes
    assert isinstance(cause, TookTooLong)
    assert 0 < cause.seconds <= 0.2
    assert is_gone(before)
    assert its_pid(process) == process.pid != before


def test_a_planner_that_minds_its_time_may_answer_and_its_process_lives_on(
    process: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = its_pid(process)
    monkeypatch.setattr(processes, "MARGIN_S", HANG_S)
    decision = ask(process, "minds its time", seconds=0.2)
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (NotDecided(truncated=True),)
    assert its_pid(process) == before


def test_only_the_first_question_of_each_process_has_more_time() -> None:
    process = PlannerProcess(Bounds(memory_mib=MIB, first_s=1000.0), HOGS)

    def has_more_time() -> bool:
        decision = ask(process, "says its time", seconds=500.0)
        assert isinstance(decision, Unplaceable)
        (cause,) = decision.causes
        assert isinstance(cause, TookTooLong)
        return cause.seconds > 500.0

    assert [has_more_time() for _ in range(2)] == [True, False]
    with pytest.raises(Defect):
        ask(process, "dies")
    assert [has_more_time() for _ in range(2)] == [True, False]
    process.close()


def test_memory_beyond_the_limit_is_refused_and_the_next_process_decides(
    process: PlannerProcess,
) -> None:
    before = its_pid(process)
    decision = ask(process, "fills the memory")
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (TookTooMuchMemory(MIB),)
    assert is_gone(before)
    assert isinstance(ask(process, "fits"), Placed)


def test_memory_below_the_limit_is_given_as_often_as_it_is_asked_for(process: PlannerProcess) -> None:
    before = its_pid(process)
    for _ in range(2 * MIB // 32 + 1):
        assert isinstance(ask(process, "takes 32 MiB"), Placed)
    assert its_pid(process) == before


def test_a_solver_that_is_aborted_with_most_of_its_memory_taken_has_taken_too_much(
    process: PlannerProcess,
) -> None:
    decision = ask(process, "fills the memory in C")
    assert isinstance(decision, Unplaceable)
    assert decision.causes == (TookTooMuchMemory(MIB),)


def test_a_defect_is_told_with_where_it_was_and_the_process_lives_on(process: PlannerProcess) -> None:
    before = its_pid(process)
    with pytest.raises(Defect) as caught:
        ask(process, "has a defect")
    assert str(caught.value) == "ZeroDivisionError: oops"
    assert "hogs.py" in caught.value.__notes__[0]
    assert its_pid(process) == before


def test_a_process_that_dies_of_itself_is_a_defect_and_is_replaced(process: PlannerProcess) -> None:
    with pytest.raises(Defect, match="status 3"):
        ask(process, "dies")
    assert isinstance(ask(process, "fits"), Placed)


def test_a_process_that_was_killed_between_two_decisions_is_replaced(process: PlannerProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # all of its threads: the first is over before
    assert isinstance(ask(process, "fits"), Placed)


def test_the_signals_that_end_a_service_do_not_end_its_process(process: PlannerProcess) -> None:
    before = its_pid(process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(before, number)
    assert its_pid(process) == before


def test_a_decision_is_ended_where_others_wait(process: PlannerProcess) -> None:
    before = its_pid(process)
    with ThreadPoolExecutor(max_workers=1) as thread:  # its processes end with it
        asking = thread.submit(ask, process, "spins", 1000)
        while not wait([asking], timeout=0.05).done:
            process.interrupt()  # it may not have begun yet
        answer = asking.result()
        assert isinstance(answer, Unplaceable)
        (cause,) = answer.causes
        assert isinstance(cause, TookTooLong)
        assert cause.others_wait
        assert its_pid(process) != before


def test_close_ends_a_decision_in_progress_and_nothing_is_left(process: PlannerProcess) -> None:
    pid = its_pid(process)
    raised: list[BaseException] = []

    def decide() -> None:
        try:
            ask(process, "spins")
        except PlannerClosed as end:
            raised.append(end)

    thread = threading.Thread(target=decide)
    thread.start()
    process.close()
    thread.join(HANG_S)
    assert raised
    assert is_gone(pid)
    with pytest.raises(PlannerClosed):
        ask(process, "fits")


def test_it_ends_with_the_service_also_in_the_middle_of_a_decision() -> None:
    program = f"""
import sys, threading
from tests.adapters.test_solver import *
process = PlannerProcess(Bounds(), {HOGS!r})
def decide():
    process.load()
    print(process.pid, flush=True)
    ask(process, "spins", 1000)
thread = threading.Thread(target=decide)
thread.start()
thread.join()
"""
    service = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    pid = int(service.stdout.readline())
    assert not is_gone(pid)
    service.kill()
    service.wait()
    service.stdout.close()
    until = time.monotonic() + HANG_S
    while not is_gone(pid) and _state(pid) != "Z":  # its new parent reaps it
        assert time.monotonic() < until


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_each_snapshot_arrives_whole_also_after_the_process_was_replaced(process: PlannerProcess) -> None:
    def seen(*nodes: object) -> str:
        decision = process(asked("fits", Snapshot.of(nodes, ())), within(HANG_S))  # type: ignore[arg-type]
        assert isinstance(decision, Placed)
        return decision.domain

    assert seen(node("a", 4), node("b", 2)) == "a=1111,b=11"
    assert seen(node("a", 1), node("b", 2)) == "a=1,b=11"
    assert isinstance(ask(process, "spins", 0.1), Unplaceable)
    assert seen(node("a", 1), node("b", 2)) == "a=1,b=11"
    assert seen(node("b", 2), node("c", 3)) == "b=11,c=111"


def test_where_no_process_can_be_started_it_is_planned_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(CantStart, match="can't be started"):
        PlannerProcess(Bounds(), HOGS).load()
    place = PlannerWithFallback(Bounds(), HOGS)
    place.load()
    assert isinstance(place(asked("fits"), within(HANG_S)), Placed)
    assert place.pid is None
    place.close()


def test_a_process_that_ends_while_it_loads_is_none() -> None:
    process = PlannerProcess(Bounds(), "tests.adapters.hogs:missing")
    with pytest.raises(CantStart, match="ended with status 1"):
        process.load()


def test_what_decides_inside_is_told_when_the_service_ends() -> None:
    inside = PlannerInService(Bounds(), HOGS)
    inside.load()
    answers: list[Decision] = []
    thread = threading.Thread(target=lambda: answers.append(inside(asked("minds its time"), within(1000))))
    thread.start()
    inside.close()
    thread.join(HANG_S)
    assert answers


@pytest.mark.parametrize("place", [PlannerProcess, PlannerInService])
def test_a_slice_of_processor_time_ends_a_decision_and_not_its_process(
    place: type[PlannerProcess] | type[PlannerInService],
) -> None:
    planner = place(Bounds(slice_s=0.05), HOGS)
    try:
        planner.load()
        decision = planner(asked("minds its time"), within(3600.0))
        assert decision == Unplaceable(asked("minds its time").request.gang, (NotDecided(truncated=True),))
        assert not isinstance(planner, PlannerProcess) or planner.started == 1
    finally:
        planner.close()


MAX_NICENESS = 19
"""Linux gives a process no higher niceness, and the tests themselves may run with some."""


def test_a_background_process_leaves_the_processor_to_others() -> None:
    planner = PlannerProcess(Bounds(niceness=7), HOGS)
    try:
        planner.load()
        assert planner.pid is not None
        niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 7, MAX_NICENESS)
        assert os.getpriority(os.PRIO_PROCESS, planner.pid) == niceness
    finally:
        planner.close()
