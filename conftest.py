"""Spread tests over two processes: those with real clusters in one, all others beside them.

`make test` asks for this with `-n 2 --dist loadscope`. Tests with clusters stay together, because they share
clusters, and because their deadlines would suffer from more clusters at once.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

CLUSTERS = ("e2e/", "tests/demo/", "tests/examples/", "tests/local_cluster/", "tests/manifests/")
"""Where tests start clusters or compile."""


class ClustersInOneProcess(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests of CLUSTERS to one process, and every other test to a process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return "clusters" if nodeid.startswith(CLUSTERS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Replace the scheduler of `--dist loadscope` alone."""
    return ClustersInOneProcess(config, log) if config.getvalue("dist") == "loadscope" else None
