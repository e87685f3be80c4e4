"""The annotations of a Binding: written for a plan, and read again after a restart.

`gangs` writes them for a plan, and `dialects` reads them from each bound pod. Writer and reader are in one
module, so that they agree.

    gpu.topology/allocation  {"version":1,"generation":7,"containers":{"main":[0,1]},"gpus":[0,1],
                              "indices":"planned"}; of shared GPUs also "gpu_mem":{"0":3,"1":3}, GiB by GPU;
                              of a DRA driver's also "devices":["gpu.nvidia.com/node-a/gpu-0", …], in order
    gpu.topology/decision    {"scope":"node","domain":"node a","bandwidth_gb_per_s":50.0,"ring_gb_per_s":50.0,
                              "optimal":true,"gap":null,"needed":2,"left_out":0,"newest":1700000000.0,
                              "trace_id":"4bf9…"}, where needed, left_out and newest are the `Batch`. If
                              members may get other GPUs, "exact":false,"not_exact_nodes":1,"not_exact":["a"]
    gpu.topology/devices     {"version":1,"gpus":[3]}, not by the Binding: what a node agent found instead
    ALIYUN_COM_GPU_GROUP, …_ASSIGNED, …_ASSUME_TIME     for the gputopology device plugin: whole GPUs
    ALIYUN_COM_GPU_MEM_IDX, …_DEV, …_POD, …_ASSIGNED, …_ASSUME_TIME, scheduler.framework.gpushare.allocation
                                                        for the gpushare device plugin: memory of shared GPUs
    nvidia.cdi.k8s.io/container.<name>   nvidia.com/gpu=GPU-1f…,nvidia.com/gpu=GPU-7a…
                                                        for NVIDIA's NRI plugin, by container: whole GPUs
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeGuard

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Device, Node
from muster.domain.pod import Batch, Pod
from muster.domain.topology import mask_of

ALLOCATION = "gpu.topology/allocation"
DECISION = "gpu.topology/decision"
DEVICES = "gpu.topology/devices"
"""{"version":1,"gpus":[3]}: GPUs that a node agent found in a pod's containers where the plan has others."""
GROUP = "ALIYUN_COM_GPU_GROUP"
ASSIGNED = "ALIYUN_COM_GPU_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_ASSUME_TIME"

MEM_GPUS = "ALIYUN_COM_GPU_MEM_IDX"
MEM_OF_GPU = "ALIYUN_COM_GPU_MEM_DEV"
MEM_OF_POD = "ALIYUN_COM_GPU_MEM_POD"
MEM_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
MEM_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
SHARES = "scheduler.framework.gpushare.allocation"
"""{"<place of the container in the pod, from 0>":{"<GPU>":GiB}}: the place and not the name, because tools
such as kubectl-inspect-gpushare decode the annotation into map[int]map[string]int."""

CDI_KIND = "nvidia.com/gpu"
"""The kind of CDI devices in the specification that NVIDIA's toolkit writes."""
NRI = "nvidia.cdi.k8s.io"
"""The prefix of the keys that NVIDIA's NRI plugin reads (`is_nri_key`)."""
_MAX_NAME = 63
"""Largest number of characters of a key after its "/". Kubernetes refuses each update of a pod with a longer
key."""

RESERVED_KEYS = (
    ALLOCATION, DECISION, DEVICES, GROUP, ASSIGNED, ASSUME_TIME,
    MEM_GPUS, MEM_OF_GPU, MEM_OF_POD, MEM_ASSIGNED, MEM_ASSUME_TIME, SHARES,
)  # fmt: skip
"""Keys that only the scheduler may write: an unbound pod with such a key is refused."""

FOLLOWED_RESOURCE = "aliyun.com/gpu"
"""The device plugin of this resource reads the annotation. Plugins of other resources choose GPUs themselves.
"""
SECOND_RESOURCE = "nvidia.com/gpu"
"""A node agent may be a second endpoint for this resource. Then containers get the planned GPUs."""
SEVERAL_ENDPOINTS_SINCE = 37
"""Minor version of the first kubelet that knows several endpoints of one resource (kubernetes PR 135437). An
older kubelet loses all devices of the resource when one endpoint disconnects."""

VERSION = 1
MAX_GPUS = 62
"""Largest number of GPUs of one node that are used, so that a mask fits into a signed 64 bit number. Larger
indices are not read. Nodes have at most 16 GPUs today (HGX-2, p2.16xlarge), or 56 parts that are offered as
GPUs."""
MAX_MEMBERS = 2**31
"""Largest number of members that is believed. If a user binds a pod, its annotations may have any value."""
MAX_NAMED = 16
"""Largest number of nodes that a decision names."""
MAX_SECONDS = 2.0**40
"""Largest number of seconds since the epoch that is believed. Larger values, infinity and NaN are not
believed."""
MAX_BYTES = 16 * 1024
"""Longest annotation that is written or read. The API server does not validate the annotations of a Binding.
But a pod with more than 256 KiB of annotations can't be updated any more. Muster's annotations together stay
far below this limit."""


def write(
    pod: Pod,
    place: MemberPlacement,
    generation: int,
    decision: str,
    gpu_memory: tuple[int, ...] = (),
    devices: tuple[str, ...] = (),
    *,
    exact: bool = False,
) -> dict[str, str]:
    """Return the annotations of one member's Binding, without their time.

    A member without GPUs has no allocation. `generation` and `decision` (`write_decision`) are those of the
    plan. `gpu_memory`: GiB that each GPU of the node offers in slices (`Node.gpu_memory`). `devices`: the
    devices that a DRA driver gives the member, as driver/pool/name in the order of its GPUs. `exact`:
    containers get these GPUs (`exactness.is_exact`).
    """
    values = {DECISION: decision}
    if not place.gpus:
        return values
    values[ALLOCATION] = _allocation_json(pod, place, generation, exact, devices)
    if place.units and not devices:
        return values | _share_keys(pod, place, gpu_memory)
    if pod.gpu_resource == FOLLOWED_RESOURCE:
        values[GROUP] = _comma_separated(place.gpus)
        values[ASSIGNED] = "false"
    return values


def write_decision(plan: Placed, batch: Batch, trace_id: str = "", not_exact: tuple[str, ...] = ()) -> str:
    """Return the annotation DECISION, which is equal for all members of a plan.

    `trace_id`: the trace that shows the decision; "" for none. `not_exact`: nodes where members may get other
    GPUs than planned. The annotation has the number of these nodes and the first names, and the first names
    of nodes where links or taken GPUs are unknown.
    """
    unknown = {"unknown_links": plan.unknown_links, "unknown_indices": plan.unknown_indices}
    inexact = {"exact": False, "not_exact_nodes": len(not_exact), "not_exact": not_exact[:MAX_NAMED]}
    return _json(
        {
            "scope": plan.scope_reached,
            "domain": plan.domain[:256],
            "bandwidth_gb_per_s": plan.objective.weakest_link_gb_per_s,
            "ring_gb_per_s": plan.objective.ring_gb_per_s,
            "optimal": plan.optimal,
            "gap": plan.gap,
            **asdict(batch),
            **({"trace_id": trace_id} if trace_id else {}),
            **(inexact if not_exact else {}),
            **{doubt: nodes[:MAX_NAMED] for doubt, nodes in unknown.items() if nodes},
        }
    )


def with_times(values: Mapping[str, str], wall_ns: int) -> dict[str, str]:
    """Return a Binding's annotations with their time in ns since the epoch. Both device plugins need it."""
    times = ((ASSIGNED, ASSUME_TIME), (MEM_ASSIGNED, MEM_ASSUME_TIME))
    return {**values, **{time: str(wall_ns) for assigned, time in times if assigned in values}}


def read_batch(annotations: Mapping[str, str]) -> Batch | None:
    """Return the batch with which a bound pod was permitted; None if its annotations have no batch."""
    value = _json_object(annotations.get(DECISION))
    members_needed, left_out, newest = (value.get(key) for key in ("needed", "left_out", "newest"))
    if not (_is_count(members_needed) and _is_count(left_out) and isinstance(newest, int | float)):
        return None
    return Batch(members_needed, left_out, float(newest)) if 0 <= newest < MAX_SECONDS else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < MAX_MEMBERS


def on_node(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """Return a pod on a node, with the facts of its annotations about its GPUs and its gang's Bindings."""
    batch = read_batch(annotations) if pod.claim is not None else None
    if not (pod.gpus or pod.slice):
        return replace(pod, batch=batch)
    gpus, planned = read(annotations, pod), None
    if reported_gpus(annotations, pod) is not None:
        planned = mask_of(planned_gpus(annotations, pod) or ())
    return replace(
        pod,
        gpus=gpus.bit_count() if pod.gpu_counts and gpus is not None else pod.gpus,
        allocation=gpus,
        planned=None if planned == gpus else planned,
        devices=planned_devices(annotations),
        batch=batch,
    )


def read(annotations: Mapping[str, str], pod: Pod) -> int | None:
    """Return the bit mask of a bound pod's GPUs, whole or shared; None if no annotation is credible."""
    gpus = read_gpus(annotations, pod)
    return None if gpus is None else mask_of(gpus)


def read_gpus(annotations: Mapping[str, str], pod: Pod) -> tuple[int, ...] | None:
    """Return a bound pod's GPUs, whole or shared, in the plan's order; None if no annotation is credible.

    An annotation is credible if it has as many GPUs as the pod requests, and as much memory of each GPU. GPUs
    that a node agent found in the containers come first. Then come Muster's annotation and those of the
    aliyun schedulers.
    """
    return reported_gpus(annotations, pod) or planned_gpus(annotations, pod)


def reported_gpus(annotations: Mapping[str, str], pod: Pod) -> tuple[int, ...] | None:
    """Return the GPUs that a node agent found in the containers; None without a credible report."""
    value = _json_object(annotations.get(DEVICES))
    gpus = value.get("gpus")
    if value.get("version") != VERSION or not isinstance(gpus, list) or not all(map(_is_index, gpus)):
        return None
    return tuple(gpus) if gpus and pod.may_take(len(gpus)) and len(gpus) == len(set(gpus)) else None


def write_devices(gpus: Collection[int]) -> str:
    """Return the annotation for GPUs that differ from the planned GPUs."""
    return _json({"version": VERSION, "gpus": sorted(gpus)})


def planned_gpus(annotations: Mapping[str, str], pod: Pod) -> tuple[int, ...] | None:
    """Return the GPUs that the Binding names; None if no annotation is credible, as in `read_gpus`."""
    count = pod.slice.gpus if pod.slice is not None else pod.gpus
    # If the annotation SHARES is there, it is read: the older index does not say how much of each GPU the pod
    # takes.
    by_gpushare = _gpus_by_container if SHARES in annotations else _gpus_by_gpushare
    for reader in (_gpus_by_muster, by_gpushare if pod.slice is not None else _gpus_by_gputopology):
        gpus = reader(annotations, pod) if count else None
        if gpus and pod.may_take(len(gpus)) and len(gpus) == len(set(gpus)):
            return tuple(gpus)
    return None


def planned_devices(annotations: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the DRA devices that the Binding names; () if it names none, or if a name is malformed."""
    value = _json_object(annotations.get(ALLOCATION))
    items = value.get("devices")
    if value.get("version") != VERSION or not isinstance(items, list) or len(items) > MAX_GPUS:
        return ()
    devices = [_device(item) for item in items]
    return tuple(device for device in devices if device is not None) if None not in devices else ()


def _device(text: object) -> Device | None:
    """Return the device that a text such as driver/pool/name names. A pool's name may have slashes."""
    parts = text.split("/") if isinstance(text, str) else []
    if not all(parts) or len(parts) < len(("driver", "pool", "name")):
        return None
    return Device(parts[0], "/".join(parts[1:-1]), parts[-1])


def container_gpus(pod: Pod, gpus: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the GPUs of each container: the pod's GPUs, dealt out in the order of the containers.

    If the GPUs are shared, each container uses a part of each GPU.
    """
    if pod.slice is not None:
        return {name: list(gpus) for name, units in pod.container_gpus if units}
    gpus_left, parts = list(gpus), {}
    for name, count in pod.container_gpus:
        if count:
            parts[name], gpus_left = gpus_left[:count], gpus_left[count:]
    return parts


def is_nri_key(key: str) -> bool:
    """Return whether NVIDIA's NRI plugin may give GPUs for an annotation with this key."""
    return key == NRI or key.startswith(f"{NRI}/")


def write_nri(node: Node, pod: Pod, place: MemberPlacement) -> dict[str, str]:
    """Return the annotations by which NVIDIA's NRI plugin gives each container its planned GPUs.

    Return {} if the plugin can't, or must not, give GPUs on this node. The plugin adds GPUs to those of a
    device plugin. So the annotations are written only for aliyun.com/gpu, on nodes where it is a number
    without a device plugin.
    """
    if not node.cdi_devices or place.units or not place.gpus or pod.gpu_resource != FOLLOWED_RESOURCE:
        return {}
    parts = container_gpus(pod, place.gpus)
    lists_by_key = {
        f"{NRI}/container.{name}": ",".join(node.cdi_devices[gpu] for gpu in gpus)
        for name, gpus in parts.items()
    }
    has_all_gpus = sum(map(len, parts.values())) == len(place.gpus)
    names_fit = all(len(key.partition("/")[2]) <= _MAX_NAME for key in lists_by_key)
    return (
        lists_by_key
        if has_all_gpus and names_fit and sum(map(len, lists_by_key.values())) <= MAX_BYTES
        else {}
    )


def _allocation_json(
    pod: Pod, place: MemberPlacement, generation: int, exact: bool, devices: tuple[str, ...]
) -> str:
    value: dict[str, Any] = {
        "version": VERSION,
        "generation": generation,
        "containers": container_gpus(pod, place.gpus),
        "gpus": list(place.gpus),
        "indices": "planned" if exact else "advisory",
    }
    if place.units:
        value["gpu_mem"] = {str(gpu): place.units for gpu in place.gpus}
    if devices:
        value["devices"] = list(devices)
    text = _json(value)
    if len(text) <= MAX_BYTES:
        return text
    # With hundreds of long container names, these are left out: after a restart the pod's own list counts.
    value.pop("devices", None)
    return _json({**value, "containers": {}})


def _share_keys(pod: Pod, place: MemberPlacement, gpu_memory: tuple[int, ...]) -> dict[str, str]:
    """Return the annotations that the gpushare device plugin and its tools read.

    The GPUs of one pod may differ in size. The smallest size is written, and so the pod's part of a GPU never
    looks too large.
    """
    sizes = [gpu_memory[gpu] for gpu in place.gpus if gpu < len(gpu_memory)]
    return {
        MEM_GPUS: _comma_separated(place.gpus),
        MEM_OF_GPU: str(min(sizes, default=0)),
        MEM_OF_POD: str(place.units * len(place.gpus)),
        MEM_ASSIGNED: "false",
        SHARES: _shares_by_container(pod, place),
    }


def _shares_by_container(pod: Pod, place: MemberPlacement) -> str:
    shares = enumerate(units for _, units in pod.container_gpus)
    by_place = {str(index): {str(gpu): units for gpu in place.gpus} for index, units in shares if units} or {
        "0": {str(gpu): place.units for gpu in place.gpus}
    }
    text = _json(by_place)
    if len(text) <= MAX_BYTES:
        return text
    # With hundreds of containers on many GPUs, only the sum of each GPU is written.
    return _json({"0": {str(gpu): place.units for gpu in place.gpus}})


def _gpus_by_muster(annotations: Mapping[str, str], pod: Pod) -> list[int] | None:
    """Return the GPUs that Muster's own annotation names."""
    value = _json_object(annotations.get(ALLOCATION))
    by_gpu = value.get("gpu_mem", {})
    units = [pod.slice.units] * pod.slice.gpus if pod.slice is not None else []
    if value.get("version") != VERSION or not isinstance(by_gpu, dict) or list(by_gpu.values()) != units:
        return None
    indices = value.get("gpus")
    return indices if isinstance(indices, list) and all(map(_is_index, indices)) else None


def _gpus_by_gputopology(annotations: Mapping[str, str], pod: Pod) -> list[int] | None:
    """Return whole GPUs, as gputopology schedulers write them."""
    return _indices(annotations.get(GROUP)) if pod.gpu_resource == FOLLOWED_RESOURCE else None


def _gpus_by_container(annotations: Mapping[str, str], pod: Pod) -> list[int] | None:
    """Return shared GPUs by container: the amounts on each GPU must add up to the pod's request."""
    units: dict[str, int] = {}
    for by_gpu in _json_object(annotations.get(SHARES)).values():
        if not isinstance(by_gpu, dict) or not all(isinstance(amount, int) for amount in by_gpu.values()):
            return None
        for gpu, amount in by_gpu.items():
            units[gpu] = units.get(gpu, 0) + amount
    units_of_pod = pod.slice.units if pod.slice is not None else 0
    return _indices(",".join(units)) if set(units.values()) == {units_of_pod} else None


def _gpus_by_gpushare(annotations: Mapping[str, str], pod: Pod) -> list[int] | None:
    """Return shared GPUs, as older gpushare schedulers write them."""
    memory_of_pod = str(pod.slice.units * pod.slice.gpus) if pod.slice is not None else ""
    return (
        _indices(annotations.get(MEM_GPUS))
        if annotations.get(MEM_OF_POD, memory_of_pod) == memory_of_pod
        else None
    )


def _indices(text: str | None) -> list[int] | None:
    """Return the GPUs of a text such as "0,2,3"; None if it is no such list."""
    if text is None or len(text) > MAX_BYTES or not re.fullmatch(r"[0-9]{1,3}(, ?[0-9]{1,3})*", text):
        return None
    indices = [int(part) for part in text.split(",")]
    return indices if all(map(_is_index, indices)) else None


def _json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in the text; an empty object for any other text."""
    if text is None or len(text) > MAX_BYTES:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _comma_separated(gpus: tuple[int, ...]) -> str:
    return ",".join(map(str, gpus))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_GPUS


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
