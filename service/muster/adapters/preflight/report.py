"""Print the findings: a table for people, JSON for programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.adapters.kube.client import KubeClient
from muster.adapters.preflight.checks import Finding, Level, judge
from muster.adapters.preflight.read import Reader
from muster.domain.printable import printable

VERSION: Literal[1] = 1
"""The version is raised when a field is removed or changes its meaning. Fields may be added without a new
version."""
FAILED = 3
"""Exit status if a check found an error."""
COLOURS = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.ERROR: "red"}


class Preflight(TypedDict):
    """The answer of `muster preflight -o json`. `ready`: whether no check found an error."""

    version: Literal[1]
    kind: Literal["preflight"]
    ready: bool
    findings: list[Finding]


def preflight(kubeconfig: Path | None, context: str | None) -> Preflight:
    """Check the cluster of a kubeconfig.

    Raises:
        KubeError: there are no credentials, or the API server does not answer.
    """
    return answer(asyncio.run(_findings(kubeconfig, context)))


async def _findings(kubeconfig: Path | None, context: str | None) -> list[Finding]:
    async with KubeClient(str(kubeconfig) if kubeconfig else None, context) as client:
        return judge(await Reader(client).facts())


def answer(findings: list[Finding]) -> Preflight:
    """Return findings as they are published."""
    ready = not any(finding.level is Level.ERROR for finding in findings)
    return {"version": VERSION, "kind": "preflight", "ready": ready, "findings": findings}


def as_json(answer: Preflight) -> str:
    """Return the answer as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def show(answer: Preflight) -> None:
    """Print a row for each check, with what to do below what was found."""
    table = Table(box=None, pad_edge=False)
    table.add_column("CHECK")
    table.add_column("RESULT")
    table.add_column("FOUND", overflow="fold")
    for finding in answer["findings"]:
        text = escape(printable(finding.message))
        if finding.remedy:
            text += f"\n→ {escape(printable(finding.remedy))}"
        colour = COLOURS[finding.level]
        table.add_row(finding.check, f"[{colour}]{finding.level.value}[/{colour}]", text)
    Console().print(table)
