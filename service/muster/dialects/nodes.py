"""A Node object → facts. Never an exception: what can't be read becomes a sentence in `Node.problems`."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from muster.dialects import ack, gputopology, islands, quantities
from muster.dialects.objects import NodeObject
from muster.dialects.quantities import Quantity
from muster.dialects.settings import DEFAULTS, Settings
from muster.domain.allocation import MAX_GPUS
from muster.domain.node import Node, Resources, Taint
from muster.domain.topology import GpuTopology


def read(obj: NodeObject, settings: Settings = DEFAULTS) -> Node:
    """The facts of one node."""
    labels = obj.metadata.labels or {}
    allocatable = obj.status.allocatable or {}
    problems: list[str] = []
    counts = {
        resource: count
        for resource in settings.gpu_resources
        if (count := _whole(resource, allocatable, problems)) > 0
    }
    gpu_count = _gpu_count(counts, problems)
    topology, wrong = _topology(obj, gpu_count, counts, settings)
    resources, unserved = ack.served(frozenset(counts), labels, settings)
    problems.extend((*wrong, *unserved))
    if gpu_count and (said := labels.get(settings.gpu_count)) not in (None, str(gpu_count)):
        problems.append(f"{settings.gpu_count} is {said!r}, but allocatable has {gpu_count} GPUs")
    return Node(
        name=obj.metadata.name,
        allocatable=Resources(
            cpu_milli=quantities.milli(_quantity("cpu", allocatable, problems)),
            memory_bytes=_whole("memory", allocatable, problems),
            pods=_whole("pods", allocatable, problems),
        ),
        topology=topology,
        gpu_resources=resources,
        labels=dict(labels),
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in obj.spec.taints or ()),
        unschedulable=obj.spec.unschedulable,
        # Without the condition (a node just made) the taints decide, as they do for kube-scheduler.
        ready=all(cond.status == "True" for cond in obj.status.conditions or () if cond.type == "Ready"),
        problems=tuple(problems),
    )


def _topology(
    obj: NodeObject, gpu_count: int, counts: Mapping[str, int], settings: Settings
) -> tuple[GpuTopology, tuple[str, ...]]:
    """First that speaks wins: the matrix of the device plugin, then labels. A broken matrix is not replaced
    by labels: it was published, so the node has a device plugin that needs repair."""
    labels = obj.metadata.labels or {}
    text = (obj.metadata.annotations or {}).get(settings.matrix)
    if text is not None and gpu_count:
        topology, problems = gputopology.matrix(text, gpu_count, settings.matrix)
        return topology, problems + islands.against(topology, labels, settings)
    amd = set(counts) == {"amd.com/gpu"}
    return islands.of_labels(labels, gpu_count, amd, settings)


def _gpu_count(counts: Mapping[str, int], problems: list[str]) -> int:
    """The node's whole GPUs. Two resources (nvidia.com/gpu, aliyun.com/gpu) name the same GPUs."""
    count = max(counts.values(), default=0)
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{resource} {number}" for resource, number in sorted(counts.items()))
        problems.append(f"allocatable counts its GPUs differently: {said}; the largest is used")
    if count > MAX_GPUS:
        problems.append(f"allocatable has {count} GPUs; {MAX_GPUS} of them are used")
        return MAX_GPUS
    return count


def _whole(resource: str, allocatable: Mapping[str, Quantity], problems: list[str]) -> int:
    """Whole units of the resource: a part of one can't be given."""
    return int(_quantity(resource, allocatable, problems))


def _quantity(resource: str, allocatable: Mapping[str, Quantity], problems: list[str]) -> Fraction:
    text = allocatable.get(resource, 0)
    value = quantities.parse(text)
    if value is None or value < 0:
        problems.append(f"allocatable {resource} is {str(text)[:80]!r}, which is no quantity: it counts as 0")
        return Fraction(0)
    return value
