"""`muster cluster`: up, down and status of a local cluster, for people.

Run alone: `python -m local_cluster.cli`.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table

from local_cluster.api import ApiError, ApiUnreachable
from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.components import PORTS
from local_cluster.nodes import nodes_of, ready_nodes
from local_cluster.places import default_cluster_directory
from local_cluster.processes import ProcessError
from local_cluster.recipes import COMPONENTS
from local_cluster.shape import ShapeError
from muster.command_line import Argument, Failed, Option, Program, run

Name = Annotated[str, Argument(help="Name of the cluster; several run side by side.")]
Directory = Annotated[
    Path | None,
    Option(("--dir",), help="Keep everything of the cluster here instead of the default place."),
]
ERRORS = (ClusterError, ProcessError, ShapeError, ApiError, ApiUnreachable)


def _cluster(name: str, directory: Path | None, *, audit: bool = False) -> LocalCluster:
    return LocalCluster(directory or default_cluster_directory(name), audit=audit)


def up(
    name: Name = "default",
    shape: Annotated[
        Path | None,
        Option(help="Nodes to create: a YAML file, see local_cluster/shapes/."),
    ] = None,
    directory: Directory = None,
    audit: Annotated[bool, Option(("--audit",), help="Write every change to logs/audit.jsonl.")] = False,
    foreground: Annotated[
        bool, Option(("--foreground",), help="Stay until Ctrl-C and take the cluster down then.")
    ] = False,
) -> None:
    """Start a cluster, or what is missing of it, and create the nodes of a shape.

    Doing it twice does no harm. Example:

        muster cluster up --shape local_cluster/shapes/demo.yaml
    """
    started = time.monotonic()
    cluster = _cluster(name, directory, audit=audit)
    try:
        if shape:
            nodes_of(shape)  # a mistake in the file shows before anything is started
        cluster.up(foreground=foreground)
        try:
            count = cluster.apply_shape(shape) if shape else 0
            _print_up(cluster, count, time.monotonic() - started)
            if foreground:
                _wait_for_a_signal()
        finally:
            if foreground:
                cluster.down()
    except ERRORS as problem:
        raise Failed(str(problem)) from problem


def _wait_for_a_signal() -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    Console(stderr=True).print("Ctrl-C takes it down.")
    stop.wait()


def _print_up(cluster: LocalCluster, applied: int, took_s: float) -> None:
    console = Console()
    console.print(_table(cluster))
    shaped = f", {applied} of them from the shape" if applied else ""
    console.print(f"{len(ready_nodes(cluster.api))} nodes are Ready{shaped}; up in {took_s:.1f} s.\n")
    _print_next(cluster)


def _print_next(cluster: LocalCluster) -> None:
    """Say how to reach the cluster and what it lacks for pods to start: nodes, a scheduler."""
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    if not ready_nodes(cluster.api):
        print("# It has no nodes. Add some: muster cluster up --shape local_cluster/shapes/demo.yaml")
    print("# No scheduler runs in it, so its pods stay Pending.")
    print("# A cluster with nodes, scheduler and Muster, in one command: make up NODES=40 GPUS=8")


def down(
    name: Name = "default",
    directory: Directory = None,
    keep: Annotated[bool, Option(("--keep",), help="Keep data and logs, for another `up`.")] = False,
) -> None:
    """Stop a cluster and remove its data; also what a crashed one left behind."""
    cluster = _cluster(name, directory)
    existed = cluster.layout.state.is_file()
    try:
        if keep:
            cluster.down(keep=True)
        else:
            cluster.remove()
    except (*ERRORS, OSError) as problem:
        raise Failed(str(problem)) from problem
    print(f"{cluster.directory}: {'stopped' if existed else 'there was no cluster'}")


def status(
    name: Name = "default",
    directory: Directory = None,
    as_json: Annotated[bool, Option(("--json",), help="For programs.")] = False,
) -> int:
    """Say what runs of a cluster, on which ports, with how much memory. Exit status 1 unless all runs."""
    cluster = _cluster(name, directory)
    try:
        running = cluster.running()
        healthy = len(running) == len(COMPONENTS)
        ready = len(ready_nodes(cluster.api)) if "kube-apiserver" in running else None
        if as_json:
            print(json.dumps(_facts(cluster, ready), indent=2))
        elif not cluster.ports:
            print(f"no cluster in {cluster.directory}; start one with `muster cluster up`")
        else:
            console = Console()
            console.print(_table(cluster))
            if ready is not None:
                console.print(f"{ready} nodes are Ready.\n")
            print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    except ERRORS as problem:
        raise Failed(str(problem)) from problem
    return 0 if healthy else 1


def _facts(cluster: LocalCluster, ready: int | None) -> dict[str, object]:
    """What `status --json` prints. `ready_nodes` is null while the API server does not run."""
    running = cluster.running()
    return {
        "directory": str(cluster.directory),
        "kubeconfig": str(cluster.kubeconfig) if cluster.ports else None,
        "ready_nodes": ready,
        "components": {
            component: {
                "pid": running[component].pid if component in running else None,
                "ports": {port: cluster.ports[port] for port in PORTS[component] if port in cluster.ports},
                "memory_mib": round(running[component].memory_mib, 1) if component in running else None,
                "log": str(cluster.layout.log(component)),
            }
            for component in COMPONENTS
        },
    }


def _table(cluster: LocalCluster) -> Table:
    running, ports = cluster.running(), cluster.ports
    table = Table(title=f"cluster in {cluster.directory}", title_justify="left", caption_justify="left")
    for column in ("component", "state", "pid", "ports", "memory"):
        table.add_column(column, justify="right" if column in {"pid", "memory"} else "left")
    for component in COMPONENTS:
        identity = running.get(component)
        table.add_row(
            component,
            "[green]runs[/green]" if identity else "[red]down[/red]",
            str(identity.pid) if identity else "",
            ", ".join(str(ports[port]) for port in PORTS[component] if port in ports),
            f"{identity.memory_mib:.0f} MiB" if identity else "",
        )
    total = sum(identity.memory_mib for identity in running.values())
    table.caption = f"{total:.0f} MiB in all; logs in {cluster.layout.logs}"
    return table


ABOUT = """A real Kubernetes control plane on this machine, as plain processes: no containers, no root.

etcd, kube-apiserver and kube-controller-manager are the real ones; kwok plays the kubelets of
fake GPU nodes. No scheduler runs in it. For a cluster with Muster on it: make up

The first `up` compiles the four programs (10 to 15 minutes on two cores), later ones take 4 s."""
PROGRAM = Program("muster cluster", ABOUT, {"up": up, "down": down, "status": status})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, else those of this process."""
    sys.exit(run(PROGRAM, arguments))


if __name__ == "__main__":
    main()
