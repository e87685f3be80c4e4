"""The first build, in a process of its own, and a line that says how long it still takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from local_cluster.build import BuildError
from local_cluster.patience import stretched
from local_cluster.recipes import Recipe

BUILD = (sys.executable, "-m", "local_cluster.build")
LOOK_EVERY_S = 0.5
REPORT_EVERY_S = 20.0
"""Between two lines where output is no terminal."""
LEAST_LEFT = 0.1
"""Of its expected time, what a program that takes longer than expected is taken to need still."""
PACE = (0.2, 5.0)
"""How much faster or slower than expected the build is taken to be, at most."""
TAIL_LINES = 25
END_WITHIN_S = 10.0
"""How long a build may take to end its compiler. Then both are killed: it may ignore SIGINT, as a job in the
background of a shell does."""


class Building:
    """Builds what is missing while the context lasts. Leaving it early ends the build, its compiler too."""

    def __init__(self, missing: Sequence[Recipe], log: Path, command: Sequence[str] = ()) -> None:
        self._missing, self._log = list(missing), log
        self._command = command or [*BUILD, *(recipe.name for recipe in missing)]
        self._process: subprocess.Popen[bytes] | None = None
        self._done_s: list[float] = []
        self._began = time.monotonic()

    def __enter__(self) -> Building:
        if self._missing:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, start_new_session=True
                )
            self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(stretched(END_WITHIN_S))
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def line(self) -> str:
        """What is built now, and about how long all of it still takes."""
        while len(self._done_s) < len(self._missing) and self._missing[len(self._done_s)].is_built():
            self._done_s.append(self._elapsed_s())
        number = len(self._done_s)
        if number == len(self._missing):
            return "all programs are built"
        seconds_left = time_left_s(
            [recipe.cold_s for recipe in self._missing], self._done_s, self._elapsed_s()
        )
        phase = f"building {self._missing[number].name} ({number + 1} of {len(self._missing)})"
        return f"{phase}, about {minutes(seconds_left)} left; once only"

    def wait(self, console: Console, check: Callable[[], None]) -> None:
        """Return when all is built; `check` is called now and then.

        Raises:
            BuildError: a program could not be built.
        """
        if self._process is None:
            return
        reported = time.monotonic()
        with console.status(self.line()) as status:
            while self._process.poll() is None:
                check()
                time.sleep(LOOK_EVERY_S)
                status.update(self.line())
                late = not console.is_terminal and time.monotonic() - reported >= REPORT_EVERY_S
                if late and self._process.poll() is None:
                    reported = time.monotonic()
                    console.print(f"  {self.line()}")
        if self._process.returncode != 0:
            tail = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            raise BuildError("\n".join(tail).removeprefix("error: "))

    def _elapsed_s(self) -> float:
        """Since the last program was built."""
        return time.monotonic() - self._began - sum(self._done_s)


def time_left_s(expected: Sequence[float], done: Sequence[float], elapsed: float) -> float:
    """Return the seconds that a sequence of builds still takes.

    `expected` has the seconds of each on an idle machine, `done` those that the first ones took; the one
    after them has run for `elapsed`. The builds that are done tell how fast this machine is.
    """
    if len(done) >= len(expected):
        return 0.0
    slowest, fastest = PACE[1], PACE[0]
    pace = min(slowest, max(fastest, sum(done) / sum(expected[: len(done)]))) if done else 1.0
    current, *later = (seconds * pace for seconds in expected[len(done) :])
    return max(current - elapsed, current * LEAST_LEFT) + sum(later)


def minutes(seconds: float) -> str:
    """Return a time as people say it: "40 s", "3 min"."""
    return f"{round(seconds / 10) * 10:d} s" if seconds < 90 else f"{round(seconds / 60):d} min"
