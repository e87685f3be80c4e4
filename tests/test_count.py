"""The last line of a run with real nodes, which counts members, also if processes share the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S

REPOSITORY = Path(__file__).parents[1]
HOOKS = "from e2e.conftest import pytest_sessionfinish, pytest_testnodedown, pytest_unconfigure\n"
TESTS = """
from e2e.devices.fleet import COUNT

def test_right():
    COUNT.checked["agent"] = COUNT.of("agent") + 1

def test_wrong():
    test_right()
    COUNT.wrong.append("p0: other GPUs")
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_members_of_all_processes_are_counted(tmp_path: Path, processes: int) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_members.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes), "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    assert last == "members checked: 2 (agent 2), wrong: 1: p0: other GPUs", done.stdout + done.stderr
