"""One measurement: pods, a side, and how fast they were bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks.throughput import prometheus
from benchmarks.throughput.binds import Binds
from benchmarks.throughput.sides import Side
from benchmarks.throughput.site import Site
from local_cluster.api import Object

BOUND_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Trial:
    """`pods` were bound in `seconds`. `cpu_s` is what each process used while `metered` pods were bound, and
    `writes` what the API server was asked for; `means_ms` are the scheduler's and the service's own
    histograms, since their start."""

    side: str
    pods: int
    seconds: float
    metered: int
    cpu_s: Mapping[str, float]
    writes: Mapping[str, float]
    means_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        """Return the pods bound per second."""
        return self.pods / self.seconds

    @property
    def scheduling_ms(self) -> float:
        """Return the processor time for each pod of the scheduler and the service, ms."""
        return 1e3 * (self.cpu_s["scheduler"] + self.cpu_s.get("service", 0.0)) / self.metered


@dataclass(frozen=True, slots=True)
class _Meter:
    """Readings of the moment when a given number of pods have been bound."""

    bound: int
    cpu_s: Mapping[str, float]
    writes: Mapping[str, float]

    @classmethod
    def read(cls, site: Site, side: Side, binds: Binds) -> _Meter:
        return cls(len(binds.at), site.cpu_s(side.processes()), site.writes())


def backlog(
    site: Site,
    side: Side,
    pods: Sequence[Object],
    first: Sequence[Object],
    counted: Callable[[str], bool] = lambda _: True,
) -> Trial:
    """All pods exist before the scheduler starts: it is never short of work, and creating them takes no
    processor time from it. What runs with it has been warmed with the `first` pods. Measured from the first
    binding to the last one of the pods that are `counted` (by name)."""
    counted_pods = sum(counted(str(pod["metadata"]["name"])) for pod in pods)
    try:
        side.prepare(lambda: _bind(site, first))
        site.create(pods)
        with site.watch() as binds, ThreadPoolExecutor(max_workers=1) as beside:
            started = beside.submit(side.start)  # it binds before it says that it leads
            binds.wait(1, BOUND_WITHIN_S)
            before = _Meter.read(site, side, binds)
            started.result()
            binds.wait(len(pods), BOUND_WITHIN_S)
            after, means = _Meter.read(site, side, binds), _means(side)
            at = binds.at
    finally:
        side.stop()
        site.clear()
    times = sorted(when for name, when in at.items() if counted(name))
    return _trial(side, counted_pods, times[-1] - min(at.values()), before, after, means)


def arrival(site: Site, side: Side, pods: Sequence[Object], first: Sequence[Object]) -> Trial:
    """The scheduler runs and has bound the `first` pods; measured from the creation of the first one of
    `pods` to the last binding."""
    try:
        side.prepare(lambda: None)
        side.start()
        _bind(site, first)
        with site.watch() as binds:
            before, began = _Meter.read(site, side, binds), time.monotonic()
            site.create(pods)
            binds.wait(len(pods), BOUND_WITHIN_S)
            ended = max(binds.at.values())
            after, means = _Meter.read(site, side, binds), _means(side)
    finally:
        side.stop()
        site.clear()
    return _trial(side, len(pods), ended - began, before, after, means)


def _bind(site: Site, pods: Sequence[Object]) -> None:
    """Create pods, and return when all are bound."""
    with site.watch() as binds:
        site.create(pods)
        binds.wait(len(pods), BOUND_WITHIN_S)


def _trial(
    side: Side, pods: int, seconds: float, before: _Meter, after: _Meter, means_ms: Mapping[str, float]
) -> Trial:
    return Trial(
        side.name,
        pods,
        seconds,
        after.bound - before.bound,
        _difference(before.cpu_s, after.cpu_s),
        {name: count for name, count in _difference(before.writes, after.writes).items() if count},
        means_ms,
    )


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _means(side: Side) -> dict[str, float]:
    """Where the time of a scheduling cycle and of the service's answers goes."""
    texts = side.metrics()
    points = prometheus.means_ms(
        texts["scheduler"], "scheduler_framework_extension_point_duration_seconds", "extension_point"
    )
    unary = prometheus.means_ms(texts["scheduler"], "muster_shim_unary_seconds", "method")
    bindings = prometheus.means_ms(texts["scheduler"], "muster_shim_binding_seconds", "result")
    decisions = prometheus.means_ms(texts.get("service", ""), "muster_decision_seconds", "outcome")
    return (
        points
        | {f"call {method}": mean for method, mean in unary.items()}
        | {f"binding {result}": mean for result, mean in bindings.items()}
        | {f"decision {outcome}": mean for outcome, mean in decisions.items()}
    )
