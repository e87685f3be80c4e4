"""Slices of GPU memory as the auditor sees them: what pods ask for, what their annotations give them.

annotation-missing    a bound pod of ours lacks one of those that belong to a slice
annotations-disagree  they say different things
slice-size            not the memory that was asked for, or not evenly on as many GPUs as were
memory-overcommitted  a GPU has given more memory than it has
gpu-twice             a GPU is given whole and in slices
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from local_cluster.api import Object

RESOURCE = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
"""Label of pods: over how many GPUs. Resource of nodes: how many there are."""
OF_NODE = "gpu.topology/gpu-mem"
ALLOCATION = "gpu.topology/allocation"
INDEX, OF_POD, OF_GPU = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_DEV"
ASSIGNED, SINCE = "ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
SHARES = "scheduler.framework.gpushare.allocation"
WRITTEN = (ALLOCATION, INDEX, OF_POD, OF_GPU, ASSIGNED, SINCE, SHARES)

Violation = tuple[str, str]
"""Rule and text of a violation."""


@dataclass(frozen=True, slots=True)
class Slice:
    """`memory` GiB asked for, over `gpus` GPUs; `given` GiB by GPU, as the allocation says. `written` are
    the annotations that belong to it."""

    memory: int
    gpus: int
    given: Mapping[int, int]
    written: Mapping[str, str]


def slice_of(meta: Object, spec: Object) -> Slice | None:
    """What a pod asks of shared GPUs, and has; None for a pod that asks for none.

    Raises:
        ValueError, KeyError, TypeError: its allocation can't be read.
    """
    limits = [
        (container.get("resources") or {}).get("limits") or {} for container in spec.get("containers") or ()
    ]
    memory = sum(int(container.get(RESOURCE, 0)) for container in limits)
    if not memory:
        return None
    annotations: Mapping[str, str] = meta.get("annotations") or {}
    document = json.loads(annotations.get(ALLOCATION, "{}"))
    return Slice(
        memory=memory,
        gpus=int((meta.get("labels") or {}).get(COUNT, 1)),
        given={int(gpu): int(units) for gpu, units in document.get("gpu_mem", {}).items()},
        written={key: annotations[key] for key in WRITTEN if key in annotations},
    )


def memory_of(body: Object) -> tuple[int, ...]:
    """GiB of each GPU that a node shares; () where it shares none."""
    offered = (body.get("status") or {}).get("allocatable") or {}
    count, memory = int(offered.get(COUNT, 0)), int(offered.get(RESOURCE, 0))
    annotation = (body["metadata"].get("annotations") or {}).get(OF_NODE)
    if annotation is not None:
        return tuple(int(units) for units in annotation.split(","))
    return (memory // count,) * count if count else ()


def judge_slice(name: str, pod_slice: Slice, memory: Sequence[int] | None) -> list[Violation]:
    """A bound pod of ours against its node's memory by GPU, None when the node is gone."""
    missing = [key for key in WRITTEN if key not in pod_slice.written]
    if missing:
        return [("annotation-missing", f"{name} is bound without {', '.join(missing)}")]
    wrongs: list[Violation] = []
    expected = {
        INDEX: ",".join(map(str, sorted(pod_slice.given))),
        OF_POD: str(pod_slice.memory),
        ASSIGNED: "false",
    }
    if memory is not None and all(gpu < len(memory) for gpu in pod_slice.given):
        expected[OF_GPU] = str(min((memory[gpu] for gpu in pod_slice.given), default=0))
    for key, value in expected.items():
        if pod_slice.written[key] != value:
            wrongs.append(
                ("annotations-disagree", f"{name}: {key} is {pod_slice.written[key]!r}, not {value!r}")
            )
    sums = Counter[int]()
    for parts in json.loads(pod_slice.written[SHARES]).values():
        sums.update({int(gpu): int(units) for gpu, units in parts.items()})
    if dict(sums) != dict(pod_slice.given):
        wrongs.append(
            ("annotations-disagree", f"{name}: {SHARES} adds up to {dict(sums)}, not {pod_slice.given}")
        )
    if sorted(pod_slice.given.values()) != [pod_slice.memory // pod_slice.gpus] * pod_slice.gpus:
        asks = f"{name} asked for {pod_slice.memory} GiB over {pod_slice.gpus} GPUs"
        text = f"{asks} and got {dict(pod_slice.given)}"
        wrongs.append(("slice-size", text))
    if memory is not None and any(not 0 <= gpu < len(memory) for gpu in pod_slice.given):
        wrongs.append(("gpu-out-of-range", f"{name} got {dict(pod_slice.given)} of {len(memory)} GPUs"))
    return wrongs


def judge_memory(
    node: str, memory: Sequence[int], slices: Mapping[str, Slice], whole: Mapping[int, str]
) -> list[Violation]:
    """The slices of one node by pod, against its memory by GPU and the GPUs that are given whole."""
    wrongs: list[Violation] = []
    units_used = Counter[int]()
    for pod, pod_slice in slices.items():
        units_used.update(pod_slice.given)
        for gpu in pod_slice.given:
            if gpu in whole:
                wrongs.append(("gpu-twice", f"GPU {gpu} of {node}: whole to {whole[gpu]}, a slice to {pod}"))
    for gpu, units in sorted(units_used.items()):
        if gpu < len(memory) and units > memory[gpu]:
            text = f"{units} GiB of GPU {gpu} of {node} are given, it has {memory[gpu]}"
            wrongs.append(("memory-overcommitted", text))
    return wrongs
