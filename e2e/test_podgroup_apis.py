"""PodGroups of others: KAI's version of the same kind, and coscheduling's, whose CRD comes and goes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.documents import create_nodes, manifests, short
from e2e.record import Record
from e2e.scene import Scene
from local_cluster.api import Object

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COSCHEDULING: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        # without it the API server keeps names under k8s.io for itself
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
        },
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.fixture
def coscheduling(arena: Arena, scene: Scene) -> Iterator[None]:
    """A CRD in the place of the coscheduling plugin's, for one test."""
    if arena.cluster is None:
        pytest.skip("installs a CRD, on a cluster that is somebody else's")
    with Record(scene.client, (CRDS,)) as record:
        scene.client.post(CRDS, COSCHEDULING)
        record.until(lambda: established(record.live(CRDS)) or None, "the CRD is established")
    yield
    scene.clear()
    remove(scene)


def remove(scene: Scene) -> None:
    """Delete the CRD, and wait until it is gone; nothing when it is."""
    with Record(scene.client, (CRDS,)) as record:
        if not established(record.live(CRDS)):
            return
        scene.client.delete(f"{CRDS}/{COSCHEDULING['metadata']['name']}")
        record.until(lambda: not established(record.live(CRDS)) or None, "the CRD is gone")


def established(definitions: list[Object]) -> bool:
    return any(
        condition["type"] == "Established" and condition["status"] == "True"
        for body in definitions
        if body["metadata"]["name"] == COSCHEDULING["metadata"]["name"]
        for condition in (body.get("status") or {}).get("conditions") or ()
    )


def test_each_subgroup_of_kais_podgroup_is_in_one_rack(scene: Scene) -> None:
    nodes = create_nodes(scene, "two-racks")
    scene.apply(*manifests("features/kai-podgroup"))
    scene.until(lambda: len(scene.pods()) == 4, "four pods")
    scene.runs(scene.pods())
    for role in ("kai-prefill", "kai-decode"):
        nodes_used = [short(scene, pod.node) for name, pod in scene.pods().items() if name.startswith(role)]
        assert (
            len({nodes[node]["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in nodes_used})
            == 1
        )


def test_as_many_of_kais_subgroups_start_as_are_enough_and_another_once_it_fits(scene: Scene) -> None:
    """Two racks hold a replica each. The third one starts on a node that comes later."""
    nodes = create_nodes(scene, "two-racks")
    example = manifests("features/kai-some-subgroups")
    third = json.loads(json.dumps(example[-1]).replace("replica-1", "replica-2"))
    scene.apply(*example, third)
    scene.until(lambda: len(scene.pods()) == 9 and len(scene.bound()) == 6, "two replicas of three are bound")
    replicas = [[name for name in scene.pods() if f"replica-{i}" in name] for i in range(3)]
    started = [names for names in replicas if scene.bound().issuperset(names)]
    assert len(started) == 2
    for names in started:
        nodes_used = [short(scene, scene.pods()[name].node) for name in names]
        assert (
            len({nodes[node]["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in nodes_used})
            == 1
        )
    large = objects.node("large", gpus=0, labels={"topology.kubernetes.io/rack": "r3"})
    large["status"]["capacity"]["nvidia.com/gpu"] = large["status"]["allocatable"]["nvidia.com/gpu"] = "12"
    scene.node(large)
    scene.runs(name for names in replicas for name in names)


def test_coschedulings_podgroup_is_read_while_its_crd_is_there(scene: Scene, coscheduling: None) -> None:
    create_nodes(scene, "two-racks")
    group, first, second = manifests("features/coscheduling-podgroup")
    scene.apply(group, first)
    waiting = scene.event("TopologyWaiting", "coscheduling-0")
    assert not scene.bound(), waiting
    scene.apply(second)
    scene.runs(["coscheduling-0", "coscheduling-1"])
    scene.clear()
    remove(scene)
    scene.node(objects.node("a"))
    scene.runs(scene.create(*(objects.pod(f"w-{rank}", gang=objects.ack("g", 2)) for rank in range(2))))
