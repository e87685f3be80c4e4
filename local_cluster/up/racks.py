"""Describe the nodes of `make up` as a shape: GPU nodes in racks, each with its NVLink topology (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from local_cluster.shape import NodeGroup, Publish, Resource, Shape

MAX_NODES = 5000
"""Nodes that Kubernetes supports in one cluster: https://kubernetes.io/docs/setup/best-practices/cluster-large/"""
DEFAULT_NODES = 8
DEFAULT_RACK = 8


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of node. `topology` names a file of topologies/, `gpus` is its size.

    `labels` and `rack_labels` are given to each node; the values of `rack_labels` may hold {rack}.
    """

    topology: str
    gpus: int
    publish: Publish
    about: str
    cpu: str = "96"
    memory: str = "768Gi"
    labels: dict[str, str] = field(default_factory=dict)
    rack_labels: dict[str, str] = field(default_factory=dict)


HARDWARE = {
    "h100": Hardware(
        "hgx-h100-8x-nvswitch",
        8,
        "labels",
        "8 x H100 behind NVSwitch",
        cpu="192",
        memory="2Ti",
        labels={
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.memory": "81559",
            "nvidia.com/nvlink.version": "4",
        },
    ),
    "v100": Hardware(
        "v100-8x-gputopology-document",
        8,
        "gpu-topology-annotation",
        "8 x V100 in a cube mesh: which GPUs of a node a gang gets matters",
        memory="384Gi",
        labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32768"},
    ),
    "dgx2": Hardware(
        "dgx2-16x-v100-nvswitch",
        16,
        "labels",
        "16 x V100 behind NVSwitch",
        memory="1536Gi",
        labels={"nvidia.com/gpu.product": "Tesla-V100-SXM3-32GB", "nvidia.com/gpu.memory": "32768"},
    ),
    "gb200": Hardware(
        "gb200-nvl72-tray-4x",
        4,
        "labels",
        "4 x GB200; all nodes of a rack are one NVLink domain (18 of them are an NVL72)",
        cpu="144",
        memory="960Gi",
        labels={"nvidia.com/gpu.product": "NVIDIA-GB200", "nvidia.com/gpu.memory": "189471"},
        rack_labels={"nvidia.com/gpu.clique": "nvl-{rack}.0", "gpu.topology/nvlink-domain": "nvl-{rack}"},
    ),
}


class BadRacks(ValueError):
    """The nodes can't be made as asked for. The text names the option and a value that would do."""


@dataclass(frozen=True, slots=True)
class Racks:
    """`nodes` nodes with `gpus` GPUs each, `rack` nodes in a rack; the last rack may have fewer.

    Raises BadRacks for numbers that no cluster can have. `gpus` is as many as the hardware has, if left out.
    """

    nodes: int = DEFAULT_NODES
    gpus: int | None = None
    rack: int = DEFAULT_RACK
    gpu: str = "h100"
    resource: Resource = "nvidia.com/gpu"

    def __post_init__(self) -> None:
        hardware = HARDWARE[self.gpu]
        if not 1 <= self.nodes <= MAX_NODES:
            raise BadRacks(f"NODES={self.nodes}: give a number from 1 to {MAX_NODES}")
        if self.rack < 1:
            raise BadRacks(f"RACK={self.rack}: give the number of nodes in a rack, 1 or more")
        if not 1 <= self.gpus_per_node <= hardware.gpus:
            fitting = [
                name for name, hardware in HARDWARE.items() if 1 <= self.gpus_per_node <= hardware.gpus
            ]
            instead = (
                f", or a kind of node that has as many: GPU={' or GPU='.join(fitting)}" if fitting else ""
            )
            raise BadRacks(
                f"GPUS={self.gpus_per_node}: GPU={self.gpu} is {hardware.about}; "
                f"give a number from 1 to {hardware.gpus}{instead}"
            )

    @property
    def gpus_per_node(self) -> int:
        """GPUs of each node."""
        return HARDWARE[self.gpu].gpus if self.gpus is None else self.gpus

    @property
    def count(self) -> int:
        """Number of racks."""
        return -(-self.nodes // self.rack)

    def shape(self) -> Shape:
        """Return the shape, one node group a rack. Nodes are named h100-0-00: hardware, rack, number."""
        return Shape(nodes=tuple(self._groups()))

    def _groups(self) -> Iterator[NodeGroup]:
        hardware = HARDWARE[self.gpu]
        width = len(str(min(self.rack, self.nodes) - 1))
        for rack in range(self.count):
            rack_labels = {key: value.format(rack=rack) for key, value in hardware.rack_labels.items()}
            yield NodeGroup(
                name=f"{self.gpu}-{rack}-{{index:0{width}}}",
                count=min(self.rack, self.nodes - rack * self.rack),
                zone="z1",
                rack=f"rack-{rack}",
                cpu=hardware.cpu,
                memory=hardware.memory,
                gpus=self.gpus_per_node,
                resources=(self.resource,),
                topology=hardware.topology,
                # a matrix of one GPU has no pair to publish
                publish="none" if self.gpus_per_node == 1 else hardware.publish,
                schedule="topology" if self.resource == "aliyun.com/gpu" else "",
                labels=hardware.labels | rack_labels,
            )
