"""python -m benchmarks.throughput: measure on a local cluster, print tables, write JSON lines.

Ends with 1 where something was not measured. Slow is not wrong: ratios are reported, never judged.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TextIO

from rich.console import Console

from benchmarks import options
from benchmarks.report import write
from benchmarks.throughput import flood, questions, report
from benchmarks.throughput.questions import Answer, Question
from benchmarks.throughput.sides import Muster, Stock, Traced
from benchmarks.throughput.site import GPUS, Site
from benchmarks.throughput.trials import Trial
from local_cluster import stack_config
from local_cluster.cluster import LocalCluster
from muster.command_line import USAGE, Failed, Option, run_command

PARTS = ("large", "gangs", "bystanders", "traces", "flood")
"""In this order: `large` wants the smaller cluster, and nodes are only added."""


def main(  # noqa: PLR0913, PLR0917 — one option, one argument
    parts: Annotated[
        str, Option(help=f"What to measure, comma-separated: {', '.join(PARTS)}; all if empty.")
    ] = "",
    rounds: Annotated[int, Option(min=1, help="Rounds of each question; one more is not counted.")] = 5,
    nodes: Annotated[int, Option(min=20, help="Nodes of eight GPUs.")] = 1000,
    gangs: Annotated[int, Option(min=1, help="Gangs of eight in a trial.")] = 200,
    others: Annotated[int, Option(min=2, help="Pods that ask for no GPU, in a trial.")] = 800,
    members: Annotated[
        int, Option(min=2, help="Members of the large gang, placed on half of the nodes.")
    ] = 512,
    pods: Annotated[int, Option(min=200, help="Pods that arrive at once, in the flood.")] = 10_000,
    out: Annotated[Path, Option(help="Where the JSON lines go.")] = Path("out/throughput.jsonl"),
    folder: Annotated[
        Path | None, Option(help="Where the cluster and all logs go; if not given they are removed.")
    ] = None,
) -> int:
    """Pods bound per second with Muster and with a stock profile of the same scheduler, on one local cluster.

    large       one gang, against the same pods without a gang
    gangs       gangs of eight, against the same pods without a gang
    bystanders  what pods that ask for no GPU lose to Muster, alone and while gangs are placed
    traces      gangs of eight, with and without a trace of each
    flood       ten thousand pods at once: memory of the service, and whether it answers

    Trials follow each other in turn (Muster, stock, stock, Muster, ...); ratios
    are of pairs. A full run takes about half an hour on two idle cores.

    A first impression: --parts gangs --rounds 1 --nodes 60 --gangs 40
    """
    began = time.monotonic()
    part_names = options.chosen(parts, PARTS, "--parts")
    for option, nodes_needed in (("--gangs", gangs), ("--members", -(-members // (GPUS // 2)))):
        if nodes_needed > nodes:
            raise Failed(f"{option}: that takes {nodes_needed} nodes, --nodes says {nodes}", USAGE)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    answers: list[Answer] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        options.folder(folder, "muster-throughput-") as place,
        LocalCluster(place / "cluster") as cluster,
        out.open("w") as lines,
    ):
        write(lines, "run", _run(rounds, nodes))
        site = Site(cluster, place)
        muster, stock = Muster(cluster, place / "muster"), Stock(cluster, place / "stock")
        traced = Traced(cluster, place / "traced")
        questions_by_part: dict[str, tuple[int, Callable[[], Question]]] = {
            "large": (nodes // 2, lambda: questions.large(site, muster, stock, members)),
            "gangs": (nodes, lambda: questions.gangs(site, muster, stock, gangs)),
            "bystanders": (nodes, lambda: questions.bystanders(site, muster, stock, others, gangs // 4 or 1)),
            "traces": (nodes, lambda: questions.traces(site, muster, traced, gangs)),
        }
        for name, (size, question) in questions_by_part.items():
            if name in part_names:
                site.grow(size)
                write(lines, "idle", {"nodes": size, "processors": site.resting({})})
                answers.append(_ask(question(), rounds, console, lines))
        if "flood" in part_names:
            site.grow(nodes)
            flooded = flood.flood(site, muster, pods, nodes * GPUS)
            write(lines, "flood", report.flood_record(flooded))
            report.show_flood(console, flooded)
    console.print(f"\n{time.monotonic() - began:.0f} s; JSON lines in {out}.")
    failures = questions.failures(answers)
    for failure in failures:
        console.print(f"[red]not measured[/] {failure}", highlight=False)
    return 1 if failures else 0


def _ask(question: Question, rounds: int, console: Console, lines: TextIO) -> Answer:
    def told(kind: str, trial: Trial, counted: bool) -> None:
        console.print(
            f"{question.name}, {kind}: {trial.pods} pods in {trial.seconds:.1f} s, {trial.per_s:.0f} a second"
            + ("" if counted else "; not counted"),
            highlight=False,
        )
        if counted:
            write(lines, "trial", report.trial_record(question.name, kind, trial))

    answer = questions.ask(question, rounds, told)
    for record in report.ratio_records(answer):
        write(lines, "ratio", record)
    report.show(console, answer)
    return answer


def _run(rounds: int, nodes: int) -> dict[str, object]:
    return {
        "rounds": rounds,
        "nodes": nodes,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "client_connection": stack_config.client_connection(),
    }


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.throughput"))
