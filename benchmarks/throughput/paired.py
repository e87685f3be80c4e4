"""What pairs of measurements say: medians, and an interval that needs no assumption on the noise.

Two measurements of a pair follow each other, so that what else the machine does hits both alike; their ratio
is what counts, and the order alternates, so that being second favours neither side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

WANTED_COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median of some values; [low, high] covers the true median with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """Median and its interval by order statistics: the k-th smallest to the k-th largest value cover the true
    median with probability 1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order Statistics, section 7.1).
    k is the largest one with at least 95 %, and 1 where none has: five values cover 93.75 %.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values to estimate from")
    ordered, n = sorted(values), len(values)
    k = max((k for k in range(1, (n + 1) // 2 + 1) if _coverage(n, k) >= WANTED_COVERAGE), default=1)
    return Estimate(median(ordered), ordered[k - 1], ordered[n - k], _coverage(n, k), n)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Of pairs, ours over theirs."""
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])


def alternating(pairs: int, sides: Sequence[str]) -> list[tuple[str, ...]]:
    """The order of the sides in each pair: as given, then turned round, and so on."""
    forward = tuple(sides)
    return [forward if pair % 2 == 0 else forward[::-1] for pair in range(pairs)]


def _coverage(n: int, k: int) -> float:
    return 1 - sum(comb(n, below) for below in range(k)) / float(2 ** (n - 1))
