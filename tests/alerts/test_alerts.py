"""The alert rules: promtool fires each one, they name metrics that exist, and a page says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.build import binary
from tests.docs.test_metrics_page import of_the_page
from tests.manifests.rendering import SCHEDULER_CONFIG, render

REPOSITORY = Path(__file__).parents[2]
CASES = Path(__file__).with_name("cases.yaml")
RULES = REPOSITORY / "scheduler-config/alerts/prometheusrule.yaml"


def spec() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())["spec"]
    return rules


def alerts() -> list[dict[str, Any]]:
    return [rule for group in spec()["groups"] for rule in group["rules"]]


@pytest.mark.go
def test_each_alert_fires_and_is_silent_on_a_quiet_cluster(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec()))
    shutil.copy(CASES, tmp_path / "cases.yaml")
    done = subprocess.run(
        [binary("promtool"), "test", "rules", "cases.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_of_its_firing() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert tested == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_metrics_that_exist_and_its_part_of_the_page(rule: dict[str, Any]) -> None:
    names = set(re.findall(r"muster_\w+", rule["expr"]))
    assert names
    assert names <= of_the_page().keys()
    page, _, part = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"(?m)^#+ (.+)$", (REPOSITORY / page).read_text())
    assert part in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.go
def test_an_overlay_adds_the_rules_as_a_component(tmp_path: Path) -> None:
    up = "/".join([".."] * (len(tmp_path.parts) - 1))
    base = f"{up}{SCHEDULER_CONFIG}"
    overlay = {"resources": [base], "components": [f"{base}/alerts"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (rule,) = (item for item in render(tmp_path) if item["kind"] == "PrometheusRule")
    assert rule["spec"] == spec()
    assert rule["metadata"]["namespace"] == "muster-system"
