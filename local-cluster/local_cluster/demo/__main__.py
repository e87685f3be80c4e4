"""`python -m local_cluster.demo`: boot, tell the story, check the claims, stop everything.

Exit status: 0 when all claims hold, 1 when one does not or something failed, 130 when Ctrl-C cut it short.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from local_cluster.api import ApiError, ApiUnreachable
from local_cluster.build import BuildError, binary
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.demo.claims import check
from local_cluster.demo.interrupts import Interrupts
from local_cluster.demo.manifests import SHAPE
from local_cluster.demo.observer import NotSeen, Observer, StreamingApi
from local_cluster.demo.report import report
from local_cluster.demo.show import WIDTH, Show
from local_cluster.demo.story import Story
from local_cluster.places import cache_root
from local_cluster.processes import ProcessError
from local_cluster.recipes import RECIPES
from local_cluster.stack import Stack, StackError

FAILURES = (
    ApiError,
    ApiUnreachable,
    BuildError,
    ClusterError,
    NotSeen,
    ProcessError,
    StackError,
)
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    json: bool
    keep: bool
    directory: Path | None


class Demo:
    """One run: what it started, it stops."""

    def __init__(self, options: Options, directory: Path, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._options = options
        self._directory = directory
        self._console = Console(stderr=options.json, width=WIDTH, highlight=False)
        self._show = Show(self._console, quiet=options.json)
        self._cluster = LocalCluster(directory / "cluster")
        self._stack = Stack(self._cluster, directory / "stack")
        self._timings: dict[str, float] = {}

    def run(self) -> bool:
        """Whether all claims hold."""
        started = time.monotonic()
        try:
            self._boot()
            holds = self._tell(started)
            if self._options.keep:
                self._wait_for_a_signal()
        finally:
            self._interrupts.hold()
            self._stop()
        return holds

    def _boot(self) -> None:
        self._show.say(
            "Muster on a real control plane (etcd, kube-apiserver, kube-controller-manager), fake kubelets."
        )
        self._show.say("")
        built = cache_root() / "bin"
        missing = [name for name, recipe in RECIPES.items() if not (built / recipe.key() / name).is_file()]
        if missing:
            self._show.say(
                f"To build first, once: {', '.join(missing)} (all of them: 10 to 15 minutes).", "dim"
            )
        with self._step("build", "", "programs built" if missing else "programs found in the cache"):
            for name in RECIPES:
                binary(name)
        with self._step("control_plane", "starting the control plane", "control plane healthy"):
            self._cluster.up(foreground=True)
        with self._step("nodes", "creating nodes", "five GPU nodes Ready"):
            self._cluster.apply_shape(SHAPE)
        with self._step("muster", "starting Muster", "Muster's service in sync, its scheduler leading"):
            self._stack.start()

    def _tell(self, started: float) -> bool:
        began = time.monotonic()
        keys = ClusterKeys.create(self._cluster.layout.pki)
        api = StreamingApi(self._cluster.url, str(keys.ca.pair.certificate), keys.admin)
        with contextlib.closing(api), Observer(api) as observer:
            story = Story(api, observer, self._show, between=self._interrupts.check)
            try:
                story.tell()
            except NotSeen as problem:
                raise NotSeen(f"{problem}\n{observer.digest()}") from problem
            claims, free = check(story.facts, story.matrices), story.free()
        self._timings["story"] = (time.monotonic() - began) * 1000
        self._timings["total"] = (time.monotonic() - started) * 1000
        story.facts.timings_ms = self._timings
        if self._options.json:
            print(report(story.facts, claims, free))
        self._show.claims(claims)
        self._show.verdict(claims, time.monotonic() - started)
        return all(claim.holds for claim in claims)

    @contextlib.contextmanager
    def _step(self, name: str, doing: str, done: str) -> Iterator[None]:
        """Tell how long a step takes: on a terminal while it runs (unless `doing` is empty), and when it is
        done."""
        self._interrupts.check()
        began = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        silent = not (doing and self._console.is_terminal)
        with Progress(*columns, console=self._console, transient=True, disable=silent) as live:
            live.add_task(doing)
            yield
        took_s = time.monotonic() - began
        self._timings[name] = took_s * 1000
        self._show.done(done, took_s)

    def _wait_for_a_signal(self) -> None:
        self._show.say("\nIt runs on. In another terminal:\n")
        self._show.say(f"    export KUBECONFIG={shlex.quote(str(self._cluster.kubeconfig))}")
        self._show.say("    kubectl get pods -o wide; kubectl describe pod -l job-name=too-large\n")
        self._show.say("Ctrl-C stops it.", "bold")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()

    def _stop(self) -> None:
        began = time.monotonic()
        try:
            self._stack.stop()
        finally:
            self._cluster.down()
        self._show.done("everything stopped", time.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local_cluster.demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the facts as JSON and nothing else")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    parser.add_argument(
        "--dir", type=Path, help="keep cluster and logs in this folder, not in a temporary one"
    )
    given = parser.parse_args(arguments)
    options = Options(given.json, given.keep, given.dir)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="muster-demo-"))
    try:
        holds = Demo(options, directory, Interrupts()).run()
    except (KeyboardInterrupt, SystemExit):  # rich exits when the reader of a pipe has gone
        return _left(options, directory, INTERRUPTED)
    except FAILURES as problem:
        print(f"error: {problem}\nlogs: {directory}", file=sys.stderr)
        return 1
    return _left(options, directory, 0 if holds else 1)


def _left(options: Options, directory: Path, status: int) -> int:
    """Remove what nobody asked to keep; logs stay where a claim did not hold."""
    if options.directory is None and status != 1:
        shutil.rmtree(directory, ignore_errors=True)
    elif status == 1:
        print(f"logs: {directory}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
