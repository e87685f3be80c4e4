"""Ctrl-C and SIGTERM: raised, held while processes are stopped, and never forgotten."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from local_cluster.demo.interrupts import Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(interrupts: Interrupts, number: signal.Signals) -> None:
    interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_second_one_does_not_stop_the_stopping(interrupts: Interrupts) -> None:
    interrupts.hold()
    signal.raise_signal(signal.SIGINT)
    interrupts.check()


def test_one_that_a_finalizer_swallowed_is_raised_at_the_next_check(interrupts: Interrupts) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()
