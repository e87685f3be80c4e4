"""Bound how many attempts are traced: a flood of gangs costs the service and the collector no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState

RATE, BURST = 20.0, 200.0
"""Traces a second, and traces at once. One costs 0.3 ms of processor time, so 20 cost 0.6 % of a core."""
RESERVE, PAUSE_S = 50.0, 1.0
"""The last traces of `BURST`: a namespace gets one only if it had no trace for `PAUSE_S`. So a flood of gangs
in one namespace leaves traces to the others."""
NAMESPACE = "k8s.namespace.name"
"""The attribute of a root by which namespaces are told apart."""

log = structlog.get_logger(__name__)


class AtMost(Sampler):
    """Takes a root while there is room for it, at `RATE` over time and `BURST` at once.

    Namespaces share the last `RESERVE` of this room. It says once that attempts stay without a
    trace. Only the event loop may call it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._seen, self._said = BURST, clock(), False
        self._latest: dict[object, float] = {}
        """When a namespace had its last trace, for a pause at least."""

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
        now = self._clock()
        self._left, self._seen = min(BURST, self._left + RATE * (now - self._seen)), now
        namespace = (attributes or {}).get(NAMESPACE)
        rests = now - self._latest.get(namespace, now - PAUSE_S) < PAUSE_S
        if self._left < 1 or (rests and self._left <= RESERVE):
            if not self._said:
                log.warning("gangs come too fast: some have no trace", traces_a_second=RATE)
            self._said = True
            return SamplingResult(Decision.DROP)
        self._left -= 1
        if len(self._latest) > BURST + RATE:
            self._latest = {key: at for key, at in self._latest.items() if now - at < PAUSE_S}
        self._latest[namespace] = now
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        """Return its name for logs of the SDK."""
        return f"AtMost{{{RATE:g}/s}}"
