"""A throw-away cluster with Muster on it, told of on the screen as it comes up; what it started, it stops."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from local_cluster.api import ApiError, ApiUnreachable
from local_cluster.build import BuildError
from local_cluster.certificates import ClusterKeys
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.collector import Collector
from local_cluster.demo.building import Building, minutes
from local_cluster.demo.interrupts import Interrupts
from local_cluster.demo.observer import NotSeen, StreamingApi
from local_cluster.demo.show import Show
from local_cluster.nodes import NodesNotReady
from local_cluster.processes import ProcessError
from local_cluster.real.printing import NotPrinted
from local_cluster.real.support import why_not
from local_cluster.recipes import CLUSTER, COMPONENTS, NODE, TRACING, missing
from local_cluster.stack import Stack, StackError

FAILURES = (
    ApiError,
    ApiUnreachable,
    BuildError,
    ClusterError,
    NodesNotReady,
    NotPrinted,
    NotSeen,
    ProcessError,
    StackError,
)
INTERRUPTED = 130
LONG_BUILD_S = 45.0
"""A build that is expected to take longer leaves time for something else to look at."""


class Sandbox:
    """One cluster in `directory`. `timings_ms` has how long each step took, by its name.

    `real` is how many nodes with a kubelet and containers it has, and 0 if this machine can have none. With
    `trace` there is a collector, to which all processes send spans. With `native` the cluster serves
    Kubernetes' own PodGroups.
    """

    def __init__(
        self,
        directory: Path,
        console: Console,
        show: Show,
        interrupts: Interrupts,
        real: int = 0,
        *,
        trace: bool = False,
        native: bool = False,
    ) -> None:
        self._why_not = why_not() if real else ""
        self.real = 0 if self._why_not else real
        self.cluster = LocalCluster(
            directory / "cluster",
            native=native,
        )
        self.collector = Collector(directory / "collector") if trace else None
        self.stack = Stack(self.cluster, directory / "stack")
        self.timings_ms: dict[str, float] = {}
        self._directory = directory
        self._console, self._show, self._interrupts = console, show, interrupts

    def boot(
        self,
        nodes: str,
        create: Callable[[], object],
        meanwhile: Callable[[Callable[[], str]], None] | None = None,
    ) -> None:
        """Build what is missing, start the control plane, `create` the nodes, start Muster.

        `meanwhile` is called while a build runs that takes minutes, with a function that says how far it is.
        """
        self._show.say(
            "Muster on a real control plane (etcd, kube-apiserver, kube-controller-manager), "
            + ("fake kubelets, and real ones at the end." if self.real else "fake kubelets.")
        )
        self._show.say("")
        if self._why_not:
            self._show.say(f"There are fake nodes alone. Real ones can't be had here: {self._why_not}.\n")
        tracing = TRACING if self.collector is not None else ()
        absent = missing([*CLUSTER, *(NODE if self.real else ()), *tracing])
        expected_s = sum(recipe.cold_s for recipe in absent)
        if absent:
            names = ", ".join(recipe.name for recipe in absent)
            self._show.say(
                f"To build first, once: {names} (about {minutes(expected_s)} on two cores).", "dim"
            )
        with (
            self._step("build", "", "programs built" if absent else "programs found in the cache"),
            Building(absent, self._directory / "build.log") as building,
        ):
            if meanwhile is not None and expected_s > LONG_BUILD_S:
                meanwhile(building.line)
            building.wait(self._console, self._interrupts.check)
        with self._step("control_plane", "starting the control plane", "control plane healthy"):
            if self.collector is not None:
                self.collector.start()
                self.cluster.collector = self.collector.endpoint
            self.cluster.up(foreground=True)
        with self._step("nodes", "creating nodes", nodes):
            create()
        with self._step("muster", "starting Muster", "Muster's service in sync, its scheduler leading"):
            self.stack.start()
        self._show.say(f"The map of GPUs and gangs, for a browser while this runs: {self.stack.page_url}")

    def start_real_nodes(self) -> None:
        """Start the real nodes, if there are to be any."""
        if self.real:
            plural = "s" if self.real > 1 else ""
            done = f"{self.real} node{plural} with a kubelet and containerd Ready"
            with self._step("real_nodes", "starting real nodes", done):
                self.cluster.start_real_nodes(self.real)

    @contextlib.contextmanager
    def api(self) -> Iterator[StreamingApi]:
        """The API server, as the administrator."""
        keys = ClusterKeys.create(self.cluster.layout.pki)
        with contextlib.closing(
            StreamingApi(self.cluster.url, str(keys.ca.pair.certificate), keys.admin)
        ) as api:
            yield api

    def keep(self, *commands: str) -> None:
        """Leave it running until Ctrl-C, and tell how to look at it meanwhile."""
        self._show.say("\nIt runs on. In another terminal:\n")
        for command in (f"export KUBECONFIG={shlex.quote(str(self.cluster.kubeconfig))}", *commands):
            self._show.say(f"    {command}")
        self._show.say("\nCtrl-C stops it.", "bold")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()

    def ended(self) -> str:
        """The name of a process that should run and does not; "" while all of them run."""
        running = self.cluster.running() | self.cluster.real_nodes.running()
        parts = {"muster serve": self.stack.service.alive, "the scheduler": self.stack.scheduler.alive}
        ended_names = [name for name in (*COMPONENTS, *self.cluster.real_nodes.names) if name not in running]
        return next(iter(ended_names + [name for name, alive in parts.items() if not alive]), "")

    def stop(self) -> None:
        """Stop everything; no interrupt comes between from here on."""
        self._interrupts.hold()
        began = time.monotonic()
        try:
            self.stack.stop()
        finally:
            self.cluster.down()
            if self.collector is not None:
                self.collector.stop()
        self._show.done("everything stopped", time.monotonic() - began)

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
        self.timings_ms[name] = took_s * 1000
        self._show.done(done, took_s)


def run(work: Callable[[Path], bool], directory: Path | None) -> int:
    """Exit status of `work` in `directory`, or in a temporary one: 0 when it holds, 1 when it does not or
    something failed, 130 when Ctrl-C cut it short. Logs stay where something did not hold."""
    folder = directory or Path(tempfile.mkdtemp(prefix="muster-demo-"))
    try:
        status = 0 if work(folder) else 1
    except (KeyboardInterrupt, SystemExit):  # rich exits when the reader of a pipe has gone
        status = INTERRUPTED
    except FAILURES as problem:
        print(f"error: {problem}", file=sys.stderr)
        status = 1
    if status == 1:
        print(f"logs: {folder}", file=sys.stderr)
    elif directory is None:
        shutil.rmtree(folder, ignore_errors=True)
    return status
