"""python -m benchmarks.pairs REVISION: the same instances, decided by the code before and by the code now.

The revision is checked out into a worktree of its own. Both sides run in turn, cluster by cluster, with equal
seeds, so that both decide the same instances. Each instance counts with its least time of all rounds: what
else the machine does only adds. Ends with 1 if a plan became worse, unproven, or was lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.summary import Spread
from muster.command_line import USAGE, Argument, Failed, Option, run_command

ROOT = Path(__file__).resolve().parents[1]
SIZES, LOADS = ("640", "5000", "20000"), ("0", "50", "80", "95")
SOURCES = ("service", ".", "local-cluster")
"""Folders of packages in a checkout, for PYTHONPATH. The last one is that of revisions before 0.1.0."""

Key = tuple[str, str, int, int]
"""Cluster, gang, seed, and the number of the instance among those of this seed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One instance on one side. `plan` has the touched zones, racks and nodes, or is None if none was found.

    `proven` is the answer: that the plan is the best on all levels, or that there is none.
    """

    ms: float
    plan: tuple[int, ...] | None
    proven: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A cell: spreads of both sides in ms, and plans that became better or worse.

    `lost` counts instances that only the code before placed, or proved.
    """

    site: str
    case: str
    count: int
    before: Spread
    after: Spread
    better: int
    worse: int
    lost: int


def warm_instances(lines: Iterable[str]) -> dict[Key, Decided]:
    """Return the warm instances among the JSON lines of `benchmarks.run --samples`."""
    fastest: dict[Key, Decided] = {}
    numbers: Counter[tuple[str, str, int]] = Counter()
    for record in map(json.loads, lines):
        if record["kind"] != "instance" or not record["warm"]:
            continue
        cell = (record["site"], record["case"], record["seed"])
        fastest[*cell, numbers[cell]] = _decided(record)
        numbers[cell] += 1
    return fastest


def least(rounds: Iterable[Mapping[Key, Decided]]) -> dict[Key, Decided]:
    """Return each instance with its least time of all rounds."""
    every: dict[Key, Decided] = {}
    for round_decided in rounds:
        for key, decided in round_decided.items():
            if key not in every or decided.ms < every[key].ms:
                every[key] = decided
    return every


def rows(before: Mapping[Key, Decided], after: Mapping[Key, Decided]) -> list[Row]:
    """Return a row for each cell, from the instances that both sides decided."""
    cells: defaultdict[tuple[str, str], list[tuple[Decided, Decided]]] = defaultdict(list)
    for key in before.keys() & after.keys():
        cells[key[:2]].append((before[key], after[key]))
    return [_row(site, case, pairs) for (site, case), pairs in sorted(cells.items())]


def _row(site: str, case: str, pairs: list[tuple[Decided, Decided]]) -> Row:
    before, after = (Spread.of([pair[side].ms for pair in pairs]) for side in (0, 1))
    assert before is not None, "a cell has pairs"
    assert after is not None, "a cell has pairs"
    plan_pairs = [(old.plan, new.plan) for old, new in pairs if old.plan and new.plan]
    lost_count = sum(
        (old.plan is not None and new.plan is None) or old.proven > new.proven for old, new in pairs
    )
    better, worse = sum(new < old for old, new in plan_pairs), sum(new > old for old, new in plan_pairs)
    return Row(site, case, len(pairs), before, after, better, worse, lost_count)


def _decided(record: Mapping[str, Any]) -> Decided:
    plan = record["plan"]
    proven = record["optimal"] if plan else not record["undecided"]
    return Decided(record["ms"], tuple(plan.values()) if plan else None, proven)


@contextlib.contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Yield a checkout of the revision, which is removed afterwards.

    Raises:
        Failed: git does not know the revision.
    """
    with tempfile.TemporaryDirectory(prefix="muster-pairs-") as folder:
        checkout = Path(folder) / "checkout"
        result = _git("worktree", "add", "--detach", str(checkout), revision)
        if result.returncode:
            raise Failed(f"REVISION: {result.stderr.strip()}", USAGE)
        try:
            yield checkout
        finally:
            _git("worktree", "remove", "--force", str(checkout))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("git", "-C", str(ROOT), *words), capture_output=True, text=True, check=False)


def measured(checkout: Path, words: list[str]) -> dict[Key, Decided]:
    """Run the benchmark of a checkout in a process of its own, and return its instances.

    Raises:
        subprocess.CalledProcessError: the benchmark ended early; its output was shown.
    """
    with tempfile.TemporaryDirectory(prefix="muster-pairs-") as folder:
        out = Path(folder) / "bench.jsonl"
        path = os.pathsep.join(str(checkout / source) for source in SOURCES)
        command = [sys.executable, "-m", "benchmarks.run", *words, "--samples", "--out", str(out)]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if not out.exists():
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            done.check_returncode()
        return warm_instances(out.read_text(encoding="utf-8").splitlines())


def main(
    revision: Annotated[str, Argument(help="The code before: a commit, tag or branch.")],
    cells: Annotated[str, Option(help="Gangs, comma-separated; all if empty.", metavar="NAMES")] = "",
    nodes: Annotated[str, Option(help="Sizes of clusters, comma-separated.")] = "640,5000,20000",
    loads: Annotated[str, Option(help="Loads in percent, comma-separated.")] = "0,50,80,95",
    instances: Annotated[int, Option(help="Feasible instances of each gang on each cluster.")] = 40,
    rounds: Annotated[int, Option(help="How often each side decides each instance.")] = 3,
    seed: Annotated[int, Option(help="Equal seeds give equal clusters and gangs.")] = 1,
) -> int:
    """Compare decision times and plans of a revision with those of this checkout.

    For example, a minute: python -m benchmarks.pairs HEAD~1 --nodes 640 --loads 80 --instances 10
    """
    sites = [
        (size, load)
        for size in options.chosen(nodes, SIZES, "--nodes")
        for load in options.chosen(loads, LOADS, "--loads")
    ]
    common = ["--instances", str(instances), "--seed", str(seed), *(["--cells", cells] if cells else [])]
    runs: tuple[list[dict[Key, Decided]], list[dict[Key, Decided]]] = ([], [])
    with worktree(revision) as checkout:
        for number in range(rounds):
            for place, (size, load) in enumerate(sites):
                print(f"round {number + 1} of {rounds}: {size} nodes, {load} %", file=sys.stderr)
                for side in (0, 1) if (number + place) % 2 == 0 else (1, 0):
                    words = ["--nodes", size, "--loads", load, *common]
                    runs[side].append(measured((checkout, ROOT)[side], words))
    pair_rows = rows(least(runs[0]), least(runs[1]))
    show(Console() if sys.stdout.isatty() else Console(width=160), pair_rows)
    return 1 if any(row.worse or row.lost for row in pair_rows) else 0


def show(console: Console, pair_rows: Iterable[Row]) -> None:
    """Print a table of the cells, and the mean ratios."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ("n", "p50 before", "after", "ratio", "p99 before", "after", "ratio", "better", "worse", "lost")
    for i, name in enumerate(("cluster", "gang", *names)):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    halves, tails = [], []
    for row in pair_rows:
        halves.append(row.after.p50 / row.before.p50)
        tails.append(row.after.p99 / row.before.p99)
        times = [row.before.p50, row.after.p50, halves[-1], row.before.p99, row.after.p99, tails[-1]]
        counts = [row.better, row.worse, row.lost]
        table.add_row(row.site, row.case, str(row.count), *(f"{ms:.2f}" for ms in times), *map(str, counts))
    console.print(table)
    if halves:
        worst = max(zip(tails, pair_rows, strict=True), key=lambda pair: pair[0])
        console.print(
            f"{len(halves)} cells; median ratio p50 {_median(halves):.2f}, p99 {_median(tails):.2f}; "
        )
        console.print(f"largest p99 ratio {worst[0]:.2f}: {worst[1].case} on {worst[1].site}")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.pairs"))
