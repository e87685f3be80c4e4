"""A node as the planner sees it: its resources, its rules for pods, and the usage of pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.topology import GpuTopology


class TaintEffect(StrEnum):
    """The effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class HandsOut(StrEnum):
    """The component that decides on a node which GPUs a container gets.

    With the first four, containers get the planned GPUs. `DRA`: a claim names the devices. `AGENT`: the node
    agent offers the GPUs. `SECOND_ENDPOINT`: the node agent chooses among the GPUs of NVIDIA's device plugin.
    `NRI`: NVIDIA's NRI plugin gives the GPUs that an annotation names.

    With the others, containers may get other GPUs. `READS_ANNOTATIONS`: a device plugin finds a pod's plan by
    the requested amount, so that equal pods may swap GPUs. `OWN_CHOICE`: a device plugin knows no plan.
    `AGENT_AWAY`: a node agent should decide, and no agent is ready.
    """

    DRA = "dra"
    AGENT = "agent"
    SECOND_ENDPOINT = "second-endpoint"
    NRI = "nri"
    READS_ANNOTATIONS = "reads-annotations"
    OWN_CHOICE = "own-choice"
    AGENT_AWAY = "agent-away"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, as Kubernetes has it."""

    key: str
    value: str
    effect: str


_STATE_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/unregistered",
        "cloud.google.com/impending-node-termination",
        "node.cluster.x-k8s.io/uninitialized",
        "nvidia.com/gpu-driver-upgrade",
    }
)
_STATE_PREFIXES = (
    "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/", "readiness.k8s.io/",
)  # fmt: skip
_NOT_READY = "/agent-not-ready"


def is_state_taint(taint: str) -> bool:
    """Return whether a taint shows the state of its node. Kubernetes, a cloud, an autoscaler or an agent sets
    such a taint, and removes the taint once the node can be used. So a toleration does not help."""
    key = taint.partition("=")[0].partition(":")[0]
    return key.startswith(_STATE_PREFIXES) or key.endswith(_NOT_READY) or key in _STATE_TAINTS


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that the planner counts, apart from GPUs: cpu in thousandths of a core, memory in bytes,
    pods.

    `others` are all further resources that Kubernetes counts (ephemeral-storage, hugepages, extended ones
    such as rdma/hca), as (name, amount) by name, without zeros. Amounts are in the resource's own unit.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 1
    others: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Resources) -> Resources:
        return total((self, other))

    def __sub__(self, other: Resources) -> Resources:
        return self + other.times(-1)

    def times(self, count: int) -> Resources:
        """Return the sum for `count` such pods."""
        multiplied = tuple((name, amount * count) for name, amount in self.others if count)
        return Resources(self.cpu_milli * count, self.memory_bytes * count, self.pods * count, multiplied)

    def other_amount(self, name: str) -> int:
        """Return the amount of a resource in `others`; 0 for a resource that is not there."""
        return next((amount for resource, amount in self.others if resource == name), 0)


def total(summands: Iterable[Resources]) -> Resources:
    """Return the sum of these resources. The time grows with the number of their names."""
    cpu_milli, memory_bytes, pods, amounts = 0, 0, 0, dict[str, int]()
    for resources in summands:
        cpu_milli += resources.cpu_milli
        memory_bytes += resources.memory_bytes
        pods += resources.pods
        for name, amount in resources.others:
            amounts[name] = amounts.get(name, 0) + amount
    sorted_amounts = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
    return Resources(cpu_milli, memory_bytes, pods, sorted_amounts)


GPU_MEM = "aliyun.com/gpu-mem"
"""The extended resource by which pods request memory of shared GPUs, in GiB."""

GIB = 1 << 30
"""Bytes of one unit of a shared GPU's memory."""

PoolKey = tuple[str, str]
"""Driver and pool."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a DRA driver publishes; the three names together are unique in the cluster."""

    driver: str
    pool: str
    name: str

    @property
    def pool_key(self) -> PoolKey:
        """Return the identity of its pool in the cluster."""
        return self.driver, self.pool

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The devices that a ResourceClaim holds, and the UIDs of the pods that it is for. A claim that is gone
    or not allocated holds no device.

    `shares`: bytes of each device's memory that the claim takes, 0 for the whole device. () if the claim
    takes all devices whole.
    """

    uid: str
    devices: tuple[Device, ...] = ()
    consumers: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()

    def parts(self) -> Iterator[tuple[Device, int]]:
        """Yield each device with the bytes that the claim takes of it; 0 for the whole device."""
        return zip(self.devices, self.shares or (0,) * len(self.devices), strict=True)

    def is_for(self, uids: Collection[str]) -> bool:
        """Return whether the claim is for some of these pods and for no others."""
        return bool(self.consumers and uids) and set(self.consumers) <= set(uids)


Need = tuple[tuple[int, int], ...]
"""The counters that a device consumes, as (number of the counter, consumed amount)."""


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The counters of a pool. `available` has the amount of each, in billionths. `needs` has the devices that
    consume counters.

    The arithmetic follows the in-tree allocator (k8s.io/dynamic-resource-allocation, checkAvailableCounters).
    All allocated devices of a pool consume its counters, each once. A device can be allocated if it exceeds
    no counter. If a counter of the pool is exceeded already, no device that consumes counters can be
    allocated. So a GPU and its partitions can't be allocated together.
    """

    available: tuple[int, ...]
    needs: tuple[tuple[str, Need], ...]

    def names_without_room(self, names: Sequence[str], allocated: Collection[str]) -> set[str]:
        """Return the devices among `names` that can't be allocated in addition to the allocated devices.

        All other devices of `names` can be allocated together. Earlier names have precedence.
        """
        needs = dict(self.needs)
        amounts_left = list(self.available)
        for name in set(allocated) & needs.keys():
            _consume(amounts_left, needs[name])
        exceeded = any(amount < 0 for amount in amounts_left)
        without = set[str]()
        for name in names:
            need = needs.get(name, ())
            if need and (exceeded or any(amounts_left[counter] < amount for counter, amount in need)):
                without.add(name)
            else:
                _consume(amounts_left, need)
        return without

    def exceeded_by(self, names: Iterable[str]) -> set[int]:
        """Return the counters that these devices together would exceed."""
        needs = dict(self.needs)
        amounts_left = list(self.available)
        for name in names:
            _consume(amounts_left, needs.get(name, ()))
        return {counter for counter, amount in enumerate(amounts_left) if amount < 0}


def _consume(amounts_left: list[int], need: Need) -> None:
    for counter, amount in need:
        amounts_left[counter] -= amount


BOARD_GPUS = 8
"""Boards with this many GPUs are built alike: GPU i is next to network card i, on rail i. Larger nodes have
no known rails, because the planner looks at all sets of their GPUs."""


@dataclass(frozen=True, slots=True)
class Node:
    """Facts of one node, from its API object and objects about it."""

    name: str
    allocatable: Resources
    """Resources other than GPUs."""
    topology: GpuTopology
    """The links of its GPUs, and their number (`gpu_count`). A node without GPUs takes members without GPUs.
    """
    gpu_resources: frozenset[str] = frozenset()
    """Extended resources by which pods request its whole GPUs: its allocatable, limited by the node's mode
    (`ack.node.gpu.schedule`)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    gpu_memory: tuple[int, ...] = ()
    """GiB that each GPU offers in slices, by index; () if the node serves no slices."""
    memory_resources: frozenset[str] = frozenset({GPU_MEM})
    """Names by which slices request this memory (`Slice.resource`)."""
    spreads_slices: bool = False
    """Whether a slice goes to the GPU with the most free memory. Otherwise it goes to the GPU with the least
    free memory that is enough."""
    unhealthy: int = 0
    """Bit mask of GPUs on which no pod is planned."""
    tainted: int = 0
    """Bit mask of GPUs that are unhealthy only by a taint of their device. Members that tolerate the taint
    may have these GPUs."""
    devices: tuple[Device | None, ...] = ()
    """The device of each GPU by index, if only a DRA driver serves the GPUs. None stands for a GPU that the
    driver does not publish now. Such a GPU is also unhealthy."""
    attribute_groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Attribute → bit masks of GPUs that agree on it. GPUs without the attribute are in no mask. An attribute
    on which no two GPUs agree is left out, unless it is an attribute of partitions."""
    partitions: tuple[tuple[int, str], ...] = ()
    """(number of GPUs, attribute) of each partition size, if a pod with several GPUs must have exactly one
    partition. A claim gets a partition of this size if it names the attribute. "" means that any GPUs of this
    number are a partition."""
    counters: Mapping[PoolKey, PoolCounters] = field(default_factory=dict)
    """Counters that the devices of a pool share. By them, for example, a GPU with taken partitions is taken.
    """
    machine: str = ""
    """Type of the machine ("ecs.sccgn6.24xlarge"). It does not affect plans."""
    cdi_devices: tuple[str, ...] = ()
    """Names of its GPUs for NVIDIA's NRI plugin, by index; () if the plugin gets no annotations."""
    missing_gpus: int = 0
    """Number of GPUs that the node has by capacity or labels, but does not offer."""
    offers_parts: bool = False
    """Whether its GPUs are parts of GPUs: MIG devices, or GPUs that several pods share."""
    hands_out: HandsOut = HandsOut.OWN_CHOICE
    """The component that decides which of its GPUs a container gets."""
    rails: tuple[int, ...] = ()
    """Network rail of each GPU by index, numbered from 0 without gaps; () if not published."""
    problems: tuple[str, ...] = ()
    """Sentences about facts that could not be read (a broken GPU_TOPOLOGY). The node is used without these
    facts."""

    @property
    def rail_by_gpu(self) -> tuple[int, ...]:
        """Return the network rail of each GPU: as published, else its index on a board of eight; () if not
        known."""
        count = self.topology.gpu_count
        by_index = tuple(range(BOARD_GPUS)) if count == BOARD_GPUS else ()
        return self.rails if self.rails and count <= BOARD_GPUS else by_index

    @property
    def untainted_gpus(self) -> int:
        """Return the bit mask of GPUs without a taint: pods may have these if their claims name no GPUs."""
        return (1 << self.topology.gpu_count) - 1 & ~self.tainted


@dataclass(frozen=True, slots=True)
class Usage:
    """The capacity of one node that a pod takes, because it is bound or a live plan holds it."""

    pod_uid: str
    node: str
    resources: Resources
    gpus: int = 0
    """Bit mask of its GPUs; 0 if their indices are unknown."""
    unindexed_gpus: int = 0
    """Number of its GPUs if their indices are unknown (pods of other schedulers); else 0."""
    units: int = 0
    """GiB of memory that it takes of each GPU; 0 if it takes whole GPUs."""

    @property
    def holds_gpus(self) -> bool:
        """Return whether the pod takes GPUs: whole or slices, with known indices or not."""
        return bool(self.gpus or self.unindexed_gpus)
