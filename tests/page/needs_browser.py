"""Whether the tests of the page may be skipped: not where CI demands a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.page.browser import INSTALL

VARIABLE = "MUSTER_BROWSER"
"""`required` where a machine without a browser is a failure."""


def why_skipped(browser: Path, environment: Mapping[str, str]) -> str:
    """Return why tests in a browser are skipped, "" if they run or fail."""
    if browser.exists() or environment.get(VARIABLE) == "required":
        return ""
    return f"{browser} is not there: {INSTALL}"


def lacking(browser: Path, environment: Mapping[str, str]) -> str:
    """Return what is wrong with a machine that must have a browser and has none, else ""."""
    if browser.exists() or why_skipped(browser, environment):
        return ""
    return f"{VARIABLE} demands a browser, and {browser} is not there: {INSTALL}"
