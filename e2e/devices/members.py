"""Pods whose containers print the GPUs that they see."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from local_cluster.api import Object
from local_cluster.real.configuration import REAL
from local_cluster.real.images import IMAGE

WHOLE, MEMORY = "aliyun.com/gpu", "aliyun.com/gpu-mem"
SHOWN = ("NVIDIA_VISIBLE_DEVICES", "CDI_GPU", "ALIYUN_COM_GPU", "CUDA_DEVICE", "CGPU", "LD_PRELOAD")
PRINT = f"env | grep -E '^({'|'.join(SHOWN)})' | sort; echo printed"
STAY = f"{PRINT}; exec sleep 2147483647"
_LINE = re.compile(r"^([A-Z_0-9]+)=(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """A container that asks for GPUs, or for GiB of their memory. `sidecar`: an init container that stays;
    `ends`: one that prints and ends."""

    name: str
    count: int
    ends: bool = False
    sidecar: bool = False


MAIN = (Part("main", 1),)


@dataclass(frozen=True, slots=True)
class Member:
    """A pod. Without a gang it is placed alone."""

    name: str
    parts: tuple[Part, ...] = MAIN
    gang: str = ""
    size: int = 1
    resource: str = WHOLE
    labels: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)
    scheduler: str = "muster"

    def body(self) -> Object:
        """Return the pod."""
        annotations = {"gpu.topology/group": self.gang, "gpu.topology/min-member": str(self.size)}
        inits = [self._container(part) for part in self.parts if part.ends or part.sidecar]
        containers = [self._container(part) for part in self.parts if not (part.ends or part.sidecar)]
        return {
            "metadata": {
                "name": self.name,
                "labels": self.labels | {"e2e": "devices"},
                "annotations": annotations if self.gang else {},
            },
            "spec": {
                "schedulerName": self.scheduler,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "dnsPolicy": "Default",
                "automountServiceAccountToken": False,
                "nodeSelector": {REAL: "real"} | self.selector,
                "tolerations": [{"key": REAL, "operator": "Exists"}],
                "initContainers": inits,
                "containers": containers,
            },
        }

    def _container(self, part: Part) -> Object:
        limits = {"limits": {self.resource: str(part.count)}} if part.count else {}
        return {
            "name": part.name,
            "image": IMAGE,
            "command": ["sh", "-c", PRINT if part.ends else STAY],
            "resources": limits,
            **({"restartPolicy": "Always"} if part.sidecar else {}),
        }


def printed(log: str) -> dict[str, str] | None:
    """Return the variables that a container printed; None if it has not printed all of them."""
    return dict(_LINE.findall(log)) if log.rstrip().endswith("printed") else None


def gpus_seen(variables: dict[str, str]) -> tuple[str, ...]:
    """Return the GPUs that a container sees, by CDI and by its variable, which has their order.

    Without the variable, as from a DRA driver, they are sorted.

    Raises:
        AssertionError: the two differ.
    """
    by_cdi = {value for key, value in variables.items() if key.startswith("CDI_GPU_")}
    if "NVIDIA_VISIBLE_DEVICES" not in variables:
        return tuple(sorted(by_cdi))
    visible = tuple(filter(None, variables["NVIDIA_VISIBLE_DEVICES"].split(",")))
    assert set(visible) == by_cdi, f"NVIDIA_VISIBLE_DEVICES has {visible}, CDI gave {sorted(by_cdi)}"
    return visible
