"""Pods with volumes start at once, wherever their volumes are: in-tree plugins are asked about all nodes.

The nodes are many and one of them is right, so that to try one after another would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import objects
from e2e.scene import Scene
from local_cluster.api import Object

NODES = 40
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
WAIT_FOR_CONSUMER = "WaitForFirstConsumer"


class Storage:
    """Volumes, claims and classes of one scene; objects of the whole cluster bear its name and go with it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.nodes = [scene.node(objects.node(f"n{i:02}", labels={ZONE: f"z{i // 4}"})) for i in range(NODES)]
        self._made: list[str] = []

    def add(self, path: str, name: str, body: Object) -> str:
        """Create an object of the whole cluster; its full name."""
        full = f"{self.scene.name}-{name}"
        self.scene.client.post(path, {"metadata": {"name": full}, **body})
        self._made.append(f"{path}/{full}")
        return full

    def volume(self, name: str, storage_class: str, on: str, claim: str = "") -> str:
        """Create a volume on the disk of one node, meant for a claim or for any."""
        terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [on]}]}]
        spec: Object = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "local": {"path": f"/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }
        if claim:
            spec["claimRef"] = {"namespace": self.scene.name, "name": claim}
        return self.add("/api/v1/persistentvolumes", name, {"spec": spec})

    def claim(self, name: str, storage_class: str, volume: str = "") -> None:
        """Create a claim; it is bound to the volume that is named."""
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        }
        if volume:
            spec["volumeName"] = volume
        claims = f"/api/v1/namespaces/{self.scene.name}/persistentvolumeclaims"
        self.scene.client.post(claims, {"metadata": {"name": name}, "spec": spec})

    def storage_class(self, name: str, provisioner: str, *zones: str) -> str:
        """Create a class whose volumes are bound when the first pod that uses them has a node."""
        body: Object = {"provisioner": provisioner, "volumeBindingMode": WAIT_FOR_CONSUMER}
        if zones:
            terms = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
            body["allowedTopologies"] = terms
        return self.add("/apis/storage.k8s.io/v1/storageclasses", name, body)

    def remove(self) -> None:
        for path in reversed(self._made):
            self.scene.client.delete(path)


@pytest.fixture
def storage(scene: Scene) -> Iterator[Storage]:
    new_storage = Storage(scene)
    yield new_storage
    new_storage.remove()


def using(pod: Object, *claims: str) -> Object:
    """The pod with volumes."""
    pod["spec"]["volumes"] = [
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": claim}} for i, claim in enumerate(claims)
    ]
    return pod


def nodes_at_once(scene: Scene, names: list[str]) -> dict[str, str]:
    """Wait until these pods have nodes, by the first plan: none was tried in vain."""
    scene.until(lambda: set(names) <= scene.bound(), f"{', '.join(names)} have nodes")
    assert not scene.events("TopologyWithdrawn")
    return {name: pod.node for name, pod in scene.pods().items()}


def test_a_pod_whose_volume_is_on_one_of_forty_nodes_starts_at_once(scene: Scene, storage: Storage) -> None:
    storage.claim("data", "by-hand", storage.volume("data", "by-hand", storage.nodes[33], "data"))
    (name,) = scene.create(using(objects.pod("train", gpus=8), "data"))
    assert nodes_at_once(scene, [name])[name] == storage.nodes[33]


def test_a_missing_claim_is_told_as_that_and_waited_for(scene: Scene, storage: Storage) -> None:
    (name,) = scene.create(using(objects.pod("train", gpus=1), "data"))
    sentence = "PersistentVolumeClaim data does not exist"
    scene.until(lambda: sentence in scene.condition(name), "the condition names the claim")
    scene.until(lambda: scene.events("TopologyUnplaceable", name), "an event says so")
    assert [event.message for event in scene.events("TopologyUnplaceable", name)] == [sentence]
    storage.claim("data", "by-hand", storage.volume("data", "by-hand", storage.nodes[7], "data"))
    scene.until(scene.bound, f"{name} has a node")
    assert scene.pods()[name].node == storage.nodes[7]
    assert not scene.events("TopologyWithdrawn")


def test_members_share_out_the_few_volumes_of_a_class_without_provisioner(
    scene: Scene, storage: Storage
) -> None:
    local = storage.storage_class("local", "kubernetes.io/no-provisioner")
    homes = [storage.nodes[i] for i in (5, 18, 36)]
    for i, home in enumerate(homes):
        storage.volume(f"disk-{i}", local, home)
    for i in range(3):
        storage.claim(f"data-{i}", local)
    pods = [using(objects.document_replica(f"w-{i}", "ring", 3), f"data-{i}") for i in range(3)]
    names = scene.create(*pods)
    node_of_pod = nodes_at_once(scene, names)
    assert sorted(node_of_pod[name] for name in names) == sorted(homes)


def test_a_volume_that_is_still_to_be_made_is_made_where_its_class_allows_it(
    scene: Scene, storage: Storage
) -> None:
    zonal = storage.storage_class("zonal", "example.com/nobody", "z8")
    storage.claim("data", zonal)
    (name,) = scene.create(using(objects.pod("train", gpus=1), "data"))

    def chosen() -> str:
        path = f"/api/v1/namespaces/{scene.name}/persistentvolumeclaims/data"
        body = scene.client.get(path)
        return str((body["metadata"].get("annotations") or {}).get("volume.kubernetes.io/selected-node", ""))

    scene.until(chosen, "the claim says on which node its volume is to be")
    assert chosen() in storage.nodes[32:36]
    scene.delete(name)


def test_a_node_holds_no_more_volumes_than_it_can_attach(scene: Scene, storage: Storage) -> None:
    driver = f"{scene.name}.example.com"
    for i, node in enumerate(storage.nodes):
        limit = {20: 1, 21: 2}.get(i, 0)
        scene.client.post(
            "/apis/storage.k8s.io/v1/csinodes",
            {
                "metadata": {"name": node},
                "spec": {"drivers": [{"name": driver, "nodeID": node, "allocatable": {"count": limit}}]},
            },
        )
        storage._made.append(f"/apis/storage.k8s.io/v1/csinodes/{node}")
    for i in range(3):
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "disks",
            "csi": {"driver": driver, "volumeHandle": f"h{i}"},
            "claimRef": {"namespace": scene.name, "name": f"data-{i}"},
        }
        storage.claim(
            f"data-{i}", "disks", storage.add("/api/v1/persistentvolumes", f"disk-{i}", {"spec": spec})
        )
    pods = [using(objects.document_replica(f"w-{i}", "ring", 3), f"data-{i}") for i in range(3)]
    names = scene.create(*pods)
    scene.until(lambda: set(names) <= scene.bound(), "all have nodes")
    homes = [pod.node for pod in scene.pods().values()]
    assert sorted(homes) == [storage.nodes[20], storage.nodes[21], storage.nodes[21]]
