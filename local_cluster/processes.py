"""Real processes: started with a log file, waited for, stopped for certain, and never mistaken.

A PID alone says little: after a crash it may belong to somebody else. What is kept is PID, start
time and boot id, and signals go through a pidfd that was checked against them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from local_cluster.patience import HANG_S, Guard
from local_cluster.places import LAUNCHER

POLL_EVERY_S = 0.05
STOP_GRACE_S = 15.0
LOG_TAIL_LINES = 25


class ProcessError(RuntimeError):
    """A process did not start, did not become ready, or did not stop."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot. `start_ticks` counts clock ticks since that boot (proc(5), field 22)."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this PID now; None when there is none, or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]), _boot_id())

    @classmethod
    def read(cls, pid_file: Path) -> Identity | None:
        """What a PID file says; None without one. A file that is no PID file is an error."""
        try:
            text = pid_file.read_text()
        except FileNotFoundError:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as problem:
            raise ProcessError(
                f"{pid_file} is no PID file of ours ({problem}): look at it and remove it"
            ) from problem

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return Identity.of(self.pid) == self

    @property
    def memory_mib(self) -> float:
        """Resident memory; 0 when the process is gone."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        kib = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
        return kib[0] / 1024 if kib else 0.0

    def wait_end(self, within_s: float, number: signal.Signals | None = None) -> bool:
        """Wait for the end of this very process, after sending it a signal; True when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive:  # checked after the handle was opened: it can't be recycled any more
                return True
            if number is not None:
                signal.pidfd_send_signal(handle, number)
            watcher = select.poll()
            watcher.register(handle, select.POLLIN)
            return bool(watcher.poll(within_s * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(handle)


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _spawner(owner_pid: int) -> ThreadPoolExecutor:
    """One thread that starts all processes and lives as long as this one (`owner_pid`: not a fork's).

    The kernel kills a child by PR_SET_PDEATHSIG when the *thread* that started it ends. A test that
    boots a cluster in a worker thread must not lose it when that thread is done.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"spawner-{owner_pid}")


class Process:
    """One program with its log. By default it dies with this process, however that ends.

    `env` is added to this process's environment. With a `pid_file`, a later Python process finds the
    running program again; with `die_with_parent=False` it runs on until it is stopped. A program that has
    to clean up gets another `death_signal` than SIGKILL when this process ends.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pid_file: Path | None = None,
        die_with_parent: bool = True,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log = log
        self._env = dict(env or {})
        self._cwd = cwd
        self._pid_file = pid_file
        self._die_with_parent = die_with_parent
        self._death_signal = death_signal
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: Identity | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def identity(self) -> Identity | None:
        """The running program, ours or the one that the PID file names; None when it does not run."""
        if self._child is None:
            self._identity = Identity.read(self._pid_file) if self._pid_file else None
        elif self._child.poll() is not None:
            return None
        return self._identity if self._identity and self._identity.alive else None

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return self.identity is not None

    @property
    def pid(self) -> int | None:
        """Return the PID, or None if it is not running."""
        identity = self.identity
        return identity.pid if identity else None

    @property
    def exit_status(self) -> int | None:
        """Of a child of ours that ended: its status, negative for a signal. Otherwise None."""
        return self._child.poll() if self._child else None

    def start(self) -> None:
        """Start the program; what it prints is appended to the log."""
        if self.alive:
            raise ProcessError(f"{self.name} runs already (pid {self.pid}): stop it first")
        if not os.access(self.argv[0], os.X_OK):
            raise ProcessError(f"{self.name}: {self.argv[0]} is no program that can be run")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self._pid_file:
            self._pid_file.unlink(missing_ok=True)
        parent = os.getpid() if self._die_with_parent else 0
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(parent), self._death_signal.name]
        launcher.append(str(self._pid_file or ""))
        with self.log.open("ab") as output:
            self._child = (
                _spawner(os.getpid())
                .submit(
                    subprocess.Popen,
                    launcher + self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self._cwd,
                    env={**os.environ, **self._env},
                    start_new_session=True,  # Ctrl-C goes to us alone: we stop it in order
                )
                .result()
            )
        self._identity = Identity.of(self._child.pid)

    def wait_ready(self, ready: Callable[[], object], quiet_s: float = HANG_S) -> None:
        """Poll until `ready()` is true. An OSError from it means "not yet"; the last one is reported."""
        guard = Guard(quiet_s)
        last = "it never answered"
        while True:
            try:
                if ready():
                    return
            except OSError as problem:
                last = f"last: {problem}"
            if not self.alive:
                raise ProcessError(
                    f"{self.name} ended{self._status_text()} before it was ready{self._tail_text()}"
                )
            if guard.over:
                raise ProcessError(
                    f"{self.name} was not ready within {guard.whole_s:.1f} s ({last}){self._tail_text()}"
                )
            time.sleep(POLL_EVERY_S)

    def wait(self, deadline_s: float) -> int | None:
        """Wait for the program to end by itself; its exit status, None for one that is no child of ours."""
        identity = self.identity
        if identity and not identity.wait_end(deadline_s):
            raise ProcessError(f"{self.name} still runs after {deadline_s:g} s{self._tail_text()}")
        self._reap()
        return self.exit_status

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, and SIGKILL when that does not help within `grace_s`. Nothing when it does not run."""
        identity = self.identity
        if identity and not identity.wait_end(grace_s, signal.SIGTERM):
            self.kill()
        self._forget()

    def terminate(self) -> None:
        """SIGTERM, without waiting for the end. Nothing when it does not run."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        identity = self.identity
        if identity and not identity.wait_end(HANG_S, signal.SIGKILL):
            raise ProcessError(f"{self.name} (pid {identity.pid}) is not gone {HANG_S:g} s after SIGKILL")
        self._forget()

    def pause(self) -> None:
        """SIGSTOP: it hangs with its connections open, until `resume` or its end. Nothing when it is gone."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed. Nothing when it is gone or was not paused."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        identity = self.identity
        if identity:
            identity.wait_end(0, number)

    def _forget(self) -> None:
        self._reap()
        self._child = self._identity = None
        if self._pid_file:
            self._pid_file.unlink(missing_ok=True)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait(timeout=HANG_S)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The end of the log, for error texts."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _status_text(self) -> str:
        return "" if self.exit_status is None else f" (exit status {self.exit_status})"

    def _tail_text(self) -> str:
        indented = "\n".join(f"  {line}" for line in self.log_tail().splitlines())
        return f"; the end of {self.log}:\n{indented}"


def processes_below(pid: int) -> Iterator[int]:
    """The process and all that it started, directly or not."""
    yield pid
    children: list[str] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text().split()
    for child in children:
        yield from processes_below(int(child))


def command_of(pid: int) -> str:
    """The name of a process's program; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
