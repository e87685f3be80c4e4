"""OpenTelemetry traces: one span a decision, one a unary call.

Spans are exported only when OTEL_EXPORTER_OTLP_ENDPOINT (or its …_TRACES_ variant) is set; the exporter is
imported only then. Without it spans still get ids, so that a decision's annotation can name its trace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from muster.domain.decision import Decision, Placed
from muster.domain.request import Request

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FLUSH_DEADLINE_MS = 3000


class Tracing:
    """Makes spans. `exporter` is for tests; by default the environment decides."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "muster")}),
            shutdown_on_exit=False,
        )
        if exporter is None and any(os.environ.get(name) for name in ENDPOINTS):
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter,
            )

            exporter = OTLPSpanExporter()
        if exporter is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("muster")

    @contextmanager
    def decision(self, request: Request, generation: int) -> Iterator[Span]:
        """Open the span of one decision; `describe` adds what came out."""
        with self._tracer.start_as_current_span("decision") as span:
            span.set_attributes(
                {
                    "muster.gang": str(request.gang),
                    "muster.generation": generation,
                    "muster.members": request.size,
                    "muster.min_member": request.min_member,
                    "muster.roles": [
                        f"{role.name}: {len(role.members)} × {role.gpus} GPU" for role in request.roles
                    ],
                    "muster.required_scope": request.required_scope or "",
                }
            )
            assert isinstance(span, Span)
            yield span

    @contextmanager
    def call(self, method: str, gang: str, epoch: int, generation: int) -> Iterator[trace.Span]:
        """Open the span of one unary call of the shim."""
        with self._tracer.start_as_current_span(f"muster.v1.GangService/{method}") as span:
            span.set_attributes({"muster.gang": gang, "muster.epoch": epoch, "muster.generation": generation})
            yield span

    def close(self) -> None:
        """Send what is left, for at most three seconds."""
        self._provider.force_flush(FLUSH_DEADLINE_MS)
        self._provider.shutdown()


def describe(span: Span, decision: Decision) -> None:
    """Return what a decision says, as attributes."""
    if isinstance(decision, Placed):
        levels = decision.objective.by_name()
        for pairs in levels.keys() & {"crossings", "costs"}:
            levels[pairs] = [f"{name}={count}" for name, count in levels[pairs]]
        span.set_attributes(
            {
                "muster.outcome": "placed",
                "muster.domain": decision.domain,
                "muster.scope_reached": decision.scope_reached or "",
                "muster.optimal": decision.optimal,
                "muster.truncated": decision.truncated,
            }
        )
        shown = {f"muster.objective.{name}": value for name, value in levels.items() if value is not None}
        span.set_attributes(shown)
    else:
        span.set_attributes(
            {
                "muster.outcome": "unplaceable",
                "muster.causes": [type(cause).__name__ for cause in decision.causes],
            }
        )


def trace_id(span: trace.Span) -> str:
    """32 hexadecimal digits, as tracing systems show them."""
    return trace.format_trace_id(span.get_span_context().trace_id)
