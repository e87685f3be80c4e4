"""How loaded the cluster was: GPUs bound, as shares of all, weighted with time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from e2e.facts import PodFacts

LOW, HIGH = 0.5, 0.9
"""The load that a run is meant to be under."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Shares of the cluster's GPUs that were bound; `share_of_time_in_range` between LOW and HIGH."""

    mean: float
    lowest: float
    highest: float
    share_of_time_in_range: float


@dataclass
class Meter:
    """`gpus`: of the whole cluster. Counts from `begin` to `end`."""

    gpus: int
    _held: dict[str, int] = field(default_factory=dict)
    _since: float | None = None
    _spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def load(self) -> float:
        return sum(self._held.values()) / self.gpus

    def begin(self, at: float) -> None:
        self._since = at

    def end(self, at: float) -> None:
        self._span(at)
        self._since = None

    def pod(self, at: float, pod: PodFacts) -> None:
        """A pod is there, as it is now."""
        self._span(at)
        if pod.holds:
            self._held[pod.uid] = pod.gpus
        else:
            self._held.pop(pod.uid, None)

    def gone(self, at: float, uid: str) -> None:
        self._span(at)
        self._held.pop(uid, None)

    def _span(self, at: float) -> None:
        if self._since is not None and at > self._since:
            self._spans.append((at - self._since, self.load))
            self._since = at

    def report(self) -> LoadReport:
        """Zeros when nothing was counted."""
        total = sum(length for length, _ in self._spans)
        if not total:
            return LoadReport(0.0, 0.0, 0.0, 0.0)
        loads = [load for _, load in self._spans]
        return LoadReport(
            mean=round(sum(length * load for length, load in self._spans) / total, 3),
            lowest=round(min(loads), 3),
            highest=round(max(loads), 3),
            share_of_time_in_range=round(
                sum(length for length, load in self._spans if LOW <= load <= HIGH) / total, 3
            ),
        )
