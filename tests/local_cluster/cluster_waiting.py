"""Waiting for what a cluster does in its own time: with a deadline, and a word on what was awaited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], what: str, within_s: float = 30.0) -> T:
    """The first true answer, asked for every 20 ms until the deadline."""
    until = time.monotonic() + within_s
    pause = threading.Event()
    while not (answer := ask()):
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s:g} s: {what}")
        pause.wait(0.02)
    return answer
