"""A flood of gangs has a bounded number of traces; the environment may choose another sampler."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision

from muster.adapters.telemetry.attempts import Attempts
from muster.adapters.telemetry.sampling import BURST, RATE, AtMost
from muster.adapters.telemetry.tracing import Tracing
from muster.gangs.messages.instructions import Moved


def test_traces_come_back_with_time() -> None:
    now = [0.0]
    sampler = AtMost(lambda: now[0])

    def taken(asked: int) -> int:
        results = [sampler.should_sample(None, at, "gang") for at in range(asked)]
        return sum(result.decision is Decision.RECORD_AND_SAMPLE for result in results)

    assert taken(int(BURST) + 50) == BURST
    now[0] += 2
    assert taken(1000) == 2 * RATE
    now[0] += 10_000
    assert taken(int(BURST) + 50) == BURST


def moved(gang: str, phase: str) -> Moved:
    return Moved(1.0, gang, gang, "ns", phase, "")


@pytest.mark.parametrize(("sampler", "traced"), [("", BURST), ("always_on", BURST + 50)])
def test_a_gang_without_a_trace_has_an_id_and_no_traceparent(
    sampler: str, traced: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampler:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    attempts = Attempts(Tracing(InMemorySpanExporter()))
    gangs = [f"ns/g-{at}" for at in range(int(BURST) + 50)]
    for gang in gangs:
        attempts.moved(moved(gang, "collecting"))
    assert all(attempts.trace_id(gang) for gang in gangs)
    with_trace = [gang for gang in gangs if attempts.traceparent(gang)]
    assert with_trace == [gang for gang in gangs if attempts.exported(gang)]
    assert traced <= len(with_trace) <= traced + 5 * RATE  # some come back while the test runs
