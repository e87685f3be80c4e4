"""Prometheus metrics, in a registry of their own so that several services (and tests) live in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

_MILLISECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """All metrics of the service; the methods are what happens, the names are what dashboards see."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self.decision_seconds = Histogram(
            "muster_decision_seconds",
            "Time that the planner took for one decision.",
            ["outcome"],
            buckets=_MILLISECONDS,
            **made,
        )
        self._verdicts = Counter("muster_verdicts", "Verdicts pushed to the shim.", ["outcome"], **made)
        self._undelivered = Counter(
            "muster_verdicts_undelivered", "Verdicts for which no shim was connected.", **made
        )
        self.call_seconds = Histogram(
            "muster_call_seconds",
            "Unary calls of the shim.",
            ["method", "code"],
            buckets=_MILLISECONDS,
            **made,
        )
        self._sessions = Counter(
            "muster_sessions", "Sessions of the shim that ended, by cause.", ["cause"], **made
        )
        self._restarts = Counter(
            "muster_watch_restarts",
            "Watches that broke and were begun again.",
            ["resource", "reason"],
            **made,
        )
        self._unreadable = Counter(
            "muster_objects_unreadable", "API objects left out because of their shape.", ["resource"], **made
        )
        self._events = Counter(
            "muster_events",
            "Kubernetes events by result: posted, dropped, failed, repeated.",
            ["result"],
            **made,
        )
        self._statuses = Counter(
            "muster_podgroup_statuses",
            "Statuses of PodGroups by result: written, dropped, failed.",
            ["result"],
            **made,
        )
        self._evictions = Counter(
            "muster_evictions",
            "Members of partially bound gangs, by result: evicted, gone, failed, dropped, withdrawn.",
            ["result"],
            **made,
        )
        self.inbox = Gauge("muster_inbox_events", "Events waiting for the coordinator.", **made)
        self.planner_failures = Counter("muster_planner_failures", "Defects: place() raised.", **made)

    def watch_restarted(self, resource: str, reason: str) -> None:
        """Count a watch that had to start again."""
        self._restarts.labels(resource, reason).inc()

    def unreadable_object(self, resource: str) -> None:
        """Count an object that could not be decoded."""
        self._unreadable.labels(resource).inc()

    def event(self, result: str, count: int = 1) -> None:
        """Count Kubernetes events by what became of them."""
        self._events.labels(result).inc(count)

    def status(self, result: str) -> None:
        """Count a status write by its result."""
        self._statuses.labels(result).inc()

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

    def read_at_scrape(
        self, name: str, text: str, label: str, read: Callable[[], Iterable[tuple[str, float]]]
    ) -> None:
        """Add a gauge whose values are read when somebody looks: (label value, value)."""
        self.registry.register(_AtScrape(name, text, label, read))

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample, 0 if there is none: for tests and /readyz."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _AtScrape:
    def __init__(
        self, name: str, text: str, label: str, read: Callable[[], Iterable[tuple[str, float]]]
    ) -> None:
        self._name, self._text, self._label, self._read = name, text, label, read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=[self._label])
        for label, value in self._read():
            family.add_metric([label], value)
        yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily(self._name, self._text, labels=[self._label])]
