"""The nodes of the chaos: three racks of four with eight GPUs each, two that share their GPUs' memory, and
four whose GPUs are devices of a DRA driver."""

from __future__ import annotations

from e2e.chaos.fits import CLAIM_OF_RACK, DRA_RESOURCE
from e2e.chaos.submissions import RACKS_WITH_VOLUMES, TEMPLATE_OF
from e2e.dra import DRIVER, GROUP
from e2e.facts import DRA_GPUS
from local_cluster.api import Object
from local_cluster.nodes import RACK, shape_nodes
from local_cluster.shape import NodeGroup, Shape

MESHES, ISLANDS, SHARED, SERVED = 8, 4, 2, 4
GPUS = 8
DEVICE_GPUS = SERVED * GPUS
TOTAL_GPUS = (MESHES + ISLANDS + SERVED) * GPUS
"""Whole ones."""

DEVICES_OF = "-d"
"""In the names of nodes whose GPUs are devices."""

SHARED_GPUS, GPU_MEMORY = 2, 16
"""Of a node that shares, and GiB of each."""


def nodes(prefix: str) -> dict[str, Object]:
    """Name → Node object: two racks of cube meshes, told by annotation, one of islands, by labels, one of
    shared GPUs, and one of devices."""
    meshes = NodeGroup(
        name=prefix + "-{index:02}",
        count=4,
        racks=2,
        zone="z0",
        rack="r{rack}",
        topology="v100-8x-gputopology-document",
        publish="gpu-topology-annotation",
        resources=("aliyun.com/gpu",),
        schedule="topology",
    )
    islands = NodeGroup(
        name=prefix + "-i{index:02}",
        count=ISLANDS,
        zone="z0",
        rack="r2",
        topology="two-islands-of-four",
        publish="labels",
        resources=("aliyun.com/gpu",),
        schedule="topology",
    )
    shared = NodeGroup(
        name=prefix + "-s{index:02}",
        count=SHARED,
        zone="z0",
        rack="r3",
        gpus=SHARED_GPUS,
        gpu_memory_gib=GPU_MEMORY,
        resources=("aliyun.com/gpu-mem",),
        schedule="share",
    )
    served = NodeGroup(
        name=prefix + DEVICES_OF + "{index:02}",
        count=SERVED,
        zone="z0",
        rack="r4",
        annotations={DRA_GPUS: f"{DRA_RESOURCE}={GPUS}"},
    )
    shaped = shape_nodes(Shape((meshes, islands, shared, served)), "the chaos")
    return {str(node["metadata"]["name"]): node for node in shaped}


def devices(prefix: str, namespace: str) -> list[tuple[str, Object]]:
    """Return what a DRA driver and its users make, with the paths to create it at: a class, a slice for each
    node, and templates of claims. Slices stay when a node goes: no driver is there to make them again."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    of_class = {"extendedResourceName": DRA_RESOURCE, "selectors": [selector]}
    bodies = [(f"{GROUP}/deviceclasses", {"metadata": {"name": prefix}, "spec": of_class})]
    gpus = [{"name": f"gpu-{number}"} for number in range(GPUS)]
    for node in (f"{prefix}{DEVICES_OF}{index:02}" for index in range(SERVED)):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": gpus}
        bodies.append((f"{GROUP}/resourceslices", {"metadata": {"name": node}, "spec": spec}))
    for count in (1, 2, 4):
        exact_request = {"deviceClassName": prefix, "count": count}
        claim = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exact_request}]}}}
        meta = {"name": f"{TEMPLATE_OF}{count}"}
        bodies.append(
            (f"{GROUP}/namespaces/{namespace}/resourceclaimtemplates", {"metadata": meta, "spec": claim})
        )
    return bodies


def volumes(prefix: str, namespace: str) -> list[tuple[Object, Object]]:
    """Return a volume for some racks, reached from the nodes of that rack alone, and its claim. Any number
    of pods may mount it."""
    return [_volume(f"{prefix}-{rack}", namespace, rack) for rack in RACKS_WITH_VOLUMES]


def _volume(name: str, namespace: str, rack: str) -> tuple[Object, Object]:
    claim = CLAIM_OF_RACK + rack
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    term = {"matchExpressions": [{"key": RACK, "operator": "In", "values": [rack]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **shared,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": "/mnt/data"},
            "claimRef": {"namespace": namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    size = {"requests": {"storage": "1Gi"}}
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim},
        "spec": {**shared, "volumeName": name, "resources": size},
    }
    return volume, body
