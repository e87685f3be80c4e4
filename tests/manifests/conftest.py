"""One local cluster for this folder, and what kustomize makes of scheduler-config/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import LocalCluster
from tests.manifests.applying import apply, connect
from tests.manifests.rendering import SCHEDULER_CONFIG, Manifest, render


@pytest.fixture(scope="session")
def rendered() -> list[Manifest]:
    return render(SCHEDULER_CONFIG)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("manifests") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Any:
    return connect(cluster.kubeconfig)


@pytest.fixture(scope="session")
def installed(client: Any, rendered: list[Manifest]) -> list[Manifest]:
    """Apply scheduler-config/, after a dry run of every object."""
    for manifest in rendered:
        if manifest["kind"] == "Namespace":  # a dry run of what lies in it needs it
            apply(client, manifest)
    for manifest in rendered:
        apply(client, manifest, dry_run=True)
    return [apply(client, manifest) for manifest in rendered]


@pytest.fixture
def shim_kubeconfig(cluster: LocalCluster, installed: list[Manifest]) -> Path:
    """The rights of the Deployment's own service account, and no others."""
    assert installed
    return cluster.kubeconfig_for("muster-system/muster")
