"""Make one trace for each attempt of a gang. It shows each wait from the first member to the last Binding.

The root span is "gang". The spans of the service are made when the attempt ends, so that none is exported
without its root if the service dies. The shim's spans are children of the root too: the verdict carries its
context. An attempt ends when the gang runs, is refused or withdrawn, or is gone. The next attempt has another
trace, which links to the trace before. So no trace is longer than one attempt.

No span is made for a member: a gang of any size has the same spans here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode

from muster.adapters.telemetry.tracing import Tracing, span_context, traceparent_of
from muster.domain.decision import Decision, Placed
from muster.gangs.messages.instructions import Moved, Solve
from muster.placement.limits import PHASES, Stretch
from muster.placement.model.objective import values_of

Attributes = dict[str, Any]

_ENDS = {
    "running": "bound",
    "unplaceable": "refused",
    "invalid": "ill-formed",
    "withdrawn": "withdrawn",
    "given up": "given up",
    "finished": "gone",
}
"""Phase → the outcome of the attempt that ends with it."""
_BEGINS = {"collecting": "collecting", "planning": "queued", "withdrawn": "paused"}
"""Phase → the span with which an attempt begins there."""
MAX_TRACES = 16
"""Largest number of traces of one gang that are kept: the last traces."""
_VERDICT = "verdict"
_SPANS = {**_BEGINS, "planned": _VERDICT, "permitted": "seen bound"}
"""Phase → the span that the service makes for the phase. The shim makes the spans of other phases."""
_MAX_EVENTS = 16
"""Largest number of events of one span."""
_COLLECTING = "collecting"
_JOINED_MS = {"queued": "muster.queued_ms", "paused": "muster.paused_ms"}
"""Span → attribute of a joined `collecting` span: how long this other span lasted in between."""
_MAX_STAGES = 4
"""Largest number of stages of one decision with a span. The longest stages are kept."""
_STAGES = {"scan": "presolve", "bound": "relax", "explain": "explain", "verify": "verify"}
"""Phase of the planner → its span."""


@dataclass(frozen=True, slots=True)
class KnownTrace:
    """The trace of one attempt. `began`: seconds since the Unix epoch. `outcome`: "" before its end.

    If it is not `exported`, no collector gets the trace, and only logs and pods have the id.
    """

    id: str
    began: float
    exported: bool
    outcome: str = ""


@dataclass(slots=True)
class _SpanRecord:
    """A span that is exported when its attempt ends. Times are seconds of the inputs' clock."""

    name: str
    began: float
    ended: float = 0.0
    attributes: Attributes = field(default_factory=dict)
    inner_spans: list[_SpanRecord] = field(default_factory=list)
    events: list[tuple[str, float]] = field(default_factory=list)

    def note(self, event: str, time_s: float) -> None:
        """Add an event, up to `_MAX_EVENTS`, because a gang may wait for hours."""
        if len(self.events) < _MAX_EVENTS:
            self.events.append((event, time_s))


@dataclass(slots=True)
class _Attempt:
    trace_id: str
    root: Span | None
    offset_ns: int
    """Offset from the inputs' clock to nanoseconds since the epoch. It is read once, because clocks may be
    set."""
    link: str = ""
    span: _SpanRecord | None = None
    spans: list[_SpanRecord] = field(default_factory=list)

    @property
    def is_decided(self) -> bool:
        """Return whether the planner has answered."""
        return any(span.name == "solve" for span in self.spans)

    def ns(self, time_s: float) -> int:
        return int(time_s * 1e9) + self.offset_ns

    def enter(self, name: str, now: float) -> None:
        """End the present span and begin another, unless the present span continues.

        Pods that come and go may move a gang between phases for hours. So all spans before a second
        `collecting` become one `collecting` span. Its attributes say how long the gang was queued or paused
        in between. So a gang waits for its decision in at most two spans.
        """
        if self.span is not None and self.span.name == name:
            return
        if name == _COLLECTING and (self.span is not None or self.spans):
            self._collect_again(now)
            return
        self.leave(now)
        self.span = _SpanRecord(name, now) if name else None

    def _collect_again(self, now: float) -> None:
        """Join all spans so far into one `collecting` span."""
        self.leave(now)
        joined_span = _SpanRecord(_COLLECTING, self.spans[0].began)
        for span in self.spans:
            for key in _JOINED_MS.values():
                if key in span.attributes:
                    joined_span.attributes[key] = span.attributes[key]
            if (key := _JOINED_MS.get(span.name, "")) and span.ended > span.began:
                spent_ms = 1000 * (span.ended - span.began)
                joined_span.attributes[key] = round(joined_span.attributes.get(key, 0.0) + spent_ms, 3)
            for event, time_s in span.events:
                joined_span.note(event, time_s)
        self.spans, self.span = [], joined_span

    def leave(self, now: float) -> None:
        if self.span is not None:
            self.span.ended = max(now, self.span.began)
            self.spans.append(self.span)
        self.span = None


class Attempts:
    """All open attempts. Only the event loop's thread calls the methods."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._open: dict[str, _Attempt] = {}
        self._last: dict[str, SpanContext] = {}
        """Waiting gang → its previous attempt."""
        self._traces: dict[str, deque[KnownTrace]] = {}
        """Gang → its last traces, oldest first."""

    def __len__(self) -> int:
        return len(self._open) + len(self._last)

    def traces(self, gang: str) -> list[KnownTrace]:
        """Return the gang's last traces, ended ones too, the newest first."""
        return list(self._traces.get(gang, ()))[::-1]

    def trace_id(self, gang: str) -> str:
        """Return the id of the gang's trace; "" if it has no trace."""
        attempt = self._open.get(gang)
        return attempt.trace_id if attempt is not None else ""

    def exported_trace_id(self, gang: str) -> str:
        """Return the id of the gang's trace if a collector gets it, else ""."""
        attempt = self._open.get(gang)
        return attempt.trace_id if attempt is not None and attempt.root is not None else ""

    def traceparent(self, gang: str) -> str:
        """Return the traceparent of the verdict; "" if no spans are exported."""
        attempt = self._open.get(gang)
        if attempt is None or attempt.root is None:
            return ""
        return traceparent_of(attempt.root.get_span_context())

    def note_move(self, move: Moved) -> None:
        """Take in that a gang has entered a phase."""
        attempt = self._open.get(move.gang)
        if move.phase in _ENDS or (move.phase in _BEGINS and attempt is not None and attempt.is_decided):
            self._end(move, _ENDS.get(move.phase, "outdated"))
            attempt = None
        if attempt is None and move.phase in _BEGINS:
            attempt = self._begin(move)
        if attempt is not None and attempt.root is not None:
            if move.link != attempt.link and (context := span_context(move.link)).is_valid:
                attempt.root.add_link(context)
                attempt.link = move.link
            attempt.enter(_SPANS.get(move.phase, ""), move.moved_at)

    def note_answer(self, gang: str) -> None:
        """Take in the shim's first call about the gang, which shows that the shim has the verdict."""
        attempt = self._open.get(gang)
        if attempt is not None and attempt.span is not None and attempt.span.name == _VERDICT:
            attempt.leave(time.monotonic())

    def note_question(self, gang: str, now: float) -> None:
        """Note that the gang waits for in-tree plugins before it is planned."""
        attempt = self._open.get(gang)
        if attempt is not None and attempt.span is not None:
            attempt.span.note("in-tree plugins are asked", now)

    def note_solution(
        self,
        solve: Solve,
        began: float,
        decision: Decision | None,
        stretches: Mapping[str, Stretch],
        passed_on: bool,
    ) -> None:
        """Take in a decision that was just made; None if the planner failed."""
        attempt, now = self._open.get(solve.gang), time.monotonic()
        if attempt is None or attempt.root is None:
            return
        attempt.root.set_attributes(_attributes_of(solve))
        if attempt.span is not None and attempt.span.name == _VERDICT:
            attempt.spans.pop()  # after that decision the gang continued to wait
            attempt.span = attempt.spans.pop()
        if attempt.span is None or attempt.span.name != "queued":
            return  # it is not planned any more
        if passed_on:
            attempt.span.note("passed on to the background planner", now)
            return
        attempt.leave(began)
        attributes = {"muster.lane": solve.lane.value, **describe(decision)}
        attempt.spans.append(_SpanRecord("solve", began, now, attributes, _stages(decision, stretches)))
        attempt.enter(_VERDICT, now)

    def _begin(self, move: Moved) -> _Attempt:
        offset_ns = time.time_ns() - time.monotonic_ns()
        attempt = _Attempt("", None, offset_ns)
        if self._tracing.exports:
            last = self._last.get(move.gang)
            attributes = {
                "k8s.namespace.name": move.namespace,
                "muster.gang.name": move.name,
                "muster.gang": move.gang,
            }
            root = self._tracing.tracer.start_span(
                "gang",
                trace.set_span_in_context(trace.INVALID_SPAN),
                attributes=attributes,
                links=[Link(last, {"muster.link": "the attempt before"})] if last is not None else (),
                start_time=attempt.ns(move.moved_at),
            )
            attempt.trace_id = trace.format_trace_id(root.get_span_context().trace_id)
            attempt.root = root if root.is_recording() else None
        else:
            attempt.trace_id = self._tracing.new_id()
        self._open[move.gang] = attempt
        traces = self._traces.setdefault(move.gang, deque(maxlen=MAX_TRACES))
        exported = attempt.root is not None
        traces.append(KnownTrace(attempt.trace_id, attempt.ns(move.moved_at) / 1e9, exported))
        return attempt

    def _end(self, move: Moved, outcome: str) -> None:
        self._last.pop(move.gang, None)
        attempt = self._open.pop(move.gang, None)
        if outcome == "gone":
            self._traces.pop(move.gang, None)
        elif attempt is not None:
            traces = self._traces[move.gang]
            traces[-1] = replace(traces[-1], outcome=outcome)
        if attempt is None or attempt.root is None:
            return
        attempt.leave(move.moved_at)
        root = attempt.root
        for span in attempt.spans:
            self._export(attempt, span, root.get_span_context())
        root.set_attributes({"muster.outcome": outcome, "muster.why": move.why})
        if outcome in ("withdrawn", "given up"):
            root.set_status(Status(StatusCode.ERROR, move.why))
        root.end(attempt.ns(move.moved_at))
        if outcome in ("refused", "withdrawn", "outdated", "ill-formed"):
            self._last[move.gang] = root.get_span_context()

    def _export(self, attempt: _Attempt, span: _SpanRecord, parent: SpanContext) -> None:
        times = (attempt.ns(span.began), attempt.ns(span.ended))
        events = [(name, attempt.ns(time_s)) for name, time_s in span.events]
        context = self._tracing.record_span(span.name, parent, times, span.attributes, events)
        for inner_span in span.inner_spans:
            self._export(attempt, inner_span, context)


def _attributes_of(solve: Solve) -> Attributes:
    """Return attributes about the planner's question."""
    request = solve.request
    return {
        "muster.generation": solve.generation,
        "muster.members": request.size,
        "muster.min_member": request.min_member,
        "muster.roles": [f"{role.name}: {len(role.members)} × {role.gpus} GPU" for role in request.roles],
        "muster.required_scope": request.required_scope or "",
    }


def _stages(decision: Decision | None, stretches: Mapping[str, Stretch]) -> list[_SpanRecord]:
    """Return the longest stages of a decision, at most four.

    If several exact methods decided levels, only the slowest has a span. The attributes name all of them.
    """
    stages = {_STAGES[name]: stretch for name, stretch in stretches.items() if name in _STAGES}
    methods = {name: stretch for name, stretch in stretches.items() if name not in PHASES}
    if methods:
        longest = max(methods, key=lambda name: methods[name].seconds)
        stages[longest] = methods[longest]
    if len(stages) > _MAX_STAGES:
        del stages[min(stages, key=lambda name: stages[name].seconds)]
    return [
        _SpanRecord(name, stretch.began, stretch.ended, {"muster.spent_ms": round(stretch.seconds * 1000, 3)})
        for name, stretch in stages.items()
    ]


def describe(decision: Decision | None) -> Attributes:
    """Return attributes about a decision."""
    if decision is None:
        return {"muster.outcome": "failed"}
    if not isinstance(decision, Placed):
        causes = [type(cause).__name__ for cause in decision.causes]
        return {"muster.outcome": "unplaceable", "muster.causes": causes}
    levels = {row.field: value for row, value in values_of(decision.objective)}
    for pairs in levels.keys() & {"crossings", "costs"}:
        levels[pairs] = [f"{name}={count}" for name, count in levels[pairs]]
    return {
        "muster.outcome": "placed",
        "muster.domain": decision.domain,
        "muster.scope_reached": decision.scope_reached or "",
        "muster.optimal": decision.optimal,
        "muster.truncated": decision.truncated,
        "muster.unknown_links": list(decision.unknown_links),
        "muster.unknown_indices": list(decision.unknown_indices),
        "muster.methods": [f"{step.level}: {step.method}" for step in decision.steps],
        **{f"muster.objective.{name}": value for name, value in levels.items() if value is not None},
    }
