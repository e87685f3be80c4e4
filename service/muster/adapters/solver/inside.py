"""Deciding in the service itself, where no process can be started: bounded in time alone, by the planner."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from muster.adapters.solver.process import PLACE, Bounds, CantStart, PlannerProcess
from muster.domain.decision import Decision
from muster.gangs.messages.instructions import Solve
from muster.placement.limits import Limits, Stretch, Timings

TRY_AGAIN_S = 60.0
"""How long it is decided inside before a process is tried again."""

log = structlog.get_logger(__name__)


class Inside:
    """Decides on the thread that calls it."""

    waited_s = 0.0
    processor_s: float | None = None

    def __init__(self, bounds: Bounds, place: str = PLACE) -> None:
        self._bounds = bounds
        self._name = place
        self._closed = self._interrupted = False
        self.stretches: Mapping[str, Stretch] = {}

    def load(self) -> None:
        """Half a second of imports."""
        self._function()

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        """Decide one gang."""
        self._interrupted = False

        bounds = self._bounds
        began = time.thread_time()

        def left() -> float:
            if self._closed or self._interrupted:
                return 0.0
            return min(seconds_left(), began + bounds.slice_s - time.thread_time())

        timings = Timings(time.monotonic)
        limits = Limits(bounds.deterministic_time, left, solve.excluded, timings, bounds.most_roles)
        decision: Decision = self._function()(solve.snapshot, solve.request, limits)
        self.processor_s, self.stretches = time.thread_time() - began, timings.stretches
        return decision

    def interrupt(self) -> None:
        """Tell the decision in progress that its time is up."""
        self._interrupted = True

    def close(self) -> None:
        """Tell the decision in progress, and each later one, that its time is up."""
        self._closed = True

    def _function(self) -> Any:
        module, name = self._name.split(":")
        return getattr(importlib.import_module(module), name)


class Outside:
    """Decides in a process; inside as long as none can be started."""

    def __init__(self, bounds: Bounds, place: str = PLACE) -> None:
        self.process = PlannerProcess(bounds, place)
        self._inside = Inside(bounds, place)
        self._inside_until = 0.0

    @property
    def waited_s(self) -> float:
        """How long the last decision waited for a process, in seconds."""
        return self.process.waited_s

    @property
    def processor_s(self) -> float | None:
        """Processor time of the last decision, in seconds; None if its process did not say."""
        return self.process.processor_s

    @property
    def stretches(self) -> Mapping[str, Stretch]:
        """What the last decision's time was spent on; {} if its process did not say."""
        return self.process.stretches

    def load(self) -> None:
        """Start the process and wait until it is ready; load the planner here where that fails."""
        try:
            self.process.load()
        except CantStart as problem:
            self._stay_inside(problem)
            self._inside.load()

    def __call__(self, solve: Solve, seconds_left: Callable[[], float]) -> Decision:
        """Decide one gang."""
        if time.monotonic() >= self._inside_until:
            try:
                return self.process(solve, seconds_left)
            except CantStart as problem:
                self._stay_inside(problem)
        return self._inside(solve, seconds_left)

    def interrupt(self) -> None:
        """End the decision in progress; the process is replaced."""
        self._inside.interrupt()
        self.process.interrupt()

    def close(self) -> None:
        """End the process, and tell a decision inside that its time is up."""
        self._inside.close()
        self.process.close()

    def _stay_inside(self, problem: CantStart) -> None:
        self._inside_until = time.monotonic() + TRY_AGAIN_S
        log.warning("planning inside the service, without limits of memory and time", why=str(problem))
