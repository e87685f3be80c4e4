"""docs/metrics.md: every metric of the code with its kind and labels, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from muster.adapters.telemetry.metrics import Metrics

REPOSITORY = Path(__file__).parents[2]
ROW = re.compile(r"(?m)^\| `(muster_\w+)` \| (\w+) \|(.*?)\| (.+?) \|$")

Named = dict[str, tuple[str, tuple[str, ...]]]
"""Name → kind and labels, in order."""


def of_the_page() -> Named:
    rows = ROW.findall((REPOSITORY / "docs/metrics.md").read_text())
    assert len(rows) == len({name for name, *_ in rows}), "a metric is listed twice"
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}


def of_the_registry() -> Named:
    metrics: Named = {}
    for metric in Metrics().registry._collector_to_names:
        if isinstance(metric, MetricWrapperBase):
            end = "_total" if metric._type == "counter" else ""
            metrics[metric._name + end] = (str(metric._type), tuple(metric._labelnames))
    return metrics


def read_at_scrape() -> Named:
    """What the service registers in scrape.py as `ReadAtScrape(name, text, labels, …)`."""
    source = (REPOSITORY / "service/muster/adapters/scrape.py").read_text()
    calls = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ReadAtScrape"
    )
    return {ast.literal_eval(call.args[0]): ("gauge", ast.literal_eval(call.args[2])) for call in calls}


def of_the_shim() -> Named:
    text = "".join(path.read_text() for path in (REPOSITORY / "shim/internal/metrics").glob("*.go"))
    matches = re.findall(
        r'metrics\.New(\w+?)(?:Vec)?\(.*?Name:\s+"(\w+)".*?\}(?:, \[\]string\{(.*?)\})?\)', text, re.S
    )
    return {name: (kind.lower(), tuple(re.findall(r'"(\w+)"', labels))) for kind, name, labels in matches}


def test_the_page_has_the_metrics_of_the_code() -> None:
    code = of_the_registry() | read_at_scrape() | of_the_shim()
    assert len(read_at_scrape()) > 3
    assert len(of_the_shim()) > 3
    assert of_the_page() == code
