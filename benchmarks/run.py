"""python -m benchmarks.run: measure, print tables, write JSON lines.

Ends with 1 where a plan breaks a rule, is less compact than a greedy's, or a gang is refused that a greedy
places. Slow is not wrong: times are reported, never judged.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.status import Status

from benchmarks import fills, options, report
from benchmarks.clusters import Boards
from benchmarks.gangs import CASES
from benchmarks.suite import Run, Site, standard_sites
from benchmarks.summary import Summary, summary
from benchmarks.watch_events import event_cost
from muster.command_line import USAGE, Failed, Option, run_command

EVENTS = 2_000
FILLS = 1_000


def main(  # noqa: PLR0913, PLR0917 — one option, one argument
    cells: Annotated[
        str, Option(help="Gangs to place, by name, comma-separated; all if empty.", metavar="NAMES")
    ] = "",
    nodes: Annotated[
        str,
        Option(help="Only these cluster sizes, comma-separated. Others than 640, 5000 and 20000 too."),
    ] = "",
    loads: Annotated[str, Option(help="Only these loads, in percent, comma-separated.")] = "",
    boards: Annotated[
        Boards | None,
        Option(help="Only this board in all nodes; else NVSwitch, and one mixed cluster."),
    ] = None,
    racks_per_zone: Annotated[
        int | None, Option(help="Only zones of so many racks, 0 for none; else none, and one with 40.")
    ] = None,
    instances: Annotated[
        int,
        Option(
            help="Feasible instances of each gang; a part of it on clusters without a target, unless chosen."
        ),
    ] = 200,
    minutes: Annotated[float, Option(help="When to stop measuring, complete or not.")] = 14.5,
    seed: Annotated[int, Option(help="Equal seeds give equal clusters and gangs.")] = 1,
    guard: Annotated[float, Option(help="Wall clock for one decision, seconds; then it is unproven.")] = 1,
    out: Annotated[Path, Option(help="Where the JSON lines go.")] = Path("out/bench.jsonl"),
    samples: Annotated[bool, Option(help="Write every instance too, not only the cells.")] = False,
) -> int:
    """Measure the planner against the methods of Kueue, KAI and go-gpuallocator, on the same clusters.

    For example, a minute on small clusters: python -m benchmarks.run --nodes 640 --instances 20 --minutes 1
    """
    started = time.monotonic()
    console = Console() if sys.stdout.isatty() else Console(width=220)
    status = Console(stderr=True)
    cases = [CASES[name] for name in options.chosen(cells, CASES, "--cells")]
    sites = _sites(instances, nodes, loads, boards, racks_per_zone)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core: what targets are set for
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as lines:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cpu": _cpu()}
        report.write(lines, "run", {"seed": seed, "instances": instances, "guard_s": guard, **machine})
        costs = [event_cost(size, EVENTS, seed) for size in sorted({site.nodes for site in sites})]
        for cost in costs:
            report.write(lines, "watch_event", asdict(cost))
        filled = fills.run(FILLS, seed)
        report.write(lines, "fills", filled)
        run = Run.of(sites, cases, seed, 60 * minutes - (time.monotonic() - started), guard)
        with status.status("…") as live:
            run.go(lambda run, site: _tell(status, live, run, site, started))
        rows = [summary(cell) for cell in run.cells]
        for cell, row in zip(run.cells, rows, strict=True):
            report.write(lines, "cell", report.record(row))
            for sample in cell.samples if samples else ():
                report.write(lines, "instance", {"site": row.site, "case": row.case, **asdict(sample)})
    report.show(console, [row for row in rows if row.measured], costs, filled)
    return _end(console, rows, run, out, started)


def _end(console: Console, rows: list[Summary], run: Run, out: Path, started: float) -> int:
    """What was left out, and whether all is well."""
    empty = [f"{row.case} on {row.site}" for row in rows if not row.measured]
    if empty:
        console.print(f"Not measured, for want of free GPUs or of time: {'; '.join(empty)}.")
    if not run.complete:
        console.print("Time was up before all instances were measured: n says how many were.")
    console.print(f"{time.monotonic() - started:.0f} s; JSON lines in {out}.")
    failures = [failure for row in rows for failure in row.failures]
    for failure in failures:
        console.print(f"[red]wrong[/] {failure}", highlight=False)
    return 1 if failures else 0


def _sites(
    instances: int, nodes: str, loads: str, boards: Boards | None, racks_per_zone: int | None
) -> list[Site]:
    sites = list(standard_sites(instances))
    if boards is not None or racks_per_zone is not None:
        plain = {
            Site(site.nodes, site.load, site.instances, boards or Boards.NVSWITCH, racks_per_zone or 0): None
            for site in sites
            if site.boards is Boards.NVSWITCH and not site.racks_per_zone
        }
        sites = list(plain)
    try:
        sizes, shares = [int(word) for word in _words(nodes)], [float(word) / 100 for word in _words(loads)]
    except ValueError as error:
        raise Failed(f"{error}: numbers, separated by commas", USAGE) from None
    sizes_before = {site.nodes for site in sites}
    sites += [
        Site(size, load, instances, boards or Boards.NVSWITCH, racks_per_zone or 0)
        for size in sizes
        if size not in sizes_before
        for load in (0.0, 0.5, 0.8, 0.95)
    ]
    if sizes or shares:
        sites = [replace(site, instances=instances) for site in sites]
    return [
        site
        for site in sites
        if (not sizes or site.nodes in sizes)
        and (not shares or any(abs(site.load - s) < 1e-9 for s in shares))
    ]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _tell(status: Console, live: Status, run: Run, site: Site, started: float) -> None:
    """How far the run is: one line that changes on a terminal, elsewhere a line for each visit of a site."""
    done = sum(cell.done for cell in run.cells)
    text = (
        f"{time.monotonic() - started:4.0f} s  {done} of {len(run.cells)} cells done; "
        f"{site.name}, round {run.rounds[site] + 1}"
    )
    if status.is_terminal:
        live.update(text)
    else:
        status.print(text, highlight=False)


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line), "")


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.run"))
