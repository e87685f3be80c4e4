"""A process that starts others and is then killed with SIGKILL, which no process can catch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def killed_parent(program: str, *arguments: str | Path) -> Iterator[None]:
    """Run the Python program until it prints "up", then the block, then kill the program.

    The program gets the arguments as `sys.argv[1:]` and must wait for the end of its standard input.
    """
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        yield
        parent.kill()
        parent.wait()
