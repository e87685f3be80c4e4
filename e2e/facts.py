"""Pods and nodes as the auditor sees them: read from API objects by code that shares nothing with Muster.

Whole GPUs are read here, slices of GPU memory in `slices`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from e2e.slices import Slice, memory_of, slice_of
from local_cluster.api import Object

GPU_RESOURCES = ("aliyun.com/gpu", "nvidia.com/gpu", "amd.com/gpu")
ALLOCATION = "gpu.topology/allocation"
GROUP = "ALIYUN_COM_GPU_GROUP"
GROUP_RESOURCE = "aliyun.com/gpu"
"""The resource of the original device plugin: its pods must carry ALIYUN_COM_GPU_GROUP."""

DRA_GPUS = "e2e.muster.dev/dra-gpus"
"""Annotation of nodes whose GPUs are in ResourceSlices: "resource=number", for the auditor."""

SUCCEEDED = "Succeeded"
FINISHED = (SUCCEEDED, "Failed")


@dataclass(frozen=True, slots=True)
class Gang:
    """What the pod's own words say of its gang. `needed` is 0 where they can't be read: nothing is judged."""

    key: str
    needed: int


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod at one moment. `allocation` and `group` are its GPUs as either annotation says.

    None: it is not there. `unreadable` says what is wrong with one that is there.
    """

    uid: str
    name: str
    scheduler: str
    node: str
    phase: str
    gpus: int
    resource: str
    gang: Gang | None
    allocation: tuple[int, ...] | None
    group: tuple[int, ...] | None
    unreadable: tuple[str, ...]
    slice: Slice | None = None
    owner: str = ""
    """UID of its controller; "" for a bare pod."""

    @classmethod
    def of(cls, body: Object) -> PodFacts:
        meta, spec = body["metadata"], body["spec"]
        annotations: Mapping[str, str] = meta.get("annotations") or {}
        resource, gpus = _gpus(spec)
        problems: list[str] = []
        return cls(
            uid=str(meta["uid"]),
            name=f"{meta['namespace']}/{meta['name']}",
            scheduler=str(spec.get("schedulerName", "")),
            node=str(spec.get("nodeName", "")),
            phase=str((body.get("status") or {}).get("phase", "")),
            gpus=gpus,
            resource=resource,
            gang=_gang(meta),
            allocation=_read(_allocated, ALLOCATION, annotations, problems),
            group=_read(_grouped, GROUP, annotations, problems),
            slice=_sliced(meta, spec, problems),
            unreadable=tuple(problems),
            owner=next((str(o["uid"]) for o in meta.get("ownerReferences") or () if o.get("controller")), ""),
        )

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def holds(self) -> bool:
        """Whether it takes GPUs of its node now: bound, and not finished. A terminating pod still does."""
        return bool(self.node) and not self.finished


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`gpus`: how many whole GPUs the node offers under each resource. `memory`: GiB of each GPU that it
    shares, () where it shares none."""

    name: str
    gpus: Mapping[str, int]
    memory: tuple[int, ...] = ()

    @classmethod
    def of(cls, body: Object) -> NodeFacts:
        offered = dict((body.get("status") or {}).get("allocatable") or {})
        resource, _, served = ((body["metadata"].get("annotations") or {}).get(DRA_GPUS) or "").partition("=")
        offered |= {resource: served} if served else {}
        return cls(
            str(body["metadata"]["name"]),
            {resource: int(offered[resource]) for resource in GPU_RESOURCES if resource in offered},
            memory_of(body),
        )

    @property
    def count(self) -> int:
        """The GPUs of the machine: the same ones under whatever name they are asked for."""
        return max(self.gpus.values(), default=0)


def _gpus(spec: Object) -> tuple[str, int]:
    """(resource, whole GPUs) that the containers ask for, summed."""
    totals = dict.fromkeys(GPU_RESOURCES, 0)
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for resource in GPU_RESOURCES:
            totals[resource] += int(amounts.get(resource, 0))
    resource = max(totals, key=lambda name: totals[name])
    return (resource, totals[resource]) if totals[resource] else ("", 0)


def _gang(meta: Object) -> Gang | None:
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    for words, name, count in (
        (labels, "gpu-topology", "gpu-topology-replica"),
        (annotations, "gpu.topology/group", "gpu.topology/min-member"),
    ):
        if name in words:
            count_text = str(words.get(count, ""))
            return Gang(
                f"{meta['namespace']}/{name}/{words[name]}", int(count_text) if count_text.isdigit() else 0
            )
    return None


def _read(
    reader: Callable[[str], list[int]], key: str, annotations: Mapping[str, str], problems: list[str]
) -> tuple[int, ...] | None:
    """The indices that an annotation holds; None without it or when it can't be read, which is noted."""
    if key not in annotations:
        return None
    try:
        return tuple(reader(annotations[key]))
    except (ValueError, KeyError, TypeError) as problem:
        problems.append(f"{key} is {annotations[key]!r}: {problem!r}")
        return None


def _sliced(meta: Object, spec: Object, problems: list[str]) -> Slice | None:
    """The pod's slice of GPU memory; None without one, and when it can't be read, which is noted."""
    try:
        return slice_of(meta, spec)
    except (ValueError, KeyError, TypeError) as problem:
        problems.append(f"the slice of {meta['name']}: {problem!r}")
        return None


def _allocated(value: str) -> list[int]:
    """The indices in `gpu.topology/allocation`, over all containers."""
    document = json.loads(value)
    return [int(index) for index in document["gpus"]]


def _grouped(value: str) -> list[int]:
    return [int(index) for index in value.split(",")] if value else []
