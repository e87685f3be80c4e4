"""docs/operations.md: its panels and commands exist, and each alert has its part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from muster import cli, questions
from muster.adapters.kube import decode
from muster.config import Config
from muster.dialects.devices import claims
from muster.dialects.nodes import bounds
from muster.dialects.pods.bounds import MAX_KEYS
from muster.domain.allocation import MAX_GPUS
from muster.domain.causes.ill_formed import BadValue
from muster.domain.causes.not_planned import TookTooLong, TookTooMuchMemory, TooManyRoles
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


CONFIG = Config()
LIMITS = (
    str(TooManyRoles(70, CONFIG.planner.most_roles)),
    str(TookTooLong(CONFIG.planner.time_limit_s)),
    str(TookTooMuchMemory(CONFIG.planner.memory_mib)),
    str(BadValue("pod/a/b", "number of annotations", f"more than {MAX_KEYS}", f"at most {MAX_KEYS}")),
    str(
        BadValue(
            "pod/a/b", "resourceClaims", f"{claims.MAX_CLAIMS + 1}", f"at most {claims.MAX_CLAIMS} claims"
        )
    ),
    f"spec and status have more than {decode.MAX_FREE_BYTES:,} bytes",
    f"allocatable has 64 GPUs; {MAX_GPUS} of them are used",
    f"it has 70 taints; at most {bounds.MAX_TAINTS} are read: only who tolerates all fits",
    f"{CONFIG.page.clients} browsers are connected already, the most that may be",
)


@pytest.mark.parametrize("sentence", LIMITS)
def test_a_limit_is_quoted_as_muster_says_it(sentence: str) -> None:
    quoted = [text for row in rows("Which limit did I hit?") for text in re.findall(r"`([^`]+)`", row[0])]
    assert any(text in sentence for text in quoted)


def test_limits_of_rates_and_plans_are_those_of_the_settings() -> None:
    text = part("Which limit did I hit?")
    assert f"{CONFIG.gangs.ahead // 2} members planned" in text
    assert f"{CONFIG.events.namespace_per_s:g} a second for a namespace" in text
    for section, setting in re.findall(r"`(planner|gangs|page)\.(\w+)`", text):
        assert hasattr(getattr(CONFIG, section), setting)
