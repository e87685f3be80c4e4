"""The annotations by which NVIDIA's NRI plugin gives containers the planned GPUs.

    nvidia.cdi.k8s.io/container.<name>   nvidia.com/gpu=GPU-1f…,nvidia.com/gpu=GPU-7a…

The plugin adds these GPUs to what a device plugin gives. So they are written for aliyun.com/gpu alone, where
that is a number and no device plugin serves it.
"""

from __future__ import annotations

from muster.domain.allocation import FOLLOWED_RESOURCE, MAX_BYTES, container_gpus
from muster.domain.decision import MemberPlacement
from muster.domain.node import Node
from muster.domain.pod import Pod

PREFIX = "nvidia.cdi.k8s.io"
"""The plugin reads this key and the keys below it: `is_key`."""
OF_CONTAINER = f"{PREFIX}/container."
MAX_NAME = 63
"""Characters of a key behind its "/". Kubernetes takes no update of a pod that has a longer one."""


def is_key(key: str) -> bool:
    """Return whether the plugin may give GPUs for an annotation with this key."""
    return key == PREFIX or key.startswith(f"{PREFIX}/")


def values(node: Node, pod: Pod, place: MemberPlacement) -> dict[str, str]:
    """Return what gives each container its planned GPUs; {} if the plugin can't or is not to do it there."""
    if not node.cdi_devices or place.units or not place.gpus or pod.gpu_resource != FOLLOWED_RESOURCE:
        return {}
    parts = container_gpus(pod, place.gpus)
    lists_by_key = {
        f"{OF_CONTAINER}{name}": ",".join(node.cdi_devices[gpu] for gpu in gpus)
        for name, gpus in parts.items()
    }
    complete = sum(map(len, parts.values())) == len(place.gpus)
    short = all(len(key.partition("/")[2]) <= MAX_NAME for key in lists_by_key)
    return lists_by_key if complete and short and sum(map(len, lists_by_key.values())) <= MAX_BYTES else {}
