"""Complete gangs run, on the best GPUs there are, with few calls and one write for each pod."""

from __future__ import annotations

import json

from e2e import objects
from e2e.arena import unary_calls
from e2e.facts import ALLOCATION
from e2e.record import PODS
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.stack import Stack
from local_cluster.topology import load_topology

WRITTEN_AT_BIND = {
    ALLOCATION,
    "gpu.topology/decision",
    "ALIYUN_COM_GPU_GROUP",
    "ALIYUN_COM_GPU_ASSIGNED",
    "ALIYUN_COM_GPU_ASSUME_TIME",
}
GANG_OF_EIGHT = 8
CALLS_A_GANG = 4


def link(gpus: tuple[int, ...]) -> str:
    """The kind of link between two GPUs of the document's mesh."""
    first, second = gpus
    return load_topology(objects.DOCUMENT_MESH).links[first][second]


def mesh_node(name: str = "a") -> Object:
    return objects.node(name, topology=objects.DOCUMENT_MESH, labels={"ack.node.gpu.schedule": "topology"})


def take_all_but(scene: Scene, free: set[int]) -> None:
    """Fill the scene's one node of eight GPUs with pods, then remove those that have the GPUs in `free`."""
    fillers = scene.create(*(objects.pod(f"filler-{number}") for number in range(8)))
    scene.runs(fillers)
    scene.delete(*(name for name in fillers if scene.gpus(name)[0] in free))


def test_the_documents_pytorchjob_gets_two_gpus_joined_by_two_nvlinks(scene: Scene) -> None:
    scene.node(mesh_node())
    job = "pytorch-dist-nccl"
    replicas = scene.create(
        *(objects.document_replica(f"{job}-{role}-0", job, 2) for role in ("master", "worker"))
    )
    scene.runs(replicas)
    assert link(scene.gpus(replicas[0]) + scene.gpus(replicas[1])) == "NV2"


def test_the_documents_job_gets_two_gpus_joined_by_two_nvlinks(scene: Scene) -> None:
    scene.node(mesh_node())
    job = scene.create_job(objects.document_job("test-gpu-topology", 2))
    scene.until(lambda: scene.pods_of_job(job), f"job {job} has a pod")
    scene.runs(scene.pods_of_job(job))
    assert link(scene.gpus(scene.pods_of_job(job)[0])) == "NV2"


def test_with_gpus_0_3_and_6_taken_the_best_pair_left_is_found(scene: Scene) -> None:
    scene.node(mesh_node())
    take_all_but(scene, {1, 2, 4, 5, 7})
    replicas = scene.create(*(objects.document_replica(f"pair-{rank}", "pair", 2) for rank in range(2)))
    scene.runs(replicas)
    pair = scene.gpus(replicas[0]) + scene.gpus(replicas[1])
    assert not {0, 3, 6} & set(pair)
    assert link(pair) == "NV2"


def test_a_pair_takes_a_slow_link_rather_than_waiting_for_a_fast_one(scene: Scene) -> None:
    scene.node(mesh_node())
    take_all_but(scene, {0, 4})
    replicas = scene.create(*(objects.document_replica(f"pair-{rank}", "pair", 2) for rank in range(2)))
    scene.runs(replicas)
    assert {*scene.gpus(replicas[0]), *scene.gpus(replicas[1])} == {0, 4}


def test_a_gang_that_fits_one_node_is_not_spread_over_two(scene: Scene) -> None:
    scene.node(mesh_node("a"))
    scene.node(mesh_node("b"))
    gang = scene.create(*(objects.pod(f"w-{rank}", gpus=2, gang=objects.ack("g", 4)) for rank in range(4)))
    scene.runs(gang)
    assert len({scene.pods()[name].node for name in gang}) == 1


def test_a_gang_larger_than_a_node_is_spread(scene: Scene) -> None:
    scene.node(mesh_node("a"))
    scene.node(mesh_node("b"))
    gang = scene.create(*(objects.pod(f"w-{rank}", gpus=4, gang=objects.ack("g", 4)) for rank in range(4)))
    scene.runs(gang)
    assert len({scene.pods()[name].node for name in gang}) == 2


def test_a_job_of_the_job_controller_runs_as_one_gang(scene: Scene) -> None:
    scene.node(mesh_node())
    template = objects.pod("template", gpus=2, gang=objects.ack("g", 3))
    job = scene.create_job(objects.job("train", template, completions=3))
    scene.until(lambda: len(scene.pods_of_job(job)) == 3, f"job {job} has three pods")
    scene.runs(scene.pods_of_job(job))


def test_a_gang_of_eight_costs_at_most_four_unary_calls(scene: Scene, stack: Stack) -> None:
    scene.node(mesh_node())
    before = unary_calls(stack)
    gang = scene.create(
        *(objects.pod(f"w-{rank}", gang=objects.ack("g", GANG_OF_EIGHT)) for rank in range(GANG_OF_EIGHT))
    )
    scene.runs(gang)
    calls_by_method = {method: count - before.get(method, 0) for method, count in unary_calls(stack).items()}
    assert 0 < sum(calls_by_method.values()) <= CALLS_A_GANG, calls_by_method


def test_node_and_gpus_come_in_one_update(scene: Scene) -> None:
    """The very first version of a pod that has a node has all annotations; the one before has none."""
    scene.node(mesh_node())
    names = scene.create(*(objects.pod(f"w-{rank}", gpus=2, gang=objects.ack("g", 2)) for rank in range(2)))
    scene.runs(names)
    for name in names:
        versions = [
            change.body
            for change in scene.record.changes()
            if change.kind == PODS and change.body["metadata"]["name"] == name
        ]
        first_bound = next(index for index, body in enumerate(versions) if body["spec"].get("nodeName"))
        assert first_bound > 0
        assert not WRITTEN_AT_BIND & set(versions[first_bound - 1]["metadata"].get("annotations") or {})
        annotations = versions[first_bound]["metadata"]["annotations"]
        assert set(annotations) >= WRITTEN_AT_BIND
        assert annotations["ALIYUN_COM_GPU_ASSIGNED"] == "false"
        assert json.loads(annotations[ALLOCATION])["containers"] == {"main": list(scene.gpus(name))}


def test_gpus_are_listed_container_by_container(scene: Scene) -> None:
    scene.node(mesh_node())
    pod = objects.pod("two-containers")
    pod["spec"]["containers"] = [objects.container("first", 1), objects.container("second", 2)]
    (name,) = scene.create(pod)
    scene.runs([name])
    body = scene.client.get(f"/api/v1/namespaces/{scene.name}/pods/{name}")
    parts = json.loads(body["metadata"]["annotations"][ALLOCATION])["containers"]
    assert {container: len(gpus) for container, gpus in parts.items()} == {"first": 1, "second": 2}
    assert sorted(parts["first"] + parts["second"]) == list(scene.gpus(name))


def test_pods_of_another_scheduler_count_as_used(scene: Scene) -> None:
    node = scene.node(mesh_node())
    bound_spec = {"nodeName": node}
    scene.runs(scene.create(objects.pod("theirs", gpus=3, scheduler="default-scheduler", spec=bound_spec)))
    (large,) = scene.create(objects.pod("large", gpus=6))
    scene.event("TopologyUnplaceable", large)
    scene.runs(scene.create(objects.pod("small", gpus=5)))
    assert large not in scene.bound()


def test_a_placed_job_has_one_event_on_its_first_pod_and_one_on_the_job(scene: Scene) -> None:
    scene.node(objects.node("a"))
    template = objects.pod("template", gang=objects.ack("g", 4))
    scene.apply(objects.job("train", template, completions=4))
    scene.until(lambda: len(scene.pods_of_job("train")) == 4, "four pods")
    pods = scene.pods_of_job("train")
    scene.runs(pods)
    scene.event("TopologyPlaced", "train")
    event = scene.event("TopologyPlaced", pods[0])
    assert {event.pod for event in scene.events("TopologyPlaced")} == {"train", pods[0]}
    assert "4 of 4 members" in event.message
