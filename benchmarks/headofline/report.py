"""The table for people and the records for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.headofline.stats import Row, Trial, p90


def trial_record(trial: Trial) -> dict[str, Any]:
    """One trial as JSON has it."""
    return {**asdict(trial), "median": median(trial.seconds), "p90": p90(trial.seconds)}


def line(trial: Trial) -> str:
    """One trial for people: its times, how many changes its case made, and how the service took them in."""
    phrases = [
        f"{trial.case}, {trial.kind}: p50 {1e3 * median(trial.seconds):.0f} ms",
        f"p90 {1e3 * p90(trial.seconds):.0f}",
        f"not bound {trial.unbound}",
        f"{trial.inputs.taken:.0f} inputs that waited {1e3 * trial.inputs.waited:.1f} ms",
    ]
    if (changes := trial.changes) is not None:
        size = f"{changes.largest / 1000:.0f} kB"
        phrases.append(f"{changes.accepted} changes of up to {size} accepted, {changes.refused} refused")
    return ", ".join(phrases)


def row_record(row: Row) -> dict[str, Any]:
    """One row as JSON has it; pairs of numbers are median and 90th percentile."""
    return asdict(row)


def table(rows: Sequence[Row]) -> Table:
    """Times in ms, and what they are of those of the baseline."""
    new_table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ("case", "pairs", "alone p50", "p90", "with it p50", "p90", "ratio p50", "p90", "not bound")
    for at, column in enumerate((*columns, "readyz p99 alone", "with it")):
        new_table.add_column(column, justify="left" if at == 0 else "right", no_wrap=True)
    for row in rows:
        times = [f"{1e3 * value:.0f}" for value in (*row.alone, *row.beside)]
        ratios = [f"{value:.2f}" for value in row.ratios]
        ready = [f"{1e3 * value:.0f}" for value in row.ready]
        new_table.add_row(row.case, str(row.pairs), *times, *ratios, str(row.unbound), *ready)
    return new_table
