"""`kubectl gpu-topology`, and the same commands of `muster`: why, explain, trace, gangs, free, nodes.

Slow modules are imported inside functions, because a plugin must start at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from muster.command_line import Argument, Command, Failed, Option, Program, parameters, run

if TYPE_CHECKING:
    from muster.adapters.asking.service import CurrentNamespace, Query, Service

NOT_FOUND = 3
EVERY_S = 2.0
"""How often --watch asks."""
PATIENCE_S = 600.0
"""How long --watch goes on asking a service that does not answer."""
CLEAR = "\x1b[H\x1b[2J"
"""The sequence that clears a terminal."""


class Output(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ABOUT = "Gangs of GPU pods: why one waits, what waits, and what is free where."
COMMANDS: dict[str, Command] = {}
"""Name → the command. `muster` has these commands too."""


@dataclass
class Asking:
    """Asks the service, or decides from the cluster if there is no service, and prints the answer."""

    output: Annotated[Output, Option(("--output", "-o"), "How to print.")] = Output.TABLE
    url: Annotated[str, Option((), "Address of the service. Default: by kubeconfig.", "URL")] = ""
    kubeconfig: Annotated[Path | None, Option((), "Default: as kubectl.", "FILE")] = None
    context: Annotated[str | None, Option((), "Context in the kubeconfig.", "NAME")] = None
    muster_namespace: Annotated[str, Option((), "Where Muster runs.", "NAME")] = "muster-system"
    no_service: Annotated[bool, Option(("--no-service",), "Ask no service: decide from the cluster.")] = False
    watch: Annotated[bool, Option(("--watch", "-w"), "Print again what changes, until Ctrl-C.")] = False

    def __post_init__(self) -> None:
        self._printed = ""
        self._current: CurrentNamespace | None = None

    def query_for(self, name: str, namespace: str) -> Query:
        """Return the query that finds a gang or a pod. Without a namespace, the namespace of the kubeconfig's
        context counts."""
        from muster.adapters.asking.service import CurrentNamespace

        space, _, last = name.rpartition("/")
        if known_namespace := space or namespace:
            return lambda: {"namespace": known_namespace, "name": last}
        current = self._current or CurrentNamespace(self._service(), by_kubectl=not self.no_service)
        self._current = current
        return lambda: {"namespace": current(), "name": last}

    def print(self, answers: list[Any], table: Callable[[TextIO], None]) -> None:
        """Print the answers as a table, JSON or YAML."""
        from muster.adapters.asking import show

        text = io.StringIO()
        if self.output is Output.TABLE:
            table(text)
        else:
            try:
                show.dump(answers, self.output.value, text)
            except ModuleNotFoundError as problem:  # krew's archive has no yaml
                raise Failed(f"-o {self.output.value} needs Muster's whole package: {problem}") from None
        if text.getvalue() != self._printed:
            clear = self.watch and self.output is Output.TABLE and sys.stdout.isatty()
            self._printed = text.getvalue()
            print((CLEAR if clear else "") + self._printed, end="", flush=True)

    def ask_again(self, work: Callable[[], None]) -> None:
        """Ask again and again, until Ctrl-C, or until the service has not answered for long.

        Raises:
            Failed: There is no service, or no answer.
        """
        from muster.adapters.asking.service import NoAnswer

        answered = time.monotonic()
        while True:
            try:
                work()
                answered = time.monotonic()
            except NoAnswer as problem:
                if not self._printed or time.monotonic() > answered + PATIENCE_S:
                    raise Failed(f"{problem}. --watch needs a service") from None
            time.sleep(EVERY_S)

    def gangs(self, query: Query) -> list[dict[str, Any]]:
        """Return gangs as the service shows them."""
        answer, _ = self._answer_pair("/gangs", query)
        return list(answer["gangs"])

    def explanations(self, query: Query) -> list[dict[str, Any]]:
        """Return what the service knows of the gangs that have a name.

        Raises:
            Failed: There is no service, and only a service knows how gangs were decided.
        """
        if self.no_service:
            raise Failed("only a service knows that: leave out --no-service, or ask `why`")
        return list(self._ask("/explain", query)["gangs"])

    def nodes_and_scopes(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return nodes as the service shows them, and the scopes by which they can be counted."""
        _, answer = self._answer_pair("/nodes", dict)
        nodes = list(answer["nodes"])
        scopes = answer.get("scopes") or [scope for node in nodes for scope in node["domains"]]
        return nodes, list(dict.fromkeys(("cluster", *scopes, "node")))

    def _answer_pair(self, path: str, query: Query) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answers about gangs and about nodes. From a service, both are its answer at `path`."""
        from muster.adapters.asking.service import NoAnswer

        if not self.no_service:
            try:
                answer = self._ask(path, query)
            except NoAnswer as problem:
                if self.watch or self.url:
                    raise
                print(f"note: {problem}", file=sys.stderr)
                left_out = "; gangs that run are left out" if path == "/gangs" else ""
                print(f"note: decided from the cluster, by the same engine{left_out}", file=sys.stderr)
                self.no_service = True
            else:
                return answer, answer
        try:
            from muster.adapters.asking.engine import decide_cluster
        except ModuleNotFoundError as problem:  # krew's archive has a part of the package alone
            raise Failed(
                f"without a service it is decided here, and that needs Muster's whole package: {problem}"
            ) from None
        return decide_cluster(self.kubeconfig, self.context)

    def _ask(self, path: str, query: Query) -> dict[str, Any]:
        from muster.adapters.asking.service import ask

        return ask(self._service(), path, query)

    def _service(self) -> Service:
        from muster.adapters.asking.service import Service

        return Service(self.url, self.kubeconfig, self.context, self.muster_namespace)


def command(work: Callable[..., None]) -> None:
    """Register a command. It has its own options, and the options of `Asking`, which all commands share."""
    options_of_command, shared = parameters(work)[1:], parameters(Asking)

    @functools.wraps(work)
    def ask(**options: Any) -> None:
        asking = Asking(**{parameter.name: options.pop(parameter.name) for parameter in shared})
        if asking.watch and asking.no_service:
            raise Failed("--watch needs a service: leave out --no-service")
        if not asking.watch:
            work(asking, **options)
            return
        with contextlib.suppress(KeyboardInterrupt):
            asking.ask_again(functools.partial(work, asking, **options))

    ask.__signature__ = inspect.Signature([*options_of_command, *shared])  # type: ignore[attr-defined]
    COMMANDS[work.__name__] = ask


Name = Annotated[str, Argument(help="A gang or a pod, as NAME or NAMESPACE/NAME.")]
Namespace = Annotated[
    str, Option(("--namespace", "-n"), "Its namespace. Default: that of the context.", "NAME")
]


@command
def why(asking: Asking, name: Name, namespace: Namespace = "") -> None:
    """Say what blocks a gang, with numbers, and what would help. A pod stands for its gang.

    Exit code 3: no gang and no pod of a gang has this name.
    """
    from muster.adapters.asking import show

    query = asking.query_for(name, namespace)
    gangs_found = asking.gangs(query)
    space, last = query().values()
    if asking.no_service:
        gangs_found = [
            gang
            for gang in gangs_found
            if gang["namespace"] == space and last in (gang["name"], *gang["pods"])
        ]
    if not gangs_found and asking.no_service:
        raise Failed(
            f"no gang that waits in namespace {space} is named {last} or has such a pod; of gangs that run "
            "only a service knows",
            NOT_FOUND,
        )
    asking.print(_require_some(gangs_found, space, last), functools.partial(show.why, gangs_found))


@command
def explain(asking: Asking, name: Name, namespace: Namespace = "") -> None:
    """Say how a gang was decided: each level, the nodes that were refused, and why it is not elsewhere.

    Of a gang that waits it says what `why` says. Exit code 3: no gang and no pod of a gang has this name.
    """
    from muster.adapters.asking import show

    explanations = _find_explanations(asking, name, namespace, alternatives="1")
    asking.print(explanations, functools.partial(show.explain, explanations))


@command
def trace(asking: Asking, name: Name, namespace: Namespace = "") -> None:
    """Say where the time of a gang went: its attempts, phase by phase, and the ids of their traces.

    The newest trace comes first. With `traces.link` in the service's configuration, it prints their addresses
    too. Exit code 3: no gang and
    no pod of a gang has this name.
    """
    from muster.adapters.asking import show

    explanations = _find_explanations(asking, name, namespace)
    asking.print(explanations, functools.partial(show.trace, explanations))


def _find_explanations(
    asking: Asking, name: str, namespace: str, **extra_parameters: str
) -> list[dict[str, Any]]:
    """Return what the service knows of the gangs with this name. Raise Failed if there is none."""
    query = asking.query_for(name, namespace)
    explanations = asking.explanations(lambda: {**query(), **extra_parameters})
    return _require_some(explanations, *query().values())


def _require_some(answers: list[dict[str, Any]], namespace: str, name: str) -> list[dict[str, Any]]:
    """Return the answers.

    Raises:
        Failed: There are none.
    """
    if not answers:
        raise Failed(f"no gang in namespace {namespace} is named {name} or has such a pod", NOT_FOUND)
    return answers


@command
def gangs(
    asking: Asking,
    namespace: Annotated[str, Option(("--namespace", "-n"), "Only those of this one.", "NAME")] = "",
    all_namespaces: Annotated[
        bool, Option(("--all-namespaces", "-A"), "Those of all namespaces, as without -n.")
    ] = False,
) -> None:
    """List gangs: phase, position, age, members, GPUs, and why one waits."""
    from muster.adapters.asking import show

    rows = asking.gangs(dict)
    if namespace and not all_namespaces:
        rows = [gang for gang in rows if gang["namespace"] == namespace]
    asking.print(rows, functools.partial(show.gangs, rows))


@command
def free(
    asking: Asking,
    gpus: Annotated[int, Option(("--for",), "Only where N GPUs are free.", "N", 0)] = 0,
    scope: Annotated[
        str, Option((), "node, nvlink-domain, rack, zone, another level, cluster.", "SCOPE")
    ] = "node",
) -> None:
    """Show free GPUs by domain: where would a gang of N GPUs find room?"""
    from muster.adapters.asking import show

    nodes_found, scopes = asking.nodes_and_scopes()
    if scope not in scopes:
        raise Failed(show.unknown_scope_error(scope, scopes))
    rows = show.free_by_domain(nodes_found, scope, gpus)
    asking.print(rows, functools.partial(show.free_domains, rows, scope, gpus))


@command
def nodes(asking: Asking) -> None:
    """List the nodes with GPUs: model, free GPUs, domains, and which gangs have the others."""
    from muster.adapters.asking import show

    rows, _ = asking.nodes_and_scopes()
    asking.print(rows, functools.partial(show.nodes, rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the plugin with these arguments, else those of this process."""
    sys.exit(run(Program("kubectl gpu-topology", ABOUT, COMMANDS), arguments))


if __name__ == "__main__":
    main()
