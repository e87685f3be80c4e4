"""A Node object → facts. There are no exceptions: a value that can't be read becomes a sentence in
`Node.problems`.

These labels and annotations say which GPUs a node serves:

label ack.node.gpu.schedule: default | topology | share | cgpu | disabled    what the GPUs serve
capacity aliyun.com/gpu-count: 4     GPUs that share their memory; allocatable if the capacity has none
capacity aliyun.com/gpu-mem: 64      GiB of all of them; less is allocatable if a GPU is broken
annotation gpu.topology/gpu-mem: "16,16,8,24"    GiB of each, if they differ
label ack.node.gpu.placement: binpack | spread   which of these GPUs memory is taken from

The setting `nri_nodes` is the label of nodes where NVIDIA's NRI plugin gives GPUs by annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from fractions import Fraction

import msgspec

from muster.dialects import keys, quantities
from muster.dialects.devices import compute_domains, offers
from muster.dialects.devices.offers import NodeOffer
from muster.dialects.nodes import bounds, matrices
from muster.dialects.nodes.configmaps import NodeFact
from muster.dialects.objects import NodeObject
from muster.dialects.reading import NAME_PATTERN, SHOWN, mask_of_list, natural, positive
from muster.dialects.settings import ALIYUN_GPU, DEFAULTS, Settings
from muster.domain.allocation import CDI_KIND, FOLLOWED_RESOURCE, MAX_BYTES, MAX_GPUS, SECOND_RESOURCE
from muster.domain.node import GPU_MEM, Device, HandsOut, Node, Resources, Taint
from muster.domain.topology import GpuTopology, Link, bits, mask_of

NO_OFFER = NodeOffer()
_PARTS = re.compile("-MIG-|-SHARED$")
"""Part of the product's name if the device plugin offers MIG devices as GPUs, or each GPU several times."""
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_MIG_RESOURCE = "nvidia.com/mig-"
SHARING = ("share", "cgpu")
"""Modes without and with isolation of memory. The planner treats them alike."""
OFFERED = (keys.ACK_TOPOLOGY, *SHARING)
"""Modes in which a node agent offers the GPUs itself."""
BINPACK, SPREAD = "binpack", "spread"
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def read(
    obj: NodeObject,
    settings: Settings = DEFAULTS,
    facts: Iterable[NodeFact] = (),
    offer: NodeOffer = NO_OFFER,
    *,
    agent: bool = False,
) -> Node:
    """Return the facts of one node. `facts`: facts from ConfigMaps, in any order. `offer`: the GPUs that its
    ResourceSlices offer. `agent`: a node agent is ready there."""
    obj, left_out = bounds.bounded(obj, settings)
    reader = _Reader(obj, settings, facts, left_out)
    memory = reader.whole_units(GPU_MEM)
    installed = reader.installed(GPU_MEM) if memory else 0
    counts = reader.counts()
    devices, tainted = reader.devices(offer, counts, memory)
    counts |= dict.fromkeys(offer.resources, len(devices)) if devices else {}
    gpu_count = reader.gpu_count(counts, memory)
    topology, rails_of_cards = reader.topology(gpu_count, amd=set(counts) == {"amd.com/gpu"})
    offered = frozenset(counts) - {keys.SHARED_GPUS} | ({GPU_MEM} if memory else set())
    served = _served(reader, offered)
    shared = installed if GPU_MEM in served else 0
    by_gpu = _memory_by_gpu(reader, shared, gpu_count)
    if devices and offer.memory_name:
        by_gpu, served = offer.memory(devices), reader.whole_ones(offer, served)
    broken = reader.unhealthy(gpu_count)
    unhealthy = broken | tainted
    groups = offers.groups(offer, devices) if devices else {}
    cdi = _cdi_devices(reader, gpu_count, served)
    _note_missing(reader, installed - memory, by_gpu, unhealthy)
    return Node(
        name=obj.metadata.name,
        allocatable=reader.allocatable(),
        topology=topology,
        gpu_resources=served - {GPU_MEM},
        labels=compute_domains.with_fabric(reader.labels, keys.CLIQUE),
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in obj.spec.taints or ()),
        unschedulable=obj.spec.unschedulable,
        # Without the condition (on a new node) the taints decide, as in kube-scheduler.
        ready=all(cond.status == "True" for cond in obj.status.conditions or () if cond.type == "Ready"),
        gpu_memory=by_gpu,
        memory_resources=offer.memory_resources if devices else frozenset({GPU_MEM}),
        spreads_slices=_spreads(reader),
        unhealthy=unhealthy,
        tainted=tainted
        & ~broken
        & mask_of([gpu for gpu, device in enumerate(devices) if device is not None]),
        devices=devices,
        attribute_groups=groups,
        partitions=offers.partitions(groups, gpu_count),
        counters=offer.counters if devices else {},
        machine=reader.machine,
        cdi_devices=cdi,
        missing_gpus=0 if devices or memory else reader.missing_gpus(gpu_count, offer.published),
        offers_parts=bool(_PARTS.search(reader.labels.get(keys.GPU_PRODUCT, ""))),
        hands_out=HandsOut.NRI if cdi else reader.hands_out(served, bool(devices), agent),
        rails=rails_of_cards or _rails_of_roots(groups.get(_PCIE_ROOT, ()), gpu_count),
        problems=bounds.shown(reader.problems),
    )


def _rails_of_roots(roots: Sequence[int], gpu_count: int) -> tuple[int, ...]:
    """Return the PCIe root of each GPU, numbered by their lowest GPUs; () if a GPU has none.

    `roots` has the GPUs below each root, as bit masks. The network cards below a root are not known.
    """
    lowest_by_gpu = {gpu: root & -root for root in roots for gpu in bits(root)}
    order = sorted({*lowest_by_gpu.values()})
    numbers = [order.index(lowest_by_gpu[gpu]) for gpu in sorted(lowest_by_gpu)]
    return tuple(numbers) if len(numbers) == gpu_count else ()


def trim(obj: NodeObject) -> NodeObject:
    """Return the parts of a node that are needed to read it again, because its annotations may have a
    megabyte."""
    read_keys = {keys.MATRIX, keys.MACHINE, keys.MEMORY_BY_GPU, keys.GPU_UUIDS, keys.UNHEALTHY_GPUS}
    annotations = obj.metadata.annotations or {}
    texts = {key: text[: bounds.MAX_TEXT + 1] for key, text in annotations.items() if key in read_keys}
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, annotations=texts))


class _Reader:
    """Reads one node. Values that can't be read are reported in `problems`."""

    def __init__(
        self, obj: NodeObject, settings: Settings, facts: Iterable[NodeFact], problems: list[str]
    ) -> None:
        self.labels, self.annotations = obj.metadata.labels or {}, obj.metadata.annotations or {}
        self.settings, self.problems = settings, problems
        self._allocatable = obj.status.allocatable or {}
        self._capacity = obj.status.capacity or {}
        self._facts = sorted(facts, key=lambda fact: fact.name)

    @property
    def machine(self) -> str:
        """Return the name of the machine, by the device plugin or else by the cloud; "" if it is no valid
        name."""
        machine_name = self.annotations.get(keys.MACHINE) or self.labels.get(keys.INSTANCE_TYPE)
        return machine_name if machine_name and NAME_PATTERN.fullmatch(machine_name) else ""

    def counts(self) -> dict[str, int]:
        """Return how many GPUs each resource counts. Two resources name the same GPUs."""
        count_of = {name: self.whole_units(name) for name in self.settings.gpu_resources}
        shared = keys.SHARED_GPUS
        count_of[shared] = self.installed(shared) if self.whole_units(shared) else 0
        return {name: count for name, count in count_of.items() if count > 0}

    def devices(
        self, offer: NodeOffer, counts: Mapping[str, int], memory: int
    ) -> tuple[tuple[Device | None, ...], int]:
        """Return the GPUs that a DRA driver serves, and the bit mask of tainted and missing GPUs.

        If a device plugin serves GPUs too, no GPU of the driver counts, because the two do not know each
        other's pods.
        """
        self.problems.extend(offer.problems)
        if not offer.devices:
            return (), 0
        if counts or memory:
            plugin = ", ".join(sorted(counts)) or GPU_MEM
            driver = offer.devices[0].device.driver
            self.problems.append(
                f"a device plugin ({plugin}) and ResourceSlices of {driver} offer its GPUs: remove one of "
                "them; the device plugin's alone are planned"
            )
            return (), 0
        key = keys.GPU_UUIDS
        devices, tainted, problems = offers.numbered(offer, self.annotations.get(key), key)
        self.problems.extend(problems)
        return devices, tainted

    def whole_ones(self, offer: NodeOffer, served: frozenset[str]) -> frozenset[str]:
        """Return the resources for which pods get whole GPUs, on a node whose GPUs claims share."""
        if offer.takes_whole_devices:
            return served
        problem = f"a request without capacity takes a part of a GPU's {offer.memory_name} there"
        self.problems.append(f"{problem} (requestPolicy.default): no whole GPUs are planned")
        return served - offer.resources

    def hands_out(self, served: frozenset[str], devices: bool, agent: bool) -> HandsOut:
        """Return the component that decides which GPUs a container gets. `served`: the resources of GPUs;
        `devices`: a DRA driver serves them; `agent`: a node agent is ready.

        An agent that offers GPUs itself publishes a list of them. Without the list another device plugin
        serves them.
        """
        second = self._asks_for_second_endpoint(agent)
        if devices:
            return HandsOut.DRA
        if second and SECOND_RESOURCE in served:
            return HandsOut.SECOND_ENDPOINT if agent else HandsOut.AGENT_AWAY
        if not served & {FOLLOWED_RESOURCE, GPU_MEM}:
            return HandsOut.OWN_CHOICE
        listed = bool(self.annotations.get(keys.GPU_UUIDS))
        if second or not listed or self.labels.get(keys.ACK_NODE_MODE) not in OFFERED:
            return HandsOut.READS_ANNOTATIONS
        return HandsOut.AGENT if agent else HandsOut.AGENT_AWAY

    def _asks_for_second_endpoint(self, agent: bool) -> bool:
        """Return whether a node agent is to be a second endpoint for the GPUs of NVIDIA's device plugin."""
        key = keys.NODE_AGENT
        label = self.labels.get(key)
        if label is None:
            return False
        if label != keys.SECOND_ENDPOINT:
            self.problems.append(f"the label {key} is {label[:63]!r}, expected {keys.SECOND_ENDPOINT}")
        elif not agent:
            asks = f"the label {key} asks for a node agent, and none is ready there"
            self.problems.append(f"{asks}: containers may get other GPUs than planned")
        return label == keys.SECOND_ENDPOINT

    def gpu_count(self, counts: Mapping[str, int], memory: int) -> int:
        """Return the number of the node's GPUs, by label if its allocatable has only their `memory`.

        Allocatable counts only healthy GPUs. If a node agent lists all GPUs, its list counts.
        """
        listed = self.annotations.get(keys.GPU_UUIDS, "")[:MAX_BYTES]
        gpus = min(listed.count(",") + 1, MAX_GPUS) if listed else 0
        mode = self.labels.get(keys.ACK_NODE_MODE)
        if gpus and not (counts or memory) and mode in OFFERED:
            self.problems.append(
                f"the node agent lists {gpus} GPUs, and the kubelet offers none of them: does the agent run?"
            )
        if gpus and counts:
            return gpus
        label = self.labels.get(keys.GPU_COUNT)
        count = max(counts.values(), default=(positive(label) or 0) if memory else 0)
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{resource} {number}" for resource, number in sorted(counts.items()))
            self.problems.append(f"allocatable counts its GPUs differently: {listed}; the largest is used")
        if label not in (None, str(count)) and (count or self._offers_none(label)):
            self.problems.append(f"{keys.GPU_COUNT} is {label!r}, but allocatable has {count} GPUs")
        if count > MAX_GPUS:
            self.problems.append(f"allocatable has {count} GPUs; {MAX_GPUS} of them are used")
        return min(count, MAX_GPUS)

    def _offers_none(self, label: str) -> bool:
        """Return whether a device plugin that served the GPUs of the label serves no GPU now."""
        plugin_there = any(
            self.installed(name) or name in self._allocatable for name in self.settings.gpu_resources
        )
        return plugin_there and bool(positive(label)) and not self._mig_devices

    @property
    def _mig_devices(self) -> bool:
        """Return whether GPUs of the node are offered as MIG devices by resources of their own."""
        return any(name.startswith(_MIG_RESOURCE) and self.whole_units(name) for name in self._allocatable)

    def _is_nvidias(self, resource: str) -> bool:
        """Return whether a device plugin for NVIDIA's GPUs offers this resource, by any name."""
        return resource.startswith("nvidia.com/") or resource in self.settings.gpu_resources

    def missing_gpus(self, gpu_count: int, published: bool) -> int:
        """Return how many more GPUs the node has, by capacity or label, than it offers. `published`: a DRA
        driver may serve them, as whole GPUs or as parts."""
        if keys.SHARED_GPUS in self._allocatable or self._mig_devices:
            return 0
        stated_gpus = max((self.installed(name) for name in self.settings.gpu_resources), default=0)
        label = self.labels.get(keys.GPU_COUNT)
        no_plugin = not (gpu_count or published or any(map(self._is_nvidias, self._allocatable)))
        never = no_plugin and positive(label)
        if never:
            self.problems.append(f"{keys.GPU_COUNT} is {label!r}, but allocatable has no GPUs")
        if label is not None and (gpu_count or never or self._offers_none(label)):
            stated_gpus = max(stated_gpus, min(positive(label) or 0, MAX_GPUS))
        elif stated_gpus > gpu_count:
            self.problems.append(f"its capacity is {stated_gpus} GPUs, but allocatable has {gpu_count}")
        return max(0, min(stated_gpus, MAX_GPUS) - gpu_count)

    def topology(self, gpu_count: int, amd: bool) -> tuple[GpuTopology, tuple[int, ...]]:
        """Return the links, and the rails of network cards: by the matrix of the device plugin (annotation,
        then ConfigMap), else by labels.

        Labels do not replace a broken matrix, because it shows that the node has a device plugin which needs
        repair."""
        published = [fact for fact in self._facts if fact.speaks]
        text = self.annotations.get(keys.MATRIX)
        if text is not None and gpu_count:
            topology, rails, problems = matrices.topology(text, gpu_count, keys.MATRIX)
            self.problems.extend(problems)
            for fact in published:
                if fact.matrix is not None and _kinds(fact.matrix.of_node(gpu_count)[0]) != _kinds(topology):
                    self.problems.append(f"{fact.name} has another matrix than {keys.MATRIX}, which is used")
        elif published and gpu_count:
            topology, rails = self._published(published, gpu_count)
        else:
            return _of_labels(self, gpu_count, amd), ()
        _note_against(self, topology)
        return topology, rails

    def _published(self, facts: list[NodeFact], gpu_count: int) -> tuple[GpuTopology, tuple[int, ...]]:
        first, *more_facts = facts
        if more_facts:
            self.problems.append(f"{more_facts[0].name} speaks of the node too: {first.name} is used")
        if first.matrix is None:
            return GpuTopology.unknown(gpu_count), ()
        topology, problems = first.matrix.of_node(gpu_count)
        self.problems.extend(f"{first.name}: {problem}" for problem in problems)
        return topology, first.matrix.rails(gpu_count)

    def unhealthy(self, gpu_count: int) -> int:
        """Return the bit mask of GPUs on which no pod may be planned."""
        mask, gpus_there = self._published_unhealthy(gpu_count), (1 << gpu_count) - 1
        for fact in self._facts if gpu_count else ():
            self.problems.extend(fact.problems)
            if fact.unhealthy & ~gpus_there:
                gpu = next(bits(fact.unhealthy & ~gpus_there))
                self.problems.append(f"{fact.name} names GPU {gpu}, and the node has {gpu_count}")
            mask |= fact.unhealthy & gpus_there
        return mask

    def _published_unhealthy(self, gpu_count: int) -> int:
        """Return the bit mask of unhealthy GPUs that the node agent publishes."""
        key = keys.UNHEALTHY_GPUS
        mask, slips = mask_of_list(self.annotations.get(key, "")[:MAX_BYTES] if gpu_count else "", gpu_count)
        if slips:
            and_more = f" and {len(slips) - 1} more such" if len(slips) > 1 else ""
            expected = f"expected GPUs below {gpu_count} as in '0,2'"
            self.problems.append(f"{key} has {slips[0][:40]!r}{and_more} in it, {expected}")
        return mask

    def whole_units(self, resource: str) -> int:
        """Return the number of whole units of the resource. A part of a unit can't be given."""
        return min(quantities.MAX_AMOUNT, int(self.quantity(resource)))

    def allocatable(self) -> Resources:
        """Return the allocatable resources other than GPUs."""
        names = sorted(name for name in self._allocatable if self.settings.is_other(name))
        other_resources = tuple((name, amount) for name in names if (amount := self.whole_units(name)))
        cpu = quantities.milli(self.quantity("cpu"))
        return Resources(cpu, self.whole_units("memory"), self.whole_units("pods"), other_resources)

    def installed(self, resource: str) -> int:
        """Return the number of units, including broken units. A failed GPU is in capacity, but not in
        allocatable."""
        value = quantities.parse(self._capacity.get(resource, 0))
        return max(self.whole_units(resource), min(quantities.MAX_AMOUNT, int(value)) if value else 0)

    def quantity(self, resource: str) -> Fraction:
        text = self._allocatable.get(resource, 0)
        value = quantities.parse(text)
        if value is None or value < 0:
            problem = f"allocatable {resource} is {str(text)[:SHOWN]!r}"
            self.problems.append(f"{problem}, which is no quantity: it counts as 0")
            return Fraction(0)
        return value


def _kinds(topology: GpuTopology) -> list[list[str]]:
    return [[link.kind if link else "" for link in row] for row in topology.links]


def _served(node: _Reader, offered: frozenset[str]) -> frozenset[str]:
    """Return the GPU resources of a node's allocatable that may be planned there.

    A mode serves one kind of GPU resource. Without the label, or with an unknown mode, all are served.
    """
    key = keys.ACK_NODE_MODE
    mode = node.labels.get(key)
    if mode == "default":
        return offered - {ALIYUN_GPU, GPU_MEM}
    if mode == keys.ACK_TOPOLOGY:
        return offered & {ALIYUN_GPU}
    if mode in SHARING:
        return offered & {GPU_MEM}
    if mode == "disabled":
        return frozenset()
    if mode is not None:
        node.problems.append(
            f"the label {key} is {mode!r}; known are default, topology, share, cgpu and disabled: it is read "
            "as no label"
        )
    return offered


def _memory_by_gpu(node: _Reader, gpu_mem: int, gpu_count: int) -> tuple[int, ...]:
    """Return the GiB of each GPU of a node with `gpu_mem` GiB in all; () if that is 0."""
    if not gpu_mem:
        return ()
    if not gpu_count:
        node.problems.append(
            f"allocatable has {gpu_mem} {GPU_MEM}, but neither {keys.SHARED_GPUS} nor the "
            f"label {keys.GPU_COUNT} says of how many GPUs: nothing of it is served"
        )
        return ()
    share, remainder = divmod(gpu_mem, gpu_count)
    text = node.annotations.get(keys.MEMORY_BY_GPU)
    if text is not None:
        by_gpu = _listed(text)
        if len(by_gpu) == gpu_count and sum(by_gpu) == gpu_mem:
            return by_gpu
        example = ",".join(str(share + (gpu < remainder)) for gpu in range(min(gpu_count, 8)))
        node.problems.append(
            f"{keys.MEMORY_BY_GPU} is {text[:SHOWN]!r}, expected GiB of each of {gpu_count} GPUs, "
            f"{gpu_mem} in all, as in {example!r}: an even split is used"
        )
    if remainder:
        node.problems.append(
            f"{gpu_mem} GiB on {gpu_count} GPUs are not the same on each: {share} on each are used; the "
            f"annotation {keys.MEMORY_BY_GPU} can say more"
        )
    return (share,) * gpu_count if share else ()


def _note_missing(node: _Reader, units: int, by_gpu: tuple[int, ...], unhealthy: int) -> None:
    """Note a problem if allocatable has `units` less than capacity. Unhealthy GPUs account for their own.

    Other broken GPUs are unknown, so only kube-scheduler's sum of units keeps pods away from them.
    """
    broken = sum(units for gpu, units in enumerate(by_gpu) if unhealthy >> gpu & 1)
    if by_gpu and units > broken:
        node.problems.append(
            f"allocatable has {units} {GPU_MEM} less than capacity, {broken} of them on "
            "GPUs that are known to be unhealthy: which others are broken is not said"
        )


def _spreads(node: _Reader) -> bool:
    """Return whether a node's slices go to the GPU with the most free memory, and not the least."""
    placement = node.labels.get(keys.ACK_NODE_PLACEMENT, BINPACK)
    if placement not in (BINPACK, SPREAD):
        label = f"the label {keys.ACK_NODE_PLACEMENT} is {placement!r}"
        node.problems.append(f"{label}; known are {BINPACK} and {SPREAD}: it is read as {BINPACK}")
    return placement == SPREAD


def _cdi_devices(node: _Reader, gpu_count: int, resources: frozenset[str]) -> tuple[str, ...]:
    """Return the names of a node's CDI devices by GPU, () if the label `nri_nodes` asks for none."""
    label, uuids_key = node.settings.nri_nodes, keys.GPU_UUIDS
    key, _, value = label.partition("=")
    if not key or node.labels.get(key) != value:
        return ()
    asks = f"the label {label} asks for annotations of NVIDIA's NRI plugin"
    if FOLLOWED_RESOURCE not in resources:
        node.problems.append(f"{asks}, which are written for {FOLLOWED_RESOURCE} alone: the node offers none")
        return ()
    uuids = [uuid.strip() for uuid in node.annotations.get(uuids_key, "")[:MAX_BYTES].split(",")]
    if len(set(uuids)) != gpu_count or len(uuids) != gpu_count or not all(map(_UUID.fullmatch, uuids)):
        expected = f"the annotation {uuids_key} with {gpu_count} different uuids, as in GPU-1,GPU-2"
        node.problems.append(f"{asks}, which need {expected}: none are written")
        return ()
    return tuple(f"{CDI_KIND}={uuid}" for uuid in uuids)


def _listed(text: str) -> tuple[int, ...]:
    """Return the numbers in a list; () if an item is no number."""
    if len(text) > MAX_GPUS * 12:
        return ()
    numbers = tuple(natural(part.strip()) for part in text.split(","))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


LINKS_OF_VERSION = {"2": 6, "3": 12, "4": 18, "5": 18}
"""NVLink generation → links of one GPU: NVIDIA's table at https://www.nvidia.com/en-us/data-center/nvlink/
(2nd: V100, 6 links; 3rd: A100, 12; 4th: H100, 18; 5th: B200, 18); the same numbers as in the printouts of
`nvidia-smi topo -m` in local_cluster/topologies (dgx2 NV6, hgx-a100 NV12, hgx-h100 NV18, gb200 NV18)."""

VERSION_OF_PRODUCT = (
    ("V100", "2"),
    ("A100", "3"),
    ("A800", "3"),
    ("H100", "4"),
    ("H200", "4"),
    ("H800", "4"),
    ("H20", "4"),
    ("B200", "5"),
    ("B300", "5"),
)
"""Part of `nvidia.com/gpu.product` → NVLink generation; the first that occurs (GB200 has B200 in it)."""

SWITCHED_PRODUCTS = frozenset(
    {"A100-SXM4-40GB", "A100-SXM4-80GB", "H100-80GB-HBM3", "H200", "B200", "B300-SXM6-AC"}
)
"""Products of HGX boards with NVSwitch, without "NVIDIA-".

The boards are those of "Platform Support for NVIDIA NVSwitch" (docs/links.md has the address). The names are
in the README of NVIDIA/open-gpu-kernel-modules (595.45.04), with the hyphens of GPU feature discovery. PCIe
cards have other names (H100-PCIe, H100-NVL, H200-NVL). So have MIG devices and GPUs that several pods share:
it appends -MIG-… and -SHARED (internal/lm/resource.go of NVIDIA/k8s-device-plugin)."""
ALWAYS_LINKED = ("SXM", "GB200", "GB300")
"""Parts of the names of other boards whose GPUs are always joined with NVLink, in any shape."""
LINKED_PRODUCTS = frozenset({*SWITCHED_PRODUCTS, "H20", "H20-3e", "H800", "H100-64GB-HBM2", "H100-96GB-HBM3"})
"""Products that are always boards, though their names do not say so. Cards have -PCIe or -NVL in their names.
"""
NEVER_LINKED = frozenset(
    {"Tesla-T4", "T4", "A2", "A10", "A10G", "A16", "L2", "L4", "L20", "L40", "L40S", "L40G"}
)
"""Products that have no connector for NVLink, by their datasheets; without "NVIDIA-"."""
SWITCHED_BOARD = 8
"""Number of GPUs on these boards. Fewer GPUs may be on a board without a switch, or be a part of a board in a
virtual machine."""

FEWEST_BEHIND_A_SWITCH = 6
"""Number of links of the oldest generation with NVSwitch, for GPUs of an unknown model."""
LARGEST_WITHOUT_SWITCH = 4
"""Largest number of GPUs that are joined all to all without a switch, as on HGX A100 and H100 boards of four.
"""


_NO_NVLINK = "the matrix has no NVLink and is used; nvidia-smi topo -mp leaves NVLink out, and topo -m has it"

NVSWITCH, NVLINK, XGMI, PCIE = "nvswitch", "nvlink", "xgmi", "pcie"
INTERCONNECTS = (NVSWITCH, NVLINK, XGMI, PCIE)
"""The connection of a node's GPUs (of all of them, if no label says more): through switches, directly with
NVLink or xGMI, or only by PCIe."""


def _of_labels(node: _Reader, gpu_count: int, amd: bool) -> GpuTopology:
    """Return the topology by the labels; unknown if they state none.

    The first that is set counts: `gpu.topology/nvlink-domain`, `nvidia.com/gpu.clique` (both: all GPUs of the
    node are in one domain), the matrix (not here), `gpu.topology/nvlink-domain-size`,
    `nvidia.com/nvswitch.present`, `gpu.topology/interconnect`, `nvidia.com/gpu.product`. A label that
    contradicts it is a problem of the node. `topology.kubernetes.io/numa-node` puts all GPUs of the node into
    one NUMA node.
    """
    labels = node.labels
    joined_by = _interconnect(node) or _by_product(node, gpu_count)
    size, switched = _islands(node, gpu_count, joined_by)
    if (joined_by == PCIE and size not in (None, 1)) or (joined_by == NVSWITCH and not switched):
        contradiction = f"{keys.INTERCONNECT} is {joined_by}, but other labels say otherwise"
        node.problems.append(f"{contradiction}: they are used")
    # Nothing else is known about links between islands, so the slowest kind is assumed.
    outer_link = Link.of_kind("NODE" if labels.get(keys.NUMA_NODE) else "SYS")
    if size is None and outer_link.kind == "SYS" and joined_by == PCIE:
        outer_link = Link.of_kind("PCIE")
    if gpu_count < 2 or (size is None and outer_link.kind == "SYS"):
        return GpuTopology.unknown(gpu_count)
    if size is None:
        return GpuTopology.of_islands(gpu_count, 1, outer_link, outer_link)
    if amd or joined_by == XGMI:
        return GpuTopology.of_islands(gpu_count, size, Link.of_kind(XGMI.upper()), outer_link)
    behind_switch = switched or (size > LARGEST_WITHOUT_SWITCH and joined_by != NVLINK)
    inner_link = Link.of_kind(_kind(_generation(node, node.problems), size, behind_switch))
    return GpuTopology.of_islands(gpu_count, size, inner_link, outer_link)


def _note_against(node: _Reader, topology: GpuTopology) -> None:
    """Note a problem for each label that contradicts the matrix."""
    if not topology.is_known:
        return
    labels, problems = node.labels, node.problems
    islands = [island.bit_count() for island in topology.islands]
    shape = f"the matrix has NVLink islands of {', '.join(map(str, islands))} GPUs"
    ending = f"{shape}: the matrix is used" if topology.has_fabric else _NO_NVLINK
    domain = keys.NVLINK_DOMAIN if keys.NVLINK_DOMAIN in labels else keys.CLIQUE
    if domain in labels and len(islands) > 1:
        problems.append(f"{domain} puts all GPUs into one domain, but {shape}: the label decides the domain")
    size = labels.get(keys.NVLINK_DOMAIN_SIZE)
    if size is not None and set(islands) != {min(positive(size) or 0, topology.gpu_count)}:
        problems.append(f"{keys.NVLINK_DOMAIN_SIZE} is {size!r}, but {ending}")
    if labels.get(keys.NVSWITCH_PRESENT) == "true" and len(islands) > 1:
        problems.append(f"{keys.NVSWITCH_PRESENT} is true, but {ending}")
    joined_by = _interconnect(node)
    if joined_by and (joined_by == PCIE) == topology.has_fabric:
        problems.append(f"{keys.INTERCONNECT} is {joined_by}, but {ending}")
    kinds = {link.kind for row in topology.links for link in row if link is not None}
    problems += _against_product(node, topology.has_fabric, kinds)
    if labels.get(keys.NUMA_NODE) and "SYS" in kinds:
        problems.append(f"{keys.NUMA_NODE} names one, but the matrix has SYS links: the matrix is used")


def _against_product(node: _Reader, has_fabric: bool, kinds: Set[str]) -> Iterator[str]:
    """Yield the contradictions between a matrix with these links and the GPUs' product name or NVLink
    generation."""
    product = node.labels.get(keys.GPU_PRODUCT, "")
    name, label = product.removeprefix("NVIDIA-"), node.labels.get(keys.NVLINK_VERSION)
    if not has_fabric:
        linked = name in LINKED_PRODUCTS or any(part in name for part in ALWAYS_LINKED)
        if linked and not ("-MIG-" in name or name.endswith("-SHARED")):
            yield f"{keys.GPU_PRODUCT} is {product!r}, whose GPUs have NVLink, but {_NO_NVLINK}"
        elif label is not None:
            yield f"{keys.NVLINK_VERSION} is {label!r}, but {_NO_NVLINK}"
        return
    if name in NEVER_LINKED:
        yield f"{keys.GPU_PRODUCT} is {product!r}, which has no NVLink, but the matrix has: it is used"
    generation = _generation(node, [])
    max_links = max((int(kind[2:]) for kind in kinds if kind.startswith("NV")), default=0)
    if generation is not None and max_links > LINKS_OF_VERSION[generation]:
        by_labels = f"the GPUs have {LINKS_OF_VERSION[generation]} NVLinks by their labels"
        yield f"{by_labels}, but the matrix has NV{max_links}: the matrix is used"


def _interconnect(node: _Reader) -> str:
    """Return the word for the connection of the GPUs; "" if no label has one."""
    word = node.labels.get(keys.INTERCONNECT, "")
    if not word or word.lower() in INTERCONNECTS:
        return word.lower()
    label = f"{keys.INTERCONNECT} is {word!r}"
    node.problems.append(f"{label}, known are {', '.join(INTERCONNECTS)}: it is read as no label")
    return ""


def _by_product(node: _Reader, gpu_count: int) -> str:
    """Return NVSWITCH if the product implies it and no other label is about NVLink; else ""."""
    product = node.labels.get(keys.GPU_PRODUCT, "").removeprefix("NVIDIA-")
    board = positive(node.labels.get(keys.GPU_COUNT)) or gpu_count
    implied = product in SWITCHED_PRODUCTS and board == SWITCHED_BOARD and gpu_count <= board
    domains = {
        keys.NVLINK_DOMAIN,
        keys.CLIQUE,
        keys.NVLINK_DOMAIN_SIZE,
        keys.NVSWITCH_PRESENT,
    }
    return NVSWITCH if implied and domains.isdisjoint(node.labels) else ""


def _islands(node: _Reader, gpu_count: int, joined_by: str) -> tuple[int | None, bool]:
    """Return the number of GPUs of one island (None if unknown), and whether a switch joins them."""
    labels = node.labels
    present = labels.get(keys.NVSWITCH_PRESENT)
    switched = present == "true" if present is not None else joined_by == NVSWITCH
    if labels.get(keys.NVLINK_DOMAIN) or labels.get(keys.CLIQUE):
        return gpu_count, True
    text = labels.get(keys.NVLINK_DOMAIN_SIZE)
    if text is None:
        return (gpu_count if switched or joined_by in (NVLINK, XGMI) else None), switched
    size, label = positive(text), f"{keys.NVLINK_DOMAIN_SIZE} is {text!r}"
    if size is None:
        node.problems.append(f"{label}, expected a positive number of GPUs: it is read as no label")
        return (gpu_count if switched else None), switched
    # A domain may be wider than the node (an NVL72 tray has 4 of 72).
    size = min(size, gpu_count)
    if size and gpu_count % size:
        ending = "the node is used without topology"
        node.problems.append(f"{label}, which does not divide the node's {gpu_count} GPUs; {ending}")
        return None, False
    return size, switched


def _generation(node: _Reader, problems: list[str]) -> str | None:
    """Return the NVLink generation: by its own label, else by the product's name."""
    key, product = keys.NVLINK_VERSION, node.labels.get(keys.GPU_PRODUCT, "")
    label = node.labels.get(key)
    of_product = next((version for part, version in VERSION_OF_PRODUCT if part in product.upper()), None)
    generation = of_product if label is None else label.split(".")[0]
    if generation is not None and generation not in LINKS_OF_VERSION:
        problems.append(f"{key} is {label!r}, known are {', '.join(LINKS_OF_VERSION)}: it is not read")
        return of_product
    if of_product is not None and of_product != generation:
        problems.append(f"{key} is {label!r}, but {product} has NVLink {of_product}: the version is used")
    return generation


def _kind(version: str | None, size: int, switched: bool) -> str:
    """Return the link inside an island: behind a switch all links of the GPU reach every other; else its
    peers share them (HGX boards of four: A100 NV4, H100 NV6; a bridged pair of A100: NV12)."""
    if version is None:
        return f"NV{FEWEST_BEHIND_A_SWITCH if switched else 1}"
    links = LINKS_OF_VERSION[version]
    return f"NV{links if switched else max(1, links // max(1, size - 1))}"
