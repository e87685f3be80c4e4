"""Spread tests over two processes: the end-to-end tests in one, all others beside them.

`make test` asks for this with `-n 2 --dist loadscope`. The end-to-end tests stay together, because they share
clusters, and because their deadlines would suffer from more clusters at once. So do the others that start
clusters or compile. The largest groups come first, so both start at once.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "end to end": ("e2e/",),
    "other clusters": ("tests/demo/", "tests/examples/", "tests/local_cluster/", "tests/manifests/"),
}
"""Tests that stay in one process each."""


class GroupsInOneProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests of a group to one process, and every other test to a process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group, folders in GROUPS.items() if nodeid.startswith(folders)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Replace the scheduler of `--dist loadscope` alone."""
    return GroupsInOneProcess(config, log) if config.getvalue("dist") == "loadscope" else None
