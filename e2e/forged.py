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
    made = objects.node(name, gpus=gpus, labels=labels)
    made["metadata"]["uid"] = name
    made["spec"] |= spec
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return made


def pod(
    name: str,
    on: str = "",
    given: tuple[int, ...] = (),
    *,
    gpus: int = 1,
    gang: Words | None = None,
    phase: str = "",
    **meta: Any,
) -> Object:
    """A pod as the API server shows it, on a node with these GPUs."""
    made = objects.pod(name, gpus=gpus, gang=gang)
    made["metadata"] |= {"namespace": NAMESPACE, "uid": name, **meta}
    made["status"] = {"phase": phase or ("Running" if on else "Pending")}
    if on:
        made["spec"]["nodeName"] = on
        made["metadata"]["annotations"] |= {
            ALLOCATION: json.dumps({"gpus": list(given)}),
            "ALIYUN_COM_GPU_GROUP": ",".join(map(str, given)),
        }
    return made


def own(gang: str, needed: int, scope: str = "") -> Words:
    said = {"gpu.topology/group": gang, "gpu.topology/min-member": str(needed)}
    return Words({}, said | ({"gpu.topology/scope": scope} if scope else {}))


def bound_by_others(name: str, on: str, gpus: int) -> Object:
    """A pod of another scheduler, with unknown GPUs."""
    made = objects.pod(name, gpus=gpus, scheduler="default-scheduler", spec={"nodeName": on})
    made["metadata"] |= {"namespace": NAMESPACE, "uid": name}
    return made | {"status": {"phase": "Running"}}


def sharing(name: str) -> Object:
    """A node of two GPUs of 16 GiB that are shared."""
    made = node(name, gpus=0, labels={SCHEDULE: "share"})
    made["status"]["allocatable"] |= {RESOURCE: "32", COUNT: "2"}
    return made


def slice_pod(name: str, memory: int, given: Mapping[int, int] | None = None, *, gpus: int = 1) -> Object:
    """A pod of `memory` GiB over `gpus` GPUs, on node s with these GiB by GPU."""
    made = pod(name, "s" if given else "", gpus=0)
    made["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: str(memory)}
    made["metadata"]["labels"][COUNT] = str(gpus)
    if given:
        units = {str(gpu): amount for gpu, amount in given.items()}
        made["metadata"]["annotations"] = {
            ALLOCATION: json.dumps({"gpus": list(given), "gpu_mem": units}),
            INDEX: ",".join(units),
            OF_POD: str(memory),
            OF_GPU: "16",
            ASSIGNED: "false",
            SINCE: "1",
            SHARES: json.dumps({"0": units}),
        }
    return made


def gated(body: Object) -> Object:
    return body | {"spec": body["spec"] | {"schedulingGates": [{"name": "g"}]}}


def greedy() -> Object:
    """A pod that takes all of a node's cpu."""
    made = pod("greedy", gpus=0)
    made["spec"]["nodeName"] = "a"
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
    return made
