"""What the targets of the Makefile run with."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from local_cluster.patience import HANG_S

REPOSITORY = Path(__file__).parents[1]


def test_python_may_keep_bytecode() -> None:
    """Tests start many processes: each would compile all that it imports."""
    printed = subprocess.run(
        ["make", "--silent", "--eval", "printed: ; @env", "printed"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    names = {line.partition("=")[0] for line in printed.stdout.splitlines()}
    assert "PATH" in names
    assert "PYTHONDONTWRITEBYTECODE" not in names


@pytest.mark.parametrize(
    ("again", "pytest_", "failed", "parts"),
    [
        ("true", "true", "", ["setup", "build", "browser", "check", "test-go", "pytest"]),
        ("true", "false", "failed: pytest", ["setup", "build", "browser", "check", "test-go", "pytest"]),
        ("false", "true", "failed: setup build", ["setup", "build"]),
    ],
)
def test_the_time_of_each_part_is_printed(again: str, pytest_: str, failed: str, parts: list[str]) -> None:
    """Nothing is tested where the programs can't be built."""
    done = subprocess.run(
        ["make", "--silent", "test", f"AGAIN={again}", f"PYTEST={pytest_}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    lines = done.stdout.splitlines()
    assert [re.fullmatch(r" +\d+:\d\d  (.+)", line)[1] for line in lines[-len(parts) :]] == parts  # type: ignore[index]
    assert "minutes and seconds of each part" in lines[-len(parts) - 1]
    assert done.stderr.startswith(failed)
    assert bool(done.returncode) == bool(failed)
