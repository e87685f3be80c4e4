"""Make one cluster that has what the published manifests ask for, and room for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
TPU = "google.com/tpu"


@dataclass(frozen=True)
class Pool:
    """Racks of equal nodes. `takes` is what a node has besides CPUs, memory and pods."""

    name: str
    racks: int
    nodes: int
    takes: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 192
    memory: str = "2Ti"

    def machines(self) -> Sequence[Object]:
        """Return the pool's nodes. A rack is a node pool too."""
        return [
            _node(self, f"{self.name}-{rack}", f"{self.name}-{rack}-{number}")
            for rack in range(self.racks)
            for number in range(self.nodes)
        ]


def _gpus(product: str, count: int, accelerator: str, **labels: str) -> tuple[dict[str, int], dict[str, str]]:
    product_labels = {"nvidia.com/gpu.product": product, "cloud.google.com/gke-accelerator": accelerator}
    return {GPU: count}, product_labels | {f"nvidia.com/{key}": value for key, value in labels.items()}


def _tpus(accelerator: str, topology: str, chips: int) -> tuple[dict[str, int], dict[str, str]]:
    return {TPU: chips}, {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }


SELECTED = {
    "cloud.google.com/machine-family": "N4",
    "iam.gke.io/gke-metadata-server-enabled": "true",
    "node.gke.io/enable-writable-cgroups": "true",
    "node-role.kubernetes.io/control-plane": "",
}
"""What the examples select CPU nodes by."""

POOLS = (
    Pool("cpu", 2, 8, cpus=96, memory="384Gi", labels=SELECTED),
    Pool("h100", 4, 4, *_gpus("NVIDIA-H100-80GB-HBM3", 8, "nvidia-h100-80gb")),
    Pool("b200", 1, 4, *_gpus("NVIDIA-B200", 8, "nvidia-b200")),
    Pool("a100", 1, 4, *_gpus("NVIDIA-A100-SXM4-80GB", 8, "nvidia-tesla-a100")),
    Pool("l4", 1, 4, *_gpus("NVIDIA-L4", 8, "nvidia-l4")),
    Pool("t4", 1, 4, *_gpus("Tesla-T4", 4, "nvidia-tesla-t4")),
    Pool("gb200-a", 1, 8, *_gpus("NVIDIA-GB200", 4, "nvidia-gb200", **{"gpu.clique": "9e1f.0"})),
    Pool("gb200-b", 1, 8, *_gpus("NVIDIA-GB200", 4, "nvidia-gb200", **{"gpu.clique": "9e1f.1"})),
    Pool("mig", 1, 2, {"nvidia.com/mig-1g.12gb": 7, "nvidia.com/mig-3g.20gb": 2}),
    Pool("v6e-2x2", 4, 1, *_tpus("tpu-v6e-slice", "2x2", 4)),
    Pool("v6e-2x4", 4, 1, *_tpus("tpu-v6e-slice", "2x4", 8)),
    Pool("v6e-4x4", 4, 4, *_tpus("tpu-v6e-slice", "4x4", 4)),
    Pool("v6e-16x16", 2, 64, *_tpus("tpu-v6e-slice", "16x16", 4)),
    Pool("v5e-4x4", 4, 4, *_tpus("tpu-v5-lite-podslice", "4x4", 4)),
    Pool("v4-2x2x1", 4, 1, *_tpus("tpu-v4-podslice", "2x2x1", 4)),
    Pool("v4-2x2x2", 2, 2, *_tpus("tpu-v4-podslice", "2x2x2", 4)),
)


def nodes() -> list[Object]:
    """Return the nodes of all pools. None is in use."""
    return [node for pool in POOLS for node in pool.machines()]


def _node(pool: Pool, rack: str, name: str) -> Object:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "r1",
        "topology.kubernetes.io/zone": "z1",
        "topology.kubernetes.io/rack": rack,
        "cloud.google.com/gke-nodepool": rack,
        "cloud.provider.com/topology-block": pool.name,
        "cloud.provider.com/topology-rack": rack,
        "accelerator.nvidia.com/rack": rack,
        "node-type": "training",
        "topology.test/zone-domain": "z1",
        "topology.test/rack-domain": rack,
        **pool.labels,
    }
    counts = {"cpu": pool.cpus, "pods": 110, **pool.takes}
    capacity = {key: str(count) for key, count in counts.items()}
    capacity |= {"memory": pool.memory, "ephemeral-storage": "1Ti"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
