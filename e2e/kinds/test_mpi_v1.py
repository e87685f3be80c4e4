"""MPIJobs of the training operator (kubeflow.org/v1).

One cluster has one CRD of this name. The other tests of this folder have that of mpi-operator (v2beta1). So
this test replaces it while the service runs, and puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e import objects
from e2e.kinds.conftest import MPI_JOBS, definitions
from e2e.kinds.jobs import Jobs
from e2e.kinds.test_operators import kubeflow
from e2e.record import Record
from e2e.scene import Scene
from local_cluster import stack_config
from local_cluster.modules import folder

V1 = "manifests/base/crds/kubeflow.org_mpijobs.yaml"
MEMBERS = ["worker x-worker-0", "worker x-worker-1", "launcher x-launcher"]


def names_of(record: Record) -> set[str]:
    return {definition["metadata"]["name"] for definition in record.live(stack_config.CRDS)}


def serve(scene: Scene, definition: dict[str, Any]) -> None:
    """Replace the CRD: stored versions differ, so the old one has to be gone."""
    with Record(scene.client, (stack_config.CRDS,)) as record:
        scene.client.delete(f"{stack_config.CRDS}/{MPI_JOBS}")
        record.until(lambda: MPI_JOBS not in names_of(record), "the other CRD is gone")
    stack_config.apply_definitions(scene.client, [definition])


@pytest.fixture
def v1(scene: Scene, jobs: Jobs) -> Iterator[None]:
    ours = next(definition for definition in definitions() if definition["metadata"]["name"] == MPI_JOBS)
    serve(scene, yaml.load((folder("training-operator") / V1).read_text(), yaml.CSafeLoader))
    try:
        yield
    finally:
        jobs.clear()
        serve(scene, ours)


@pytest.mark.usefixtures("v1")
def test_it_is_one_gang_that_starts_as_a_whole(scene: Scene, jobs: Jobs) -> None:
    """No node is there until the service has read the job in its version."""
    jobs.operate(jobs.submit(kubeflow("MPIJob", "mpiReplicaSpecs", Launcher=1, Worker=2)))
    scene.until(lambda: scene.events("TopologyUnplaceable", "x"), "the job says that it does not fit")
    assert scene.bound() == set()
    scene.node(objects.node("a"))
    jobs.run({"x": MEMBERS})
