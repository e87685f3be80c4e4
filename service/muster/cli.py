"""The `muster` command. Each command imports its slow modules itself, so that `--help` is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from muster import administration, questions
from muster.command_line import (
    USAGE,
    Argument,
    Command,
    Context,
    Failed,
    Kubeconfig,
    Option,
    Program,
    Words,
    run,
)

if TYPE_CHECKING:
    from muster.config import Config
    from muster.dialects.settings import DialectSettings


class Output(StrEnum):
    """How `muster place` prints."""

    TABLE = "table"
    JSON = "json"
    SVG = "svg"


ABOUT = """GPU gang scheduler for Kubernetes: places all pods of a gang at once, down to the GPU,
or says why it waits.

Where to begin:
  muster place -f FILE     where would gangs go? From files, without a cluster
  muster capture -o FILE   a live cluster as such a file
  muster serve             the service; the shim connects to its socket
  muster status            gangs of the service: who waits, and why
  muster why POD           what blocks its gang, and what would help
  muster explain POD       how its gang was decided, level by level
  muster preflight         whether a cluster has what Muster needs
  muster node-agent        on each node: containers get exactly the planned GPUs

In a checkout it is .venv/bin/muster (`make setup` makes it), `make try` shows an example,
and `make up` starts a local cluster with Muster on it."""

ConfigFile = Annotated[
    Path | None,
    Option(
        ("--config", "-c"), help="YAML file; `muster config` prints one with every field.", metavar="FILE"
    ),
]
SocketPath = Annotated[Path | None, Option(("--socket",), help="Unix socket of the service.", metavar="PATH")]

Manifests = Annotated[
    list[str] | None,
    Option(
        ("--file", "-f"),
        help="YAML or JSON; a folder; - for stdin; what nvidia-smi topo -m printed. May be repeated.",
        metavar="FILE",
    ),
]
SchedulerNames = Annotated[
    list[str] | None,
    Option(help="Place pods of this schedulerName. May be repeated. Default: muster.", metavar="NAME"),
]


UniqueNames = Annotated[
    list[str] | None,
    Option(
        help="Names of this scope are unique, whatever wider labels say: rack, nvlink-domain, a label. "
        "May be repeated.",
        metavar="SCOPE",
    ),
]

InferGangs = Annotated[
    list[str] | None,
    Option(
        help="Whether the pods of a job are a gang without saying so: off, warn or on, for all kinds or "
        "for one, as in Job=on. May be repeated. Default: warn.",
        metavar="[KIND=]MODE",
    ),
]


def serve(
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    socket: SocketPath = None,
    http_port: Annotated[
        int | None, Option(help="Port of /metrics, /healthz, /gangs …; 0 takes a free one.", metavar="PORT")
    ] = None,
    page_port: Annotated[
        int | None,
        Option(help="Port of the page for browsers, on loopback; 0 takes a free one.", metavar="PORT"),
    ] = None,
    log_level: Annotated[str | None, Option(help="debug, info, warning or error.", metavar="LEVEL")] = None,
    log_format: Annotated[str | None, Option(help="auto, json or console.", metavar="FORMAT")] = None,
) -> None:
    """Run the service until SIGTERM.

    It watches nodes and pods, plans gangs, and tells the shim over its unix socket.

    Examples:

        muster serve                                            in a pod, or with ~/.kube/config
        muster serve --kubeconfig ./kubeconfig --socket ./run/muster.sock
        MUSTER__LOG__LEVEL=debug muster serve -c muster.yaml    any field, from the environment
        OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 muster serve     with traces
    """
    settings = _settings(
        config,
        {
            "kubeconfig": kubeconfig,
            "context": context,
            "socket": socket,
            "http.port": http_port,
            "page.port": page_port,
            "log.level": log_level,
            "log.format": log_format,
        },
    )
    from muster.adapters.grpc.endpoint import SocketError
    from muster.adapters.kube.client import ConfigError
    from muster.adapters.telemetry import logs
    from muster.app import serve as run

    logs.configure(settings.log.level, settings.log.format)
    try:
        run(settings)
    except (ConfigError, SocketError) as problem:
        raise Failed(str(problem)) from None
    except OSError as problem:
        raise Failed(f"can't start: {problem}") from None


def status(
    config: ConfigFile = None,
    socket: SocketPath = None,
    url: Annotated[
        str | None, Option(help="HTTP address of the service, if not found by its socket.")
    ] = None,
    as_json: Annotated[bool, Option(("--json",), help="As the service says it, for programs.")] = False,
) -> None:
    """Show the gangs of a running service: phase, members seen and needed, and why one waits.

    Examples:

        muster status
        muster status --socket ./run/muster.sock
        muster status --url http://127.0.0.1:9464 --json | jq '.gangs[] | select(.phase == "unplaceable")'
    """
    from muster.adapters.asking import show
    from muster.adapters.asking.service import Service, address_of, ask

    answer = ask(Service(url or address_of(_settings(config, {"socket": socket}).socket)), "/gangs")
    if as_json:
        show.dump(answer, "json", sys.stdout)
    else:
        show.status(answer, sys.stdout)


def place(
    more_files: Annotated[list[str] | None, Argument(metavar="FILE", help="More files.")] = None,
    files: Manifests = None,
    output: Annotated[Output, Option(("--output", "-o"), help="How to print.")] = Output.TABLE,
    time_limit: Annotated[
        float | None,
        Option(
            help="Wall clock for each gang, seconds; without it results repeat exactly.",
            metavar="SECONDS",
            min=0.001,
        ),
    ] = None,
    scheduler_name: SchedulerNames = None,
    unique_names: UniqueNames = None,
    infer_gangs: InferGangs = None,
    explain: Annotated[
        bool,
        Option(
            ("--explain",),
            help="With -o json: which method decided each level, and where else gangs could go.",
        ),
    ] = False,
) -> int:
    """Decide where gangs of GPU pods would go, from manifests alone: no cluster is asked or changed.

    Files hold Nodes, running and pending Pods, and what makes Pods: Jobs,
    JobSets, LeaderWorkerSets, kubeflow's jobs, RayJobs, StatefulSets,
    Deployments. Gangs go by priority and age; each takes its GPUs before
    the next.

    Exit code: 0 all placed; 3 a gang waits, does not fit or is ill-formed;
    4 no gang is pending; 2 bad input; 5 the planner has a defect, and a gang
    is not decided, but the others are.

    Examples:

        muster capture -o cluster.json                what a live cluster has
        muster place -f cluster.json -f train.yaml    where would it go?
        kubectl get nodes,pods -A -o json | muster place -f -
        muster place -f cluster.json -o json | jq '.gangs[] | {name, message}'
        muster place -f cluster.json -o svg > plan.svg     as a picture
    """
    names = [*(files or ()), *(more_files or ())]
    if not names:
        raise Failed("no input: name files with -f, for example `muster place -f cluster.json`", USAGE)
    from muster.adapters.files.run import place_files

    settings = _settings_of_place(scheduler_name, unique_names, infer_gangs)
    return place_files(
        names,
        output.value,
        time_limit_s=time_limit,
        settings=settings,
        explain=explain,
        stdin=sys.stdin.buffer,
        stdout=sys.stdout,
        stderr=sys.stderr,
    )


def _settings_of_place(
    scheduler_name: list[str] | None, unique_names: list[str] | None, infer_gangs: list[str] | None
) -> DialectSettings:
    """Return the settings for reading pods. Raise Failed if a mode of --infer-gangs does not exist."""
    from muster.dialects.kinds.table import modes_of
    from muster.dialects.settings import DialectSettings

    try:
        modes = modes_of(infer_gangs or ())
    except ValueError as problem:
        raise Failed(f"--infer-gangs: {problem}", USAGE) from None
    return DialectSettings(
        scheduler_names=frozenset(scheduler_name or DialectSettings().scheduler_names),
        unique_names=tuple(unique_names or ()),
        infer_gangs=modes,
    )


def capture(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Annotated[
        Path | None,
        Option(("--output", "-o"), help="JSON, or YAML by its name; without it: to stdout.", metavar="FILE"),
    ] = None,
) -> None:
    """Write a cluster's nodes and pods to one file for `muster place`.

    What is pending is then decided as the service would decide it. Only the
    fields that are read are kept: no images, commands, environment or
    secrets. It needs the right to list nodes and pods.

    Examples:

        muster capture -o cluster.json
        muster capture --context prod -o prod.yaml
        muster capture | muster place -f -
    """
    from muster.adapters.files.run import capture_cluster
    from muster.adapters.kube.client import KubeError
    from muster.adapters.kube.decode import Undecodable
    from muster.domain.printable import printable

    try:
        captured = capture_cluster(kubeconfig, context, output, sys.stdout)
    except (KubeError, Undecodable) as problem:
        raise Failed(str(problem)) from None
    except OSError as problem:
        raise Failed(f"{output}: can't be written: {problem.strerror or problem}") from None
    for line in captured.problems:
        print(f"note: left out, unreadable: {printable(line)}", file=sys.stderr)
    print(f"captured {captured.nodes} nodes and {captured.pods} pods", file=sys.stderr)


def config_reference() -> None:
    """Print every setting with its default and what it means, as a YAML file to start from.

    Example:

        muster config > muster.yaml
    """
    from muster.config_sources import reference

    print(reference(), end="")


def cluster(words: Annotated[list[str], Words()]) -> int:
    """Run a real control plane on this machine, with fake GPU nodes: up, down, status."""
    try:
        from local_cluster.cli import PROGRAM as program
    except ModuleNotFoundError as missing:
        raise Failed(f"`muster cluster` is not installed here: {missing}") from None
    return run(program, words)


def print_version() -> None:
    """Print the version."""
    from importlib import metadata

    print(f"muster {metadata.version('muster')}")


def _settings(file: Path | None, flags: dict[str, Any]) -> Config:
    from muster.config_sources import SettingsError, load

    try:
        return load(file, flags=flags)
    except SettingsError as problem:
        raise Failed(str(problem), USAGE) from None


COMMANDS: dict[str, Command] = {
    "serve": serve,
    "status": status,
    "place": place,
    "capture": capture,
    "config": config_reference,
    "cluster": cluster,
    "version": print_version,
    **questions.COMMANDS,
    **administration.COMMANDS,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name, else those of this process."""
    sys.exit(run(Program("muster", ABOUT, COMMANDS), arguments))


if __name__ == "__main__":
    main()
