"""What the times of ordinary gangs say. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

from benchmarks.throughput.paired import alternating

ALONE = "alone"
"""The name of the baseline in each pair."""


@dataclass(frozen=True, slots=True)
class Gang:
    """An ordinary gang: when its first pod was asked for, and which pods it has."""

    began: float
    members: tuple[str, ...]


@dataclass(slots=True)
class Changes:
    """How many changes the API server took and refused, the bytes of the largest object that was changed, as
    JSON, and the last refusal."""

    accepted: int = 0
    refused: int = 0
    largest: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """How many inputs the service's coordinator took, how long these had waited in the mean, s, and how long
    gangs were in each phase in the mean, s."""

    taken: float = 0.0
    waited: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """The ordinary gangs of one trial: from creation to the last binding, s. A gang that was not bound is
    in `unbound`, and in `seconds` with the time that it was waited for. `processors` in use, by process.
    `ready`: what each answer of /readyz took, s. `changes`: of the case's objects."""

    case: str
    kind: str
    pair: int
    seconds: Sequence[float]
    unbound: int = 0
    processors: Mapping[str, float] = field(default_factory=dict)
    decisions: Mapping[str, float] = field(default_factory=dict)
    ready: Sequence[float] = ()
    inputs: Inputs = field(default_factory=Inputs)
    changes: Changes | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Median and 90th percentile of a case and of its baseline, s, over all pairs; ratios are the medians of
    the ratios of the pairs. `ready`: the 99th percentile of the answers of /readyz, alone and with the case,
    s; NaN if there are none."""

    case: str
    pairs: int
    alone: tuple[float, float]
    beside: tuple[float, float]
    ratios: tuple[float, float]
    unbound: int
    ready: tuple[float, float] = (math.nan, math.nan)


def waited(gangs: Iterable[Gang], at: Mapping[str, float], until: float) -> tuple[list[float], int]:
    """Seconds from the creation of each gang to its last binding, and how many gangs were not bound.

    `at`: when each pod was seen bound; `until`: when the trial was over, the same clock.
    """
    seconds, unbound = [], 0
    for gang in gangs:
        bound = [at[name] for name in gang.members if name in at]
        whole = len(bound) == len(gang.members)
        unbound += not whole
        seconds.append((max(bound) if whole else until) - gang.began)
    return seconds, unbound


def p90(values: Sequence[float]) -> float:
    """The 90th percentile, by nearest rank.

    Raises:
        ValueError: no values.
    """
    return percentile(values, 90)


def percentile(values: Sequence[float], rank: int) -> float:
    """Return a percentile, by nearest rank.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values have no percentile")
    return sorted(values)[-(-rank * len(values) // 100) - 1]


def order(cases: Sequence[str], pairs: int) -> list[tuple[str, int, str]]:
    """Case, pair and kind of each trial in turn: the case's own name, or ALONE for its baseline."""
    return [
        (case, pair, kind)
        for case in cases
        for pair, kinds in enumerate(alternating(pairs, (ALONE, case)))
        for kind in kinds
    ]


def rows(trials: Iterable[Trial]) -> list[Row]:
    """One row for each case that has a whole pair, in the order of the trials."""
    stat_rows = []
    for case, of_case in groupby(trials, key=lambda trial: trial.case):
        by_pair: dict[int, dict[str, Trial]] = {}
        for trial in of_case:
            by_pair.setdefault(trial.pair, {})[trial.kind] = trial
        whole = [(kinds[ALONE], kinds[case]) for kinds in by_pair.values() if {ALONE, case} <= kinds.keys()]
        if whole:
            stat_rows.append(_row(case, whole))
    return stat_rows


def _row(case: str, pairs: Sequence[tuple[Trial, Trial]]) -> Row:
    alone = [value for trial, _ in pairs for value in trial.seconds]
    beside = [value for _, trial in pairs for value in trial.seconds]
    ready = [[value for trial in side for value in trial.ready] for side in zip(*pairs, strict=True)]
    return Row(
        case,
        len(pairs),
        (median(alone), p90(alone)),
        (median(beside), p90(beside)),
        (
            median(median(b.seconds) / median(a.seconds) for a, b in pairs),
            median(p90(b.seconds) / p90(a.seconds) for a, b in pairs),
        ),
        sum(trial.unbound for _, trial in pairs),
        (_p99(ready[0]), _p99(ready[1])),
    )


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 99) if values else math.nan
