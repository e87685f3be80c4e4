"""Claims that a PodGroup of Kubernetes has for all its pods: one node, one set of devices, none twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import dra, objects
from e2e.arena import QuickStack
from e2e.client import Client
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.cluster import LocalCluster
from local_cluster.stack import Stack

pytestmark = pytest.mark.cluster

API = "scheduling.k8s.io/v1beta1"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Muster's processes on a cluster that serves PodGroups and their claims."""
    folder = tmp_path_factory.mktemp("claims")
    with (
        LocalCluster(folder / "cluster", native=True) as cluster,
        QuickStack(cluster, folder / "stack") as native_stack,
    ):
        yield native_stack


@pytest.fixture
def scene(stack: Stack, tmp_path: Path) -> Iterator[Scene]:
    """A scene with two nodes of four GPUs each, and a template of claims for two GPUs."""
    stack.restore()
    with Scene(Client.of(stack.cluster.kubeconfig, tmp_path)) as new_scene, dra.device_class(new_scene):
        for name in ("a", "b"):
            dra.node(new_scene, name, gpus=4)
        dra.template(new_scene, "two", dra.request("r", new_scene.name, 2))
        yield new_scene
        new_scene.audit()


def group(name: str, min_count: int, *templates: str) -> Object:
    claims = [{"name": template, "resourceClaimTemplateName": template} for template in templates]
    spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}, "resourceClaims": claims}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def members(group_name: str, *ranks: int) -> list[Object]:
    """Pods that share the claim of their PodGroup."""
    membership = {"schedulingGroup": {"podGroupName": group_name}}
    pods = [objects.pod(f"{group_name}-{rank}", gpus=0, spec=membership) for rank in ranks]
    return dra.naming(pods, "two")


def nodes_of(scene: Scene, names: list[str]) -> set[str]:
    return {scene.pods()[name].node for name in names}


def claims(scene: Scene) -> dict[str, tuple[list[str], list[str]]]:
    """Owner of each claim → its devices, and the kinds of its consumers."""
    by_owner: dict[str, tuple[list[str], list[str]]] = {}
    for claim in scene.client.get(dra.claims(scene))["items"]:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        devices = [f"{result['driver']}/{result['pool']}/{result['device']}" for result in results]
        consumers = [consumer["resource"] for consumer in status.get("reservedFor") or ()]
        by_owner[claim["metadata"]["ownerReferences"][0]["name"]] = (devices, consumers)
    return by_owner


def allocated_once(scene: Scene) -> int:
    """The number of allocated devices. No device is in two claims."""
    devices = [device for devices, _ in claims(scene).values() for device in devices]
    assert len(devices) == len(set(devices))
    return len(devices)


def delete_group(scene: Scene, name: str) -> None:
    scene.client.delete(f"/apis/{API}/namespaces/{scene.name}/podgroups/{name}")


def test_all_pods_share_the_devices_on_one_node(scene: Scene) -> None:
    scene.apply(group("train", 3, "two"))
    names = scene.create(*members("train", 0, 1, 2))
    scene.runs(names)
    (node,) = nodes_of(scene, names)
    devices, consumers = claims(scene)["train"]
    assert (len(devices), consumers) == (2, ["podgroups"])
    assert all(device.startswith(f"{dra.DRIVER}/{node}/") for device in devices)
    assert list(dra.planned(scene).values()) == [devices]


def test_the_devices_are_free_when_the_group_is_gone(scene: Scene) -> None:
    """Three PodGroups fill the nodes less one pair. While they run, and no longer, a gang of four waits."""
    for name in ("g", "h", "i"):
        scene.apply(group(name, 2, "two"))
    names = scene.create(*(pod for name in ("g", "h", "i") for pod in members(name, 0, 1)))
    scene.runs(names)
    assert allocated_once(scene) == 6
    large = scene.create(*dra.gang("large", 4))
    scene.event("TopologyUnplaceable", large[0])
    scene.delete(*(name for name in names if name.startswith("g-")))
    delete_group(scene, "g")
    scene.runs(large)
    assert allocated_once(scene) == 8


def test_a_replacement_shares_the_devices_of_the_others(scene: Scene) -> None:
    scene.apply(group("train", 2, "two"))
    first, second = scene.create(*members("train", 0, 1))
    scene.runs([first, second])
    before = claims(scene)["train"]
    (holder,) = dra.planned(scene)
    scene.delete(holder)
    (replacement,) = scene.create(*members("train", 2))
    survivors = [name for name in (first, second, replacement) if name != holder]
    scene.runs(survivors)
    assert len(nodes_of(scene, survivors)) == 1
    assert claims(scene)["train"] == before


def test_new_pods_get_devices_anew_when_no_pod_uses_them(scene: Scene) -> None:
    """The claim stays allocated for its PodGroup. Its node has no room any more."""
    scene.apply(group("train", 2, "two"))
    names = scene.create(*members("train", 0, 1))
    scene.runs(names)
    (node,) = nodes_of(scene, names)
    scene.delete(*names)
    scene.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    later = scene.create(*members("train", 2, 3))
    scene.runs(later)
    (other,) = nodes_of(scene, later)
    assert other != node
    assert all(f"/{other}/" in device for device in claims(scene)["train"][0])
    assert allocated_once(scene) == 2


def test_a_claim_of_a_group_outlives_a_restart_of_the_service(scene: Scene, stack: Stack) -> None:
    scene.apply(group("train", 2, "two"))
    (first,) = scene.create(*members("train", 0))
    scene.event("TopologyWaiting", first)
    stack.service.kill()
    stack.restore()
    (second,) = scene.create(*members("train", 1))
    scene.runs([first, second])
    before = claims(scene)["train"]
    stack.service.kill()
    stack.restore()
    others = scene.create(*dra.gang("others", 6))
    (third,) = scene.create(*members("train", 2))
    scene.runs([*others, third])
    assert len(nodes_of(scene, [first, second, third])) == 1
    assert claims(scene)["train"] == before
    assert allocated_once(scene) == 8


def test_pods_whose_claim_has_no_template_wait(scene: Scene) -> None:
    """Kubernetes says so on the PodGroup. They start when the template is there."""
    scene.apply(group("train", 2, "late"))
    membership = {"schedulingGroup": {"podGroupName": "train"}}
    pods = [objects.pod(f"train-{rank}", gpus=0, spec=membership) for rank in range(2)]
    names = scene.create(*dra.naming(pods, "late"))
    scene.event("FailedResourceClaimCreation", "train")
    assert not scene.bound()
    dra.template(scene, "late", dra.request("r", scene.name, 2))
    scene.runs(names)
