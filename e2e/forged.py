"""Objects as an API server shows them, made up for the tests of the chaos' auditor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from e2e import objects
from e2e.objects import Words
from e2e.slices import ALLOCATION, ASSIGNED, COUNT, INDEX, OF_GPU, OF_POD, RESOURCE, SHARES, SINCE
from local_cluster.api import Object
from local_cluster.nodes import SCHEDULE

NAMESPACE = "n"


def node(name: str, *, gpus: int = 8, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A node that takes pods."""
    body = objects.node(name, gpus=gpus, labels=labels)
    body["metadata"]["uid"] = name
    body["spec"] |= spec
    body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return body


def pod(
    name: str,
    on: str = "",
    gpu_indices: tuple[int, ...] = (),
    *,
    gpus: int = 1,
    gang: Words | None = None,
    phase: str = "",
    **meta: Any,
) -> Object:
    """A pod as the API server shows it, on a node with these GPUs."""
    body = objects.pod(name, gpus=gpus, gang=gang)
    body["metadata"] |= {"namespace": NAMESPACE, "uid": name, **meta}
    body["status"] = {"phase": phase or ("Running" if on else "Pending")}
    if on:
        body["spec"]["nodeName"] = on
        body["metadata"]["annotations"] |= {
            ALLOCATION: json.dumps({"gpus": list(gpu_indices)}),
            "ALIYUN_COM_GPU_GROUP": ",".join(map(str, gpu_indices)),
        }
    return body


def own(gang: str, min_member: int, scope: str = "") -> Words:
    annotations = {"gpu.topology/group": gang, "gpu.topology/min-member": str(min_member)}
    return Words({}, annotations | ({"gpu.topology/scope": scope} if scope else {}))


def bound_by_others(name: str, on: str, gpus: int) -> Object:
    """A pod of another scheduler, with unknown GPUs."""
    body = objects.pod(name, gpus=gpus, scheduler="default-scheduler", spec={"nodeName": on})
    body["metadata"] |= {"namespace": NAMESPACE, "uid": name}
    return body | {"status": {"phase": "Running"}}


def sharing(name: str) -> Object:
    """A node of two GPUs of 16 GiB that are shared."""
    body = node(name, gpus=0, labels={SCHEDULE: "share"})
    body["status"]["allocatable"] |= {RESOURCE: "32", COUNT: "2"}
    return body


def slice_pod(
    name: str, memory: int, units_by_gpu: Mapping[int, int] | None = None, *, gpus: int = 1
) -> Object:
    """A pod of `memory` GiB over `gpus` GPUs, on node s with these GiB by GPU."""
    body = pod(name, "s" if units_by_gpu else "", gpus=0)
    body["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: str(memory)}
    body["metadata"]["labels"][COUNT] = str(gpus)
    if units_by_gpu:
        units = {str(gpu): amount for gpu, amount in units_by_gpu.items()}
        body["metadata"]["annotations"] = {
            ALLOCATION: json.dumps({"gpus": list(units_by_gpu), "gpu_mem": units}),
            INDEX: ",".join(units),
            OF_POD: str(memory),
            OF_GPU: "16",
            ASSIGNED: "false",
            SINCE: "1",
            SHARES: json.dumps({"0": units}),
        }
    return body


def gated(body: Object) -> Object:
    return body | {"spec": body["spec"] | {"schedulingGates": [{"name": "g"}]}}


def greedy() -> Object:
    """A pod that takes all of a node's cpu."""
    body = pod("greedy", gpus=0)
    body["spec"]["nodeName"] = "a"
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
    return body
