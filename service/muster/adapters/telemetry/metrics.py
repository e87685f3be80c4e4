"""Prometheus metrics. They have their own registry, so that several services (and tests) can run in one
process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from muster.gangs.messages.instructions import Moved
from muster.gangs.record.phases import Phase

R = TypeVar("R")

LASTING = (Phase.RUNNING, Phase.FINISHED)
"""Phases in which a gang waits for nothing, so that their length says nothing about the scheduler."""
_MILLISECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_UP_TO_HOURS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 14400.0)


@dataclass(frozen=True, slots=True)
class ReadAtScrape(Generic[R]):
    """A gauge. `values` computes its values from the object that was read, as (values of its labels, value).
    For one label, the value alone stands for the tuple."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Callable[[R], Iterable[tuple[str | tuple[str, ...], float]]]


class Metrics:
    """All metrics of the service. A method with the name of an event counts it. Dashboards use the metrics'
    names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.before_scrape: Callable[[], Awaitable[None]] = _do_nothing
        """Reads slow figures in parts, before a scrape holds the event loop."""
        self._add_planner()
        self._add_gangs()
        self._add_shim()
        self._add_api_server()

    def _add_planner(self) -> None:
        """Add the metrics of decisions."""
        self.decision_seconds = self._histogram(
            "muster_decision_seconds", "Time that the planner took for one decision.", "outcome"
        )
        self._cause = self._count("muster_decision_causes", "Causes of the planner's refusals.", "cause")
        self._method = self._count(
            "muster_decision_methods", "Plans in which an exact method decided at least one level.", "method"
        )
        self.planner_phase_seconds = self._histogram(
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
        self.planner_failed = self._count("muster_planner_failures", "Defects: place() raised.")

    def _add_gangs(self) -> None:
        """Add the metrics of the life of gangs."""
        self.phase_seconds = self._histogram(
            "muster_gang_phase_seconds",
            "Time that a gang was in a phase, when it left it.",
            "phase",
            buckets=_UP_TO_HOURS,
        )
        self.withdrawn = self._count("muster_withdrawals", "Plans that were withdrawn, by cause.", "cause")
        self.inbox = Gauge(
            "muster_inbox_events", "Inputs waiting for the coordinator.", registry=self.registry
        )

    def _add_shim(self) -> None:
        """Add the metrics of sessions with the shim."""
        self._delivered = self._count("muster_verdicts", "Verdicts pushed to the shim.", "outcome")
        self._undelivered = self._count(
            "muster_verdicts_undelivered", "Verdicts while no shim was connected."
        )
        self.call_seconds = self._histogram(
            "muster_call_seconds", "Unary calls of the shim.", "method", "code"
        )
        self.session_ended = self._count(
            "muster_sessions", "Sessions of the shim that ended, by cause.", "cause"
        )

    def _add_api_server(self) -> None:
        """Add the metrics of reads from the API server and of writes to it."""
        self.watch_restarted = self._count(
            "muster_watch_restarts", "Watches that broke and were begun again.", "resource", "reason"
        )
        self.watch_lag = self._histogram(
            "muster_watch_lag_seconds", "Time between the arrival of a change and its handling."
        )
        self.unreadable_object = self._count(
            "muster_objects_unreadable", "API objects left out because of their shape.", "resource"
        )
        self.event = self._count(
            "muster_events", "Kubernetes events by result: posted, dropped, failed, repeated.", "result"
        )
        self.status = self._count(
            "muster_podgroup_statuses", "Statuses of PodGroups by result: written, dropped, failed.", "result"
        )
        self.condition = self._count(
            "muster_pod_conditions", "Conditions of pods by result: written, gone, dropped, failed.", "result"
        )
        self.eviction = self._count(
            "muster_evictions", "Evictions by result: evicted, gone, failed, dropped, withdrawn.", "result"
        )

    def count_decision(
        self,
        outcome: str,
        took_s: float,
        causes: Iterable[str],
        methods: Iterable[str],
        gap: float | None,
        trace_id: str,
    ) -> None:
        """Count a decision. `trace_id`: the trace that shows it; "" for none."""
        self.decision_seconds.labels(outcome).observe(took_s, _exemplar(trace_id))
        for cause in set(causes):
            self._cause(cause)
        for method in set(methods):
            self._method(method)
        if gap is not None:
            self._gap.observe(gap, _exemplar(trace_id))

    def verdict(self, outcome: str, *, delivered: bool) -> None:
        """Count a verdict, and whether a session took it."""
        if delivered:
            self._delivered(outcome)
        else:
            self._undelivered()

    def read_at_scrape(self, read: Callable[[], R], *gauges: ReadAtScrape[R]) -> None:
        """Add gauges whose values come from one object. The object is read once for each scrape."""
        self.registry.register(_AtScrape(read, gauges))

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample; 0 if there is none. Only tests use it."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def text(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type, in a format that the Accept header names.

        OpenMetrics alone shows exemplars. The default is Prometheus' text format.
        """
        encode, content_type = choose_encoder(accepted)
        return encode(self.registry), content_type

    def _count(self, name: str, text: str, *labels: str) -> Callable[..., None]:
        """Add a counter. Return a function that adds 1 to it, given the values of its labels."""
        counter = Counter(name, text, labels, registry=self.registry)
        return lambda *values: (counter.labels(*values) if values else counter).inc()

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _MILLISECONDS
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


async def _do_nothing() -> None:
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


class Phases:
    """Counts moves, and remembers since when each waiting gang is in its phase."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since: dict[str, tuple[str, float]] = {}
        """Gang → its phase and when it entered it, by the inputs' clock."""

    def note_move(self, move: Moved, trace_id: str) -> None:
        """Take in a move. `trace_id`: the trace that shows it; "" for none."""
        if (phase_and_since := self._since.pop(move.gang, None)) is not None:
            phase, since = phase_and_since
            seconds = self._metrics.phase_seconds.labels(phase)
            seconds.observe(move.moved_at - since, _exemplar(trace_id))
        if move.phase not in LASTING:
            self._since[move.gang] = (move.phase, move.moved_at)
        if move.phase == "withdrawn":
            self._metrics.withdrawn(move.why)

    def oldest(self, now: float) -> list[tuple[str, float]]:
        """Return phase → the longest time in seconds that a gang has been in it."""
        longest: dict[str, float] = {}
        for phase, since in self._since.values():
            longest[phase] = max(longest.get(phase, 0.0), now - since)
        return list(longest.items())
