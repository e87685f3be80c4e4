"""The figures for people (tables) and for programs (JSON lines)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.throughput.flood import Flood
from benchmarks.throughput.paired import Estimate
from benchmarks.throughput.questions import Answer
from benchmarks.throughput.trials import Trial

PROCESSES = (
    *("kube-apiserver", "etcd", "kube-controller-manager", "kwok"),
    *("scheduler", "service", "client", "rest"),
)


def trial_record(question: str, kind: str, trial: Trial) -> dict[str, Any]:
    """One trial as JSON has it."""
    return {"question": question, "trial": kind, **asdict(trial), "per_s": trial.per_s}


def ratio_records(answer: Answer) -> list[dict[str, Any]]:
    """The ratios of a question as JSON has them; null where no round is complete."""
    return [
        {
            "question": answer.question.name,
            "over": list(ratio.over),
            "quantity": ratio.name,
            "goal": ratio.goal,
            "estimate": asdict(ratio_estimate) if (ratio_estimate := answer.ratio(ratio)) else None,
        }
        for ratio in answer.question.ratios
    ]


def flood_record(flood: Flood) -> dict[str, Any]:
    """The flood as JSON has it: of /readyz its spread."""
    return {**asdict(flood), "readyz_ms": spread(flood.readyz_ms), "kib_a_pod": flood.kib_a_pod}


def spread(values: Any) -> dict[str, float] | None:
    """Median, 99th percentile (nearest rank) and maximum; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": median(ordered), "p99": ordered[-(-99 * len(ordered) // 100) - 1], "max": ordered[-1]}


def show(console: Console, answer: Answer) -> None:
    """The tables of one question."""
    console.print(
        f"\n{answer.question.name}: medians of {len(answer.rounds)} rounds", style="bold", highlight=False
    )
    if not answer.rounds:
        return
    console.print(
        _table(answer, "", {"pods": lambda t: t.pods, "s": lambda t: t.seconds, "pods/s": lambda t: t.per_s})
    )
    console.print(
        _table(
            answer,
            "processor time a pod, ms",
            {name: _cpu_ms(name) for name in PROCESSES},
        )
    )
    console.print(
        _table(answer, "API requests a pod", {name: _writes(name) for name in _common_writes(answer)})
    )
    for ratio in answer.question.ratios:
        goal = f"; goal {ratio.goal}" if ratio.goal else ""
        text = f"{ratio.name}, {ratio.over[0]} / {ratio.over[1]}: {_estimate(answer.ratio(ratio))}{goal}"
        console.print(text, highlight=False)


def show_flood(console: Console, flood: Flood) -> None:
    """What the flood took."""
    ready = spread(flood.readyz_ms)
    console.print(
        f"\nflood: {flood.pods} pods at once, {flood.fit} of them fit", style="bold", highlight=False
    )
    shares = ", ".join(f"{name} {share:.3f}" for name, share in flood.rest_cpu.items() if name != "rest")
    for line in (
        f"created in {flood.created_s:.0f} s; {flood.bound} bound after {flood.bound_s:.0f} s; "
        f"nothing due any more after {flood.settled_s:.0f} s",
        f"plans withdrawn: {flood.withdrawn}; gangs bound in part: {flood.partial}",
        f"service, MiB: {flood.before_mib:.0f} before, {flood.peak_mib:.0f} at most, "
        f"{flood.after_mib:.0f} with all of them there ({flood.kib_a_pod:.1f} KiB a pod), "
        f"{flood.cleared_mib:.0f} once they are deleted",
        f"/readyz: {_readyz(ready)}, not answered {flood.missed} times",
        f"at rest, processors in use: {shares}",
    ):
        console.print(line, highlight=False)


def _table(answer: Answer, title: str, columns: Mapping[str, Callable[[Trial], float]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, justify="left", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for kind in answer.question.kinds:
        table.add_row(kind, *(f"{median(answer.values(kind, of)):.2f}" for of in columns.values()))
    return table


def _cpu_ms(process: str) -> Callable[[Trial], float]:
    return lambda trial: 1e3 * trial.cpu_s.get(process, 0.0) / trial.metered


def _writes(name: str) -> Callable[[Trial], float]:
    return lambda trial: trial.writes.get(name, 0.0) / trial.metered


def _common_writes(answer: Answer) -> list[str]:
    """Return the kinds of requests with at least one for fifty pods, in some trial."""
    names = {
        name
        for trials in answer.rounds
        for trial in trials.values()
        for name, count in trial.writes.items()
        if count > trial.metered / 50
    }
    return sorted(names)


def _estimate(ratio: Estimate | None) -> str:
    if ratio is None:
        return "not measured"
    return f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] ({ratio.coverage:.0%} of {ratio.n} pairs)"


def _readyz(quantiles: Mapping[str, float] | None) -> str:
    return (
        "never answered"
        if quantiles is None
        else "p50 {p50:.0f} ms, p99 {p99:.0f}, max {max:.0f}".format(**quantiles)
    )
