"""`kubectl gpu-topology`, and the same commands of `muster`: why, gangs, free, nodes.

Everything slow is imported where it is needed: a plugin must start at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.console import Context, fail

NOT_FOUND = 3


class Output(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


app = typer.Typer(
    name="kubectl gpu-topology",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Gangs of GPU pods: why one waits, what waits, and what is free where.",
)

AsOutput = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
Url = Annotated[str, typer.Option(help="Address of the service. Default: by kubeconfig.", metavar="URL")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Default: as kubectl.", metavar="FILE")]
MusterNamespace = Annotated[str, typer.Option(help="Where Muster runs.", metavar="NAME")]
Gpus = Annotated[int, typer.Option("--for", help="Only where N GPUs are free.", metavar="N", min=0)]
Scope = Annotated[str, typer.Option(help="node, nvlink-domain, rack, zone, another level, cluster.")]
NoService = Annotated[bool, typer.Option("--no-service", help="Ask no service: decide from the cluster.")]


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="A gang or a pod, as NAME or NAMESPACE/NAME.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    output: AsOutput = Output.TABLE,
    url: Url = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    muster_namespace: MusterNamespace = "muster-system",
    no_service: NoService = False,
) -> None:
    """Say what blocks a gang, with numbers, and what would help. A pod stands for its gang.

    Exit code 3: no gang and no pod of a gang has this name.
    """
    from muster.adapters.asking import show

    space, _, last = name.rpartition("/")
    space = space or namespace
    asking = _Asking(url, kubeconfig, context, muster_namespace, no_service)
    found = asking.gangs({"namespace": space, "name": last})
    if asking.by_engine:
        found = [
            gang for gang in found if gang["namespace"] == space and last in (gang["name"], *gang["pods"])
        ]
    if not found:
        raise fail(f"no gang in namespace {space} is named {last} or has such a pod", NOT_FOUND)
    if output is Output.TABLE:
        show.why(found, sys.stdout)
    else:
        show.dump(found, output.value, sys.stdout)


@app.command()
def gangs(
    output: AsOutput = Output.TABLE,
    url: Url = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    muster_namespace: MusterNamespace = "muster-system",
    no_service: NoService = False,
) -> None:
    """List all gangs: phase, age, members, and why one waits."""
    from muster.adapters.asking import show

    found = _Asking(url, kubeconfig, context, muster_namespace, no_service).gangs({})
    if output is Output.TABLE:
        show.gangs(found, sys.stdout)
    else:
        show.dump(found, output.value, sys.stdout)


@app.command()
def free(
    gpus: Gpus = 0,
    scope: Scope = "node",
    output: AsOutput = Output.TABLE,
    url: Url = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    muster_namespace: MusterNamespace = "muster-system",
    no_service: NoService = False,
) -> None:
    """Show free GPUs by domain: where would a gang of N GPUs find room?"""
    from muster.adapters.asking import show

    found = _Asking(url, kubeconfig, context, muster_namespace, no_service).nodes()
    rows = show.free_by_domain(found, scope, gpus)
    if output is Output.TABLE:
        show.free(rows, scope, gpus, sys.stdout)
    else:
        show.dump(rows, output.value, sys.stdout)


@app.command()
def nodes(
    output: AsOutput = Output.TABLE,
    url: Url = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    muster_namespace: MusterNamespace = "muster-system",
    no_service: NoService = False,
) -> None:
    """List the nodes with GPUs: model, free GPUs, and their domains."""
    from muster.adapters.asking import show

    found = _Asking(url, kubeconfig, context, muster_namespace, no_service).nodes()
    if output is Output.TABLE:
        show.nodes(found, sys.stdout)
    else:
        show.dump(found, output.value, sys.stdout)


class _Asking:
    """Asks the service, or decides from the cluster where there is none."""

    def __init__(
        self, url: str, kubeconfig: Path | None, context: str | None, namespace: str, no_service: bool
    ) -> None:
        self._url = url
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespace = namespace
        self.by_engine = no_service

    def gangs(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return gangs as the service shows them."""
        answer, _ = self._answers("/gangs", query)
        return list(answer["gangs"])

    def nodes(self) -> list[dict[str, Any]]:
        """Return nodes as the service shows them."""
        _, answer = self._answers("/nodes", {})
        return list(answer["nodes"])

    def _answers(self, path: str, query: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answers about gangs and nodes. A service is asked only for the path."""
        from muster.adapters.asking.service import NoAnswer, Where, ask

        if not self.by_engine:
            where = Where(self._url, self._kubeconfig, self._context, self._namespace)
            try:
                answer = ask(where, path, query)
            except NoAnswer as problem:
                if self._url:
                    raise fail(str(problem)) from None
                typer.echo(f"note: {problem}", err=True)
                typer.echo("note: decided from the cluster, by the same engine", err=True)
                self.by_engine = True
            else:
                return answer, answer
        from muster.adapters.asking.engine import decided

        try:
            return decided(self._kubeconfig, self._context)
        except NoAnswer as problem:
            raise fail(str(problem)) from None


def main() -> None:
    """Run the plugin."""
    os.environ.setdefault("_TYPER_STANDARD_TRACEBACK", "1")
    app()


if __name__ == "__main__":
    main()
