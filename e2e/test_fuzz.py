"""No object that the API server accepts ends the service: `make fuzz` in short, on a cluster of its own."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from e2e.fuzz import native
from e2e.fuzz.runner import Fuzz
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack

SEED = 12
ROUNDS = 2
KINDS = ("managedFields", "PodGroup", "PodGroup patch", "ConfigMap", "large Pod patch", *native.KINDS)


@pytest.mark.cluster
def test_the_service_outlives_what_an_api_server_accepts_and_starts_again_with_it(tmp_path: Path) -> None:
    native_cluster = LocalCluster(tmp_path / "cluster", native=True)
    with native_cluster as cluster, Stack(cluster, tmp_path / "stack") as stack:
        fuzz = Fuzz(cluster, stack, SEED)
        fuzz.prepare()
        rounds = count()
        fuzz.go(lambda: next(rounds) < ROUNDS)
        assert stack.service.alive
    report = fuzz.report
    assert (report.restarts, report.unready) == (1, 0)
    assert report.gangs == ROUNDS + 2
    assert all(report.accepted[kind] for kind in KINDS), report.json()
    assert report.left_out, "a PodGroup of 1.3 MB is left out, and counted"
