"""The harness itself: whatever ends the process that started Muster's processes, they end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.arena import Arena
from local_cluster.patience import HANG_S
from local_cluster.processes import Identity
from local_cluster.stack import Stack

STARTER = """
import signal, sys
from pathlib import Path
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack

# A shell starts what runs in the background with SIGINT ignored, and Python keeps it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Started(Stack):
    def wait_ready(self):
        # it never will be: the suite's own scheduler leads
        print(self.service.pid, self.scheduler.pid, flush=True)
        signal.pause()

with Started(LocalCluster(Path(sys.argv[1])), Path(sys.argv[2])):
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(arena: Arena, tmp_path: Path, how: signal.Signals) -> None:
    if arena.cluster is None:
        pytest.skip("starts processes beside the cluster, which is somebody else's")
    command = [sys.executable, "-c", STARTER, str(arena.cluster.directory), str(tmp_path / "stack")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as starter:
        try:
            assert starter.stdout is not None
            started = [Identity.of(int(pid)) for pid in starter.stdout.readline().split()]
            starter.send_signal(how)
            starter.wait(HANG_S)
        finally:
            starter.kill()
    assert len(started) == 2
    for process in started:
        assert process is not None
        assert process.wait_end(HANG_S), f"pid {process.pid} is still there"


def test_the_processes_run_under_their_own_account(arena: Arena) -> None:
    """No more rights than scheduler-config/ gives: no process has the administrator's."""
    if arena.stack is None:
        pytest.skip("the processes of this cluster are somebody else's")
    stack: Stack = arena.stack
    for process in (stack.service, stack.scheduler):
        assert any(argument.endswith("muster-system.muster.kubeconfig") for argument in process.argv)
        assert not any(argument.endswith(str(stack.cluster.kubeconfig)) for argument in process.argv)
