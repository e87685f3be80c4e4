"""`python -m local_cluster.demo`: boot, tell the story, check the claims, stop everything.

Exit status: 0 when all claims hold, 1 when one does not or something failed, 130 when Ctrl-C cut it short.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from local_cluster.demo import engine, real, tracing
from local_cluster.demo.claims import check
from local_cluster.demo.interrupts import Interrupts
from local_cluster.demo.manifests import SHAPE
from local_cluster.demo.observer import NotSeen, Observer
from local_cluster.demo.report import report
from local_cluster.demo.sandbox import Sandbox, run
from local_cluster.demo.show import WIDTH, Show
from local_cluster.demo.story import Story
from local_cluster.real.nodes import MAX_REAL_NODES


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    json: bool
    keep: bool
    directory: Path | None
    real: int = 0
    trace: bool = False


class Demo:
    """One run: what it started, it stops."""

    def __init__(self, options: Options, directory: Path, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._options = options
        console = Console(stderr=options.json, width=WIDTH, highlight=False)
        self._show = Show(console, quiet=options.json)
        self._sandbox = Sandbox(directory, console, self._show, interrupts, options.real, trace=options.trace)

    def run(self) -> bool:
        """Whether all claims hold."""
        started = time.monotonic()
        try:
            self._sandbox.boot(
                "five GPU nodes Ready", lambda: self._sandbox.cluster.apply_shape(SHAPE), self._meanwhile
            )
            holds = self._tell(started)
            if self._options.keep:
                self._sandbox.keep("kubectl get pods -o wide; kubectl describe pod -l job-name=too-large")
        finally:
            self._sandbox.stop()
        return holds

    def _meanwhile(self, progress: Callable[[], str]) -> None:
        """Show the engine on files while the programs are built."""
        if not self._options.json:
            engine.tell(self._show, progress, self._interrupts.check)
            self._show.part("The same on a real control plane, as soon as it is built")

    def _tell(self, started: float) -> bool:
        began = time.monotonic()
        with self._sandbox.api() as api, Observer(api) as observer:
            story = Story(api, observer, self._show, between=self._interrupts.check)
            try:
                story.tell()
            except NotSeen as problem:
                raise NotSeen(f"{problem}\n{observer.digest()}") from problem
            claims, free = check(story.facts, story.matrices), story.free()
            if self._sandbox.real:
                self._show.gap()
                self._sandbox.start_real_nodes()
                claims.append(real.tell(api, observer, self._show))
            if self._sandbox.collector is not None:
                claims.append(tracing.tell(self._sandbox.collector, story.facts, self._show))
        timings = self._sandbox.timings_ms
        timings["story"] = (time.monotonic() - began) * 1000
        timings["total"] = (time.monotonic() - started) * 1000
        story.facts.timings_ms = timings
        if self._options.json:
            print(report(story.facts, claims, free))
        self._show.claims(claims)
        self._show.verdict(claims, time.monotonic() - started)
        return all(claim.holds for claim in claims)


def main(arguments: list[str] | None = None) -> int:
    """Play the demonstration and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the facts as JSON and nothing else")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    parser.add_argument(
        "--dir", type=Path, help="keep cluster and logs in this folder, not in a temporary one"
    )
    parser.add_argument(
        "--real",
        type=int,
        default=0,
        choices=range(MAX_REAL_NODES + 1),
        metavar="N",
        help="show containers on N nodes with real kubelets as well; needs root",
    )
    parser.add_argument("--trace", action="store_true", help="trace each gang, and check the traces")
    parsed = parser.parse_args(arguments)
    options = Options(parsed.json, parsed.keep, parsed.dir, parsed.real, parsed.trace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    interrupts = Interrupts()
    return run(lambda directory: Demo(options, directory, interrupts).run(), options.directory)


if __name__ == "__main__":
    sys.exit(main())
