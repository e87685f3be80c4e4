"""Every manifest of the four source documents reaches what its document says.

They are those of examples/: the documents' own but for schedulerName, the namespace, which is the test's, and
the repairs that their first lines name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.documents import create_nodes, grepped, manifests, short
from e2e.facts import ALLOCATION
from e2e.objects import DOCUMENT_MESH
from e2e.record import EVENTS, Record
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.examples.objects import collection
from local_cluster.stack import Stack
from local_cluster.topology import load_topology

NVSWITCH = {"dgx-h100-01", "dgx-h100-02", "dgx-h100-03"}
RACK = "topology.kubernetes.io/rack"
PODGROUPS = "/apis/scheduling.run.ai/v2/namespaces/{}/podgroups"


def link(gpus: list[int]) -> str:
    """The link between two GPUs of the document's node."""
    first, second = gpus
    return load_topology(DOCUMENT_MESH).links[first][second]


def annotated(scene: Scene, pod: str) -> dict[str, str]:
    body = scene.client.get(f"/api/v1/namespaces/{scene.name}/pods/{pod}")
    annotations: dict[str, str] = body["metadata"].get("annotations") or {}
    return annotations


def run_all(scene: Scene, count: int) -> list[str]:
    """Wait until `count` pods run, and return their names, sorted."""
    scene.until(lambda: len(scene.pods()) == count, f"{count} pods")
    names = sorted(scene.pods())
    scene.runs(names)
    return names


def places(scene: Scene) -> dict[str, str]:
    """Pod → node, by the name that the node has in examples/."""
    return {name: short(scene, pod.node) for name, pod in scene.pods().items()}


def gpus(scene: Scene, *pods: str) -> list[int]:
    return sorted(gpu for pod in pods for gpu in scene.gpus(pod))


def shows(scene: Scene, *words: str) -> None:
    """Wait until `kubectl get events | grep -i topology` has a line with these words."""
    scene.until(
        lambda: any(all(word in line for word in words) for line in grepped(scene)),
        f"an event says {', '.join(words)}",
    )


def status(scene: Scene, name: str, **fields: object) -> Object:
    """Wait until the PodGroup's status has these values; all of it."""
    path = PODGROUPS.format(scene.name)
    with Record(scene.client, (path,)) as record:

        def found() -> Object | None:
            for body in record.live(path):
                status_shown: Object = body.get("status") or {}
                if body["metadata"]["name"] == name and all(
                    status_shown.get(k) == v for k, v in fields.items()
                ):
                    return status_shown
            return None

        return record.until(found, f"the status of PodGroup {name} says {fields}")


@pytest.fixture
def policies(arena: Arena, scene: Scene) -> Iterator[None]:
    """The recipe's ConfigMap. It is one for the whole cluster, so not on somebody else's."""
    if arena.cluster is None:
        pytest.skip("replaces kai-scheduler-config, which is somebody else's")
    (body,) = manifests("kai-recipe/tas-config")
    scene.client.post(collection(body), body)
    yield
    scene.client.delete(f"{collection(body)}/{body['metadata']['name']}")


# --- ACK topology-aware scheduling --------------------------------------------------------------------


def test_the_pytorchjob_gets_two_gpus_that_nvlink_joins(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("ack/pytorchjob-pods"))
    names = run_all(scene, 2)
    assert len({*places(scene).values()}) == 1
    assert link(gpus(scene, *names)) == "NV2"
    assert all(annotated(scene, name)["ALIYUN_COM_GPU_ASSIGNED"] == "false" for name in names)
    shows(scene, "NV2", "TopologyPlaced")


def test_without_the_labels_they_are_two_gangs(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("ack/without-topology-pods"))
    for name in run_all(scene, 2):
        assert "ALIYUN_COM_GPU_ASSIGNED" not in annotated(scene, name)
        assert json.loads(annotated(scene, name)[ALLOCATION])["indices"] == "advisory"


def test_changing_a_nodes_label_moves_nobody(scene: Scene) -> None:
    """ "Configure nodes": the label decides which resource the node serves; what runs keeps its GPUs."""
    body = objects.node("a", topology=DOCUMENT_MESH, labels={"ack.node.gpu.schedule": "topology"})
    body["status"]["allocatable"]["nvidia.com/gpu"] = body["status"]["allocatable"]["aliyun.com/gpu"]
    node = scene.node(body)
    (before,) = scene.create(objects.pod("before", gpus=5))
    (early,) = scene.create(of_nvidia(objects.pod("early", gpus=3)))
    scene.runs([before])
    scene.event("TopologyUnplaceable", early)  # the node serves aliyun.com/gpu alone
    scene.client.patch(
        f"/api/v1/nodes/{node}", {"metadata": {"labels": {"ack.node.gpu.schedule": "default"}}}
    )
    scene.runs([early])
    assert not {*scene.gpus(before)} & {*scene.gpus(early)}
    (late,) = scene.create(objects.pod("late"))
    scene.event("TopologyUnplaceable", late)


def of_nvidia(pod: Object) -> Object:
    """The same pod, asking for nvidia.com/gpu."""
    (container,) = pod["spec"]["containers"]
    gpu_count = container["resources"]["limits"].pop("aliyun.com/gpu")
    container["resources"] = {"limits": {"nvidia.com/gpu": gpu_count}}
    return pod


# --- gputopology ------------------------------------------------------------------------------------


def test_the_job_gets_two_gpus_and_the_annotation_that_its_document_looks_for(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("gputopology/test-gpu"))
    (name,) = run_all(scene, 1)
    written = annotated(scene, name)
    assert link(gpus(scene, name)) == "NV2"
    assert written["ALIYUN_COM_GPU_ASSIGNED"] == "false"  # the device plugin turns it to true at Allocate
    assert written["ALIYUN_COM_GPU_GROUP"] == ",".join(map(str, gpus(scene, name)))
    assert int(written["ALIYUN_COM_GPU_ASSUME_TIME"]) > 0
    shows(scene, "TopologyPlaced")


# --- the recipe -------------------------------------------------------------------------------------


def test_the_job_of_four_is_in_one_nvlink_domain(scene: Scene, policies: None) -> None:
    create_nodes(scene)
    scene.apply(*manifests("kai-recipe/topology-aware-training"))
    names = run_all(scene, 4)
    (node,) = {*places(scene).values()}
    assert node in NVSWITCH
    assert gpus(scene, *names) == list(range(8))
    status_shown = status(scene, "ddp-training-tas", running=4)
    assert (status_shown["present"], status_shown["placed"]) == (4, 4)
    assert node in status_shown["domain"]
    shows(scene, "TopologyPlaced", "NV18")


def test_the_gang_of_two_nodes_is_in_one_rack_with_nvswitch(scene: Scene) -> None:
    nodes = create_nodes(scene)
    scene.apply(*manifests("kai-recipe/multi-node-tas"))
    run_all(scene, 2)
    nodes_used = {*places(scene).values()}
    assert len(nodes_used) == 2
    assert nodes_used <= NVSWITCH
    assert len({nodes[node]["metadata"]["labels"][RACK] for node in nodes_used}) == 1
    status(scene, "multi-node-training", running=2)
    shows(scene, "TopologyPlaced", "rack")


def test_router_prefill_and_decode_are_on_one_node(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("kai-recipe/disaggregated-serving"))
    assert run_all(scene, 3) == ["decode-worker", "prefill-worker", "router"]
    assert len({*places(scene).values()}) == 1
    assert len({*gpus(scene, "prefill-worker", "decode-worker")}) == 8
    status(scene, "llm-serving-pipeline", running=3)


AS_GIVEN = {
    "multi-node-tas": (1, 2, "multi-node-training"),
    "disaggregated-serving": (2, 3, "llm-serving-pipeline"),
}


@pytest.mark.parametrize("name", AS_GIVEN)
def test_as_the_document_gives_it_a_member_is_missing_and_all_wait(scene: Scene, name: str) -> None:
    present, members_needed, group = AS_GIVEN[name]
    create_nodes(scene)
    scene.apply(*manifests(f"kai-recipe/{name}-as-given"))
    scene.until(lambda: len(scene.pods()) == present, f"{present} pods")
    waiting = scene.event("TopologyWaiting", min(scene.pods())).message
    assert str(present) in waiting
    assert str(members_needed) in waiting
    status(scene, group, present=present, placed=0, running=0)
    assert not scene.bound()
    (last,) = manifests(f"kai-recipe/{name}")[-1:]
    scene.apply(last)  # the one that was missing
    run_all(scene, members_needed)


def test_the_benchmark_gets_four_gpus_of_one_nvlink_domain(scene: Scene, policies: None) -> None:
    create_nodes(scene)
    scene.apply(*manifests("kai-recipe/benchmark-topology"))
    (name,) = run_all(scene, 1)
    assert places(scene)[name] in NVSWITCH
    assert len(gpus(scene, name)) == 4


def test_a_bad_configmap_is_refused_and_says_so(scene: Scene, policies: None) -> None:
    """The last good one stays: what names its policies runs on."""
    (body,) = manifests("kai-recipe/tas-config")
    path = f"{collection(body)}/{body['metadata']['name']}"
    text = body["data"]["config.yaml"].replace("topology: numa", "topology: numb")
    scene.client.patch(path, {"data": {"config.yaml": text}})
    scene.until(
        lambda: any(
            event["reason"] == "TopologyInvalid" and "numb" in event["message"]
            for event in scene.record.live(EVENTS)
            if event["involvedObject"]["kind"] == "ConfigMap"
        ),
        "an event on the ConfigMap names the field",
    )
    create_nodes(scene)
    scene.apply(*manifests("kai-recipe/benchmark-topology"))
    run_all(scene, 1)


def test_with_the_recipes_own_scheduler_name(scene: Scene, stack: Stack) -> None:
    """A second profile of that name, as the recipe's readers may switch on."""
    create_nodes(scene)
    bodies = manifests("kai-recipe/multi-node-tas")
    for body in bodies[1:]:
        body["spec"]["schedulerName"] = "kai-scheduler"
    scene.apply(*bodies)
    run_all(scene, 2)
    assert {*places(scene).values()} == {"dgx-h100-01", "dgx-h100-02"}
    shows(scene, "TopologyPlaced")


def test_kubectl_get_podgroups_reads_well(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("kai-recipe/multi-node-tas"))
    run_all(scene, 2)
    status(scene, "multi-node-training", running=2)
    table = scene.client.table(PODGROUPS.format(scene.name))
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    ((*cells, age),) = [row["cells"][: len(columns)] for row in table["rows"]]
    assert columns == ["Name", "Phase", "Min", "Present", "Placed", "Running", "Domain", "Age"]
    assert cells[:-1] == ["multi-node-training", "Running", 2, 2, 2, 2]
    assert re.fullmatch("rack r2( of zone .*)?", cells[-1])  # other nodes of the cluster may have an r2 too
    assert age


# --- cGPU -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pool"), {"cgpu-test": "cgpu", "cgpu-test-no-isolation": "cgpu-no-isolation"}.items()
)
def test_each_statefulset_gets_a_slice_in_its_own_pool(scene: Scene, name: str, pool: str) -> None:
    create_nodes(scene)
    scene.apply(*manifests(f"cgpu/{name}"))
    (pod,) = run_all(scene, 1)
    assert pod == f"{name}-0"
    assert places(scene)[pod] in {f"{pool}-1", f"{pool}-2"}
    written = annotated(scene, pod)
    (gpu,) = scene.gpus(pod)
    assert written["ALIYUN_COM_GPU_MEM_IDX"] == str(gpu)
    assert written["ALIYUN_COM_GPU_MEM_POD"] == "3"
    assert written["ALIYUN_COM_GPU_MEM_DEV"] == "16"
    assert written["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    shows(scene, "TopologyPlaced")


def test_both_statefulsets_run_side_by_side(scene: Scene) -> None:
    create_nodes(scene)
    scene.apply(*manifests("cgpu/cgpu-test"), *manifests("cgpu/cgpu-test-no-isolation"))
    assert run_all(scene, 2) == ["cgpu-test-0", "cgpu-test-no-isolation-0"]
