"""A flood of gangs has a bounded number of traces; the environment may choose another sampler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision

from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.tracing import BURST, RATE, RESERVE, RateLimitedSampler, Tracing
from muster.gangs.messages.instructions import Moved


class Clock:
    """A sampler at a time of the test's choice."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sampler = RateLimitedSampler(lambda: self.now)

    def taken(self, attempts: int, namespace: Callable[[int], str]) -> int:
        """Ask so often, each time for the namespace of this number; the number of traces."""
        sampled = 0
        for at in range(attempts):
            attributes = {"k8s.namespace.name": namespace(at)}
            result = self.sampler.should_sample(None, at, "gang", attributes=attributes)
            sampled += result.decision is Decision.RECORD_AND_SAMPLE
        return sampled


def test_traces_come_back_with_time() -> None:
    clock = Clock()
    assert clock.taken(1000, str) == BURST
    clock.now += 2
    assert clock.taken(1000, str) == 2 * RATE
    clock.now += 10_000
    assert clock.taken(1000, str) == BURST


def test_a_flood_in_one_namespace_leaves_traces_to_others() -> None:
    """Once the room is scarce, it has a trace a second, and so has each other namespace."""
    clock = Clock()
    assert clock.taken(1000, lambda _: "flood") == BURST - RESERVE
    assert clock.taken(10, lambda at: f"other-{at}") == 10
    assert clock.taken(10, lambda at: f"other-{at}") == 0
    for _ in range(100):
        clock.now += 1
        assert clock.taken(1000, lambda _: "flood") >= 1
        assert clock.taken(10, lambda at: f"other-{at}") == 10
    assert len(clock.sampler._latest) == 11


def test_what_is_kept_of_namespaces_is_bounded() -> None:
    clock = Clock()
    for at in range(2000):
        clock.now += 0.05
        assert clock.taken(1, lambda _, at=at: f"ns-{at}") == 1  # type: ignore[misc]
    assert len(clock.sampler._latest) <= BURST + RATE + 1


def moved(gang: str, phase: str) -> Moved:
    return Moved(1.0, gang, gang, "ns", phase, "")


@pytest.mark.parametrize(("sampler", "traced"), [("", BURST - RESERVE), ("always_on", BURST + 50)])
def test_a_gang_without_a_trace_has_an_id_and_no_traceparent(
    sampler: str, traced: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampler:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    attempts = Attempts(Tracing(InMemorySpanExporter()))
    gangs = [f"ns/g-{at}" for at in range(int(BURST) + 50)]
    for gang in gangs:
        attempts.note_move(moved(gang, "collecting"))
    assert all(attempts.trace_id(gang) for gang in gangs)
    with_trace = [gang for gang in gangs if attempts.traceparent(gang)]
    assert with_trace == [gang for gang in gangs if attempts.exported_trace_id(gang)]
    assert traced <= len(with_trace) <= traced + 5 * RATE  # some come back while the test runs
