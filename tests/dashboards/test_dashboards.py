"""The dashboards: the JSON is what the Python gives, and each panel is made as it should be.

e2e/test_dashboards.py runs their queries.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from dashboards.__main__ import written

from local_cluster.build import binary
from tests.dashboards.panels import FOLDER, Target, dashboards, panels, queries_of_variables, targets
from tests.docs.test_metrics_page import of_the_page

OF_KUBE_SCHEDULER = {"scheduler_pending_pods"}
"""Metrics of kube-scheduler 1.37 that panels use."""
LABELS_OF_TARGETS = {"namespace", "pod", "service", "container", "endpoint", "job", "instance"}
"""Labels that the Prometheus Operator gives to each series. They replace those of the same name."""
SUFFIX = re.compile(r"_(bucket|sum|count)$")
PANELS = [
    pytest.param(panel, id=f"{name} {panel['title']}")
    for name, dashboard in dashboards().items()
    for panel in panels(dashboard)
]
PROMQL = [target for target in targets() if target.is_promql]


def test_the_json_is_what_the_python_gives() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == written(), "run make generate"


def test_each_dashboard_has_an_id_a_name_and_variables_for_its_sources() -> None:
    all_dashboards = dashboards().values()
    assert len({dashboard["uid"] for dashboard in all_dashboards}) == len(all_dashboards) > 2
    for dashboard in all_dashboards:
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        names = set(re.findall(r"\$\{?([a-z]\w+)", str(dashboard["panels"])))
        assert names <= variables.keys()
        assert dashboard["description"]
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len({*ids})
        titles = [panel["title"] for panel in panels(dashboard)]
        assert len(titles) == len({*titles}), "docs name panels by their titles"


def test_panels_fill_the_rows_of_the_grid_and_do_not_overlap() -> None:
    for dashboard in dashboards().values():
        filled: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & filled, panel["title"]
            assert max(x for x, _ in cells) < 24
            filled |= cells
        rows = {y for _, y in filled}
        assert len(filled) == 24 * len(rows), "a row of the grid has a gap"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, object]) -> None:
    assert panel["title"]
    assert str(panel["description"]).endswith(".")
    if panel["type"] != "text":
        assert panel["fieldConfig"]["defaults"]["unit"]  # type: ignore[index]
        assert str(panel["datasource"]["uid"]).startswith("${")  # type: ignore[index]


@pytest.mark.parametrize("target", list(targets()), ids=lambda target: target.name)
def test_a_query_has_its_letter_and_the_chosen_source(target: Target) -> None:
    letters = [query["refId"] for query in target.panel["targets"]]
    assert target.query["refId"]
    assert len(letters) == len({*letters})
    uid = "${datasource}" if target.is_promql else "${traces}"
    assert target.query["datasource"]["uid"] == target.panel["datasource"]["uid"] == uid


@pytest.mark.parametrize("target", PROMQL, ids=lambda target: target.name)
def test_a_query_names_metrics_and_labels_that_exist(target: Target) -> None:
    raw = target.query["expr"]
    names = {SUFFIX.sub("", name) for name in re.findall(r"\b(?:muster|scheduler)_\w+", raw)}
    page = of_the_page()
    assert names
    assert names <= page.keys() | OF_KUBE_SCHEDULER
    for interval in re.findall(r"\[(.*?)\]", raw):
        assert interval in ("$__rate_interval", "$__range")
    assert target.query["legendFormat"]
    by = {label for part in re.findall(r"by \((.*?)\)", raw) for label in part.split(", ")}
    labels = {label for name in names for label in page.get(name, ("", ("queue",)))[1]} | {"le"}
    assert by <= labels
    assert set(re.findall(r"\{\{(\w+)\}\}", target.query["legendFormat"])) <= by


@pytest.mark.parametrize("target", PROMQL, ids=lambda target: target.name)
def test_a_histogram_is_asked_for_in_both_forms_and_shows_exemplars(target: Target) -> None:
    raw = target.query["expr"]
    histograms = {name for name, (kind, _) in of_the_page().items() if kind == "histogram" and name in raw}
    for name in histograms:
        assert re.search(rf"{name}\[", raw), "native"
        assert re.search(rf"{name}_(bucket|sum|count)\[", raw), "classic"
    with_traces = histograms & {"muster_decision_seconds", "muster_gang_phase_seconds"}
    if "histogram_quantile" in raw:
        assert bool(target.query.get("exemplar")) == bool(with_traces)


@pytest.mark.parametrize(
    "target", [target for target in targets() if not target.is_promql], ids=lambda target: target.name
)
def test_a_search_names_spans_and_attributes_that_traces_have(target: Target) -> None:
    query = target.query["query"]
    page = (FOLDER.parents[1] / "docs/traces.md").read_text()
    code = (FOLDER.parents[1] / "service/muster/adapters/telemetry/attempts.py").read_text()
    for name in re.findall(r'&& name = "(\w+)"', query):
        assert f"| `{name}` |" in page
    for attribute, value in re.findall(r'span\.([\w.]+) = "(\w+)"', query):
        assert attribute in code
        assert f"`{attribute}`" in page
        assert f"`{value}`" in page


def test_no_label_of_a_metric_is_replaced_by_one_of_the_target() -> None:
    for name, (_, labels) in of_the_page().items():
        assert not LABELS_OF_TARGETS & {*labels}, name


def test_variables_take_their_values_from_metrics_that_exist() -> None:
    for query in queries_of_variables().values():
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert match
        assert match[2] in of_the_page()[match[1]][1]


@pytest.mark.go
def test_promtool_understands_each_query(tmp_path: Path) -> None:
    rules = [{"record": f"query_{at}", "expr": target.expr} for at, target in enumerate(PROMQL)]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [binary("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
