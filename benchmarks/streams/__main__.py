"""python -m benchmarks.streams: run streams, print a table, write JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table

from benchmarks.clusters import Boards
from benchmarks.options import chosen
from benchmarks.streams.arrivals import MIXES
from benchmarks.streams.stream import Outcome, Task, Tree, run
from muster.command_line import Option, run_command

TREES = {
    "racks": Tree(1, 8, 8),
    "cubes": Tree(1, 8, 8, Boards.CUBE),
    "zones": Tree(4, 4, 4),
    "domains": Tree(1, 8, 8, domain=True),
    "feeders": Tree(1, 8, 8, without_gpus=12),
    "few feeders": Tree(1, 8, 8, without_gpus=4),
}
"""Clusters of 64 nodes, by name; those of feeders have further ones without GPUs."""

STREAMS = (
    ("whole", "racks"),
    ("odd", "racks"),
    ("mixed", "racks"),
    ("mixed", "cubes"),
    ("parts", "racks"),
    ("zones", "zones"),
    ("domains", "domains"),
    ("feeding", "feeders"),
    ("feeding", "few feeders"),
    ("philly", "racks"),
    ("openb", "racks"),
)
"""Which mix comes to which cluster."""


def main(
    mixes: Annotated[str, Option(help="Mixes, comma-separated.")] = "",
    loads: Annotated[str, Option(help="Shares of the GPUs asked for, comma-separated.")] = "0.8,1.0",
    seeds: Annotated[int, Option(help="Streams of each.")] = 3,
    gangs: Annotated[int, Option(help="Gangs of a stream.")] = 1000,
    processes: Annotated[int, Option(help="At a time.")] = os.cpu_count() or 1,
    apart: Annotated[bool, Option(help="Keep members without GPUs off nodes with GPUs.")] = False,
    out: Annotated[Path, Option(help="Where the JSON lines go.")] = Path("out/streams.jsonl"),
) -> None:
    """Let gangs come and go, and count those that find no place."""
    mix_names = chosen(mixes, MIXES, "--mixes")
    todo = {
        Task(mix, float(load), TREES[tree], gangs, seed, apart): tree
        for mix, tree in STREAMS
        if mix in mix_names
        for load in loads.split(",")
        for seed in range(seeds)
    }
    outcomes_by_case: dict[tuple[str, str, float], list[Outcome]] = defaultdict(list)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as lines, ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(run, task): task for task in todo}
        for future in as_completed(futures):
            task, outcome = futures[future], future.result()
            outcomes_by_case[task.mix, todo[task], task.load].append(outcome)
            lines.write(json.dumps(asdict(task) | asdict(outcome)) + "\n")
            lines.flush()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(_table(outcomes_by_case))


def _table(outcomes_by_case: dict[tuple[str, str, float], list[Outcome]]) -> Table:
    table = Table(
        "mix",
        "cluster",
        "load",
        "gangs turned away",
        "of them large",
        "without GPUs",
        "work placed, %",
        "nodes",
        "unproven",
    )
    for (mix, tree, load), outcomes in sorted(outcomes_by_case.items()):
        table.add_row(
            mix,
            tree,
            f"{load:g}",
            str(sum(run_outcome.turned_away for run_outcome in outcomes)),
            str(sum(run_outcome.large for run_outcome in outcomes)),
            str(sum(run_outcome.without_gpus for run_outcome in outcomes)),
            f"{100 * sum(run_outcome.work for run_outcome in outcomes) / len(outcomes):.2f}",
            str(sum(run_outcome.nodes for run_outcome in outcomes)),
            str(sum(run_outcome.unproven for run_outcome in outcomes)),
        )
    return table


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.streams"))
