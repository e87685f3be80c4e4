"""Fixtures of the local_cluster tests. Builds happen before any test runs: they may take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.build import binary
from local_cluster.cluster import LocalCluster
from local_cluster.recipes import COMPONENTS


def pytest_collection_finish(session: pytest.Session) -> None:
    """Outside of any test, so that no test's timeout runs while a compiler does."""
    folder = Path(__file__).parent
    if any(item.get_closest_marker("cluster") and folder in item.path.parents for item in session.items):
        for name in COMPONENTS:
            binary(name)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for all tests that only look or add: each uses names of its own."""
    with LocalCluster(tmp_path_factory.mktemp("shared"), audit=True) as booted:
        yield booted
