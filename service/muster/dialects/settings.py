"""What the dialects take for granted, in one place: resources, label keys, the schedulers that are ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Names that a cluster may spell differently.

    `scheduler_names`: pods of these are planned; of all others only the usage counts.
    `gpu_resources`: extended resources that count whole GPUs.
    `unplanned_resources`: GPU resources that the shim holds and nobody plans yet: refused with a reason.
    `unread_labels`, `unread_annotations`: they name a gang in a dialect that is not read yet. The shim holds
    such pods, and to place them one by one would be half a gang: refused with a reason.
    `foreign_prefixes`: GPU resources that are not ours: alone, such a pod is left to the in-tree plugins;
    inside a gang it is refused.
    """

    scheduler_names: frozenset[str] = frozenset({"muster"})
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "aliyun.com/gpu", "amd.com/gpu")
    unplanned_resources: tuple[str, ...] = ("aliyun.com/gpu-mem",)
    foreign_prefixes: tuple[str, ...] = ("nvidia.com/mig-",)
    unread_labels: tuple[str, ...] = ("scheduling.x-k8s.io/pod-group",)
    unread_annotations: tuple[str, ...] = ("scheduling.run.ai/pod-group",)
    ack_name: str = "gpu-topology"
    ack_replicas: str = "gpu-topology-replica"
    ack_node_mode: str = "ack.node.gpu.schedule"
    matrix: str = "GPU_TOPOLOGY"
    nvlink_domain: str = "gpu.topology/nvlink-domain"
    nvlink_domain_size: str = "gpu.topology/nvlink-domain-size"
    clique: str = "nvidia.com/gpu.clique"
    gpu_count: str = "nvidia.com/gpu.count"
    gpu_product: str = "nvidia.com/gpu.product"
    nvlink_version: str = "nvidia.com/nvlink.version"
    nvswitch_present: str = "nvidia.com/nvswitch.present"

    def is_foreign(self, resource: str) -> bool:
        """Whether the resource is a GPU's, but none that is planned."""
        return resource in self.unplanned_resources or resource.startswith(self.foreign_prefixes)


DEFAULTS = Settings()
