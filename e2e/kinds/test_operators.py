"""Jobs of the other kinds: their real CRDs, and pods as their operators make them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e import objects
from e2e.kinds.jobs import Jobs, template
from e2e.kinds.operators import job_set_of
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.modules import folder

pytestmark = pytest.mark.usefixtures("one_node")

TORCH = "manifests/base/runtimes/torch_distributed.yaml"


def kubeflow(kind: str, field: str, version: str = "v1", **counts: int) -> Object:
    """Return a job of these replica types. A launcher asks for no GPU."""
    types = {
        name: {"replicas": count, "template": template(0 if name == "Launcher" else 1)}
        for name, count in counts.items()
    }
    spec = {field: types}
    return {"apiVersion": f"kubeflow.org/{version}", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def ray(kind: str = "RayCluster", **group: object) -> Object:
    workers = {"groupName": "gpus", "replicas": 2, "template": template(1), "rayStartParams": {}, **group}
    spec: Object = {
        "headGroupSpec": {"template": template(0), "rayStartParams": {}},
        "workerGroupSpecs": [workers],
    }
    if kind == "RayJob":
        spec = {"entrypoint": "python train.py", "rayClusterSpec": spec}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


@dataclass(frozen=True)
class Case:
    """A job → its one gang, with the pods' roles in the order of their ranks."""

    job: Object
    pods: list[str]
    gang: str = "x"


CASES = {
    "PyTorchJob": Case(
        kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=2, Master=1),
        ["master x-master-0", "worker x-worker-0", "worker x-worker-1"],
    ),
    "TFJob": Case(
        kubeflow("TFJob", "tfReplicaSpecs", Worker=2, PS=1, Chief=1),
        ["chief x-chief-0", "ps x-ps-0", "worker x-worker-0", "worker x-worker-1"],
    ),
    "XGBoostJob": Case(
        kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=2),
        ["master x-master-0", "worker x-worker-0", "worker x-worker-1"],
    ),
    "PaddleJob": Case(
        kubeflow("PaddleJob", "paddleReplicaSpecs", Worker=2), ["worker x-worker-0", "worker x-worker-1"]
    ),
    "JAXJob": Case(
        kubeflow("JAXJob", "jaxReplicaSpecs", Worker=2), ["worker x-worker-0", "worker x-worker-1"]
    ),
    "MPIJob": Case(
        kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1", Launcher=1, Worker=2),
        ["worker x-worker-0", "worker x-worker-1", "launcher x-launcher"],
    ),
    "RayCluster": Case(ray(), ["gpus x-gpus-worker", "gpus x-gpus-worker", "headgroup x-head"]),
    "RayJob": Case(
        ray("RayJob"),
        ["gpus x-x7k2p-gpus-worker", "gpus x-x7k2p-gpus-worker", "headgroup x-x7k2p-head"],
        gang="x-x7k2p",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_one_gang(name: str, jobs: Jobs) -> None:
    case = CASES[name]
    jobs.operate(jobs.submit(case.job))
    jobs.run({case.gang: case.pods})
    kind = "RayCluster" if name == "RayJob" else name
    assert jobs.gangs() == {case.gang: (kind, *3 * (len(case.pods),))}


@pytest.mark.parametrize("name", CASES)
def test_a_job_that_does_not_fit_as_a_whole_does_not_start(name: str, scene: Scene, jobs: Jobs) -> None:
    case = CASES[name]
    scene.create(objects.pod("other", gpus=7))
    scene.runs(["other"])
    jobs.operate(jobs.submit(case.job))
    owner = case.gang
    scene.until(lambda: scene.events("TopologyUnplaceable", owner), "the job says that it does not fit")
    assert scene.bound() == {"other"}


def test_a_train_job_is_one_gang(jobs: Jobs) -> None:
    """Its JobSet is made of the trainer's own runtime, and JobSet's real controller makes the pods."""
    runtime = yaml.safe_load((Path(folder("trainer")) / TORCH).read_text())
    train_job = jobs.submit(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "x", "labels": {"kai.scheduler/queue": "team-a"}},
            "spec": {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {"numNodes": 3, "resourcesPerNode": {"limits": {objects.GPU: "2"}}},
            },
        }
    )
    jobs.submit(job_set_of(train_job, runtime, objects.MUSTER))
    jobs.run({"x": [f"node x-node-0-{index}" for index in range(3)]})
    assert jobs.gangs() == {"x": ("JobSet", 3, 3, 3)}


def test_a_launcher_that_is_restarted_alone_starts(scene: Scene, jobs: Jobs) -> None:
    jobs.operate(jobs.submit(CASES["MPIJob"].job))
    jobs.run({"x": CASES["MPIJob"].pods})
    before = {body["metadata"]["uid"] for body in jobs.pods()}
    scene.fail(next(name for name in scene.pods() if name.startswith("x-launcher")))
    scene.until(
        lambda: len({body["metadata"]["uid"] for body in jobs.pods()} - before) == 1,
        "the Job of the launcher makes another pod",
    )
    jobs.run({"x": CASES["MPIJob"].pods})


def test_a_ray_cluster_grows_and_shrinks_while_it_runs(scene: Scene, jobs: Jobs) -> None:
    cluster = jobs.submit(ray(minReplicas=1, maxReplicas=5))
    jobs.operate(cluster)
    jobs.run({"x": CASES["RayCluster"].pods})
    jobs.operate(jobs.change(cluster, ray(replicas=4, minReplicas=1, maxReplicas=5)["spec"]))
    scene.until(lambda: len(scene.bound()) == 5, "two more workers run")
    assert len(jobs.gangs()) == 1


def test_a_ray_cluster_starts_with_its_smallest_number_of_workers(scene: Scene, jobs: Jobs) -> None:
    scene.create(objects.pod("other", gpus=7))
    scene.runs(["other"])
    jobs.operate(jobs.submit(ray(replicas=3, minReplicas=1)))
    scene.until(lambda: len(scene.bound()) == 3, "the head and one worker run")
