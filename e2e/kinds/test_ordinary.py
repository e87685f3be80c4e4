"""What ordinary users do with their jobs: each pod starts when it fits."""

from __future__ import annotations

import pytest

from e2e.kinds.jobs import Jobs, template
from e2e.kinds.test_operators import ray
from e2e.scene import COMPLETE, Scene
from local_cluster.api import Object

pytestmark = pytest.mark.usefixtures("one_node")


def job(parallelism: int, completions: int | None = None, gpus: int = 2, **spec: object) -> Object:
    """Return an Indexed Job, which is a gang if all its pods run at once."""
    pod = template(gpus)
    pod["spec"]["restartPolicy"] = "Never"
    counts = {"parallelism": parallelism, "completions": completions or parallelism}
    fields = {"completionMode": "Indexed", "backoffLimit": 3, **counts, "template": pod, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": fields}


def stateful_set(replicas: int, policy: str) -> Object:
    pod = template(2, labels={"app": "x"})
    spec = {"replicas": replicas, "podManagementPolicy": policy, "serviceName": "x", "template": pod}
    spec["selector"] = {"matchLabels": {"app": "x"}}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}, "spec": spec}


def names(count: int) -> dict[str, list[str]]:
    return {"x": [f"x-{index}" for index in range(count)]}


def test_a_pod_that_a_job_tries_again_starts_alone(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(job(4))
    jobs.run(names(4))
    scene.fail(next(name for name in scene.pods() if name.startswith("x-2")))
    scene.until(lambda: len(scene.pods()) == 5, "the Job makes the pod again")
    jobs.run(names(4))


def test_pods_that_finish_one_by_one_do_not_hold_the_next_ones(scene: Scene, jobs: Jobs) -> None:
    """Eight pods run, two at the same time."""
    body = job(2, 8, gpus=4)
    body["spec"]["template"]["metadata"] = {"annotations": {COMPLETE: "200ms"}}
    jobs.submit(body)
    scene.until(
        lambda: sum(pod.phase == "Succeeded" for pod in scene.pods().values()) == 8, "all eight pods ran"
    )


def test_a_job_that_is_resumed_starts_as_one_gang(scene: Scene, jobs: Jobs) -> None:
    submitted = jobs.submit(job(4))
    for _ in range(3):
        jobs.run(names(4))
        submitted = jobs.change(submitted, {"suspend": True})
        scene.until(lambda: not jobs.pods(), "the suspended Job has no pods")
        submitted = jobs.change(submitted, {"suspend": False})
    jobs.run(names(4))
    assert jobs.gangs() == {"x": ("Job", 4, 4, 4)}


def test_a_gang_starts_again_without_the_members_that_have_finished(scene: Scene, jobs: Jobs) -> None:
    """Two of four have succeeded when the Job is suspended and resumed. The other two are all that come."""
    submitted = jobs.submit(job(4))
    jobs.run(names(4))
    scene.end(*(name for name in scene.pods() if name.startswith(("x-0", "x-1"))))
    submitted = jobs.change(submitted, {"suspend": True})
    scene.until(lambda: not jobs.pods(), "the suspended Job has no pods")
    jobs.change(submitted, {"suspend": False})
    jobs.run({"x": ["x-2", "x-3"]})


@pytest.mark.parametrize("policy", ["Parallel", "OrderedReady"])
def test_a_stateful_set_grows_and_shrinks(policy: str, scene: Scene, jobs: Jobs) -> None:
    submitted = jobs.submit(stateful_set(2, policy))
    jobs.run(names(2))
    submitted = jobs.change(submitted, {"replicas": 4})
    jobs.run(names(4))
    jobs.change(submitted, {"replicas": 1})
    scene.until(lambda: len(scene.pods()) == 1, "one pod is left")
    jobs.run(names(1))


def test_a_gang_that_grows_beyond_the_capacity_runs_on(scene: Scene, jobs: Jobs) -> None:
    """The new number is the gang's: its new pods start when all of them fit, and nothing is evicted."""
    submitted = jobs.submit(stateful_set(3, "Parallel"))
    jobs.run(names(3))
    submitted = jobs.change(submitted, {"replicas": 6})
    scene.until(lambda: len(scene.pods()) == 6, "three more pods are there")
    scene.until(lambda: scene.events("TopologyUnplaceable", "x"), "the set says that they do not fit")
    assert len(scene.bound()) == 3
    jobs.change(submitted, {"replicas": 4})
    jobs.run(names(4))


def test_jobs_of_two_kinds_may_have_one_name(scene: Scene, jobs: Jobs) -> None:
    jobs.submit(job(2))
    jobs.operate(jobs.submit(ray()))
    scene.until(lambda: len(scene.bound()) == 5, "both run")
    assert len(jobs.pods()) == 5


def test_a_job_whose_elastic_number_grows_while_it_runs(scene: Scene, jobs: Jobs) -> None:
    """An Indexed Job may change completions and parallelism together."""
    submitted = jobs.submit(job(2))
    jobs.run(names(2))
    submitted = jobs.change(submitted, {"parallelism": 4, "completions": 4})
    jobs.run(names(4))
    jobs.change(submitted, {"parallelism": 1, "completions": 1})
    scene.until(lambda: len(jobs.pods()) == 1, "one pod is left")
    jobs.run(names(1))
