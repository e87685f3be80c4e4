"""JobSets and LeaderWorkerSets by their real controllers: one gang each, whatever happens to their pods."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.kinds.jobs import Jobs, template
from e2e.scene import Scene
from local_cluster.api import Object

DRIVER_AND_WORKERS = [
    "driver train-driver-0-0",
    "workers train-workers-0-0",
    "workers train-workers-0-1",
    "workers train-workers-1-0",
    "workers train-workers-1-1",
]


def replicated(name: str, replicas: int, pods: int, gpus: int) -> Object:
    pod = template(gpus)
    pod["spec"]["restartPolicy"] = "Never"
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": pod}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def job_set(name: str = "train", **spec: object) -> Object:
    """Return a JobSet of a driver without GPUs, and of two Jobs of two workers with four GPUs each."""
    parts = [replicated("driver", 1, 1, 0), replicated("workers", 2, 2, 4)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": parts, **spec},
    }


def worker_set(replicas: int, size: int = 3, gpus: int = 2, **more: object) -> Object:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", **more},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template(gpus)},
        },
    }


def group(index: int) -> dict[str, list[str]]:
    name = f"serve-{index}"
    return {name: [f"leader {name}", f"worker {name}-1", f"worker {name}-2"]}


@pytest.fixture(autouse=True)
def two_nodes(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.node(objects.node(name, labels={"topology.kubernetes.io/rack": name}))


def test_a_job_set_is_one_gang(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(job_set())
    jobs.run({"train": DRIVER_AND_WORKERS})
    assert jobs.gangs() == {"train": ("JobSet", 5, 5, 5)}


def test_a_job_set_that_does_not_fit_as_a_whole_does_not_start(scene: Scene, jobs: Jobs) -> None:
    scene.create(objects.pod("other", gpus=1))
    scene.runs(["other"])
    jobs.submit(job_set())
    scene.until(lambda: jobs.read().get("train") == DRIVER_AND_WORKERS, "all pods are there")
    scene.until(lambda: scene.events("TopologyUnplaceable", "train"), "the JobSet says that it does not fit")
    assert scene.bound() == {"other"}
    scene.end("other")
    jobs.run({"train": DRIVER_AND_WORKERS})


def test_a_job_set_that_is_suspended_starts_again_as_one_gang(scene: Scene, jobs: Jobs) -> None:
    submitted = jobs.submit(job_set(suspend=True))
    submitted = jobs.change(submitted, {"suspend": False})
    jobs.run({"train": DRIVER_AND_WORKERS})
    submitted = jobs.change(submitted, {"suspend": True})
    scene.until(lambda: not scene.pods(), "the suspended JobSet has no pods")
    jobs.change(submitted, {"suspend": False})
    jobs.run({"train": DRIVER_AND_WORKERS})
    assert jobs.gangs() == {"train": ("JobSet", 5, 5, 5)}


def test_a_job_set_with_a_failed_pod_is_made_again_and_starts(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(job_set(failurePolicy={"maxRestarts": 1}))
    jobs.run({"train": DRIVER_AND_WORKERS})
    before = {body["metadata"]["uid"] for body in jobs.pods()}
    failing = next(name for name in scene.pods() if name.startswith("train-workers-1-0"))
    scene.fail(failing)
    scene.until(
        lambda: not before & {body["metadata"]["uid"] for body in jobs.pods()}, "all pods are made again"
    )
    jobs.run({"train": DRIVER_AND_WORKERS})


def test_a_jobs_backoff_replaces_one_pod_of_a_job_set(scene: Scene, jobs: Jobs) -> None:
    body = job_set()
    body["spec"]["replicatedJobs"][1]["template"]["spec"]["backoffLimit"] = 3
    jobs.submit(body)
    jobs.run({"train": DRIVER_AND_WORKERS})
    scene.fail(next(name for name in scene.pods() if name.startswith("train-workers-0-1")))
    jobs.run({"train": DRIVER_AND_WORKERS})


def test_each_job_of_an_exclusive_job_set_has_a_rack(scene: Scene, jobs: Jobs) -> None:
    """Its followers are made when their leader has its node."""
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    body = job_set()
    body["spec"]["replicatedJobs"] = [replicated("workers", 2, 2, 4)]
    body["metadata"]["annotations"] = {key: "topology.kubernetes.io/rack"}
    jobs.submit(body)
    jobs.run({"train": DRIVER_AND_WORKERS[1:]})
    racks = {(name[:15], pod.node) for name, pod in scene.pods().items()}
    assert len(racks) == 2


def test_replicated_jobs_that_start_later_start_as_a_whole(scene: Scene, jobs: Jobs) -> None:
    """The workers are made when the driver runs. One GPU too few is free, so the driver waits too."""
    scene.create(objects.pod("other", gpus=1))
    scene.runs(["other"])
    jobs.submit(job_set(startupPolicy={"startupPolicyOrder": "InOrder"}))
    scene.until(
        lambda: scene.events("TopologyUnplaceable", "train"), "the JobSet says that the workers do not fit"
    )
    assert jobs.read()["train"] == DRIVER_AND_WORKERS[:1]
    assert scene.bound() == {"other"}
    scene.end("other")
    jobs.run({"train": DRIVER_AND_WORKERS})


def test_workers_that_follow_a_ready_leader_start_as_a_whole(scene: Scene, jobs: Jobs) -> None:
    """Each node takes one pod: next to the leader one of the two workers would fit."""
    body = worker_set(1, gpus=6)
    body["spec"]["startupPolicy"] = "LeaderReady"
    jobs.submit(body)
    scene.until(
        lambda: scene.events("TopologyUnplaceable", "serve"), "the set says that the workers do not fit"
    )
    assert jobs.read() == {"serve-0": group(0)["serve-0"][:1]}
    assert not scene.bound()
    scene.node(objects.node("c"))
    jobs.run(group(0))


def test_each_group_of_a_leader_worker_set_is_a_gang(scene: Scene, jobs: Jobs) -> None:
    submitted = jobs.submit(worker_set(2))
    jobs.run({**group(0), **group(1)})
    assert jobs.gangs() == {f"serve-{index}": ("LeaderWorkerSet", 3, 3, 3) for index in range(2)}

    scene.node(objects.node("c"))
    jobs.change(submitted, {"replicas": 3})
    jobs.run({**group(0), **group(1), **group(2)})


def test_a_group_that_does_not_fit_as_a_whole_does_not_start(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(worker_set(3))  # two GPUs are free in each node when two groups run
    scene.until(lambda: len(scene.bound()) == 6, "two groups run")
    scene.until(
        lambda: scene.events("TopologyUnplaceable", "serve"), "the set says that a group does not fit"
    )
    assert len(jobs.pods()) == 9
    assert sorted(bound for *_, bound in jobs.gangs().values()) == [0, 3, 3]


def test_an_exclusive_leader_worker_set_starts(scene: Scene, jobs: Jobs) -> None:
    """Its workers are made when their leader has its node."""
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    jobs.submit(worker_set(2, annotations={key: "topology.kubernetes.io/rack"}))
    jobs.run({**group(0), **group(1)})
    assert len({(name[:7], pod.node) for name, pod in scene.pods().items()}) == 2


def test_a_leader_that_is_deleted_comes_back_with_its_group(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(worker_set(1))
    jobs.run(group(0))
    before = {body["metadata"]["uid"] for body in jobs.pods()}
    scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods/serve-0", grace_s=0)
    scene.until(
        lambda: not before & {body["metadata"]["uid"] for body in jobs.pods()}, "the group is made again"
    )
    jobs.run(group(0))
