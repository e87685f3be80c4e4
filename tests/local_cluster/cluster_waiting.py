"""Waiting for what a cluster does in its own time, with a word on what was awaited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from local_cluster.patience import Guard

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], event: str) -> T:
    """The first true answer, asked for every 20 ms."""
    guard = Guard()
    pause = threading.Event()
    while not (answer := ask()):
        if guard.over:
            pytest.fail(f"not within {guard.whole_s:.0f} s: {event}")
        pause.wait(0.02)
    return answer
