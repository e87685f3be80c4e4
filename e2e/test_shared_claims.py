"""Gangs whose members share a claim that has no volume yet: the volume is made first, then all start.

The claims wait for their first consumer. The test does what a provisioner does: it waits until a claim names
a node, and makes the volume.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import objects
from e2e.record import Record
from e2e.scene import Scene
from local_cluster.api import Object

ZONE = "topology.kubernetes.io/zone"
SELECTED = "volume.kubernetes.io/selected-node"
NODES = {"a": "z0", "b": "z0", "c": "z1", "d": "z1"}
SIZE = {"requests": {"storage": "1Gi"}}


class Driver:
    """A storage driver whose volumes many nodes may mount, as those of NFS, EFS and CephFS."""

    def __init__(self, scene: Scene, record: Record) -> None:
        self.scene, self.record = scene, record
        self.claims = f"/api/v1/namespaces/{scene.name}/persistentvolumeclaims"
        self._made: list[str] = []

    def storage_class(self, provisioner: str = "example.com/shared", *zones: str) -> None:
        """Create the class, named as the scene."""
        body: Object = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        if zones:
            body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
        self._post("/apis/storage.k8s.io/v1/storageclasses", self.scene.name, body)

    def claim(self, name: str) -> None:
        """Create a claim of the class."""
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": self.scene.name, "resources": SIZE}
        self.scene.client.post(self.claims, {"metadata": {"name": name}, "spec": spec})

    def chosen(self, claim: str) -> str:
        """Wait until the claim names a node for its volume; the node's zone."""

        def node() -> str | None:
            for body in self.record.live(self.claims):
                if body["metadata"]["name"] == claim:
                    return (body["metadata"].get("annotations") or {}).get(SELECTED)
            return None

        node_name = self.record.until(node, f"claim {claim} names a node for its volume")
        return NODES[node_name.removeprefix(f"{self.scene.name}-")]

    def volume(self, name: str, claim: str = "", zone: str = "") -> None:
        """Create a volume, for a claim or for any, that one zone can reach or all nodes."""
        spec: Object = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": self.scene.name,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "nfs": {"server": "example.invalid", "path": f"/{name}"},
        }
        if claim:
            spec["claimRef"] = {"namespace": self.scene.name, "name": claim}
        if zone:
            terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        self._post("/api/v1/persistentvolumes", f"{self.scene.name}-{name}", {"spec": spec})

    def fails(self, claim: str) -> None:
        """Take the chosen node from the claim, as provisioners do that could make no volume for it."""
        self.scene.client.patch(f"{self.claims}/{claim}", {"metadata": {"annotations": {SELECTED: None}}})

    def remove(self) -> None:
        for path in reversed(self._made):
            self.scene.client.delete(path)

    def _post(self, path: str, name: str, body: Object) -> None:
        self.scene.client.post(path, {"metadata": {"name": name}, **body})
        self._made.append(f"{path}/{name}")


@pytest.fixture
def driver(scene: Scene) -> Iterator[Driver]:
    for name, zone in NODES.items():
        scene.node(objects.node(name, gpus=2, labels={ZONE: zone}))
    with Record(scene.client, (f"/api/v1/namespaces/{scene.name}/persistentvolumeclaims",)) as record:
        new_driver = Driver(scene, record)
        yield new_driver
        scene.client.delete(f"/api/v1/namespaces/{scene.name}/pods", grace_s=0)
        new_driver.remove()


def sharing(scene: Scene, members: int, *claims: str) -> list[str]:
    """Create a gang of pods with one GPU that all mount the claims; their names."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    words = objects.ack("g", members)
    return scene.create(
        *(objects.pod(f"w-{i}", gang=words, spec={"volumes": volumes}) for i in range(members))
    )


@pytest.mark.parametrize("members", [2, 4])
def test_the_volume_is_made_first_then_all_start(scene: Scene, driver: Driver, members: int) -> None:
    driver.storage_class()
    driver.claim("data")
    names = sharing(scene, members, "data")
    driver.chosen("data")
    driver.volume("made", "data")
    scene.runs(names)


def test_a_gang_whose_volume_is_still_made_says_so_and_holds_nothing(scene: Scene, driver: Driver) -> None:
    driver.storage_class()
    driver.claim("data")
    names = sharing(scene, 8, "data")
    driver.chosen("data")
    scene.says(names[0], "PersistentVolumeClaim data", "is being made for node")
    second_gang = scene.create(*(objects.pod(f"other-{i}", gpus=2) for i in range(4)))
    scene.runs(second_gang)
    driver.volume("made", "data")
    scene.says(names[0], objects.GPU)
    assert not {*names} & scene.bound()
    scene.delete(*second_gang)
    scene.runs(names)


def test_all_run_where_the_volume_came_to_lie(scene: Scene, driver: Driver) -> None:
    driver.storage_class("example.com/shared", "z1")
    driver.claim("data")
    names = sharing(scene, 3, "data")
    zone = driver.chosen("data")
    driver.volume("made", "data", zone=zone)
    scene.runs(names)
    assert zone == "z1"
    assert {NODES[pod.node.removeprefix(f"{scene.name}-")] for pod in scene.pods().values()} == {"z1"}


def test_a_volume_that_could_not_be_made_is_asked_for_again(scene: Scene, driver: Driver) -> None:
    driver.storage_class()
    driver.claim("data")
    names = sharing(scene, 4, "data")
    for _ in range(2):
        driver.chosen("data")
        driver.fails("data")
        driver.record.until(lambda: SELECTED not in _annotations(driver) or None, "it is seen")
    driver.chosen("data")
    driver.volume("made", "data")
    scene.runs(names)


def test_several_shared_claims(scene: Scene, driver: Driver) -> None:
    driver.storage_class()
    for claim in ("data", "scratch"):
        driver.claim(claim)
    names = sharing(scene, 4, "data", "scratch")
    for claim in ("data", "scratch"):
        driver.chosen(claim)
        driver.volume(f"made-{claim}", claim)
    scene.runs(names)


def test_a_volume_that_is_there_is_bound_first(scene: Scene, driver: Driver) -> None:
    driver.storage_class("kubernetes.io/no-provisioner")
    driver.volume("there", zone="z1")
    driver.claim("data")
    names = sharing(scene, 4, "data")
    scene.runs(names)
    assert {NODES[pod.node.removeprefix(f"{scene.name}-")] for pod in scene.pods().values()} == {"z1"}


def _annotations(driver: Driver) -> Object:
    (claim,) = driver.record.live(driver.claims)
    return dict(claim["metadata"].get("annotations") or {})
