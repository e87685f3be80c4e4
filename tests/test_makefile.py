"""What the targets of the Makefile run with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
