"""Jobs whose pods name no gang, as their users write them; the job controller makes the pods."""

from __future__ import annotations

from e2e import objects
from e2e.scene import Scene
from local_cluster.api import Object

QUEUE = {"kai.scheduler/queue": "team-a"}
PLACEMENT = {"kai.scheduler/topology-required-placement": "topology.kubernetes.io/rack"}


def plain_job(name: str, gpus: int, pods: int, **meta: Object) -> Object:
    job = objects.job(name, objects.pod("template", gpus=gpus), completions=pods)
    job["metadata"] |= meta
    return job


def racks(scene: Scene) -> None:
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        scene.node(objects.node(name, labels={"topology.kubernetes.io/rack": rack}))


def test_a_kai_users_job_is_one_gang_in_one_rack(scene: Scene) -> None:
    """Unchanged but for schedulerName."""
    racks(scene)
    job = scene.create_job(plain_job("train", 8, 2, labels=QUEUE, annotations=PLACEMENT))
    scene.until(lambda: len(scene.pods_of_job(job)) == 2, f"job {job} has its pods")
    scene.runs(scene.pods_of_job(job))
    nodes = {pod.node.rpartition("-")[2] for pod in scene.pods().values()}
    assert nodes == {"a", "b"}


def test_what_does_not_fit_as_a_whole_does_not_start(scene: Scene) -> None:
    racks(scene)
    job = scene.create_job(plain_job("train", 8, 3, labels=QUEUE, annotations=PLACEMENT))
    scene.until(lambda: len(scene.pods_of_job(job)) == 3, f"job {job} has its pods")
    scene.until(lambda: scene.events("TopologyUnplaceable", job), "the job says that it does not fit")
    assert [pod.node for pod in scene.pods().values() if pod.node] == []


def test_a_job_without_kais_keys_starts_in_part_and_says_why(scene: Scene) -> None:
    scene.node(objects.node("a"))
    job = scene.create_job(plain_job("train", 8, 2))
    scene.until(lambda: len(scene.pods_of_job(job)) == 2, f"job {job} has its pods")
    scene.until(lambda: scene.events("TopologyNoGang", job), "the job says how to make it a gang")
    scene.until(lambda: [pod for pod in scene.pods().values() if pod.node], "one pod has its node")


def test_pods_whose_job_is_deleted_without_them_do_not_start_in_part(scene: Scene) -> None:
    """`kubectl delete --cascade=orphan` removes their owner references."""
    racks(scene)
    job = scene.create_job(plain_job("train", 8, 3, labels=QUEUE, annotations=PLACEMENT))
    scene.until(lambda: len(scene.pods_of_job(job)) == 3, f"job {job} has its pods")
    scene.until(lambda: scene.events("TopologyUnplaceable", job), "the job says that it does not fit")
    path = f"/apis/batch/v1/namespaces/{scene.name}/jobs/{job}"
    scene.client.delete(f"{path}?propagationPolicy=Orphan")
    first = min(scene.pods_of_job(job))
    event = scene.event("TopologyJobGone", first)
    assert event.message == f"Job {scene.name}/{job} was deleted; its last count, 3, holds"
    pods = scene.client.get(f"/api/v1/namespaces/{scene.name}/pods")["items"]
    assert [pod["metadata"].get("ownerReferences") for pod in pods] == [None] * 3
    assert scene.bound() == set()
