"""The service's side of the planner's process: start it, ask it, and end it at a limit.

Where no process can be started, the service decides itself (`PlannerInService`).

All methods but `close` block. They must run on one thread that lives as long as the service: when the thread
that started the process ends, the kernel ends the process. Any thread may call `close`.
"""

from __future__ import annotations

import contextlib
import math
import os
import pkgutil
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from muster.adapters.solver import wire
from muster.adapters.solver.replica import SentState
from muster.adapters.solver.wire import Answer, DefectReply, OutOfMemory, Ready, SolveReply, SolveRequest
from muster.domain.causes.not_planned import TookTooLong, TookTooMuchMemory
from muster.domain.clearing import ClearQuestion
from muster.domain.decision import Decision, Placed, Unplaceable
from muster.gangs.messages.instructions import FindVictims, Solve
from muster.gangs.reporting.places import AskAlternatives
from muster.placement.limits import MAX_UNLIKE_ROLES, Limits, Stretch, Timings

AnyQuestion = Solve | AskAlternatives | FindVictims

PLACE = "muster.placement.place:place"

MARGIN_S = 0.3
"""Seconds between the time limit and the end of the process. The planner itself stops at the limit, and may
return a plan in these seconds."""

EXIT_S = 1.0
"""Seconds in which a process that has closed its socket must exit. Its exit status says why it ended."""

WATCH_S = 0.1
"""Seconds between two readings of the process's memory while it decides."""

SHORT_S = 1.0
"""The shortest time for a decision while other gangs wait. The decision may itself have waited for a process.
"""

LONG_S = 0.5
"""Seconds after which the next process begins to load, because the decision may have to be ended."""

START_S = 60.0
"""Seconds in which a process must load the planner."""

TRY_AGAIN_S = 60.0
"""Seconds of decisions inside the service before a process is tried again."""

log = structlog.get_logger(__name__)


class CantStart(Exception):
    """No process for the planner can be started on this machine."""


class Defect(Exception):
    """The planner failed in its process. The text is the error's type and message."""


class PlannerClosed(Exception):
    """The service ends, and the planner's process has been ended."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one decision, and of its process.

    `deterministic_time` and `most_roles` are those of `placement.limits.Limits`. `memory_mib`: memory that a
    decision may use, on top of the process's memory before it. `niceness` of the process, as in nice(2).
    `slice_s`: seconds of processor time, which a busy machine does not shorten. `spare`: whether a second
    process waits while the first one decides for long. `first_s`: shortest time limit of a process's first
    question, because that question brings the whole cluster.
    """

    deterministic_time: float = 0.5
    memory_mib: int = 1024
    most_roles: int = MAX_UNLIKE_ROLES
    niceness: int = 0
    slice_s: float = math.inf
    spare: bool = True
    first_s: float = 0.0


class _Child:
    """One process of the planner, from its start to its end."""

    def __init__(self, place: str, niceness: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            command = [sys.executable, "-P", "-m", "muster.adapters.solver.child"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), place],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
            if niceness:
                niceness_of_service = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness_of_service + niceness)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.channel, self.sent, self.is_ready = ours, SentState(), False
        self.resident_before = self.resident_most = 0
        self.must_be_ready_by = time.monotonic() + START_S

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End the process now. Any thread may call this."""
        self._process.kill()

    def is_over(self) -> bool:
        """Return whether the process has closed its end of the socket while no question was open."""
        return bool(select.select([self.channel], [], [], 0)[0])

    def answers(self, within_s: float) -> bool:
        """Return whether an answer comes, or the process ends, within this time. If not, note the memory that
        it holds. (The kernel's ru_maxrss would include the service's memory at the start of the process.)"""
        if select.select([self.channel], [], [], within_s)[0]:
            return True
        self.resident_most = max(self.resident_most, self.resident())
        return False

    def reap(self, grace_s: float = 0.0) -> int:
        """End the process if it has not ended by itself after `grace_s`, and wait until it is gone. Return
        its exit status, which is negative for a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()
        self.channel.close()
        return self._process.wait()

    def resident(self) -> int:
        """Return the bytes of memory that the process holds now; 0 if the system does not say."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, IndexError, ValueError):
            return 0


class PlannerProcess:
    """Decides in a process of its own. `place` names the function that the process calls, as
    "module:function"."""

    def __init__(self, bounds: Bounds, place: str = PLACE) -> None:
        self._bounds = bounds
        self._place = place
        self._child: _Child | None = None
        self._spare: _Child | None = None
        self._wants_spare = False
        self.started = 0
        """Number of processes that were started."""
        self.waited_s = 0.0
        """Seconds for which the last decision waited for a process."""
        self.processor_s: float | None = None
        """Processor time of the last decision, in seconds; None if its process did not say."""
        self.stretches: Mapping[str, Stretch] = {}
        """Phase of the planner → its time in the last decision, by the monotonic clock; {} if the process did
        not say."""
        self._lock = threading.Lock()
        self._closed = self._interrupted = False

    @property
    def pid(self) -> int | None:
        """Return the id of the running process; None if no process runs."""
        child = self._child
        return None if child is None else child.pid

    def load(self) -> None:
        """Start the process, and return once it has loaded the planner.

        Raises:
            CantStart: the process did not load the planner.
            Closed: `close` was called.
        """
        self._ready_child()

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        """Decide about one gang, as `answer` does."""
        decision = self.answer(solve, seconds_left)
        assert isinstance(decision, Placed | Unplaceable), "that answers another question"
        return decision

    def answer(self, solve: AnyQuestion, seconds_left: Callable[[], float]) -> Answer:
        """Return the result of `place`. At a limit, the process is ended and the next process is started at
        once. The time limit begins once a process has loaded the planner.

        Raises:
            CantStart: no process runs, and none can be started.
            Defect: the planner failed, or its process died for no known reason.
            Closed: `close` was called.
        """
        try:
            return self._decide(solve, seconds_left())
        except (OSError, ValueError) as end:  # another thread closed the socket
            if self._closed:
                raise PlannerClosed from end
            raise

    def _decide(self, solve: AnyQuestion, limit_s: float) -> Answer:
        self._interrupted, self.processor_s, self.stretches = False, None, {}
        called_at = time.monotonic()
        child = self._ready_child()
        if child.is_over():
            self._replace("died between two decisions", solve, EXIT_S)
            child = self._ready_child()
        self._prepare_spare()
        if child.sent.is_empty:
            limit_s = max(limit_s, self._bounds.first_s)
        began = time.monotonic()
        self.waited_s = began - called_at
        until = began + limit_s
        request, occupants = solve.request, None
        if isinstance(request, ClearQuestion):
            occupants = child.sent.occupancy_difference(request.occupancy)
            request = replace(request, occupancy=replace(request.occupancy, by_node={}, units={}))
        try:
            ask = SolveRequest(
                child.sent.difference(solve.snapshot),
                request,
                solve.excluded,
                self._bounds.deterministic_time,
                until,
                self._bounds.memory_mib << 20,
                self._bounds.most_roles,
                self._bounds.slice_s,
                occupants,
            )
            wire.send(child.channel, wire.encode(ask), until + MARGIN_S)
            while not child.answers(WATCH_S) and time.monotonic() < until + MARGIN_S:
                if time.monotonic() > began + LONG_S:
                    self._wants_spare = True
                    self._prepare_spare()
                if self._interrupted and time.monotonic() > began + SHORT_S:
                    self._replace("others wait", solve)
                    return Unplaceable(solve.request.gang, (TookTooLong(time.monotonic() - began, True),))
            reply = wire.decode(wire.receive(child.channel, until + MARGIN_S))
            child.resident_before = child.resident()
        except TimeoutError:
            self._replace("took too long", solve)
            return Unplaceable(solve.request.gang, (TookTooLong(limit_s),))
        except (EOFError, OSError) as end:
            return self._explain_death(solve, limit_s, end)
        match reply:
            case SolveReply(decision, processor_s, stretches, ends):
                self.processor_s, self.stretches = processor_s, stretches
                if ends:
                    self._replace("has grown too much", solve, EXIT_S)
                return decision
            case OutOfMemory():
                return self._out_of_memory(solve)
            case DefectReply(error, trace):
                defect = Defect(error)
                defect.add_note(trace)
                raise defect
        raise Defect(f"the planner's process answered {reply!r}")

    def interrupt(self) -> None:
        """End the decision in progress, but not before `SHORT_S`. Any thread may call this."""
        self._interrupted = True

    def close(self) -> None:
        """End the process. A decision in progress raises Closed."""
        with self._lock:
            self._closed = True
            children = [child for child in (self._child, self._spare) if child is not None]
            self._child = self._spare = None
        for child in children:
            child.kill()
            with contextlib.suppress(OSError):
                child.channel.shutdown(socket.SHUT_RDWR)
            child.reap()

    def _ready_child(self) -> _Child:
        """Return the process, once it has loaded the planner."""
        child = self._child or self._start()
        if child.is_ready:
            return child
        try:
            hello = wire.decode(wire.receive(child.channel, child.must_be_ready_by))
        except TimeoutError as late:
            self._end()
            raise CantStart(f"the planner's process was not ready within {START_S:g} s") from late
        except (EOFError, OSError) as end:
            if self._closed:
                raise PlannerClosed from end
            status = self._end(EXIT_S)
            raise CantStart(f"the planner's process ended with status {status} before it was ready") from end
        assert isinstance(hello, Ready)
        child.is_ready, child.resident_before = True, child.resident()
        return child

    def _start(self) -> _Child:
        with self._lock:
            if self._closed:
                raise PlannerClosed
            self._child, self._spare = self._spare or self._new_child(), None
            return self._child

    def _new_child(self) -> _Child:
        self.started += 1
        try:
            return _Child(self._place, self._bounds.niceness)
        except OSError as problem:
            raise CantStart(f"the planner's process can't be started: {problem}") from problem

    def _end(self, grace_s: float = 0.0) -> int:
        """End the process, if it runs, and return its exit status."""
        with self._lock:
            child, self._child = self._child, None
        return child.reap(grace_s) if child is not None else 0

    def _replace(self, why: str, solve: AnyQuestion, grace_s: float = 0.0) -> int:
        """End the process and start the next one, which loads the planner while others wait."""
        ended = self._end(grace_s)
        gang = str(solve.request.gang)
        log.warning("the planner's process is replaced", why=why, gang=gang, status=ended)
        with contextlib.suppress(CantStart, PlannerClosed):  # the next decision reports the same error
            self._start()
        self._wants_spare = True
        return ended

    def _prepare_spare(self) -> None:
        """Start a second process if a decision takes long, because the decision may have to be ended. No
        second process is started while the first loads, because gangs wait for the first."""
        with self._lock, contextlib.suppress(CantStart):
            is_due = self._wants_spare and self._bounds.spare and self._spare is None
            if is_due and not self._closed:
                self._spare = self._new_child()

    def _out_of_memory(self, solve: AnyQuestion) -> Decision:
        self._replace("took too much memory", solve)
        return Unplaceable(solve.request.gang, (TookTooMuchMemory(self._bounds.memory_mib),))

    def _explain_death(self, solve: AnyQuestion, limit_s: float, end: Exception) -> Decision:
        """Return why there is no answer: too little memory, an end by the kernel, or a defect."""
        if self._closed:
            raise PlannerClosed from end
        child = self._child
        grown = 0 if child is None else child.resident_most - child.resident_before
        status = self._replace("died", solve, EXIT_S)
        if status == -signal.SIGALRM:
            return Unplaceable(solve.request.gang, (TookTooLong(limit_s),))
        if status < 0 and grown > self._bounds.memory_mib << 19:
            return Unplaceable(solve.request.gang, (TookTooMuchMemory(self._bounds.memory_mib),))
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise Defect(f"the planner's process died ({name})") from end


class PlannerInService:
    """Decides on the caller's thread. Only time is bounded, by the planner itself."""

    def __init__(self, bounds: Bounds, place: str = PLACE) -> None:
        self._bounds = bounds
        self._name = place
        self._closed = self._interrupted = False
        self.processor_s: float | None = None
        self.stretches: Mapping[str, Stretch] = {}

    def load(self) -> None:
        """Import the planner, which takes half a second."""
        pkgutil.resolve_name(self._name)

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        """Decide one gang."""
        self._interrupted = False
        bounds, began = self._bounds, time.thread_time()

        def slice_seconds_left() -> float:
            if self._closed or self._interrupted:
                return 0.0
            return min(seconds_left(), began + bounds.slice_s - time.thread_time())

        timings = Timings(time.monotonic)
        limits = Limits(
            bounds.deterministic_time, slice_seconds_left, solve.excluded, timings, bounds.most_roles
        )
        decision: Decision = pkgutil.resolve_name(self._name)(solve.snapshot, solve.request, limits)
        self.processor_s, self.stretches = time.thread_time() - began, timings.stretches
        return decision

    def interrupt(self) -> None:
        """Tell the planner that the time of its decision is over."""
        self._interrupted = True

    def close(self) -> None:
        """Tell the planner that the time of this decision, and of each later decision, is over."""
        self._closed = True


class PlannerWithFallback(PlannerProcess):
    """Decides in a process of the planner, or inside the service while no process can be started."""

    def __init__(self, bounds: Bounds, place: str = PLACE) -> None:
        super().__init__(bounds, place)
        self._inside = PlannerInService(bounds, place)
        self._inside_until = 0.0

    def load(self) -> None:
        """Start the process and wait until it is ready. If that fails, load the planner in the service."""
        try:
            super().load()
        except CantStart as problem:
            self._stay_inside(problem)
            self._inside.load()

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        """Decide one gang."""
        if time.monotonic() >= self._inside_until:
            try:
                return super().__call__(solve, seconds_left)
            except CantStart as problem:
                self._stay_inside(problem)
        decision = self._inside(solve, seconds_left)
        self.waited_s = 0.0
        self.processor_s, self.stretches = self._inside.processor_s, self._inside.stretches
        return decision

    def interrupt(self) -> None:
        """End the decision in progress, and replace the process."""
        self._inside.interrupt()
        super().interrupt()

    def close(self) -> None:
        """End the process, and a decision inside the service."""
        self._inside.close()
        super().close()

    def _stay_inside(self, problem: CantStart) -> None:
        self._inside_until = time.monotonic() + TRY_AGAIN_S
        log.warning("planning inside the service, without limits of memory and time", why=str(problem))
