"""Collect tests without looking for garbage, and spread them over two processes.

The end-to-end tests are in one process, all others beside them.

`make test` asks for this with `-n 2 --dist loadscope`. The end-to-end tests stay together, because they share
clusters, and because their deadlines would suffer from more clusters at once. So do the others that start
clusters or compile. The largest groups come first, so both start at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

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
