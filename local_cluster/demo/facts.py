"""What the demo found out, as data: what `--json` prints and what the claims are checked on."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from local_cluster.api import Object
from local_cluster.demo.matrix import Matrix

VERSION = 1
"""Of the JSON; it changes when a field changes its meaning or goes."""

ALLOCATION = "gpu.topology/allocation"
GROUP = "ALIYUN_COM_GPU_GROUP"
GPU_RESOURCES = ("aliyun.com/gpu", "nvidia.com/gpu")


@dataclass(frozen=True, slots=True)
class Seat:
    """One bound pod and the GPUs of its node that are its own. `advisory`: its device plugin may give
    it others of the node, so that the node is exact and the indices are advice."""

    pod: str
    node: str
    gpus: tuple[int, ...]
    advisory: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a gang sits, and its weakest link on the best ring. Both are None when it has no link to speak
    of: it is split over several nodes, or holds one GPU."""

    seats: tuple[Seat, ...]
    link: str | None
    bandwidth_gb_per_s: float | None

    @classmethod
    def of(cls, seats: Iterable[Seat], matrices: Mapping[str, Matrix]) -> Outcome:
        """Return the outcome of these seats; links are known only if all are on one node."""
        ordered = tuple(sorted(seats, key=lambda seat: seat.pod))
        nodes = {seat.node for seat in ordered}
        if len(nodes) != 1:
            return cls(ordered, None, None)
        gpus = [gpu for seat in ordered for gpu in seat.gpus]
        matrix = matrices[nodes.pop()]
        ring = matrix.ring(gpus)
        return cls(ordered, matrix.weakest_kind(gpus), ring.weakest_gb_per_s if ring else None)

    @property
    def gpus(self) -> dict[str, tuple[int, ...]]:
        """Node → all GPUs of the gang there, rising."""
        gpus_by_node: dict[str, list[int]] = {}
        for seat in self.seats:
            gpus_by_node.setdefault(seat.node, []).extend(seat.gpus)
        return {node: tuple(sorted(gpus)) for node, gpus in sorted(gpus_by_node.items())}


@dataclass(frozen=True, slots=True)
class PlacedGang:
    """A gang that started. `free_gpus_before` are the free GPUs of its nodes when it was asked for.

    `placed_ms`: from the request that created its last pod to the last binding, as the watch showed it.
    `first_fit` is what one pod at a time with the lowest free GPUs would have got on the same cluster.
    """

    name: str
    example: str
    placed_ms: float
    free_gpus_before: Mapping[str, tuple[int, ...]]
    muster: Outcome
    first_fit: Outcome


@dataclass(frozen=True, slots=True)
class HeldGang:
    """An incomplete gang while it waited, before its second pod was created. `bound_early`: whether a pod
    was bound before that, as the order of the watch tells afterwards."""

    name: str
    present: int
    needed: int
    bound: int
    event: str
    free_gpu_count_before: int
    free_gpu_count_while_held: int
    bound_early: bool = False


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A complete gang that does not fit."""

    name: str
    example: str
    members: int
    bound: int
    free_gpu_count_before: int
    free_gpu_count_after: int
    condition_reason: str
    condition: str
    event: str
    first_fit_would_bind_pods: int


@dataclass(slots=True)
class Facts:
    """All of it, as it grows. `seats` are those of all bound pods at the end; `mismatched` names the pods
    that don't have the GPUs they asked for (see below)."""

    placed: dict[str, PlacedGang] = field(default_factory=dict)
    held: HeldGang | None = None
    pending: PendingGang | None = None
    seats: tuple[Seat, ...] = ()
    mismatched: tuple[str, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict)


def seats_of(pods: Iterable[Object]) -> tuple[Seat, ...]:
    """Bound pods that have not finished, with the GPUs that their annotation names, by pod."""
    seats = []
    for pod in pods:
        node, phase = pod["spec"].get("nodeName"), pod.get("status", {}).get("phase")
        text = (pod["metadata"].get("annotations") or {}).get(ALLOCATION)
        if node and text and phase not in ("Succeeded", "Failed"):
            allocation = json.loads(text)
            gpus, advisory = tuple(allocation["gpus"]), allocation.get("indices") == "advisory"
            seats.append(Seat(pod["metadata"]["name"], node, gpus, advisory))
    return tuple(sorted(seats, key=lambda seat: seat.pod))


def mismatched(pods: Iterable[Object]) -> tuple[str, ...]:
    """Bound pods with another number of GPUs than they asked for, or whose two annotations differ."""
    names = []
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        gpus = json.loads(annotations.get(ALLOCATION, "{}")).get("gpus", [])
        group = annotations.get(GROUP, ",".join(map(str, gpus)))
        gpus_asked = sum(
            int(container.get("resources", {}).get("limits", {}).get(resource, 0))
            for container in pod["spec"]["containers"]
            for resource in GPU_RESOURCES
        )
        if pod["spec"].get("nodeName") and (len(gpus) != gpus_asked or group != ",".join(map(str, gpus))):
            names.append(str(pod["metadata"]["name"]))
    return tuple(sorted(names))


def free_gpus(nodes: Iterable[Object], seats: Collection[Seat]) -> dict[str, tuple[int, ...]]:
    """Node → its GPUs that no bound pod holds."""
    free = {}
    for node in nodes:
        name = node["metadata"]["name"]
        taken_gpus = {gpu for seat in seats if seat.node == name for gpu in seat.gpus}
        free[name] = tuple(gpu for gpu in range(gpu_count(node)) if gpu not in taken_gpus)
    return free


def gpu_count(node: Object) -> int:
    """Whole GPUs that the node offers, under whatever name."""
    allocatable = node["status"]["allocatable"]
    return max(int(allocatable.get(resource, 0)) for resource in GPU_RESOURCES)


def scheduled_condition(pod: Object) -> Object:
    """The pod's PodScheduled condition, empty without one."""
    conditions = pod.get("status", {}).get("conditions") or []
    condition: Object = next((c for c in conditions if c["type"] == "PodScheduled"), {})
    return condition
