"""The nodes of the chaos: three racks of four with eight GPUs each."""

from __future__ import annotations

from local_cluster.api import Object
from local_cluster.nodes import shape_nodes
from local_cluster.shape import NodeGroup, Shape

MESHES, ISLANDS = 8, 4
GPUS = 8
TOTAL_GPUS = (MESHES + ISLANDS) * GPUS


def nodes(prefix: str) -> dict[str, Object]:
    """Name → Node object: two racks of cube meshes, told by annotation, one of islands, by labels."""
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
    made = shape_nodes(Shape((meshes, islands)), "the chaos")
    return {str(node["metadata"]["name"]): node for node in made}
