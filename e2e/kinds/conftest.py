"""Boot a cluster with the CRDs of all kinds, the controllers of JobSet and LeaderWorkerSet, and Muster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import objects
from e2e.arena import Arena
from e2e.client import Client
from e2e.kinds.controllers import Controller
from e2e.kinds.jobs import Jobs
from e2e.scene import Scene
from local_cluster import stack_config
from local_cluster.cluster import LocalCluster
from local_cluster.modules import folder
from local_cluster.stack import Stack

CRDS = {
    "training-operator": ("manifests/base/crds", ("pytorch", "tf", "xgboost", "paddle", "jax")),
    "mpi-operator": ("manifests/base", ("mpi",)),
    "kuberay": ("config/crd/bases", ("rayclusters", "rayjobs")),
    "trainer": ("manifests/base/crds", ("trainjobs", "clustertrainingruntimes")),
    "kai": ("deployments/kai-scheduler/crds", ("topologies",)),
}
"""Module → the folder of its CRDs, and what their file names have after the API group."""
MPI_JOBS = "mpijobs.kubeflow.org"
"""The CRD of mpi-operator. That of training-operator has the same name."""
SETTINGS = "infer_gangs: {default: on, StatefulSet: on}\n"


@pytest.fixture(scope="package")
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """The cluster of this folder, instead of the one of the other end-to-end tests."""
    if request.config.getoption("--cluster") != "local":
        pytest.skip("installs CRDs and controllers, on a cluster that is somebody else's")
    directory = tmp_path_factory.mktemp("kinds")
    settings, credentials = directory / "muster.yaml", directory / "credentials"
    settings.write_text(SETTINGS)
    credentials.mkdir(mode=0o700)
    with LocalCluster(directory / "cluster") as cluster:
        stack_config.apply_definitions(cluster.api, definitions())
        with (
            Controller(cluster, directory, "jobset"),
            Controller(cluster, directory, "lws"),
            Stack(cluster, directory / "stack", service_options=[f"--config={settings}"]) as stack,
        ):
            yield Arena(Client.of(cluster.kubeconfig, credentials), cluster, stack)


@pytest.fixture
def one_node(scene: Scene) -> None:
    scene.node(objects.node("a"))


@pytest.fixture
def jobs(arena: Arena, scene: Scene) -> Iterator[Jobs]:
    """The jobs of one test. They go before the scene is cleared, or controllers would make pods again."""
    assert arena.stack is not None
    new_jobs = Jobs(scene, arena.stack)
    yield new_jobs
    new_jobs.clear()


def definitions() -> list[dict[str, Any]]:
    """The CRDs of `CRDS`, as their projects publish them."""
    files: list[Path] = []
    for module, (path, parts) in CRDS.items():
        crd_files = sorted((folder(module) / path).glob("*_*.yaml"))
        files += [file for file in crd_files if file.stem.rpartition("_")[2].startswith(parts)]
    # with the parser in C: the CRDs have 5 MB
    return [yaml.load(file.read_text(), yaml.CSafeLoader) for file in files]
