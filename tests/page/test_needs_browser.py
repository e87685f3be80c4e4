"""Tests in a browser are never skipped where CI says that it has one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks.page.browser import CHROMIUM
from local_cluster.patience import HANG_S
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


def test_ci_demands_one(tmp_path: Path) -> None:
    """`.ci/run` is run with another `make`, which prints what it is given."""
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "${VARIABLE}"\n')
    (tmp_path / "make").chmod(0o755)
    root = Path(__file__).parents[2]
    for variables, demands in (({}, "required"), ({VARIABLE: ""}, "")):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
        printed = subprocess.run(
            [root / ".ci/run"], env=environment, capture_output=True, text=True, check=True, timeout=HANG_S
        )
        assert printed.stdout.strip() == demands
    workflow = yaml.safe_load((root / ".github/workflows/ci.yaml").read_text())
    assert any(step.get("run") == ".ci/run" for step in workflow["jobs"]["test"]["steps"])
