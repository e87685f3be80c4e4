"""Whether a gang's trace is whole, on traces that are made up: each fault is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from local_cluster.traces import CALL, Span, Trace, of_gangs, spans_of, traces_of

Spans = dict[str, Span]


def span(
    name: str, began: int, ended: int, process: str = "muster", parent: str = "gang", pod: str = ""
) -> Span:
    about = {"k8s.pod.name": pod} if pod else {}
    return Span("t", f"{name}{pod}", parent, process, name, began, ended, about)


def whole() -> Spans:
    """A gang of two that takes 100 ns."""
    spans = [
        span("gang", 0, 100, parent=""),
        span("collecting", 0, 40),
        span("queued", 40, 41),
        span("solve", 41, 50),
        span("presolve", 41, 43, parent="solve"),
        span("verify", 48, 49, parent="solve"),
        span("verdict", 50, 52),
        span("scheduling", 52, 98, "muster-shim"),
        *(
            span(f"{CALL}{name}", 53, 54, "muster-shim", "scheduling")
            for name in ("Filter", "Score", "Reserve", "Permit")
        ),
        *(span("Binding", 60, 90, "muster-shim", "scheduling", pod) for pod in ("a", "b")),
        span("POST", 61, 80, "apiserver", "Bindinga"),
        span("txn", 62, 79, "etcd", "POST"),
        span("seen bound", 55, 100),
    ]
    return {span.id: span for span in spans}


def test_a_whole_trace_has_no_fault() -> None:
    trace = Trace(tuple(whole().values()))
    assert trace.wrong(2) == []
    assert trace.covered == 1.0
    assert of_gangs(trace.spans, {"g": {"a", "b"}, "h": {"a"}}) == {"g": trace}


def without_api_server(spans: Spans) -> None:
    del spans["POST"], spans["txn"]


def without_its_parent(spans: Spans) -> None:
    spans["txn"] = replace(spans["txn"], parent="lost")


def with_a_gap(spans: Spans) -> None:
    spans["collecting"] = replace(spans["collecting"], ended=30)


def with_a_span_for_each_member(spans: Spans) -> None:
    spans |= {f"m{i}": replace(spans["queued"], id=f"m{i}", name="member") for i in range(9)}


FAULTS: dict[str, tuple[Callable[[Spans], object], list[str]]] = {
    "no root": (lambda spans: spans.pop("gang"), ["no root"]),
    "no API server": (without_api_server, ["no span of apiserver", "no span of etcd"]),
    "an orphan": (without_its_parent, ["orphan etcd txn"]),
    "a gap": (with_a_gap, ["spans explain 90% of the time"]),
    "no collecting": (lambda spans: spans.pop("queued"), ["no queued of muster"]),
    "a Binding is missing": (lambda spans: spans.pop("Bindingb"), ["1 spans Binding for 2 members"]),
    "too many": (with_a_span_for_each_member, ["22 spans besides Bindings, at most 15 are allowed"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str) -> None:
    spans, (break_it, faults) = whole(), FAULTS[fault]
    break_it(spans)
    assert Trace(tuple(spans.values())).wrong(2) == faults


def test_the_tree_shows_all_spans_below_their_parents() -> None:
    (trace,) = traces_of(whole().values())
    drawn = [(depth, span.name) for depth, span in trace.tree()]
    assert len(drawn) == len(trace.spans)
    assert drawn[:3] == [(0, "gang"), (1, "collecting"), (1, "queued")]
    assert drawn[drawn.index((3, "POST")) + 1] == (4, "txn")


def test_spans_are_read_from_otlp() -> None:
    fields = {
        "traceId": "t",
        "spanId": "s",
        "name": "gang",
        "startTimeUnixNano": "1000000",
        "endTimeUnixNano": "3000000",
        "attributes": [{"key": "muster.gang", "value": {"stringValue": "ns/g"}}],
        "links": [{"traceId": "before", "spanId": "x"}],
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "muster"}}]}
    batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [fields]}]}]}
    (read,) = spans_of(batch)
    assert read == Span(
        "t", "s", "", "muster", "gang", 10**6, 3 * 10**6, {"muster.gang": "ns/g"}, ("before",)
    )
    assert read.ms == 2.0
