"""What the configuration says of a cluster: the schedulers that are ours, the GPU resources, and more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.dialects.keys import SHARED_GPUS
from muster.domain.node import GPU_MEM

Mode = Literal["off", "warn", "on"]
ALIYUN_GPU = "aliyun.com/gpu"
BY_REQUEST = ("StatefulSet",)
"""Kinds of jobs whose pods are a gang only if the settings name the kind."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says of a cluster.

    `scheduler_names`: pods of these are planned; of all others only the usage counts.
    `gpu_resources`: extended resources that count whole GPUs.
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
    node_agents: str = ""
    system_namespace: str = "kube-system"
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
        gpus = (*self.gpu_resources, GPU_MEM, SHARED_GPUS)
        return resource not in ("cpu", "memory", "pods", *gpus)


DEFAULTS = Settings()
