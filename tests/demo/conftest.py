"""Builds happen before any test runs: they may take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_cluster.build import binary
from local_cluster.recipes import CLUSTER


def pytest_collection_finish(session: pytest.Session) -> None:
    """Outside of any test, so that no test's timeout runs while a compiler does."""
    folder = Path(__file__).parent
    if any(item.get_closest_marker("cluster") and folder in item.path.parents for item in session.items):
        for name in CLUSTER:
            binary(name)
