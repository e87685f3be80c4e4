"""docs/operations.md: its panels and commands exist, and each alert has its part."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from muster import cli, questions
from tests.dashboards.panels import dashboards, panels

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/operations.md").read_text()
PANEL = re.compile(r"\*([^*|]+)\* \((operators|teams|traces)\)")


def part(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def titles(dashboard: str) -> set[str]:
    return {panel["title"] for panel in panels(dashboards()[f"{dashboard}.json"])}


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in part(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_ten_questions_have_a_command_and_a_panel_that_exist() -> None:
    table = rows("Ten questions")
    assert [row[0].split(".")[0] for row in table] == [str(number) for number in range(1, 11)]
    for question, command, panel in table:
        for name in re.findall(r"`kubectl gpu-topology (\w+)", command):
            assert name in questions.COMMANDS, question
        for name in re.findall(r"`muster ([\w-]+)", command):
            assert name in cli.COMMANDS, question
        assert "`" in command
        panels = PANEL.findall(panel)
        assert panels, question
        for title, dashboard in panels:
            assert title in titles(dashboard), question


def test_panels_of_sizing_exist() -> None:
    for panel, *_ in rows("Enough room for Muster itself"):
        assert panel.strip("*") in titles("operators")


def test_each_alert_has_its_part_and_no_other_part_is_there() -> None:
    rules = yaml.safe_load((REPOSITORY / "scheduler-config/alerts/prometheusrule.yaml").read_text())
    alerts = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    sections = re.findall(r"(?m)^### (\w+)\n\n(\S.*)", part("Alerts"))
    assert [name for name, _ in sections] == alerts
