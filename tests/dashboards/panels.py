"""Read the dashboards of scheduler-config/ as Grafana does: panels, their queries, and variables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "scheduler-config/dashboards"
VALUES = {
    "$__rate_interval": "1m",
    "$__range": "10m",
    "$scope": "node",
    "$model": ".*",
    "$namespace": ".*",
}
"""What Grafana puts in the place of variables, with all models and namespaces chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    dashboard: str
    panel: dict[str, Any]
    query: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.dashboard}: {self.panel['title']} {self.query['refId']}"

    @property
    def is_promql(self) -> bool:
        return "expr" in self.query

    @property
    def expr(self) -> str:
        """The PromQL expression, with values in the place of variables."""
        expr: str = self.query["expr"]
        for variable, value in VALUES.items():
            expr = expr.replace(variable, value)
        return expr


def dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets() -> Iterator[Target]:
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for query in panel.get("targets", ()):
                yield Target(name, panel, query)


def queries_of_variables() -> dict[str, str]:
    """Variable → the metric and label that its values come from, as Grafana writes it."""
    return {
        f"{name} {variable['name']}": variable["query"]
        for name, dashboard in dashboards().items()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    }
