"""How long gangs wait until they are bound, from when all pods that they need are there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from e2e.facts import PodFacts
from e2e.objects import MUSTER

Clock = Callable[[float], float]
Span = tuple[float, float]
"""Begin and end, in seconds."""


@dataclass(frozen=True, slots=True)
class WaitReport:
    """Seconds without those of outages; `paced` are those of a clock that goes as fast as the API server
    answers. `waiting`: gangs that were not bound when the counting ended; no other number has them."""

    bound: int
    waiting: int
    median_s: float
    p90_s: float
    longest_s: float
    paced_median_s: float
    paced_p90_s: float


@dataclass
class _Gang:
    """`there` and `bound`: UIDs of pods → when each was first seen, and first seen with a node."""

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
        self._gangs: dict[str, _Gang] = {}
        self._over = False

    def end(self) -> None:
        """Count nothing that comes later."""
        self._over = True

    def pod(self, at: float, pod: PodFacts) -> None:
        """A pod is there, as it is now."""
        key, members_needed = (pod.gang.key, pod.gang.needed) if pod.gang else (pod.name, 1)
        if self._over or pod.scheduler != MUSTER or "/target-" in key:
            return
        gang = self._gangs.setdefault(key, _Gang())
        gang.needed = members_needed
        gang.there.setdefault(pod.uid, at)
        if pod.node:
            gang.bound.setdefault(pod.uid, at)

    def gone(self, pod: PodFacts) -> None:
        """A pod went: it counts if it was bound."""
        gang = self._gangs.get(pod.gang.key if pod.gang else pod.name)
        if gang is not None and not self._over and pod.uid not in gang.bound:
            gang.there.pop(pod.uid, None)

    def report(self, outages: Iterable[Span], clock: Clock = float) -> WaitReport:
        """Return what was counted. Zeros when nothing was bound."""
        complete = [span for gang in self._gangs.values() if (span := gang.span()) is not None]
        spans = [(begin, end) for begin, end in complete if end is not None]
        merged = _merged(outages)
        well = [_length(span, merged, float) for span in spans]
        paced = [_length(span, merged, clock) for span in spans]
        return WaitReport(
            bound=len(spans),
            waiting=len(complete) - len(spans),
            median_s=_tenths(well, 5),
            p90_s=_tenths(well, 9),
            longest_s=round(max(well, default=0.0), 2),
            paced_median_s=_tenths(paced, 5),
            paced_p90_s=_tenths(paced, 9),
        )


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _length(span: Span, outages: Sequence[Span], clock: Clock) -> float:
    begin, end = span
    out = ((max(begin, start), min(end, stop)) for start, stop in outages if start < end and begin < stop)
    return clock(end) - clock(begin) - sum(clock(stop) - clock(start) for start, stop in out)


def _tenths(values: Sequence[float], tenths: int) -> float:
    """Return a quantile, in tenths."""
    if len(values) < 2:
        return round(max(values, default=0.0), 2)
    return round(quantiles(values, n=10, method="inclusive")[tenths - 1], 2)
