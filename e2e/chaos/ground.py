"""The nodes of the chaos: three racks of four with eight GPUs each, and two that share their GPUs' memory."""

from __future__ import annotations

from e2e.chaos.fits import CLAIM_OF_RACK
from e2e.chaos.submissions import RACKS_WITH_VOLUMES
from local_cluster.api import Object
from local_cluster.nodes import RACK, shape_nodes
from local_cluster.shape import NodeGroup, Shape

MESHES, ISLANDS, SHARED = 8, 4, 2
GPUS = 8
TOTAL_GPUS = (MESHES + ISLANDS) * GPUS
"""Whole ones."""

SHARED_GPUS, GPU_MEMORY = 2, 16
"""Of a node that shares, and GiB of each."""


def nodes(prefix: str) -> dict[str, Object]:
    """Name → Node object: two racks of cube meshes, told by annotation, one of islands, by labels, and one of
    shared GPUs."""
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
    made = shape_nodes(Shape((meshes, islands, shared)), "the chaos")
    return {str(node["metadata"]["name"]): node for node in made}


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
    wanted = {"requests": {"storage": "1Gi"}}
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim},
        "spec": {**shared, "volumeName": name, "resources": wanted},
    }
    return volume, body
