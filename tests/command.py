"""Runs a command of this repository in the test's own process, and keeps what it prints."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

PLAIN = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, and what it printed. `output` is both streams, as a terminal shows them."""

    exit_code: int
    output: str
    stdout: str
    stderr: str


class _Stream(io.StringIO):
    """Writes to the terminal too."""

    def __init__(self, terminal: io.StringIO) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str) -> int:
        self._terminal.write(text)
        return super().write(text)


def invoke(
    main: Callable[[Sequence[str]], object],
    *arguments: str,
    stdin: str | None = None,
    env: Mapping[str, str] = PLAIN,
) -> Result:
    """Run a program's `main`. A program may also return its exit status."""
    terminal = io.StringIO()
    out, err = _Stream(terminal), _Stream(terminal)
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((stdin or "").encode())))
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    assert code is None or isinstance(code, int), code
    return Result(code or 0, terminal.getvalue(), out.getvalue(), err.getvalue())
