"""The configuration about a cluster: our schedulers, the GPU resources, and more."""

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
class DialectSettings:
    """The configuration about a cluster."""

    scheduler_names: frozenset[str] = frozenset({"muster"})
    """Schedulers whose pods are planned. Of the pods of other schedulers only the usage counts."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", ALIYUN_GPU, "amd.com/gpu")
    """Extended resources that count whole GPUs."""
    node_agents: str = ""
    """Namespace of the node agents; "" without agents.

    There is no default name, because a user could make a namespace of that name.
    """
    system_namespace: str = "kube-system"
    policies_namespace: str = "muster-system"
    policies_name: str = "kai-scheduler-config"
    policies_key: str = "config.yaml"
    """The key in the ConfigMap `policies_namespace`/`policies_name` that has the cluster's policies."""
    nri_nodes: str = ""
    """Label, as key=value, of nodes where NVIDIA's NRI plugin gives planned GPUs; "" without such nodes."""
    unique_names: tuple[str, ...] = ()
    """Scopes whose names are unique in the input of `muster place`, in addition to those of the policies."""
    infer_gangs: tuple[tuple[str, Mode], ...] = ()
    """(kind of job, whether its pods are a gang although they name no gang). The kind "default" stands for
    all kinds that are not listed, except for `BY_REQUEST`."""

    def infers(self, kind: str) -> Mode:
        """Return the mode for pods of this kind of job that name no gang: they are a gang if it is "on"."""
        modes = dict(self.infer_gangs)
        return modes.get(kind, "off" if kind in BY_REQUEST else modes.get("default", "warn"))

    def is_other(self, resource: str) -> bool:
        """Return whether the resource is counted in `Resources.others`: not cpu, memory, pods or GPUs.

        MIG devices (nvidia.com/mig-1g.10gb) are counted there: a node has a number of each profile, as of any
        resource.
        """
        gpus = (*self.gpu_resources, GPU_MEM, SHARED_GPUS)
        return resource not in ("cpu", "memory", "pods", *gpus)


DEFAULTS = DialectSettings()
