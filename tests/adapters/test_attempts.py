"""The trace of a gang's attempt: its spans, its links, and that they cost the loop nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from local_cluster.patience import HANG_S
from local_cluster.traces import MAX_SPANS
from muster.adapters.telemetry.attempts import MAX_TRACES, Attempts
from muster.adapters.telemetry.tracing import ENDPOINTS, QuietExporter, Tracing, ids_of_call, span_context
from muster.domain.causes.out_of_place import DomainTooSmall
from muster.domain.decision import Decision, Objective, Placed, Step, Unplaceable
from muster.domain.request import GangId, Request
from muster.domain.snapshot import Snapshot
from muster.gangs.messages.instructions import Lane, Moved, Solve
from muster.placement.limits import Stretch

GANG = GangId("default", "ack", "g")
PLACED = Placed(
    GANG,
    (),
    Objective(None, (), (("rack", 1),), None, (), 50.0, 100.0, 0, 3),
    "node",
    "node a",
    True,
    steps=(Step("nodes", "single-node"),),
)
REFUSED = Unplaceable(GANG, (DomainTooSmall("node", "a", 1, 2),))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Bench:
    """Attempts and what they export. `at` is a time of the inputs' clock, in milliseconds from the start."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(self.exporter)
        self.attempts = Attempts(self.tracing)
        self.start = time.monotonic() - 100.0

    def at(self, ms: float) -> float:
        return self.start + ms / 1000

    def move(self, ms: float, phase: str, why: str = "", link: str = "", gang: str = "g") -> None:
        self.attempts.note_move(Moved(self.at(ms), gang, gang, "default", phase, why, link))

    def solve(self, ms: float, decision: Decision | None = PLACED, passed_on: bool = False) -> None:
        solve = Solve("g", 7, Request(GANG, (), 1), Snapshot({}), lane=Lane.FOREGROUND)
        stretches = {
            "scan": Stretch(self.at(ms), self.at(ms + 1), 0.001),
            "single-node": Stretch(self.at(ms + 1), self.at(ms + 4), 0.003),
            "sorted": Stretch(self.at(ms + 1), self.at(ms + 2), 0.001),
            "build": Stretch(self.at(ms + 1), self.at(ms + 2), 0.001),
            "verify": Stretch(self.at(ms + 4), self.at(ms + 5), 0.001),
        }
        self.attempts.note_solution(solve, self.at(ms), decision, stretches, passed_on)

    def spans(self) -> list[Any]:
        self.tracing.close()
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def bench() -> Iterator[Bench]:
    new_bench = Bench()
    yield new_bench
    new_bench.tracing.close()


def test_a_gang_that_is_bound_has_one_trace_with_all_parts(bench: Bench) -> None:
    bench.move(0, "collecting", "a member is missing")
    bench.move(40, "planning", "complete", link=PARENT)
    bench.solve(45)
    bench.move(52, "planned")
    bench.attempts.note_answer("g")
    bench.move(60, "reserving")
    bench.move(70, "permitted")
    bench.move(100, "running", "all bound")
    spans = {span.name: span for span in bench.spans()}
    assert list(spans) == [
        *(
            "collecting",
            "queued",
            "solve",
            "presolve",
            "verify",
            "single-node",
            "verdict",
            "seen bound",
            "gang",
        )
    ]
    root, solve = spans["gang"], spans["solve"]
    assert (root.end_time - root.start_time) / 1e6 == pytest.approx(100, abs=0.01)
    assert (spans["collecting"].end_time - spans["collecting"].start_time) / 1e6 == pytest.approx(
        40, abs=0.01
    )
    assert {span.context.trace_id for span in spans.values()} == {root.context.trace_id}
    parents = {name: span.parent.span_id for name, span in spans.items() if span.parent is not None}
    stages = dict.fromkeys(("presolve", "single-node", "verify"), solve.context.span_id)
    assert parents == {**dict.fromkeys(spans.keys() - {"gang"}, root.context.span_id), **stages}
    assert root.attributes["k8s.namespace.name"] == "default"
    assert (root.attributes["muster.outcome"], root.attributes["muster.generation"]) == ("bound", 7)
    assert solve.attributes["muster.objective.weakest_link_gb_per_s"] == 50.0
    assert list(solve.attributes["muster.methods"]) == ["nodes: single-node"]
    assert [f"{link.context.trace_id:032x}" for link in root.links] == [PARENT[3:35]]
    assert len(bench.attempts) == 0


def test_the_verdict_and_the_annotation_name_the_trace(bench: Bench) -> None:
    bench.move(0, "planning")
    context = span_context(bench.attempts.traceparent("g"))
    assert context.is_valid
    assert context.trace_flags.sampled
    assert bench.attempts.trace_id("g") == f"{context.trace_id:032x}"
    assert bench.attempts.trace_id("another") == bench.attempts.traceparent("another") == ""


@pytest.mark.parametrize(
    ("phase", "outcome", "ok"),
    [("unplaceable", "refused", True), ("withdrawn", "withdrawn", False), ("invalid", "ill-formed", True)],
)
def test_the_next_attempt_is_a_trace_with_a_link_to_the_last(
    bench: Bench, phase: str, outcome: str, ok: bool
) -> None:
    bench.move(0, "planning")
    bench.solve(5, REFUSED)
    bench.move(20, phase, "why")
    bench.move(900, "planning")
    bench.solve(905)
    bench.move(920, "running")
    first, second = (span for span in bench.spans() if span.name == "gang")
    assert (first.attributes["muster.outcome"], first.status.is_ok or first.status.is_unset) == (outcome, ok)
    assert first.context.trace_id != second.context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert len(bench.attempts) == 0


def test_a_plan_that_came_too_late_ends_its_attempt(bench: Bench) -> None:
    bench.move(0, "planning")
    bench.solve(5)
    bench.move(20, "planning", "the cluster changed under the planner's answer")
    bench.solve(25)
    bench.move(40, "running")
    first, second = (span for span in bench.spans() if span.name == "gang")
    assert first.attributes["muster.outcome"] == "outdated"
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_a_decision_that_was_not_the_last_is_an_event_or_gone(bench: Bench) -> None:
    bench.move(0, "planning")
    bench.solve(1, passed_on=True)
    bench.solve(10, REFUSED)  # for all members; then it is asked about fewer
    bench.solve(30)
    bench.move(40, "planned")
    bench.move(50, "running")
    spans = bench.spans()
    assert [span.name for span in spans].count("solve") == 1
    (queued,) = (span for span in spans if span.name == "queued")
    assert (queued.end_time - queued.start_time) / 1e6 == pytest.approx(30, abs=0.01)
    assert [event.name for event in queued.events] == ["passed on to the background planner"]


@pytest.mark.parametrize(("turns", "queued_ms"), [(1, None), (2, 10.0), (3, 20.0), (100, 990.0)])
def test_a_gang_that_goes_to_and_fro_has_few_spans_and_its_solve(
    bench: Bench, turns: int, queued_ms: float | None
) -> None:
    """Each turn collects for 30 ms and is queued for 10 ms; they are one span."""
    for turn in range(turns):
        bench.move(40 * turn, "collecting")
        bench.move(40 * turn + 30, "planning")
        bench.attempts.note_question("g", bench.at(40 * turn + 31))
    end = 40 * turns
    bench.solve(end)
    bench.move(end + 6, "running")
    spans = bench.spans()
    parts = [span for span in spans if span.name in ("collecting", "queued", "solve")]
    assert [span.name for span in parts] == ["collecting", "queued", "solve"]
    lasted = [round((span.end_time - span.start_time) / 1e6) for span in parts[:2]]
    assert lasted == [end - 10, 10]
    assert parts[0].attributes.get("muster.queued_ms") == queued_ms
    assert {"presolve", "single-node", "verify"} <= {span.name for span in spans}
    assert len(parts[0].events) <= 16


def test_a_gang_that_collects_again_after_a_withdrawal_has_its_solve(bench: Bench) -> None:
    bench.move(0, "withdrawn")
    for at, phase in enumerate(("planning", "collecting", "planning", "collecting", "planning")):
        bench.move(10 + 10 * at, phase)
    bench.solve(60)
    bench.move(70, "running")
    waited = [s for s in bench.spans() if s.name in ("paused", "collecting", "queued", "solve")]
    assert [span.name for span in waited] == ["collecting", "queued", "solve"]
    assert dict(waited[0].attributes) == {"muster.paused_ms": 10.0, "muster.queued_ms": 20.0}


SHIM = ("scheduling", *(f"muster.v1.GangService/{call}" for call in ("Filter", "Score", "Reserve", "Permit")))
"""The spans of the shim for a placed gang, besides one for each Binding."""


@pytest.mark.parametrize("first", ["collecting", "withdrawn", "planning"])
def test_a_gang_has_at_most_fifteen_spans_whatever_happens_to_it(bench: Bench, first: str) -> None:
    bench.move(0, first)
    for at, phase in enumerate(("planning", "collecting", "planning", "collecting", "planning"), 1):
        bench.move(10 * at, phase)
    names = ("scan", "bound", "single-node", "domain-tables", "verify", "explain")
    stretches = {name: Stretch(bench.at(60), bench.at(61 + at), at) for at, name in enumerate(names)}
    solve = Solve("g", 7, Request(GANG, (), 1), Snapshot({}))
    bench.attempts.note_solution(solve, bench.at(60), PLACED, stretches, False)
    bench.move(70, "planned")
    bench.attempts.note_answer("g")
    bench.move(80, "permitted")
    bench.move(90, "running")
    assert MAX_SPANS == 15
    assert len(bench.spans()) + len(SHIM) <= MAX_SPANS


def test_a_gang_that_is_asked_about_again_and_again_has_few_events(bench: Bench) -> None:
    bench.move(0, "planning")
    for _ in range(1000):
        bench.attempts.note_question("g", time.monotonic())
    bench.solve(300)
    bench.move(310, "running")
    (queued,) = (span for span in bench.spans() if span.name == "queued")
    assert 0 < len(queued.events) < 20


def test_gangs_that_run_already_and_gangs_that_end_leave_nothing(bench: Bench) -> None:
    bench.move(0, "running")
    bench.move(1, "planning", gang="b")
    bench.solve(2)
    bench.move(3, "unplaceable", gang="b")
    bench.move(4, "finished", gang="b")
    assert len(bench.attempts) == 0
    assert [span.name for span in bench.spans() if span.name == "gang"] == ["gang"]


def test_the_last_traces_are_known_until_the_gang_is_gone(bench: Bench) -> None:
    ids = []
    for at in range(2 * MAX_TRACES):
        bench.move(10 * at, "planning")
        ids.append(bench.attempts.trace_id("g"))
        bench.move(10 * at + 5, "withdrawn", "why")
        bench.move(10 * at + 6, "planning")  # what begins with the pause is one attempt
    traces = bench.attempts.traces("g")
    assert len(traces) == MAX_TRACES
    assert {trace.exported for trace in traces} == {True}
    assert (traces[0].outcome, {trace.outcome for trace in traces[1:]}) == ("", {"withdrawn"})
    assert [trace.began for trace in traces] == sorted((trace.began for trace in traces), reverse=True)
    assert [trace.id for trace in traces[1:]] == ids[:-MAX_TRACES:-1]
    bench.move(1000, "running")
    assert (bench.attempts.trace_id("g"), bench.attempts.traces("g")[0].outcome) == ("", "bound")
    bench.move(1020, "finished")
    assert bench.attempts.traces("g") == []


def test_what_the_sampler_leaves_out_has_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    bench = Bench()
    bench.move(0, "planning")
    bench.solve(5)
    assert not span_context(bench.attempts.traceparent("g")).trace_flags.sampled
    bench.move(10, "running")
    assert bench.spans() == []
    assert [trace.exported for trace in bench.attempts.traces("g")] == [False]


@pytest.mark.parametrize("off", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_without_a_collector_there_is_an_id_and_no_trace(
    off: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    for name, value in off.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:1")
    attempts = Attempts(Tracing())
    attempts.note_move(Moved(0.0, "g", "g", "default", "planning", ""))
    assert len(attempts.trace_id("g")) == 32
    assert attempts.traceparent("g") == ""
    attempts.note_move(Moved(0.0, "g", "g", "default", "running", ""))
    assert len(attempts) == 0


class Hangs(SpanExporter):
    """A collector that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.called, self.goes_on = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.called.set()
        self.goes_on.wait()
        return SpanExportResult.SUCCESS


def test_a_collector_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.adapters.telemetry.tracing.CLOSE_DEADLINE_S", 0.01)
    hangs = Hangs()
    tracing = Tracing(hangs)
    attempts = Attempts(tracing)
    for number in range(1000):  # some thousand spans: more than the queue holds
        attempts.note_move(Moved(0.0, f"g{number}", "g", "default", "collecting", ""))
        attempts.note_move(Moved(1.0, f"g{number}", "g", "default", "planning", ""))
        attempts.note_move(Moved(2.0, f"g{number}", "g", "default", "running", ""))
    assert hangs.called.wait(HANG_S)
    tracing.close()
    assert not hangs.goes_on.is_set()
    hangs.goes_on.set()


@contextlib.contextmanager
def away() -> Iterator[int]:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    yield port


@contextlib.contextmanager
def slow() -> Iterator[int]:
    """Connections wait in the backlog and get no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """A collector that answers each batch with an error."""

    def refuse(_: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no token")

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(refuse)
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"Export": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("collector", [away, slow, refusing])
def test_a_collector_that_takes_nothing_is_reported_once(
    collector: Callable[[], AbstractContextManager[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # s
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")  # or it may say that gangs come too fast
    second_batch_lost = threading.Event()

    class Noted(QuietExporter):
        """Tells when a second batch was lost."""

        batches = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            Noted.batches += 1
            if Noted.batches == 2:
                second_batch_lost.set()
            return result

    monkeypatch.setattr("muster.adapters.telemetry.tracing.QuietExporter", Noted)
    with collector() as port, capture_logs() as lines:
        monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{port}")
        tracing = Tracing()
        attempts = Attempts(tracing)
        number = 0
        while not second_batch_lost.wait(0.01):
            number += 1
            attempts.note_move(Moved(0.0, f"g{number}", "g", "default", "planning", ""))
            attempts.note_move(Moved(1.0, f"g{number}", "g", "default", "running", ""))
        tracing.close()
    assert [line["event"] for line in lines] == ["spans are lost"]
    assert lines[0]["endpoint"] == f"http://127.0.0.1:{port}"


class Refuses(InMemorySpanExporter):
    result = SpanExportResult.FAILURE

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.result


def test_lost_spans_are_reported_once_and_once_when_that_is_over() -> None:
    refuses = Refuses()
    exporter = QuietExporter(refuses)
    with capture_logs() as lines:
        for _ in range(3):
            exporter.export(())
        refuses.result = SpanExportResult.SUCCESS
        for _ in range(3):
            exporter.export(())
    assert [line["event"] for line in lines] == ["spans are lost", "spans are taken again"]


@pytest.mark.parametrize(
    ("metadata", "ids"),
    [
        ((("traceparent", PARENT),), {"trace_id": PARENT[3:35]}),
        ((("traceparent", "00-<script>-1-01"),), {}),
        ((("other", "x"),), {}),
        (None, {}),
    ],
)
def test_the_trace_of_a_call(metadata: Any, ids: dict[str, str]) -> None:
    assert ids_of_call(metadata) == ids
