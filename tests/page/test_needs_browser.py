"""Tests in a browser are never skipped where CI says that it has one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from benchmarks.page.browser import CHROMIUM
from tests.page.needs_browser import VARIABLE, lacking, why_skipped

HERE, GONE = Path(__file__), Path("/no/such/browser")
REQUIRED = {VARIABLE: "required"}


def test_a_browser_that_is_demanded_is_there() -> None:
    assert not lacking(CHROMIUM, os.environ)


@pytest.mark.parametrize(
    ("browser", "environment", "skipped", "fails"),
    [
        (HERE, {}, False, False),
        (HERE, REQUIRED, False, False),
        (GONE, {}, True, False),
        (GONE, REQUIRED, False, True),
    ],
)
def test_without_a_browser_tests_are_skipped_unless_one_is_demanded(
    browser: Path, environment: dict[str, str], skipped: bool, fails: bool
) -> None:
    assert (bool(why_skipped(browser, environment)), bool(lacking(browser, environment))) == (skipped, fails)


def test_the_workflow_demands_one() -> None:
    workflow = Path(__file__).parents[2] / ".github/workflows/ci.yaml"
    steps = yaml.safe_load(workflow.read_text())["jobs"]["test"]["steps"]
    (step,) = (step for step in steps if step.get("run") == ".ci/run")
    assert step["env"][VARIABLE] == "required"
