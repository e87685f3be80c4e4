"""`python -m local_cluster.up`: start a cluster with Muster on it, say how to reach it, stay until Ctrl-C.

Exit status: 0 after Ctrl-C or SIGTERM once it ran, 130 when one of them came before, 1 when something failed
or ended by itself, 2 for options that can't be.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from local_cluster.api import Object
from local_cluster.demo.interrupts import Interrupts
from local_cluster.demo.sandbox import Sandbox, run
from local_cluster.demo.show import WIDTH, Show
from local_cluster.nodes import apply_nodes, nodes_of, shape_nodes
from local_cluster.patience import HANG_S
from local_cluster.places import SOURCE
from local_cluster.processes import ProcessError
from local_cluster.real.nodes import MAX_REAL_NODES
from local_cluster.real.printing import SHOW_GPUS
from local_cluster.shape import Resource, ShapeError
from local_cluster.up.racks import DEFAULT_NODES, DEFAULT_RACK, HARDWARE, BadRacks, Racks

BAD_OPTIONS = 2
LOOK_EVERY_S = 1.0
NODES_A_SECOND = 20
"""Slower than kwok makes nodes Ready on two cores that others use as well."""
EXAMPLE = SOURCE.parent / "examples" / "features" / "preferred-scopes.yaml"
INSTALL_KUBECTL = "https://kubernetes.io/docs/tasks/tools/"


class Up:
    """One cluster with these nodes; what it started, it stops."""

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[Object],
        title: str,
        resource: str,
        real: int = 0,
        *,
        native: bool = False,
    ) -> None:
        self._nodes, self._what, self._resource = nodes, title, resource
        console = Console(width=WIDTH, highlight=False)
        self._show = Show(console)
        self._interrupts = Interrupts()
        self._sandbox = Sandbox(directory, console, self._show, self._interrupts, real, native=native)

    def run(self) -> bool:
        """Stay until a signal comes. Raises ProcessError when a process ends before that."""
        try:
            self._sandbox.boot(f"{self._what} Ready", self._create)
            self._sandbox.start_real_nodes()
            for line in self._ready():
                self._show.say(line)
            with contextlib.suppress(KeyboardInterrupt):
                self._stay()
        finally:
            self._sandbox.stop()
        return True

    def _create(self) -> None:
        quiet_s = HANG_S + len(self._nodes) / NODES_A_SECOND
        apply_nodes(self._sandbox.cluster.api, list(self._nodes), quiet_s)

    def _ready(self) -> Iterator[str]:
        """What to do next. The line with KUBECONFIG has nothing else on it, so that programs find it."""
        yield "\nAll is ready. In another terminal:\n"
        yield f"export KUBECONFIG={shlex.quote(str(self._sandbox.cluster.kubeconfig))}"
        if shutil.which("kubectl") is None:
            yield f"# there is no kubectl on PATH: install it ({INSTALL_KUBECTL})"
        if self._resource == "nvidia.com/gpu":
            yield f"kubectl apply -f {shlex.quote(str(EXAMPLE))}"
        else:
            yield f"# make pods with schedulerName: muster that ask for {self._resource}"
        if self._sandbox.real:
            yield f"kubectl apply -f {shlex.quote(str(SHOW_GPUS))}; kubectl logs -l app=show-gpus --prefix"
        yield "kubectl get pods -o wide; kubectl get events | grep -i topology"
        yield f".venv/bin/muster status --socket {shlex.quote(str(self._sandbox.stack.socket))}"
        yield f".venv/bin/muster why GANG --url {self._sandbox.stack.service_url}"
        yield "\nCtrl-C stops it, and removes all of it."

    def _stay(self) -> None:
        """Return never; look now and then whether all still runs."""
        forever = threading.Event()
        while not forever.wait(LOOK_EVERY_S):
            self._interrupts.check()
            if ended := self._sandbox.ended():
                raise ProcessError(f"{ended} ended by itself; its log says why")


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parsed = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        nodes, title, resource = _nodes(parsed)
    except (BadRacks, ShapeError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return BAD_OPTIONS

    def stay(directory: Path) -> bool:
        return Up(directory, nodes, title, resource, parsed.real, native=parsed.native).run()

    return run(stay, parsed.dir)


def _nodes(parsed: argparse.Namespace) -> tuple[list[Object], str, str]:
    """The Node objects, the words for them, and the resource that pods should ask for.

    Raises BadRacks or ShapeError.
    """
    if parsed.shape is not None:
        nodes = nodes_of(parsed.shape)
        offered = {resource for node in nodes for resource in node["status"]["allocatable"]}
        offered_kinds = [resource for resource in get_args(Resource) if resource in offered]
        preferred = "nvidia.com/gpu" if "nvidia.com/gpu" in offered_kinds else " or ".join(offered_kinds)
        return nodes, f"{len(nodes)} nodes of {parsed.shape.name}", preferred
    racks = Racks(parsed.nodes, parsed.gpus, parsed.rack, parsed.gpu, parsed.resource)
    plural = "s" if racks.count > 1 else ""
    title = f"{racks.nodes} x {racks.gpus_per_node} GPUs ({racks.gpu}) in {racks.count} rack{plural}"
    return shape_nodes(racks.shape(), "make up"), title, racks.resource


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m local_cluster.up",
        description="Start a cluster with Muster on it and stay until Ctrl-C. No root, unless with --real.",
    )
    kinds = "; ".join(f"{name}: {hardware.about}" for name, hardware in HARDWARE.items())
    parser.add_argument("--nodes", type=int, default=DEFAULT_NODES, help="how many (%(default)s)")
    parser.add_argument("--gpus", type=int, help="GPUs of each node (as many as --gpu has)")
    parser.add_argument("--rack", type=int, default=DEFAULT_RACK, help="nodes in a rack (%(default)s)")
    parser.add_argument("--gpu", choices=HARDWARE, default="h100", help=kinds)
    parser.add_argument(
        "--resource",
        choices=[resource for resource in get_args(Resource) if resource != "aliyun.com/gpu-mem"],
        default="nvidia.com/gpu",
        help="what the nodes offer (%(default)s)",
    )
    parser.add_argument(
        "--real",
        type=int,
        default=0,
        choices=range(MAX_REAL_NODES + 1),
        metavar="N",
        help=f"nodes with a kubelet and containers besides, at most {MAX_REAL_NODES}; "
        "needs root (%(default)s)",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="serve Kubernetes' own PodGroups (scheduling.k8s.io), and give each Job one",
    )
    parser.add_argument("--shape", type=Path, help="nodes from a file of local_cluster/shapes/ instead")
    parser.add_argument("--dir", type=Path, help="keep cluster and logs in this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
