"""The annotations that a Binding carries, and what can be read back from them after a restart.

Written once, when a gang is permitted (`gangs`), and read whenever a bound pod is seen (`dialects`): both
sides stand here so that they cannot drift apart.

    gpu.topology/allocation  {"version":1,"generation":7,"containers":{"main":[0,1]},"gpus":[0,1],
                              "indices":"planned"}
    gpu.topology/decision    {"scope":"node","domain":"node a","bandwidth_gb_per_s":50.0,"ring_gb_per_s":50.0,
                              "optimal":true,"gap":null,"trace_id":"4bf9…"}
    ALIYUN_COM_GPU_GROUP, …_ASSIGNED, …_ASSUME_TIME     for the original aliyun device plugin
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.pod import Pod
from muster.domain.topology import mask_of

ALLOCATION = "gpu.topology/allocation"
DECISION = "gpu.topology/decision"
GROUP = "ALIYUN_COM_GPU_GROUP"
ASSIGNED = "ALIYUN_COM_GPU_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_ASSUME_TIME"

RESERVED_KEYS = (
    ALLOCATION,
    DECISION,
    GROUP,
    ASSIGNED,
    ASSUME_TIME,
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
)
"""Only the scheduler may write these: an unbound pod that has one is refused."""

FOLLOWED_RESOURCE = "aliyun.com/gpu"
"""Its device plugin gives the container the GPUs that the annotation names; the others choose themselves."""

VERSION = 1
MAX_GPUS = 256
"""GPUs of one node that are believed: no index at or above it is read, no wider node is modelled."""
MAX_BYTES = 16 * 1024
"""No annotation longer than this is written or read. A Binding bypasses the API server's validation of
annotations, and a pod with over 256 KiB of them can't be updated any more: ours together stay far below."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which plan it was and when: its generation, the wall clock (nanoseconds since the epoch) and the id of
    the trace that shows the decision ("" for none)."""

    generation: int
    wall_ns: int
    trace_id: str = ""


def write(pod: Pod, place: MemberPlacement, plan: Placed, stamp: Stamp) -> dict[str, str]:
    """The annotations of one member's Binding. A member without GPUs carries no allocation."""
    values = {DECISION: _decision(plan, stamp.trace_id)}
    if not place.gpus:
        return values
    followed = pod.gpu_resource == FOLLOWED_RESOURCE
    values[ALLOCATION] = _allocation(pod, place, stamp.generation, followed)
    if followed:
        values[GROUP] = ",".join(str(gpu) for gpu in place.gpus)
        values[ASSIGNED] = "false"
        values[ASSUME_TIME] = str(stamp.wall_ns)
    return values


def read(annotations: Mapping[str, str], gpus: int) -> int | None:
    """The bit mask of a bound pod's GPUs; None when its annotations don't say, or can't be true.

    `gpus` is how many the pod asks for: an allocation of another number is not believed.
    """
    text = annotations.get(ALLOCATION)
    if not gpus or text is None or len(text) > MAX_BYTES:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        return None
    indices = value.get("gpus")
    if not isinstance(indices, list) or not all(_is_index(index) for index in indices):
        return None
    mask = mask_of(indices)
    return mask if len(indices) == gpus == mask.bit_count() else None


def container_gpus(pod: Pod, gpus: tuple[int, ...]) -> dict[str, list[int]]:
    """The pod's GPUs dealt to its containers, in their order."""
    left, parts = list(gpus), {}
    for name, count in pod.container_gpus:
        if count:
            parts[name], left = left[:count], left[count:]
    return parts


def _allocation(pod: Pod, place: MemberPlacement, generation: int, followed: bool) -> str:
    value: dict[str, Any] = {
        "version": VERSION,
        "generation": generation,
        "containers": container_gpus(pod, place.gpus),
        "gpus": list(place.gpus),
        "indices": "planned" if followed else "advisory",
    }
    text = _json(value)
    if len(text) <= MAX_BYTES:
        return text
    # Hundreds of containers with long names: the pod's own list is what counts after a restart.
    return _json({**value, "containers": {}})


def _decision(plan: Placed, trace_id: str) -> str:
    return _json(
        {
            "scope": plan.scope_reached,
            "domain": plan.domain[:256],
            "bandwidth_gb_per_s": plan.objective.weakest_link_gb_per_s,
            "ring_gb_per_s": plan.objective.ring_gb_per_s,
            "optimal": plan.optimal,
            "gap": plan.gap,
            **({"trace_id": trace_id} if trace_id else {}),
        }
    )


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_GPUS


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
