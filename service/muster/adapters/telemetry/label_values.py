"""Bound the values of a metric's label that users or nodes choose: at a time, and over time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from heapq import nsmallest

from muster.domain.printable import printable

OTHERS = "others"
MOST_CHARACTERS = 63
"""Of a value, as of any label value in Kubernetes."""
RENEWAL_S = 900.0


class LabelValues:
    """The values of one label that have time series of their own. All others are counted as OTHERS.

    Prometheus keeps each series that it has seen. So at most `most` values have one, and after as many came,
    one more may come every RENEWAL_S. A value keeps its place until a larger one takes it.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._values: set[str] = set()
        self._credit = float(most)
        self._at = clock()

    def choose(self, counts: Mapping[str, int]) -> Set[str]:
        """Return the values that have series of their own, given how much there is of each."""
        now = self._clock()
        self._credit = min(self._most, self._credit + (now - self._at) / RENEWAL_S)
        self._at = now
        countable = (pair for pair in counts.items() if pair[0] != OTHERS)
        for value, count in nsmallest(self._most, countable, key=lambda pair: (-pair[1], pair[0])):
            if value in self._values:
                continue
            if self._credit < 1 or not self._has_place(count, counts):
                break
            self._values.add(value)
            self._credit -= 1
        return self._values

    def cut(self, counts: Mapping[str, int]) -> Counter[str]:
        """Return the counts of short and printable values. Values without series of their own are added up as
        `OTHERS`."""
        short = Counter[str]()
        for value, count in counts.items():
            short[printable(value, MOST_CHARACTERS)] += count
        with_series, cut_counts = self.choose(short), Counter[str]()
        for value, count in short.items():
            cut_counts[value if value in with_series else OTHERS] += count
        return cut_counts

    def _has_place(self, count: int, counts: Mapping[str, int]) -> bool:
        """Return whether a value with this count gets a place; the least of the others makes way."""
        if len(self._values) < self._most:
            return True
        least = min(self._values, key=lambda value: (counts.get(value, 0), value))
        if counts.get(least, 0) >= count:
            return False
        self._values.remove(least)
        return True
