"""A third of the nodes vanishes under a stream of gangs: no gang is halved, and the rest runs on."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.audit import LEASE_S
from e2e.facts import PodFacts
from e2e.record import Record
from e2e.scene import COMPLETE, Scene
from local_cluster.api import Object

MEMBERS = 3
GANGS = 12
NODES = "abcdef"
WATCHED = (("apis/batch/v1", "jobs"), ("api/v1", "pods"))


def gang(name: str, gpus: int, runs_for: str = "") -> Object:
    """Return a Job of three, which is one gang. Its controller makes lost pods again."""
    pod = objects.pod("template", gpus=gpus, gang=objects.ack(name, MEMBERS))
    if runs_for:
        pod["metadata"]["annotations"][COMPLETE] = runs_for
    job = objects.job(name, pod, completions=MEMBERS)
    job["spec"]["backoffLimit"] = MEMBERS * len(NODES)
    return job


def on(record: Record, pods: str, nodes: set[str]) -> list[str]:
    """Return the pods on these nodes that have not ended."""
    every = [body for body in record.live(pods) if body["spec"].get("nodeName") in nodes]
    return [str(body["metadata"]["name"]) for body in every if not PodFacts.of(body).finished]


@pytest.mark.grace(LEASE_S)
def test_a_third_of_the_nodes_vanishes_under_a_stream(scene: Scene) -> None:
    """Pods on nodes that are gone are deleted, as the pod garbage collector does it later."""
    nodes = [scene.node(objects.node(name)) for name in NODES]
    stays = scene.create_job(gang("stays", 5))  # one member in each of three nodes
    scene.until(lambda: len(scene.bound()) == MEMBERS, "a gang runs for long")
    before = {name: pod.node for name, pod in scene.pods().items()}
    at = sorted(set(before.values()))
    lost_nodes = {at[0], next(node for node in nodes if node not in at)}

    jobs, pods = (f"/{group}/namespaces/{scene.name}/{plural}" for group, plural in WATCHED)
    with Record(scene.client, (jobs, pods)) as record:

        def over() -> int:
            return sum(job.get("status", {}).get("succeeded") == MEMBERS for job in record.live(jobs))

        for number in range(GANGS):
            scene.create_job(gang(f"g{number}", 2, "500ms"))
        record.until(lambda: over() > 1, "gangs come and go")
        for node in lost_nodes:
            scene.client.delete(f"/api/v1/nodes/{node}")
        while over() < GANGS:
            scene.delete(*on(record, pods, lost_nodes))
            record.until(lambda: over() == GANGS or on(record, pods, lost_nodes), "all gangs end")
        scene.delete(*on(record, pods, lost_nodes))
    scene.until(lambda: len(scene.pods_of_job(stays)) == MEMBERS, "the lost member is made again")
    scene.runs(scene.pods_of_job(stays))
    after = {name: scene.pods()[name].node for name in scene.pods_of_job(stays)}
    assert {name: node for name, node in before.items() if node not in lost_nodes}.items() < after.items()
    assert not lost_nodes & {*after.values()}
