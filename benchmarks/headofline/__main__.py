"""python -m benchmarks.headofline: measure on a local cluster, print a table, write JSON lines.

Ends with 1 where a trial could not be measured. Slow is not wrong: ratios are reported, never judged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from rich.console import Console

from benchmarks import options
from benchmarks.headofline import pods, report, stats
from benchmarks.headofline.cases import Case, NeverRefused, Sizes, cases
from benchmarks.headofline.changing import NothingAcceptedError
from benchmarks.headofline.neighbour import Neighbour
from benchmarks.headofline.trial import ordinary
from benchmarks.report import write
from benchmarks.throughput.binds import NotBoundInTime
from benchmarks.throughput.site import NAMESPACE, Site, nodes
from e2e.client import Client
from local_cluster.cluster import LocalCluster
from local_cluster.policies import bound_sizes
from local_cluster.stack import Stack
from muster.command_line import Option, run_command

BESIDE = "beside"
FILLED_WITHIN_S = 60.0
CASES = (
    *("hangs", "slow", "slow-others", "never", "unlike", "huge", "impossible", "big"),
    *("big-nodes", "big-podgroups", "big-others", "slices", "matrix", "flap", "loses"),
    *("flood", "flood-others"),
)


def main(  # noqa: PLR0913, PLR0917 — one option, one argument
    only: Annotated[str, Option(("--cases",), help=f"Of {', '.join(CASES)}; all if empty.")] = "",
    pairs: Annotated[int, Option(min=1, help="Pairs of each case with its baseline.")] = 3,
    gangs: Annotated[int, Option(min=2, help="Ordinary gangs of four in a trial.")] = 40,
    node_count: Annotated[int, Option(("--nodes",), min=40, help="Nodes of eight GPUs.")] = 100,
    never: Annotated[int, Option(min=1, help="Gangs that can never fit.")] = 4_000,
    unlike: Annotated[int, Option(min=1, help="Refused gangs of unlike needs.")] = 10_000,
    flood: Annotated[float, Option(min=1, help="Pods created and deleted a second.")] = 50.0,
    scale: Annotated[float, Option(min=0.001, max=1, help="Part of --never and --unlike.")] = 1.0,
    out: Annotated[Path, Option(help="Where the JSON lines go.")] = Path("out/headofline.jsonl"),
    folder: Annotated[
        Path | None, Option(help="Where the cluster and all logs go; if not given they are removed.")
    ] = None,
) -> int:
    """How long ordinary gangs take from creation to bound, alone and with others, on one local cluster.

    hangs         a gang waits in PreBind for a volume that is never made
    slow          each second comes a gang of many roles, which takes the planner for long
    slow-others   the same with pods of a scheduler that does not run, and a process that uses a processor
    never         gangs that can never fit have been refused
    unlike        gangs of unlike needs have been refused
    huge          one gang of --never pods has been refused
    impossible    gangs of large pods that no node may take have been refused
    big           pods as large as the API server takes come, change and go, each large in another field
    big-nodes     a node of 1.2 MB changes its labels, annotations and resources
    big-podgroups the largest PodGroups change
    big-others    a Secret of 1 MB, which Muster does not read, changes: what the API server's load costs
    slices        a node with 100 ResourceSlices of 128 devices changes them
    matrix        a node of 89 GPUs changes its matrix, from the largest that is read to larger ones
    flap          a node of the ordinary gangs moves from rack to rack all the time
    loses         a running gang loses a member again and again
    flood         pods that cannot fit are created and deleted all the time
    flood-others  the same with pods of a scheduler that does not run: what the API server's load costs

    Each trial with a case has one without, before or after it in turn; ratios are of such pairs.
    """
    began = time.monotonic()
    case_names = options.chosen(only, CASES, "--cases")
    sizes = Sizes(max(1, round(never * scale)), max(1, round(unlike * scale)), flood)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    out.parent.mkdir(parents=True, exist_ok=True)
    trials: list[stats.Trial] = []
    failures: list[str] = []
    with (
        options.folder(folder, "muster-headofline-") as place,
        LocalCluster(place / "cluster") as cluster,
        Stack(cluster, place / "stack", quick_lease=False) as stack,
        out.open("w") as lines,
    ):
        sizes_told = {"never": sizes.never, "unlike": sizes.unlike, "flood_per_s": sizes.flood_per_s}
        settings = {
            "pairs": pairs,
            "gangs": gangs,
            "nodes": node_count,
            "cores": os.cpu_count(),
            **sizes_told,
        }
        write(lines, "run", settings | {"load": os.getloadavg()[0]})
        bound_sizes(cluster.api)
        site = Site(cluster, place)
        cluster.create_namespace(BESIDE)
        client = Client.of(cluster.kubeconfig, _private(place / "more-credentials"))
        measured, beside = Neighbour(client, NAMESPACE), Neighbour(client, BESIDE)
        site.grow(node_count)
        _fill(site, measured, node_count)
        ordinary(site, stack, measured, "warm", max(2, gangs // 4))
        case_by_name, order = cases(stack, beside, sizes), stats.order(case_names, pairs)
        for trial in _trials(site, stack, measured, case_by_name, order, gangs):
            if isinstance(trial, str):
                failures.append(trial)
                console.print(f"not measured: {trial}", highlight=False)
                continue
            trials.append(trial)
            write(lines, "trial", report.trial_record(trial) | {"load": os.getloadavg()[0]})
            console.print(report.line(trial), highlight=False)
        stat_rows = stats.rows(trials)
        for row in stat_rows:
            write(lines, "row", report.row_record(row))
    console.print(f"\n{gangs} gangs of four on {node_count} nodes, from creation to bound, ms")
    console.print(report.table(stat_rows))
    console.print(f"\n{time.monotonic() - began:.0f} s; JSON lines in {out}.")
    for failure in failures:
        console.print(f"[red]not measured[/] {failure}", highlight=False)
    return 1 if failures else 0


def _trials(
    site: Site,
    stack: Stack,
    measured: Neighbour,
    case_by_name: Mapping[str, Case],
    order: Iterable[tuple[str, int, str]],
    gangs: int,
) -> Iterator[stats.Trial | str]:
    """Yield the result of each trial, or say why it could not be measured."""
    for number, (case, pair, kind) in enumerate(order):
        doing = nullcontext() if kind == stats.ALONE else case_by_name[kind]()
        try:
            with doing as changes:
                measured_trial = ordinary(site, stack, measured, f"o{number:03}", gangs)
        except (NotBoundInTime, NeverRefused, NothingAcceptedError) as problem:
            yield f"{case}, pair {pair}, {kind}: {problem}"
            continue
        yield stats.Trial(
            *(
                case,
                kind,
                pair,
                measured_trial.seconds,
                measured_trial.unbound,
                measured_trial.processors,
                measured_trial.decisions,
                measured_trial.ready,
            ),
            inputs=measured_trial.inputs,
            changes=changes,
        )


def _fill(site: Site, measured: Neighbour, count: int) -> None:
    """Take one GPU of each node."""
    names = [str(node["metadata"]["name"]) for node in nodes(count)]
    with site.watch() as binds:
        measured.create(pods.filler(name) for name in names)
        binds.wait(count, FILLED_WITHIN_S)


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.headofline"))
