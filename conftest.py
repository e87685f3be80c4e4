"""Collect tests without looking for garbage, and spread them over two processes.

`make test` asks for this with `-n 2 --dist loadscope`. Tests that share a cluster stay in one process. So do
others that start clusters or compile. The largest groups come first. The time of each part is printed.
Properties have no deadline.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "no clock", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no clock")  # no example fails because the machine is busy

OWN = ("devices", "dra_nodes", "fuzz", "real_nodes", "rotation", "second_endpoint", "up", "versions")
GROUPS = {
    "end to end, clusters of their own": ("e2e/kinds/", *(f"e2e/test_{name}.py" for name in OWN)),
    "end to end": ("e2e/",),
    "other clusters": ("tests/demo/", "tests/examples/", "tests/local_cluster/", "tests/manifests/"),
}
"""Tests that stay in one process each: the first group that fits."""
PARTS = {"in a browser": ("tests/page/test_browser.py",), **GROUPS, "unit": ("",)}
"""Whose time is printed."""


class GroupsInOneProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests of a group to one process, and every other test to a process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group, folders in GROUPS.items() if nodeid.startswith(folders)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Replace the scheduler of `--dist loadscope` alone."""
    return GroupsInOneProcess(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print for how long each part has kept one of the two processes busy."""
    if config.getvalue("dist") != "loadscope":
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = next(part for part, folders in PARTS.items() if report.nodeid.startswith(folders))
                seconds[part] += report.duration  # type: ignore[assignment]
    terminalreporter.write_sep("-", "minutes of each part: two go on at a time")
    for part, lasted in seconds.most_common():
        terminalreporter.write_line(f"{lasted / 60:6.1f}  {part}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector off what is imported and collected: it stays, and is most of what there is.

    Each full collection would look at it again, while it grows and in every test.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
