"""How long gangs wait until they are bound, from when all pods that they need are there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from e2e.facts import PodFacts

ASKED_AT = "chaos.muster.dev/asked-at"
"""Annotation of pods: when the request that made the pod was sent, by this process's monotonic clock. A stock
scheduler may bind a pod before this process has seen that the pod exists."""

Span = tuple[float, float]
"""Begin and end, in seconds."""


@dataclass(frozen=True, slots=True)
class WaitReport:
    """`bound`: gangs that met no outage until they were bound; the seconds are theirs. `met_outage`: other
    gangs that were bound. `waiting`: gangs that were not bound when the counting ended."""

    bound: int
    met_outage: int
    waiting: int
    median_s: float
    p90_s: float
    longest_s: float


@dataclass
class _Gang:
    """`there` and `bound`: UIDs of pods → when each was first seen (or asked for), and when with a node."""

    needed: int = 0
    there: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)

    def span(self) -> tuple[float, float | None] | None:
        """Return when all that it needs were there, and when they were bound; None if they were not there."""
        if not 0 < self.needed <= len(self.there):
            return None
        complete, bound = sorted(self.there.values()), sorted(self.bound.values())
        return complete[self.needed - 1], bound[self.needed - 1] if len(bound) >= self.needed else None


class Waits:
    """Counts gangs, and single pods as gangs of one, until `end`; targets of faults are left out."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[str, str], _Gang] = {}
        """(Name of the scheduler, key of the gang) → the gang."""
        self._over = False

    def end(self) -> None:
        """Count nothing that comes later."""
        self._over = True

    def pod(self, at: float, pod: PodFacts, asked_at: str = "") -> None:
        """A pod is there, as it is now. `asked_at`: its annotation ASKED_AT."""
        key = _key(pod)
        if self._over or "/target-" in key[1]:
            return
        gang = self._gangs.setdefault(key, _Gang())
        gang.needed = pod.gang.needed if pod.gang else 1
        gang.there.setdefault(pod.uid, float(asked_at or at))
        if pod.node:
            gang.bound.setdefault(pod.uid, at)

    def gone(self, pod: PodFacts) -> None:
        """A pod went: it counts if it was bound."""
        gang = self._gangs.get(_key(pod))
        if gang is not None and not self._over and pod.uid not in gang.bound:
            gang.there.pop(pod.uid, None)

    def report(self, scheduler: str, outages: Sequence[Span]) -> WaitReport:
        """Return what was counted of this scheduler. Zeros when nothing was bound."""
        gangs = [gang for (name, _), gang in self._gangs.items() if name == scheduler]
        complete = [span for gang in gangs if (span := gang.span()) is not None]
        spans = [(begin, end) for begin, end in complete if end is not None]
        seconds = [
            end - begin
            for begin, end in spans
            if not any(start < end and begin < stop for start, stop in outages)
        ]
        return WaitReport(
            bound=len(seconds),
            met_outage=len(spans) - len(seconds),
            waiting=len(complete) - len(spans),
            median_s=_tenths(seconds, 5),
            p90_s=_tenths(seconds, 9),
            longest_s=round(max(seconds, default=0.0), 3),
        )


def _key(pod: PodFacts) -> tuple[str, str]:
    return pod.scheduler, pod.gang.key if pod.gang else pod.name


def _tenths(values: Sequence[float], tenths: int) -> float:
    """Return a quantile, in tenths."""
    if len(values) < 2:
        return round(max(values, default=0.0), 3)
    return round(quantiles(values, n=10, method="inclusive")[tenths - 1], 3)
