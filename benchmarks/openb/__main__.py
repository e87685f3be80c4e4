"""python -m benchmarks.openb: replay the trace, print tables, write JSON lines."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Console

from benchmarks.openb import tables
from benchmarks.openb.policies import Name
from benchmarks.openb.published import LOADS
from benchmarks.openb.runs import Outcome, run_all, tasks
from benchmarks.openb.trace import LISTS
from muster.command_line import USAGE, Failed, Option, run_command


def main(
    seeds: Annotated[
        str, Option(help="Orders of arrival, comma-separated, ranges too. Published: 42-51.")
    ] = "42-44",
    lists: Annotated[str, Option(help="Lists of pods, comma-separated.")] = ",".join(LISTS),
    policies: Annotated[str, Option(help="Policies, comma-separated.")] = ",".join(Name),
    load: Annotated[
        int, Option(help=f"Arrived percent to compare at: one of {', '.join(map(str, LOADS))}.")
    ] = 100,
    processes: Annotated[int, Option(help="At a time.")] = os.cpu_count() or 1,
    out: Annotated[Path, Option(help="Where the JSON lines go.")] = Path("out/openb.jsonl"),
) -> None:
    """Fill the openb cluster pod by pod, and show the share of GPUs that stays unallocated.

    A replay through the planner takes half a minute of a core, the others a few seconds. Two minutes:
    python -m benchmarks.openb --lists default --policies fgd,muster --seeds 42-43
    """
    todo = tasks(_lists(lists), _policies(policies), _seeds(seeds))
    if load not in LOADS:
        raise Failed(f"--load {load}: not one of {', '.join(map(str, LOADS))}", USAGE)
    status, console = Console(stderr=True), Console() if sys.stdout.isatty() else Console(width=140)
    outcomes: list[Outcome] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as lines:
        for outcome in run_all(todo, processes):
            outcomes.append(outcome)
            lines.write(json.dumps(asdict(outcome)) + "\n")
            lines.flush()
            done = outcome.task
            status.print(
                f"{len(outcomes)} of {len(todo)}: {done.workload}, {done.policy}, seed {done.seed}:"
                f" {outcome.unallocated[load]:.2f} % left",
                highlight=False,
            )
    for title, table in (
        (
            f"Unallocated GPUs, %, when {load} % have arrived: mean ± deviation",
            tables.by_policy(outcomes, load),
        ),
        ("The same at each load, mean", tables.by_load(outcomes)),
        ("On equal seeds", tables.gains(outcomes, load, Name.MUSTER, Name.FGD)),
        ("", tables.gains(outcomes, load, Name.MUSTER, Name.FGD_ALL)),
    ):
        if table.row_count:
            console.print(title, style="bold", highlight=False)
            console.print(table)
            console.print()


def _lists(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in LISTS:
            raise Failed(f"--lists {name}: not one of {', '.join(LISTS)}", USAGE)
    return names


def _policies(text: str) -> list[Name]:
    try:
        return [Name(name) for name in text.split(",")]
    except ValueError as error:
        raise Failed(f"--policies: {error}; there are {', '.join(Name)}", USAGE) from error


def _seeds(text: str) -> list[int]:
    """
    >>> _seeds("42-44,7")
    [42, 43, 44, 7]
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise Failed(f"--seeds {text}: whole numbers and ranges, as 42-51,60", USAGE) from error
    return seeds


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.openb"))
