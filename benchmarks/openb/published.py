"""The authors' own results, to compare with ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

from benchmarks.openb.trace import DATA


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some seeds: mean and standard deviation of a sample (0 for a single one)."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of one value at least."""
        return cls(mean(values), stdev(values) if len(values) > 1 else 0.0)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


LOADS = (60, 70, 80, 90, 95, 100, 110, 120, 130)
"""Arrived loads that the published table has, percent of the cluster's GPUs."""


@cache
def published(workload: str, policy: str, load: int) -> Spread:
    """Unallocated GPUs, percent, of ten seeds; `policy` as the table calls it (01-Random … 06-FGD)."""
    with (DATA / "published_allocation.csv").open(encoding="utf-8", newline="") as lines:
        rows = [
            row
            for row in csv.DictReader(lines)
            if row["workload"] == f"openb_pod_list_{workload}" and row["sc_policy"] == policy
        ]
    return Spread.of([100 - float(row[str(load)]) for row in rows])
