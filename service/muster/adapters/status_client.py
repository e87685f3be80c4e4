"""Ask a running service for its gangs, and show them in a terminal: `muster status`."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.domain.printable import printable

DEADLINE_S = 5.0


class NoAnswer(Exception):
    """Report that no service answers, with a way out."""


def address_of(socket: Path) -> str:
    """Return the HTTP address that the service wrote next to its socket.

    Raises:
        NoAnswer: There is no such file.
    """
    file = socket.with_name(socket.name + ".http")
    try:
        return file.read_text().strip()
    except OSError:
        raise NoAnswer(
            f"no service found: {file} is not there. Start one with `muster serve`, "
            "or name it by --socket or --url."
        ) from None


def fetch(url: str) -> str:
    """Return the answer of the service about its gangs, as JSON.

    Raises:
        NoAnswer: `url` is no HTTP address, or the service does not answer in time.
    """
    if not url.startswith(("http://", "https://")):
        raise NoAnswer(f"--url {url}: an address like http://127.0.0.1:9464 is expected")
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/gangs", timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, TimeoutError) as problem:
        why = getattr(problem, "reason", problem)
        raise NoAnswer(f"the service at {url} does not answer: {why}") from None


def show(summary: Any) -> None:
    """Print the answer of the service: what it notes, then a row for each gang."""
    console = Console()
    if not summary["ready"]:
        console.print("The service has not seen the whole cluster yet.")
    for note in summary.get("notes", ()):
        console.print(f"note: {escape(printable(note))}")
    if not summary["gangs"]:
        console.print("no gangs")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("GANG", overflow="fold")
    table.add_column("PHASE")
    table.add_column("SEEN/NEEDED", justify="right")
    table.add_column("BOUND", justify="right")
    table.add_column("WHY", overflow="fold")
    for gang in summary["gangs"]:
        row = (
            f"{gang['namespace']}/{gang['name']}",
            gang["phase"],
            f"{gang['present']}/{gang['needed']}",
            str(gang["bound"]),
            gang["reason"],
        )
        table.add_row(*(escape(printable(cell)) for cell in row))
    console.print(table)
