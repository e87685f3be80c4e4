"""`make chaos`: gangs under load on a local cluster whose parts die, and an auditor's report as JSON.

Real processes: etcd, kube-apiserver, controller manager, kwok, the service, the scheduler with its plugin.
The API server serves Kubernetes' own PodGroups, and each Job gets one.
All that is drawn at random comes from the seed; what happens between the processes does not.

Exit status: 0 when nothing was violated and as many faults hit as were asked for, 1 when not, 2 when the run
itself failed, 130 when Ctrl-C cut it short. No process is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from e2e.chaos.report import Report
from e2e.chaos.runner import Options, run
from e2e.client import Client
from e2e.record import TooLateError
from local_cluster.api import ApiError, ApiUnreachable
from local_cluster.build import BuildError
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.demo.interrupts import Interrupts
from local_cluster.processes import ProcessError
from local_cluster.stack import Stack, StackError

VIOLATED, FAILED, INTERRUPTED = 1, 2, 130
FAILURES = (ApiError, ApiUnreachable, BuildError, ClusterError, ProcessError, StackError, TooLateError)
EXAMPLES = """examples:
  python -m e2e.chaos                            60 faults that hit, a quarter of an hour
  python -m e2e.chaos --seed 7 --faults 6        a short run
  python -m e2e.chaos --minutes 30 --report chaos.json
  make chaos SEED=7 MINUTES=30
  make chaos SEED=7 HOSTILE=1                    the same, with a hostile user and a hostile node
"""


def main(arguments: list[str] | None = None) -> int:
    options, directory, report_file = _options(arguments)
    folder = directory or Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    status = FAILED
    try:
        report = _run(options, folder)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except FAILURES as problem:
        _say(f"error: {problem}")
    else:
        status = 0 if report.ok else VIOLATED
        print(report.json())
        if report_file is not None:
            report_file.write_text(report.json() + "\n")
    if directory is None and status in (0, INTERRUPTED):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"logs: {folder}")
    return status


def _run(options: Options, folder: Path) -> Report:
    interrupts = Interrupts()
    credentials = folder / "credentials"
    credentials.mkdir(mode=0o700, parents=True)
    _say(f"seed {options.seed}; logs: {folder}")
    with contextlib.ExitStack() as started:
        native = LocalCluster(folder / "cluster", native=True)
        cluster = started.enter_context(native)
        stack = started.enter_context(Stack(cluster, folder / "stack"))
        started.callback(interrupts.hold)
        return run(cluster, stack, Client.of(cluster.kubeconfig, credentials), options, _say)


def _options(arguments: list[str] | None) -> tuple[Options, Path | None, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.chaos",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="what is submitted and broken (default: 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--faults", type=_positive, default=60, help="end after so many that hit a gang (default: 60)"
    )
    length.add_argument("--minutes", type=_minutes, help="inject faults for so long instead")
    parser.add_argument("--hostile", action="store_true", help="with a hostile user and a hostile node")
    parser.add_argument("--report", type=Path, help="write the JSON report to this file as well")
    parser.add_argument("--dir", type=Path, help="keep the logs in this folder; it must not exist yet")
    parsed = parser.parse_args(arguments)
    if parsed.dir is not None and parsed.dir.exists():
        parser.error(f"--dir {parsed.dir}: it exists already; name a new folder")
    return Options(parsed.seed, parsed.faults, parsed.minutes, parsed.hostile), parsed.dir, parsed.report


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of minutes")
    return minutes


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
