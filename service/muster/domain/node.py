"""A node as the planner sees it: what it offers, what admits a pod, and what is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.topology import GpuTopology


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class HandsOut(StrEnum):
    """What decides on a node which GPUs a container gets, and so whether they are the planned ones.

    `DRA`: a claim names the devices. `AGENT`: the node agent offers the GPUs. `SECOND_ENDPOINT`: it chooses
    among those of NVIDIA's device plugin. `NRI`: NVIDIA's NRI plugin gives what an annotation names. With
    these four containers get the planned GPUs.
    `READS_ANNOTATIONS`: a device plugin that finds a pod's plan by its amount, so that equal pods may swap.
    `OWN_CHOICE`: a device plugin that knows no plan. `AGENT_AWAY`: a node agent is to decide, and none is
    ready.
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


_STATES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_OTHER_STATES = frozenset(
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
_STATE_PREFIXES = (*_STATES, "startup-taint.cluster-autoscaler.kubernetes.io/", "readiness.k8s.io/")
_NOT_READY = "/agent-not-ready"


def is_state(taint: str) -> bool:
    """Return whether a taint tells the state of its node: Kubernetes, a cloud, an autoscaler or an agent sets
    it, and takes it away once the node can be used. To tolerate it does not help."""
    key = taint.partition("=")[0].partition(":")[0]
    return key.startswith(_STATE_PREFIXES) or key.endswith(_NOT_READY) or key in _OTHER_STATES


@dataclass(frozen=True, slots=True)
class Resources:
    """What the planner counts besides GPUs: cpu in thousandths of a core, memory in bytes, pods.

    `others` are all further resources that Kubernetes counts (ephemeral-storage, hugepages, extended ones
    such as rdma/hca), as (name, amount) by name, without zeros. Amounts are in the resource's own unit.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 1
    others: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
            self.pods + other.pods,
            _sum(self.others, other.others),
        )

    def __sub__(self, other: Resources) -> Resources:
        return self + other.times(-1)

    def times(self, count: int) -> Resources:
        """Return what `count` such pods ask for together."""
        multiplied = tuple((name, amount * count) for name, amount in self.others if count)
        return Resources(self.cpu_milli * count, self.memory_bytes * count, self.pods * count, multiplied)

    def other(self, name: str) -> int:
        """Return the amount of one of `others`; 0 if it is not among them."""
        return next((amount for resource, amount in self.others if resource == name), 0)


Amounts = tuple[tuple[str, int], ...]


def _sum(first: Amounts, second: Amounts) -> Amounts:
    if not second:
        return first
    amounts = dict(first)
    for name, amount in second:
        amounts[name] = amounts.get(name, 0) + amount
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def total(summands: Iterable[Resources]) -> Resources:
    """Return the sum of these resources, in time that grows as their names do."""
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
"""The extended resource by which pods ask for memory of shared GPUs, in GiB."""

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
        """Return what identifies its pool in the cluster."""
        return self.driver, self.pool

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The devices that a ResourceClaim holds, and the UIDs of the pods that it is for. It holds none if it is
    not allocated, or gone.

    `shares` are the bytes that it takes of each device's memory, 0 if it takes the whole device; () if it
    takes all of them whole.
    """

    uid: str
    devices: tuple[Device, ...] = ()
    consumers: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()

    def parts(self) -> Iterator[tuple[Device, int]]:
        """Return each device with what is taken of it."""
        return zip(self.devices, self.shares or (0,) * len(self.devices), strict=True)

    def is_for(self, uids: Collection[str]) -> bool:
        """Return whether the claim is for some of these pods and for no others."""
        return bool(self.consumers and uids) and set(self.consumers) <= set(uids)


Need = tuple[tuple[int, int], ...]
"""Numbers of counters, and how much of each a device consumes."""


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The counters of a pool. `available` is how much there is of each, in billionths. `needs` names the
    devices that consume counters.

    The arithmetic follows the in-tree allocator (k8s.io/dynamic-resource-allocation, checkAvailableCounters).
    All allocated devices of a pool consume its counters, each once. A device can be allocated if it exceeds
    no counter. If a counter of the pool is exceeded already, no device that consumes counters can be
    allocated. So a GPU and its partitions can't be allocated together.
    """

    available: tuple[int, ...]
    needs: tuple[tuple[str, Need], ...]

    def without_room(self, names: Sequence[str], allocated: Collection[str]) -> set[str]:
        """Return which of the wanted devices can't be allocated next to the allocated ones.

        The others can be allocated all together. The first ones of `names` come first.
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
    """Facts of one node, from its API object alone.

    `gpu_resources` are the extended resources under which its whole GPUs can be asked for: what its
    allocatable offers, narrowed by the node's mode (`ack.node.gpu.schedule`). `topology.gpu_count` is the
    number of GPUs; a node with none is still a place for cpu-only members.
    `gpu_memory` is what each GPU offers in slices, in GiB, by index; () where the node serves none.
    `memory_resources` are the names by which slices ask for it (`Slice.resource`). Slices go to the GPU with
    the least left that is enough, with `spread` to the one with the most.
    `unhealthy` GPUs (a bit mask) are not planned on.
    `devices` are the GPUs by index, where a DRA driver serves them and no device plugin. None is a GPU that
    the driver does not publish now; it is unhealthy as well. `tainted` are the unhealthy GPUs with nothing
    worse than a taint of their device: members that tolerate it may have them. `attribute_groups` has for
    each attribute the GPUs that agree on it, as bit masks. A GPU without the attribute is in none of them.
    Attributes on which no two GPUs agree are left out, but for those of partitions. `partitions` are (GPUs,
    attribute) where a pod with several GPUs starts only if they are one partition. A claim gets one of this
    size if it names the attribute; "" if any GPUs of this number are one.
    `counters` are those of pools whose devices share them: there a GPU may be taken because other devices
    are, such as its partitions.
    `machine` is the type of the machine ("ecs.sccgn6.24xlarge"), for readers: nothing is planned by it.
    `cdi_devices` are the names of its GPUs in annotations of NVIDIA's NRI plugin, by index; () where none are
    to be written.
    `missing_gpus`: how many more it has by its capacity or its labels, and does not offer.
    `offers_parts`: what it offers as GPUs are parts of them, MIG devices or GPUs that several pods share.
    `hands_out`: what decides which of the node's GPUs a container gets.
    `rails` are the network rails of its GPUs by index, numbered from 0 without gaps; () if not published.
    `allocatable` has no GPUs in it. `problems` are sentences about what could not be read (a broken
    GPU_TOPOLOGY): the node is used without it.
    """

    name: str
    allocatable: Resources
    topology: GpuTopology
    gpu_resources: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    gpu_memory: tuple[int, ...] = ()
    memory_resources: frozenset[str] = frozenset({GPU_MEM})
    spread: bool = False
    unhealthy: int = 0
    tainted: int = 0
    devices: tuple[Device | None, ...] = ()
    attribute_groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    partitions: tuple[tuple[int, str], ...] = ()
    counters: Mapping[PoolKey, PoolCounters] = field(default_factory=dict)
    machine: str = ""
    cdi_devices: tuple[str, ...] = ()
    missing_gpus: int = 0
    offers_parts: bool = False
    hands_out: HandsOut = HandsOut.OWN_CHOICE
    rails: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def rail_by_gpu(self) -> tuple[int, ...]:
        """The network rail of each GPU: as published, else its index on a board of eight; () if not known."""
        count = self.topology.gpu_count
        by_index = tuple(range(BOARD_GPUS)) if count == BOARD_GPUS else ()
        return self.rails if self.rails and count <= BOARD_GPUS else by_index

    @property
    def untainted(self) -> int:
        """Return the bit mask of the GPUs whose devices have no taint: a pod may have these, unless its
        claims name others."""
        return (1 << self.topology.gpu_count) - 1 & ~self.tainted


@dataclass(frozen=True, slots=True)
class Usage:
    """What one pod takes of one node: bound, or held by a live plan.

    `gpus` is the bit mask of its GPUs; `unindexed_gpus` counts GPUs with unknown indices (another
    scheduler's pod). One of the two is zero. It takes them whole, or `units` of the memory of each where that
    is not zero.
    """

    pod_uid: str
    node: str
    resources: Resources
    gpus: int = 0
    unindexed_gpus: int = 0
    units: int = 0
