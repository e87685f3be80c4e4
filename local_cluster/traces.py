"""Traces of gangs, from spans as OTLP's JSON has them: trees, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

MAX_SPANS = 15
"""Of a gang in service and shim, besides one for each Binding."""
LEAST_COVERED = 0.95
"""Share of a gang's time that its other spans must explain."""
ROOT = "gang"
BINDING = "Binding"
CALL = "muster.v1.GangService/"
PARTS = {
    "muster": {"queued", "solve", "presolve", "verify", "verdict", "seen bound"},
    "muster-shim": {
        "scheduling",
        BINDING,
        *(f"{CALL}{name}" for name in ("Filter", "Score", "Reserve", "Permit")),
    },
}
"""Process → names of the spans that each placed gang has. The others depend on the gang."""
COLLECTING = "collecting"
"""A span of each gang with several members."""
PROCESSES = frozenset({*PARTS, "apiserver", "etcd"})


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are in nanoseconds since the epoch."""

    trace: str
    id: str
    parent: str
    process: str
    name: str
    began: int
    ended: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    """Ids of the traces that it links to."""

    @property
    def ms(self) -> float:
        """Return how long it took."""
        return (self.ended - self.began) / 1e6


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one trace."""

    spans: tuple[Span, ...]

    @property
    def root(self) -> Span | None:
        """Return the gang's span; None if it is not there."""
        return next((span for span in self.spans if span.name == ROOT and not span.parent), None)

    @property
    def bound(self) -> frozenset[str]:
        """Return the names of the pods with a Binding in it."""
        bindings = (span for span in self.spans if span.name == BINDING)
        return frozenset(str(span.attributes.get("k8s.pod.name")) for span in bindings)

    @property
    def orphans(self) -> list[Span]:
        """Return spans whose parent is not there."""
        ids = {span.id for span in self.spans}
        return [span for span in self.spans if span.parent and span.parent not in ids]

    @property
    def covered(self) -> float:
        """Return the share of the root's time in which another span of service or shim was open."""
        root = self.root
        if root is None or root.ended <= root.began:
            return 0.0
        ours = [span for span in self.spans if span is not root and span.process in PARTS]
        intervals = sorted((max(s.began, root.began), min(s.ended, root.ended)) for s in ours)
        total, until = 0, root.began
        for began, ended in intervals:
            total += max(0, ended - max(began, until))
            until = max(until, ended)
        return total / (root.ended - root.began)

    def wrong(self, members: int) -> list[str]:
        """Return what is missing, or too much, in the trace of a placed gang."""
        if self.root is None:
            return ["no root"]
        names: dict[str, list[str]] = {}
        for span in self.spans:
            names.setdefault(span.process, []).append(span.name)
        faults = [f"no span of {process}" for process in sorted(PROCESSES - names.keys())]
        faults += [
            f"no {name} of {process}"
            for process, parts in PARTS.items()
            for name in sorted(parts - set(names.get(process, ())))
        ]
        if members > 1 and COLLECTING not in names.get("muster", ()):
            faults.append(f"no {COLLECTING} of muster")
        faults += [f"orphan {span.process} {span.name}" for span in self.orphans]
        bindings = names.get("muster-shim", []).count(BINDING)
        if bindings != members:
            faults.append(f"{bindings} spans {BINDING} for {members} members")
        ours = sum(len(names.get(process, ())) for process in PARTS) - bindings
        if ours > MAX_SPANS:
            faults.append(f"{ours} spans besides Bindings, at most {MAX_SPANS} are allowed")
        if self.covered < LEAST_COVERED:
            faults.append(f"spans explain {self.covered:.0%} of the time")
        return faults

    def tree(self) -> Iterator[tuple[int, Span]]:
        """Return all spans with their depth, each below its parent. An orphan has depth 0."""
        inside: dict[str, list[Span]] = {}
        ids = {span.id for span in self.spans}
        for span in sorted(self.spans, key=lambda span: (span.began, -span.ended)):
            inside.setdefault(span.parent if span.parent in ids else "", []).append(span)
        todo = [(0, span) for span in reversed(inside.get("", []))]
        while todo:
            depth, span = todo.pop()
            yield depth, span
            todo += [(depth + 1, child) for child in reversed(inside.get(span.id, []))]


def traces_of(spans: Iterable[Span]) -> list[Trace]:
    """Return the traces, the earliest first."""
    by_id: dict[str, list[Span]] = {}
    for span in spans:
        by_id.setdefault(span.trace, []).append(span)
    return sorted(
        (Trace(tuple(spans)) for spans in by_id.values()), key=lambda t: min(s.began for s in t.spans)
    )


def of_gangs(spans: Iterable[Span], members: Mapping[str, Set[str]]) -> dict[str, Trace]:
    """Return gang → the trace in which its pods were bound. A gang without one is left out.

    `members`: gang → names of its pods.
    """
    by_pods = {trace.bound: trace for trace in traces_of(spans)}
    return {gang: by_pods[frozenset(pods)] for gang, pods in members.items() if frozenset(pods) in by_pods}


def spans_of(batch: Mapping[str, Any]) -> Iterator[Span]:
    """Return the spans of one message of OTLP in JSON."""
    for resource in batch.get("resourceSpans", ()):
        about = _attributes(resource.get("resource", {}).get("attributes", ()))
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Span(
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    str(about.get("service.name", "?")),
                    span["name"],
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    _attributes(span.get("attributes", ())),
                    tuple(link["traceId"] for link in span.get("links", ())),
                )


def _attributes(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values()), None) for pair in pairs}
