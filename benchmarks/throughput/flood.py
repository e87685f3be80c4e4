"""Ten thousand pods at once, far more than fit: what the service needs for them, and whether it answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throughput import pods, prometheus
from benchmarks.throughput.questions import GANG
from benchmarks.throughput.sides import Muster
from benchmarks.throughput.site import REST_S, Site

SAMPLE_EVERY_S = 0.25
SETTLED_EVERY_S = 2.0
SETTLED_WITHIN_S = 600.0
AT_REST = {"unplaceable", "running"}
"""Phases in which nothing is due for a gang."""


class NeverAtRest(RuntimeError):
    """Gangs are still worked on long after the last pod came."""


@dataclass(frozen=True, slots=True)
class Flood:
    """`fit` of the `pods` can be placed. `created_s`, `bound_s` and `settled_s` are counted from the first
    creation: to the last one, to the last binding, and until nothing is due for any gang. Memory is resident,
    MiB. `withdrawn` plans; `partial` gangs with some members bound and some not, at the end.
    `missed`: samples in which /readyz did not answer. `rest_cpu`: processor seconds a second of each process
    once all is quiet, though thousands wait."""

    pods: int
    fit: int
    bound: int
    created_s: float
    bound_s: float
    settled_s: float
    withdrawn: int
    partial: int
    before_mib: float
    peak_mib: float
    after_mib: float
    cleared_mib: float
    readyz_ms: Sequence[float]
    missed: int
    rest_cpu: Mapping[str, float]

    @property
    def kib_a_pod(self) -> float:
        """Memory of the service for each pod, KiB."""
        return 1024 * (self.after_mib - self.before_mib) / self.pods


def flood(site: Site, muster: Muster, count: int, gpus: int) -> Flood:
    """Create `count` one-GPU pods in gangs of eight at once, on `gpus` GPUs, and wait until nothing is
    due for any gang.

    Raises:
        NeverAtRest: that does not come.
    """
    gangs = -(-count // GANG)
    wave = pods.gangs("flood", gangs, GANG, muster.name)
    try:
        muster.prepare(lambda: _warm(site, muster))
        muster.start()
        before = _memory_mib(muster)
        with site.watch() as binds, _Samples(muster) as samples:
            began = time.monotonic()
            site.create(wave)
            created = time.monotonic()
            _until_at_rest(muster, gangs)
            settled = time.monotonic()
            at = binds.at
        resting_cpu = site.resting(muster.processes())
        after, peak = _memory_mib(muster), _memory_mib(muster, "VmHWM")
        verdicts = prometheus.by_label(muster.metrics()["service"], "muster_verdicts_total", "outcome")
        site.clear()
        time.sleep(REST_S)
        cleared = _memory_mib(muster)
    finally:
        muster.stop()
        site.clear()
    return Flood(
        pods=len(wave),
        fit=min(len(wave), gpus // GANG * GANG),
        bound=len(at),
        created_s=created - began,
        bound_s=max(at.values(), default=began) - began,
        settled_s=settled - began,
        withdrawn=round(verdicts.get("withdrawn", 0)),
        partial=partial(at),
        before_mib=before,
        peak_mib=peak,
        after_mib=after,
        cleared_mib=cleared,
        readyz_ms=samples.readyz_ms,
        missed=samples.missed,
        rest_cpu=resting_cpu,
    )


def partial(bound: Iterable[str]) -> int:
    """How many gangs have some members among the bound pods, and not all of them."""
    members = Counter(name.rpartition("-")[0] for name in bound)
    return sum(0 < count < GANG for count in members.values())


def _warm(site: Site, muster: Muster) -> None:
    """The first plan loads the solver, which is no waiting pod's memory."""
    with site.watch() as binds:
        site.create(pods.gangs("first", 1, GANG, muster.name))
        binds.wait(GANG, SETTLED_WITHIN_S)
    site.clear()


class _Samples:
    """Asks /readyz again and again, from when it is entered to when it is left."""

    def __init__(self, muster: Muster) -> None:
        self.readyz_ms: list[float] = []
        self.missed = 0
        self._muster = muster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="samples", daemon=True)

    def __enter__(self) -> _Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_EVERY_S):
            began = time.perf_counter()
            try:
                self._muster.stack.service_get("/readyz")
            except OSError:
                self.missed += 1
                continue
            self.readyz_ms.append(1e3 * (time.perf_counter() - began))


def _until_at_rest(muster: Muster, gangs: int) -> None:
    until = time.monotonic() + SETTLED_WITHIN_S
    before: dict[str, float] = {}
    while True:
        phases = prometheus.by_label(muster.metrics()["service"], "muster_gangs", "phase")
        quiet = sum(count for phase, count in phases.items() if phase in AT_REST) == gangs
        if quiet and phases == before:
            return
        if time.monotonic() > until:
            raise NeverAtRest(f"gangs by phase {SETTLED_WITHIN_S:g} s after the flood: {phases}")
        before = phases
        time.sleep(SETTLED_EVERY_S)


def _memory_mib(muster: Muster, field: str = "VmRSS") -> float:
    """proc(5), status: VmRSS, or VmHWM for its highest value so far."""
    lines = Path(f"/proc/{muster.stack.service.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
