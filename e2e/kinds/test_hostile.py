"""What a user who may create jobs can do to others: nothing, in another namespace."""

from __future__ import annotations

import pytest

from e2e.kinds.jobs import Jobs, template
from e2e.kinds.operators import made_of
from e2e.kinds.test_operators import kubeflow
from e2e.scene import Scene
from local_cluster.api import ApiError, Object

MAX_REPLICAS = 2**31 - 1
"""The largest number of replicas that the CRD admits."""
pytestmark = pytest.mark.usefixtures("one_node")


def torch(workers: int) -> Object:
    return kubeflow("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=workers)


@pytest.mark.parametrize("count", [MAX_REPLICAS, MAX_REPLICAS + 1, 2**63])
def test_a_number_beyond_any_cluster_holds_no_other_job(count: int, scene: Scene, jobs: Jobs) -> None:
    """The API server or Muster refuses it. The job of an ordinary user starts."""
    huge = torch(count)
    huge["metadata"]["name"] = "huge"
    if count > MAX_REPLICAS:
        with pytest.raises(ApiError, match=r"4(00|22)"):
            jobs.submit(huge)
    else:
        owner = jobs.submit(huge)
        owner["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
        for pod in made_of(owner):
            jobs.submit(pod)
        scene.until(lambda: scene.events("TopologyInvalid", "huge"), "the job says that it is refused")
        message = scene.events("TopologyInvalid", "huge")[0].message
        assert "at most 200,000" in message
    jobs.operate(jobs.submit(torch(2)))
    scene.until(lambda: len(scene.bound()) == 3, "the ordinary job runs")


def test_a_job_with_too_many_types_of_pods_holds_no_other_job(scene: Scene, jobs: Jobs) -> None:
    """A gang has at most 64 roles."""
    types = {f"Type{number}": {"replicas": 1, "template": template(1)} for number in range(70)}
    job = torch(1)
    job["metadata"]["name"] = "wide"
    job["spec"]["pytorchReplicaSpecs"] |= types
    owner = jobs.submit(job)
    owner["spec"]["pytorchReplicaSpecs"] = torch(1)["spec"]["pytorchReplicaSpecs"]
    jobs.operate(owner)
    scene.until(lambda: scene.events("TopologyInvalid", "wide"), "the job says that it is refused")
    jobs.operate(jobs.submit(torch(2)))
    scene.until(lambda: len(scene.bound()) == 3, "the ordinary job runs")


def test_labels_of_a_job_without_its_controller_join_no_gang(scene: Scene, jobs: Jobs) -> None:
    """A pod may have all labels of a member. Without the owner it is a gang of its own."""
    (master, *workers) = made_of(jobs.submit(torch(2)))
    jobs.submit(master)
    forged = workers[0] | {"metadata": {**workers[0]["metadata"], "name": "forged", "ownerReferences": []}}
    jobs.submit(forged)
    scene.runs(["forged"])
    assert scene.bound() == {"forged"}
    for worker in workers:
        jobs.submit(worker)
    scene.until(lambda: len(scene.bound()) == 4, "the gang starts when its own pods are there")


def test_an_owner_of_another_namespace_is_none(scene: Scene, jobs: Jobs) -> None:
    """The pods name a job of the same name and UID that is elsewhere. They hold up no pod of that job."""
    owner = jobs.submit(torch(1))
    elsewhere = f"{scene.name}-b"
    scene.client.post("/api/v1/namespaces", {"metadata": {"name": elsewhere}})
    try:
        path = f"/api/v1/namespaces/{elsewhere}/pods"
        for pod in made_of(owner):
            body = pod | {"metadata": {**pod["metadata"], "namespace": elsewhere}}
            scene.client.post(path, body)
        jobs.operate(owner)
        scene.until(lambda: len(scene.bound()) == 2, "the job runs in its own namespace")
    finally:
        scene.client.delete(f"/api/v1/namespaces/{elsewhere}")
