"""Set up OpenTelemetry: the export of spans, and the trace context of calls.

Spans are exported only if OTEL_EXPORTER_OTLP_ENDPOINT (or its …_TRACES_ variant) is set, and neither
OTEL_SDK_DISABLED nor OTEL_TRACES_EXPORTER=none forbids it. The exporter is imported only then. The SDK reads
the other OTEL_* variables itself. Without OTEL_TRACES_SAMPLER the number of traces a second is bounded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from muster.domain.rate import Allowance

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SAMPLER = "OTEL_TRACES_SAMPLER"
SCOPE = InstrumentationScope("muster", "")
CLOSE_DEADLINE_S = 3.0
"""Seconds for which the end of the service waits for a collector to take the last spans."""

RATE, BURST = 20.0, 200.0
"""Traces a second, and traces in one burst. A trace costs 0.3 ms of processor time, so 20 a second cost 0.6 %
of a core."""
RESERVE, PAUSE_S = 50.0, 1.0
"""Traces of `BURST` that are reserved: a namespace gets one of these only if it had no trace for `PAUSE_S`.
So a flood of gangs in one namespace leaves traces to other namespaces."""
NAMESPACE = "k8s.namespace.name"
"""The attribute of root spans with the namespace."""

log = structlog.get_logger(__name__)


class Tracing:
    """Makes spans. `exporter` is for tests; by default the environment decides.

    If `exports` is false, no collector gets the spans, so no span needs to be made.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._ids = RandomIdGenerator()
        exporter = exporter or _from_environment()
        self.exports = exporter is not None
        name = os.environ.get("OTEL_SERVICE_NAME", "muster")
        sampler = None if SAMPLER in os.environ else RateLimitedSampler()
        self._provider = TracerProvider(
            sampler, Resource.create({"service.name": name}), shutdown_on_exit=False
        )
        self._processor = BatchSpanProcessor(QuietExporter(exporter)) if exporter is not None else None
        if self._processor is not None:
            self._provider.add_span_processor(self._processor)
        self.tracer: trace.Tracer = self._provider.get_tracer(SCOPE.name)

    def record_span(
        self,
        name: str,
        parent: trace.SpanContext,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Any],
        events: Sequence[tuple[str, int]] = (),
    ) -> trace.SpanContext:
        """Pass on a span that has ended already, below a sampled span. Return its context.

        A span of the tracer could be changed by several threads until its end, which takes twice the time.
        """
        context = trace.SpanContext(
            parent.trace_id, self._ids.generate_span_id(), is_remote=False, trace_flags=parent.trace_flags
        )
        if self._processor is not None:
            began, ended = times_ns
            span = ReadableSpan(
                name,
                context,
                parent,
                self._provider.resource,
                attributes,
                [Event(event, timestamp=time_ns) for event, time_ns in events],
                start_time=began,
                end_time=ended,
                instrumentation_scope=SCOPE,
            )
            self._processor.on_end(span)
        return context

    def new_id(self) -> str:
        """Return an id for a trace that is not exported, so that logs and annotations have a common id."""
        return trace.format_trace_id(self._ids.generate_trace_id())

    def flush(self) -> None:
        """Send the waiting spans, in the caller's thread."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send the remaining spans. The collector may be away, so this takes at most three seconds."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(CLOSE_DEADLINE_S)


class RateLimitedSampler(Sampler):
    """Samples root spans: at most `BURST` at once, and `RATE` a second over time.

    Namespaces share the last `RESERVE` of these. The first attempt without a trace is logged. Only the event
    loop may call the sampler.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowance, self._has_warned = Allowance(BURST, RATE, clock), False
        self._latest: dict[object, float] = {}
        """Namespace → when it had its last trace, kept for at least one pause."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Return whether the attempt is traced."""
        now, traces_left = self._clock(), self._allowance.available
        namespace = (attributes or {}).get(NAMESPACE)
        rests = now - self._latest.get(namespace, now - PAUSE_S) < PAUSE_S
        if traces_left < 1 or (rests and traces_left <= RESERVE):
            if not self._has_warned:
                log.warning("gangs come too fast: some have no trace", traces_a_second=RATE)
            self._has_warned = True
            return SamplingResult(Decision.DROP)
        self._allowance.spend()
        if len(self._latest) > BURST + RATE:
            self._latest = {
                key: last_trace for key, last_trace in self._latest.items() if now - last_trace < PAUSE_S
            }
        self._latest[namespace] = now
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        """Return the sampler's name for logs of the SDK."""
        return f"AtMost{{{RATE:g}/s}}"


class QuietExporter(SpanExporter):
    """Logs once that spans are lost, and once that the collector takes spans again.

    The SDK's own exporter would log a line for each batch and each retry. It has its own thread and a bounded
    queue, so a slow collector costs spans, but no time.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._fails = False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans."""
        try:
            result = self._exporter.export(spans)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the thread goes on and it is said once
            return self._log_change(SpanExportResult.FAILURE, str(problem))
        return self._log_change(result, "the collector is away, slow, or refuses them")

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send the remaining spans."""
        return self._exporter.force_flush(timeout_millis)

    def _log_change(self, result: SpanExportResult, why: str) -> SpanExportResult:
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            log.warning("spans are lost", why=why, endpoint=_endpoint())
        if self._fails and not fails:
            log.info("spans are taken again")
        self._fails = fails
        return result


def _from_environment() -> SpanExporter | None:
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none" or not _endpoint():
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _endpoint() -> str:
    return next((value for name in ENDPOINTS if (value := os.environ.get(name))), "")


_PROPAGATOR = TraceContextTextMapPropagator()


def span_context(traceparent: str) -> trace.SpanContext:
    """Return the context of a traceparent; an invalid context for a malformed text."""
    context = _PROPAGATOR.extract({"traceparent": traceparent})
    return trace.get_current_span(context).get_span_context()


def traceparent_of(context: trace.SpanContext) -> str:
    """Return the W3C traceparent of the context."""
    ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}"


def ids_of_call(metadata: Iterable[tuple[str, Any]] | None) -> dict[str, str]:
    """Return the trace ids in a call's metadata, for log lines; {} without ids."""
    traceparent = next((str(value) for key, value in metadata or () if key == "traceparent"), "")
    context = span_context(traceparent) if traceparent else trace.INVALID_SPAN_CONTEXT
    return {"trace_id": trace.format_trace_id(context.trace_id)} if context.is_valid else {}
