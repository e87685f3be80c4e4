"""Prometheus metrics, in a registry of their own so that several services (and tests) live in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

R = TypeVar("R")

_MILLISECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_UP_TO_HOURS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 14400.0)


@dataclass(frozen=True, slots=True)
class ReadAtScrape(Generic[R]):
    """A gauge. `values` takes it out of what was read: (values of its labels, or of the only one, value)."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Callable[[R], Iterable[tuple[str | tuple[str, ...], float]]]


class Metrics:
    """All metrics of the service; the methods are what happens, the names are what dashboards see."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.before_scrape: Callable[[], Awaitable[None]] = _nothing
        """Reads what takes long, before the event loop is held for a scrape."""
        self._add_planner()
        self._add_gangs()
        self._add_shim()
        self._add_api_server()

    def _add_planner(self) -> None:
        """Add what is told of decisions."""
        self.decision_seconds = self._histogram(
            "muster_decision_seconds", "Time that the planner took for one decision.", "outcome"
        )
        self._causes = self._counter("muster_decision_causes", "Causes of the planner's refusals.", "cause")
        self._methods = self._counter(
            "muster_decision_methods", "Plans in which an exact method decided at least one level.", "method"
        )
        self._stages = self._histogram(
            "muster_decision_phase_seconds",
            "Time that a decision spent in one phase of the planner.",
            "phase",
        )
        self._gap = self._histogram(
            "muster_decision_gap_ratio",
            "Gap of plans that are not proven best, as a share of the first unproven level.",
            buckets=_SHARES,
        )
        self.snapshot_age = self._histogram(
            "muster_snapshot_age_seconds", "Age of the snapshot on which a decision stands, when it is made."
        )
        self.planner_failures = self._counter("muster_planner_failures", "Defects: place() raised.")

    def _add_gangs(self) -> None:
        """Add what is told of the life of gangs."""
        self._phases = self._histogram(
            "muster_gang_phase_seconds",
            "Time that a gang was in a phase, when it left it.",
            "phase",
            buckets=_UP_TO_HOURS,
        )
        self._withdrawals = self._counter(
            "muster_withdrawals", "Plans that were withdrawn, by cause.", "cause"
        )
        self.inbox = Gauge(
            "muster_inbox_events", "Inputs waiting for the coordinator.", registry=self.registry
        )

    def _add_shim(self) -> None:
        """Add what is told of sessions with the shim."""
        self._verdicts = self._counter("muster_verdicts", "Verdicts pushed to the shim.", "outcome")
        self._undelivered = self._counter(
            "muster_verdicts_undelivered", "Verdicts while no shim was connected."
        )
        self.call_seconds = self._histogram(
            "muster_call_seconds", "Unary calls of the shim.", "method", "code"
        )
        self._sessions = self._counter(
            "muster_sessions", "Sessions of the shim that ended, by cause.", "cause"
        )

    def _add_api_server(self) -> None:
        """Add what is told of reading from the API server and of writing to it."""
        self._restarts = self._counter(
            "muster_watch_restarts", "Watches that broke and were begun again.", "resource", "reason"
        )
        self.watch_lag = self._histogram(
            "muster_watch_lag_seconds", "Time between the arrival of a change and its handling."
        )
        self._unreadable = self._counter(
            "muster_objects_unreadable", "API objects left out because of their shape.", "resource"
        )
        self._events = self._counter(
            "muster_events", "Kubernetes events by result: posted, dropped, failed, repeated.", "result"
        )
        self._statuses = self._counter(
            "muster_podgroup_statuses", "Statuses of PodGroups by result: written, dropped, failed.", "result"
        )
        self._conditions = self._counter(
            "muster_pod_conditions", "Conditions of pods by result: written, gone, dropped, failed.", "result"
        )
        self._evictions = self._counter(
            "muster_evictions", "Evictions by result: evicted, gone, failed, dropped, withdrawn.", "result"
        )

    def decided(
        self,
        outcome: str,
        took_s: float,
        causes: Iterable[str],
        methods: Iterable[str],
        gap: float | None,
        trace_id: str,
    ) -> None:
        """Count a decision. `trace_id`: of the trace that shows it, "" for none."""
        self.decision_seconds.labels(outcome).observe(took_s, _exemplar(trace_id))
        for cause in set(causes):
            self._causes.labels(cause).inc()
        for method in set(methods):
            self._methods.labels(method).inc()
        if gap is not None:
            self._gap.observe(gap, _exemplar(trace_id))

    def planner_phase(self, phase: str, seconds: float) -> None:
        """Count what a decision spent in one phase of the planner."""
        self._stages.labels(phase).observe(seconds)

    def phase_ended(self, phase: str, seconds: float, trace_id: str) -> None:
        """Count how long a gang was in a phase. `trace_id`: of the trace that shows it, "" for none."""
        self._phases.labels(phase).observe(seconds, _exemplar(trace_id))

    def withdrawn(self, cause: str) -> None:
        """Count a plan that was withdrawn."""
        self._withdrawals.labels(cause).inc()

    def watch_restarted(self, resource: str, reason: str) -> None:
        """Count a watch that had to start again."""
        self._restarts.labels(resource, reason).inc()

    def unreadable_object(self, resource: str) -> None:
        """Count an object that could not be decoded."""
        self._unreadable.labels(resource).inc()

    def event(self, result: str, count: int = 1) -> None:
        """Count Kubernetes events by outcome."""
        self._events.labels(result).inc(count)

    def status(self, result: str) -> None:
        """Count a status write by its result."""
        self._statuses.labels(result).inc()

    def condition(self, result: str) -> None:
        """Count a write of a pod's condition by its result."""
        self._conditions.labels(result).inc()

    def eviction(self, result: str) -> None:
        """Count an eviction by its result."""
        self._evictions.labels(result).inc()

    def verdict(self, outcome: str, *, delivered: bool) -> None:
        """Count a verdict, and whether a session was there to take it."""
        if delivered:
            self._verdicts.labels(outcome).inc()
        else:
            self._undelivered.inc()

    def session_ended(self, cause: str) -> None:
        """Count a session's end by its cause."""
        self._sessions.labels(cause).inc()

    def read_at_scrape(self, read: Callable[[], R], *gauges: ReadAtScrape[R]) -> None:
        """Add gauges whose values come from one thing, which is read once at each scrape."""
        self.registry.register(_AtScrape(read, gauges))

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample, 0 if there is none: for tests."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def text(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type, in a format that the Accept header names.

        OpenMetrics alone shows exemplars. The default is Prometheus' text format.
        """
        encode, content_type = choose_encoder(accepted)
        return encode(self.registry), content_type

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _MILLISECONDS
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


async def _nothing() -> None:
    pass


def _exemplar(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None


class _AtScrape(Generic[R]):
    def __init__(self, read: Callable[[], R], gauges: tuple[ReadAtScrape[R], ...]) -> None:
        self._read, self._gauges = read, gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        figures = self._read()
        for gauge, family in zip(self._gauges, self.describe(), strict=True):
            for labels, value in gauge.values(figures):
                family.add_metric([labels] if isinstance(labels, str) else labels, value)
            yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels) for gauge in self._gauges]
