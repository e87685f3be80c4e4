"""What the commands share: options that several have, and how one ends with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Default: $KUBECONFIG, ~/.kube/config, else the pod's account.", metavar="FILE"),
]
Context = Annotated[str | None, typer.Option(help="Context in the kubeconfig.")]


def fail(message: str, code: int = 1) -> typer.Exit:
    """Print an error, and return what is to be raised."""
    from muster.domain.printable import printable

    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo("\n".join(map(printable, message.split("\n"))), err=True)
    return typer.Exit(code)
