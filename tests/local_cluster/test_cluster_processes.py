"""Processes: stopped for certain, never mistaken for another, and gone with their parent."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S
from local_cluster.ports import free_port, is_free
from local_cluster.processes import Identity, Process, ProcessError
from tests.local_cluster.cluster_waiting import eventually
from tests.local_cluster.killed_parent import killed_parent

SLEEP = ["/bin/sleep", "600"]
STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.2; done"]


def test_start_and_stop(tmp_path: Path) -> None:
    with Process("sleep", SLEEP, log=tmp_path / "log") as process:
        assert process.alive
    assert not process.alive
    process.stop()  # once more does no harm


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process("stubborn", STUBBORN, log=log)
    process.start()
    process.wait_ready(lambda: "ready" in log.read_text())
    process.stop(grace_s=0.3)
    assert not process.alive


def test_a_paused_process_hangs_until_it_is_resumed_or_killed(tmp_path: Path) -> None:
    with Process("sleep", SLEEP, log=tmp_path / "log") as process:
        process.pause()
        eventually(lambda: _state(process) == "T", "it is stopped")
        process.resume()
        eventually(lambda: _state(process) == "S", "it goes on")
        process.pause()
        process.kill()
        assert not process.alive
        process.resume()  # of one that is gone: nothing


def _state(process: Process) -> str:
    """As proc(5) has it: S is asleep, T stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_who_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process("failing", ["/bin/sh", "-c", "echo the port is taken; exit 7"], log=tmp_path / "log")
    process.start()
    with pytest.raises(ProcessError, match=r"failing ended \(exit status 7\)(.|\n)*the port is taken"):
        process.wait_ready(lambda: False)


def test_who_is_never_ready_is_reported_with_the_last_answer(tmp_path: Path) -> None:
    def refuse() -> bool:
        raise ConnectionRefusedError("nobody listens")

    with (
        Process("sleep", SLEEP, log=tmp_path / "log") as process,
        pytest.raises(ProcessError, match=r"not ready within [\d.]+ s \(last: nobody listens\)"),
    ):
        process.wait_ready(refuse, 0.1)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="/no/such is no program"):
        Process("x", ["/no/such"], log=tmp_path / "log").start()


def test_a_detached_process_is_found_again_by_its_pid_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid.json"
    first = Process("sleep", SLEEP, log=tmp_path / "log", pid_file=pid_file, die_with_parent=False)
    first.start()
    first.wait_ready(pid_file.is_file)
    second = Process("sleep", [], log=tmp_path / "log", pid_file=pid_file)
    assert second.pid == first.pid
    second.stop()
    assert not first.alive
    assert not pid_file.exists()


@pytest.mark.parametrize("wrong", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_recycled_pid_is_nobody_of_ours(tmp_path: Path, wrong: dict[str, object]) -> None:
    """The PID is alive, the rest does not match: as after a crash, when somebody else has got it."""
    pid_file = tmp_path / "pid.json"
    with Process("stranger", SLEEP, log=tmp_path / "log") as stranger:
        identity = stranger.identity
        assert identity is not None
        recycled = {
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "boot_id": identity.boot_id,
        } | wrong
        pid_file.write_text(json.dumps(recycled))
        ours = Process("ours", [], log=tmp_path / "log", pid_file=pid_file)
        assert not ours.alive
        ours.stop()
        ours.kill()
        assert Identity(**recycled).wait_end(0.1, signal.SIGKILL)  # type: ignore[arg-type]
        assert stranger.alive


def test_a_damaged_pid_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pid.json").write_text("12")
    with pytest.raises(ProcessError, match=r"pid\.json is no PID file of ours"):
        _ = Process("x", [], log=tmp_path / "log", pid_file=tmp_path / "pid.json").alive


def test_a_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The kernel's parent-death signal is sent when a *thread* ends; starting goes through one that stays."""
    process = Process("sleep", SLEEP, log=tmp_path / "log")
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    identity = process.identity
    assert identity is not None
    assert not identity.wait_end(0.3)
    process.stop()


PARENT = """
import sys
from pathlib import Path
from local_cluster.processes import Process
folder = Path(sys.argv[1])
child = Process("sleep", ["/bin/sleep", "600"], log=folder / "log", pid_file=folder / "pid.json",
                die_with_parent=sys.argv[2] == "dies")
child.start()
child.wait_ready((folder / "pid.json").is_file)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("fate", ["dies", "stays"])
def test_kill_9_of_the_parent(tmp_path: Path, fate: str) -> None:
    with killed_parent(PARENT, tmp_path, fate):
        child = Identity.read(tmp_path / "pid.json")
        assert child is not None
    if fate == "dies":
        assert child.wait_end(HANG_S)
    else:
        assert not child.wait_end(0.3)
        assert child.wait_end(HANG_S, signal.SIGKILL)


TIDY_PARENT = """
import signal, sys
from pathlib import Path
from local_cluster.processes import Process
folder = Path(sys.argv[1])
tidy = "trap 'echo tidy; exit' TERM; echo ready; while :; do sleep 0.1; done"
child = Process("tidy", ["/bin/sh", "-c", tidy], log=folder / "log", pid_file=folder / "pid.json",
                death_signal=signal.SIGTERM)
child.start()
child.wait_ready(lambda: "ready" in (folder / "log").read_text())
print("up", flush=True)
sys.stdin.read()
"""


def test_a_program_with_a_death_signal_can_clean_up_after_kill_9_of_the_parent(tmp_path: Path) -> None:
    with killed_parent(TIDY_PARENT, tmp_path):
        child = Identity.read(tmp_path / "pid.json")
        assert child is not None
    assert child.wait_end(HANG_S)
    assert (tmp_path / "log").read_text() == "ready\ntidy\n"


def test_free_ports_are_free_and_distinct() -> None:
    ports: frozenset[int] = frozenset()
    for _ in range(20):
        ports |= {free_port(besides=ports)}
    assert len(ports) == 20
    assert all(is_free(port) for port in ports)


def test_identity_of_this_process() -> None:
    me = Identity.of(os.getpid())
    assert me is not None
    assert me.alive
    assert me.memory_mib > 1
