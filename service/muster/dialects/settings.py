"""What the dialects take for granted, in one place: resources, label keys, the schedulers that are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["off", "warn", "on"]
ALIYUN_GPU = "aliyun.com/gpu"
SECOND_ENDPOINT = "second-endpoint"
"""Value of the label `node_agent`: the agent is a second endpoint for what NVIDIA's device plugin offers."""
BY_REQUEST = ("StatefulSet",)
"""Kinds of jobs whose pods are a gang only if the settings name the kind."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Names that a cluster may spell differently.

    `scheduler_names`: pods of these are planned; of all others only the usage counts.
    `gpu_resources`: extended resources that count whole GPUs.
    `gpu_memory`: the extended resource that counts memory of shared GPUs, in GiB.
    `shared_gpus`: on nodes the extended resource that counts the GPUs which share their memory; on pods the
    label that says over how many GPUs the pod's memory is spread.
    `node_agents`: the namespace of the node agents, "" if there are none. It is never a default: a user could
    make a namespace of that name.
    `policies_…`: where the ConfigMap of the cluster's policies is, and its key.
    `infer_gangs`: by kind of job, "default" for all that are not named, whether its pods are a gang without
    saying so. A StatefulSet's are only where it is named.
    `nri_nodes`: the label, as key=value, of nodes where NVIDIA's NRI plugin gives planned GPUs; "" for none.
    `unique_names`: scopes whose names are unique in the input of `muster place`, besides the policies' own.
    """

    scheduler_names: frozenset[str] = frozenset({"muster"})
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", ALIYUN_GPU, "amd.com/gpu")
    gpu_memory: str = "aliyun.com/gpu-mem"
    shared_gpus: str = "aliyun.com/gpu-count"
    ack_name: str = "gpu-topology"
    ack_replicas: str = "gpu-topology-replica"
    ack_node_mode: str = "ack.node.gpu.schedule"
    ack_node_placement: str = "ack.node.gpu.placement"
    ack_node_name: str = "nodename"
    matrix: str = "GPU_TOPOLOGY"
    machine: str = "NODE_TYPE"
    instance_type: str = "node.kubernetes.io/instance-type"
    nvlink_domain: str = "gpu.topology/nvlink-domain"
    nvlink_domain_size: str = "gpu.topology/nvlink-domain-size"
    clique: str = "nvidia.com/gpu.clique"
    gpu_count: str = "nvidia.com/gpu.count"
    gpu_product: str = "nvidia.com/gpu.product"
    nvlink_version: str = "nvidia.com/nvlink.version"
    nvswitch_present: str = "nvidia.com/nvswitch.present"
    interconnect: str = "gpu.topology/interconnect"
    numa_node: str = "topology.kubernetes.io/numa-node"
    memory_by_gpu: str = "gpu.topology/gpu-mem"
    gpu_uuids: str = "gpu.topology/gpu-uuids"
    unhealthy: str = "gpu.topology/unhealthy"
    node_agent: str = "gpu.topology/node-agent"
    node_agents: str = ""
    system_namespace: str = "kube-system"
    unhealthy_prefix: str = "unhealthy-gpu-"
    policies_namespace: str = "muster-system"
    policies_name: str = "kai-scheduler-config"
    policies_key: str = "config.yaml"
    nri_nodes: str = ""
    unique_names: tuple[str, ...] = ()
    infer_gangs: tuple[tuple[str, Mode], ...] = ()

    def infers(self, kind: str) -> Mode:
        """Return whether pods of an object of this kind are a gang without saying so."""
        modes = dict(self.infer_gangs)
        return modes.get(kind, "off" if kind in BY_REQUEST else modes.get("default", "warn"))

    def is_other(self, resource: str) -> bool:
        """Return whether the resource is counted in `Resources.others`: not cpu, memory, pods or GPUs.

        MIG devices are (nvidia.com/mig-1g.10gb): of each profile a node has a number, as of any resource.
        """
        gpus = (*self.gpu_resources, self.gpu_memory, self.shared_gpus)
        return resource not in ("cpu", "memory", "pods", *gpus)


DEFAULTS = Settings()
