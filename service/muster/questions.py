"""`kubectl gpu-topology`, and the same commands of `muster`: why, gangs, free, nodes.

Everything slow is imported where it is needed: a plugin must start at once.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

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


class Asking:
    """Asks the service, or decides from the cluster where there is none, and prints the answer."""

    def __init__(
        self,
        output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
        url: Annotated[
            str, typer.Option(help="Address of the service. Default: by kubeconfig.", metavar="URL")
        ] = "",
        kubeconfig: Annotated[Path | None, typer.Option(help="Default: as kubectl.", metavar="FILE")] = None,
        context: Context = None,
        muster_namespace: Annotated[
            str, typer.Option(help="Where Muster runs.", metavar="NAME")
        ] = "muster-system",
        no_service: Annotated[
            bool, typer.Option("--no-service", help="Ask no service: decide from the cluster.")
        ] = False,
    ) -> None:
        self._output = output
        self._url = url
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespace = muster_namespace
        self.by_engine = no_service

    def print(self, found: list[Any], table: Callable[[TextIO], None]) -> None:
        """Print what was found: as a table, or as the document that was asked for."""
        from muster.adapters.asking import show

        if self._output is Output.TABLE:
            table(sys.stdout)
        else:
            show.dump(found, self._output.value, sys.stdout)

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


def command(asks: Callable[..., None]) -> None:
    """Register a command. Its options are its own and those of `Asking`, which all commands share."""
    own = list(inspect.signature(asks, eval_str=True).parameters.values())[1:]
    shared = list(inspect.signature(Asking, eval_str=True).parameters.values())

    @functools.wraps(asks)
    def asked(**options: Any) -> None:
        asking = Asking(**{each.name: options.pop(each.name) for each in shared})
        asks(asking, **options)

    asked.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    app.command()(asked)


@command
def why(
    asking: Asking,
    name: Annotated[str, typer.Argument(help="A gang or a pod, as NAME or NAMESPACE/NAME.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
) -> None:
    """Say what blocks a gang, with numbers, and what would help. A pod stands for its gang.

    Exit code 3: no gang and no pod of a gang has this name.
    """
    from muster.adapters.asking import show

    space, _, last = name.rpartition("/")
    space = space or namespace
    found = asking.gangs({"namespace": space, "name": last})
    if asking.by_engine:
        found = [
            gang for gang in found if gang["namespace"] == space and last in (gang["name"], *gang["pods"])
        ]
    if not found:
        raise fail(f"no gang in namespace {space} is named {last} or has such a pod", NOT_FOUND)
    asking.print(found, functools.partial(show.why, found))


@command
def gangs(asking: Asking) -> None:
    """List all gangs: phase, age, members, and why one waits."""
    from muster.adapters.asking import show

    found = asking.gangs({})
    asking.print(found, functools.partial(show.gangs, found))


@command
def free(
    asking: Asking,
    gpus: Annotated[int, typer.Option("--for", help="Only where N GPUs are free.", metavar="N", min=0)] = 0,
    scope: Annotated[
        str, typer.Option(help="node, nvlink-domain, rack, zone, another level, cluster.")
    ] = "node",
) -> None:
    """Show free GPUs by domain: where would a gang of N GPUs find room?"""
    from muster.adapters.asking import show

    rows = show.free_by_domain(asking.nodes(), scope, gpus)
    asking.print(rows, functools.partial(show.free, rows, scope, gpus))


@command
def nodes(asking: Asking) -> None:
    """List the nodes with GPUs: model, free GPUs, and their domains."""
    from muster.adapters.asking import show

    found = asking.nodes()
    asking.print(found, functools.partial(show.nodes, found))


def main() -> None:
    """Run the plugin."""
    os.environ.setdefault("_TYPER_STANDARD_TRACEBACK", "1")
    app()


if __name__ == "__main__":
    main()
