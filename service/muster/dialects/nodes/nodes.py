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
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from muster.dialects import keys, quantities
from muster.dialects.devices import compute_domains, offers
from muster.dialects.devices.offers import NodeOffer
from muster.dialects.nodes import bounds, matrices, products
from muster.dialects.nodes.configmaps import NodeFact
from muster.dialects.objects import NodeObject
from muster.dialects.reading import NAME_PATTERN, SHOWN, mask_of_list, natural, positive
from muster.dialects.settings import ALIYUN_GPU, DEFAULTS, DialectSettings
from muster.domain.allocation import CDI_KIND, FOLLOWED_RESOURCE, MAX_BYTES, MAX_GPUS, SECOND_RESOURCE
from muster.domain.node import GPU_MEM, Device, HandsOut, Node, Resources, Taint
from muster.domain.topology import GpuTopology, Link, bits, mask_of

NO_OFFER = NodeOffer()
_PARTIAL_GPU = re.compile("-MIG-|-SHARED$")
"""Part of the product's name if the device plugin offers MIG devices as GPUs, or each GPU several times."""
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_MIG_RESOURCE = "nvidia.com/mig-"
SHARING_MODES = ("share", "cgpu")
"""Modes without and with isolation of memory. The planner treats them alike."""
AGENT_MODES = (keys.ACK_TOPOLOGY, *SHARING_MODES)
"""Modes in which a node agent offers the GPUs itself."""
BINPACK, SPREAD = "binpack", "spread"
NVSWITCH, NVLINK, XGMI, PCIE = "nvswitch", "nvlink", "xgmi", "pcie"
INTERCONNECTS = (NVSWITCH, NVLINK, XGMI, PCIE)
"""What joins a node's GPUs: switches, direct NVLinks or xGMI, or only PCIe."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def read(
    obj: NodeObject,
    settings: DialectSettings = DEFAULTS,
    facts: Iterable[NodeFact] = (),
    offer: NodeOffer = NO_OFFER,
    *,
    agent: bool = False,
) -> Node:
    """Return the facts of one node. `facts`: facts from ConfigMaps, in any order. `offer`: the GPUs that its
    ResourceSlices offer. `agent`: a node agent is ready there."""
    obj, left_out = bounds.cut_to_limits(obj, settings)
    reader = _NodeReader(obj, settings, facts, left_out)
    memory = reader.whole_units(GPU_MEM)
    installed = reader.installed_units(GPU_MEM) if memory else 0
    counts = reader.gpu_counts()
    devices, tainted = reader.devices(offer, counts, memory)
    counts |= dict.fromkeys(offer.resources, len(devices)) if devices else {}
    gpu_count = reader.gpu_count(counts, memory)
    topology, rails_of_cards = reader.topology(gpu_count, amd=set(counts) == {"amd.com/gpu"})
    offered = frozenset(counts) - {keys.SHARED_GPUS} | ({GPU_MEM} if memory else set())
    served = _served_resources(reader, offered)
    shared = installed if GPU_MEM in served else 0
    by_gpu = _read_memory_by_gpu(reader, shared, gpu_count)
    if devices and offer.memory_name:
        by_gpu, served = offer.memory(devices), reader.whole_gpu_resources(offer, served)
    broken = reader.unhealthy(gpu_count)
    unhealthy = broken | tainted
    groups = offers.groups(offer, devices) if devices else {}
    cdi = _read_cdi_devices(reader, gpu_count, served)
    _note_lost_memory(reader, installed - memory, by_gpu, unhealthy)
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
        spreads_slices=_read_placement(reader),
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
        offers_parts=bool(_PARTIAL_GPU.search(reader.labels.get(keys.GPU_PRODUCT, ""))),
        hands_out=HandsOut.NRI if cdi else reader.hands_out(served, bool(devices), agent),
        rails=rails_of_cards or _rails_of_roots(groups.get(_PCIE_ROOT, ()), gpu_count),
        problems=bounds.first_problems(reader.problems),
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
    """Return the node with only the annotations that are read, because annotations may have a megabyte."""
    read_keys = {keys.MATRIX, keys.MACHINE, keys.MEMORY_BY_GPU, keys.GPU_UUIDS, keys.UNHEALTHY_GPUS}
    annotations = obj.metadata.annotations or {}
    texts = {key: text[: bounds.MAX_TEXT + 1] for key, text in annotations.items() if key in read_keys}
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, annotations=texts))


class _NodeReader:
    """Reads one node. `problems` gets sentences about contradictions, and about values that can't be read."""

    def __init__(
        self, obj: NodeObject, settings: DialectSettings, facts: Iterable[NodeFact], problems: list[str]
    ) -> None:
        self.labels, self.annotations = obj.metadata.labels or {}, obj.metadata.annotations or {}
        self.settings, self.problems = settings, problems
        self._allocatable = obj.status.allocatable or {}
        self._capacity = obj.status.capacity or {}
        self._facts = sorted(facts, key=lambda fact: fact.name)

    @property
    def machine(self) -> str:
        """Return the machine's type as the device plugin names it, else as the cloud does; "" for no valid
        name."""
        machine_name = self.annotations.get(keys.MACHINE) or self.labels.get(keys.INSTANCE_TYPE)
        return machine_name if machine_name and NAME_PATTERN.fullmatch(machine_name) else ""

    def gpu_counts(self) -> dict[str, int]:
        """Return the number of GPUs by resource. If there are two resources, both count the same GPUs."""
        count_of = {name: self.whole_units(name) for name in self.settings.gpu_resources}
        shared = keys.SHARED_GPUS
        count_of[shared] = self.installed_units(shared) if self.whole_units(shared) else 0
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
        devices, tainted, problems = offers.number_gpus(offer, self.annotations.get(key), key)
        self.problems.extend(problems)
        return devices, tainted

    def whole_gpu_resources(self, offer: NodeOffer, served: frozenset[str]) -> frozenset[str]:
        """Return the resources of `served` for which pods get whole GPUs, where claims share the GPUs."""
        if offer.takes_whole_devices:
            return served
        problem = f"a request without capacity takes a part of a GPU's {offer.memory_name} there"
        self.problems.append(f"{problem} (requestPolicy.default): no whole GPUs are planned")
        return served - offer.resources

    def hands_out(self, served: frozenset[str], devices: bool, agent: bool) -> HandsOut:
        """Return the component that decides which GPUs a container gets. `served`: the resources of GPUs;
        `devices`: a DRA driver serves the GPUs; `agent`: a node agent is ready.

        An agent that offers GPUs itself publishes a list of the GPUs. Without the list, another device plugin
        serves the GPUs.
        """
        second = self._asks_for_second_endpoint(agent)
        if devices:
            return HandsOut.DRA
        if second and SECOND_RESOURCE in served:
            return HandsOut.SECOND_ENDPOINT if agent else HandsOut.AGENT_AWAY
        if not served & {FOLLOWED_RESOURCE, GPU_MEM}:
            return HandsOut.OWN_CHOICE
        listed = bool(self.annotations.get(keys.GPU_UUIDS))
        if second or not listed or self.labels.get(keys.ACK_NODE_MODE) not in AGENT_MODES:
            return HandsOut.READS_ANNOTATIONS
        return HandsOut.AGENT if agent else HandsOut.AGENT_AWAY

    def _asks_for_second_endpoint(self, agent: bool) -> bool:
        """Return whether the label wants a node agent as second endpoint next to NVIDIA's device plugin."""
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
        """Read the number of the node's GPUs: from the label if allocatable has only their `memory`.

        Allocatable counts only healthy GPUs. If a node agent lists all GPUs, its list counts.
        """
        uuids = self.annotations.get(keys.GPU_UUIDS, "")[:MAX_BYTES]
        gpus = min(uuids.count(",") + 1, MAX_GPUS) if uuids else 0
        mode = self.labels.get(keys.ACK_NODE_MODE)
        if gpus and not (counts or memory) and mode in AGENT_MODES:
            self.problems.append(
                f"the node agent lists {gpus} GPUs, and the kubelet offers none of them: does the agent run?"
            )
        if gpus and counts:
            return gpus
        label = self.labels.get(keys.GPU_COUNT)
        count = max(counts.values(), default=(positive(label) or 0) if memory else 0)
        if len(set(counts.values())) > 1:
            numbers = ", ".join(f"{resource} {number}" for resource, number in sorted(counts.items()))
            self.problems.append(f"allocatable counts its GPUs differently: {numbers}; the largest is used")
        if label not in (None, str(count)) and (count or self._offers_none(label)):
            self.problems.append(f"{keys.GPU_COUNT} is {label!r}, but allocatable has {count} GPUs")
        if count > MAX_GPUS:
            self.problems.append(f"allocatable has {count} GPUs; {MAX_GPUS} of them are used")
        return min(count, MAX_GPUS)

    def _offers_none(self, label: str) -> bool:
        """Return whether a device plugin is there, and offers none of the GPUs that the label counts."""
        plugin_there = any(
            self.installed_units(name) or name in self._allocatable for name in self.settings.gpu_resources
        )
        return plugin_there and bool(positive(label)) and not self._has_mig_resources

    @property
    def _has_mig_resources(self) -> bool:
        """Return whether the node offers MIG devices by resources of their own."""
        return any(name.startswith(_MIG_RESOURCE) and self.whole_units(name) for name in self._allocatable)

    def _is_nvidias(self, resource: str) -> bool:
        """Return whether a device plugin for NVIDIA's GPUs offers this resource, by any name."""
        return resource.startswith("nvidia.com/") or resource in self.settings.gpu_resources

    def missing_gpus(self, gpu_count: int, published: bool) -> int:
        """Read how many more GPUs the node has, by capacity or label, than it offers. `published`: a DRA
        driver may serve these GPUs, whole or in parts."""
        if keys.SHARED_GPUS in self._allocatable or self._has_mig_resources:
            return 0
        stated_gpus = max((self.installed_units(name) for name in self.settings.gpu_resources), default=0)
        label = self.labels.get(keys.GPU_COUNT)
        no_plugin = not (gpu_count or published or any(map(self._is_nvidias, self._allocatable)))
        is_label_alone = no_plugin and positive(label)
        if is_label_alone:
            self.problems.append(f"{keys.GPU_COUNT} is {label!r}, but allocatable has no GPUs")
        if label is not None and (gpu_count or is_label_alone or self._offers_none(label)):
            stated_gpus = max(stated_gpus, min(positive(label) or 0, MAX_GPUS))
        elif stated_gpus > gpu_count:
            self.problems.append(f"its capacity is {stated_gpus} GPUs, but allocatable has {gpu_count}")
        return max(0, min(stated_gpus, MAX_GPUS) - gpu_count)

    def topology(self, gpu_count: int, amd: bool) -> tuple[GpuTopology, tuple[int, ...]]:
        """Read the links of the GPUs, and the rails of their network cards. The matrix of the device plugin
        counts (annotation, then ConfigMap), else the labels.

        Labels do not replace a broken matrix: it shows that the device plugin needs repair.
        """
        config_maps = [fact for fact in self._facts if fact.has_matrix]
        text = self.annotations.get(keys.MATRIX)
        if text is not None and gpu_count:
            topology, rails, problems = matrices.topology(text, gpu_count, keys.MATRIX)
            self.problems.extend(problems)
            kinds = _kinds_of_links(topology)
            for fact in config_maps:
                if fact.matrix is not None and _kinds_of_links(fact.matrix.of_node(gpu_count)[0]) != kinds:
                    self.problems.append(f"{fact.name} has another matrix than {keys.MATRIX}, which is used")
        elif config_maps and gpu_count:
            topology, rails = self._topology_of_config_maps(config_maps, gpu_count)
        else:
            return _topology_by_labels(self, gpu_count, amd), ()
        _note_contradictions(self, topology)
        return topology, rails

    def _topology_of_config_maps(
        self, facts: list[NodeFact], gpu_count: int
    ) -> tuple[GpuTopology, tuple[int, ...]]:
        first, *more_facts = facts
        if more_facts:
            self.problems.append(f"{more_facts[0].name} speaks of the node too: {first.name} is used")
        if first.matrix is None:
            return GpuTopology.unknown(gpu_count), ()
        topology, problems = first.matrix.of_node(gpu_count)
        self.problems.extend(f"{first.name}: {problem}" for problem in problems)
        return topology, first.matrix.rails(gpu_count)

    def unhealthy(self, gpu_count: int) -> int:
        """Read the bit mask of GPUs on which no pod may be planned."""
        mask, gpus_there = self._unhealthy_by_agent(gpu_count), (1 << gpu_count) - 1
        for fact in self._facts if gpu_count else ():
            self.problems.extend(fact.problems)
            if fact.unhealthy & ~gpus_there:
                gpu = next(bits(fact.unhealthy & ~gpus_there))
                self.problems.append(f"{fact.name} names GPU {gpu}, and the node has {gpu_count}")
            mask |= fact.unhealthy & gpus_there
        return mask

    def _unhealthy_by_agent(self, gpu_count: int) -> int:
        """Read the bit mask of unhealthy GPUs that the node agent publishes."""
        key = keys.UNHEALTHY_GPUS
        mask, slips = mask_of_list(self.annotations.get(key, "")[:MAX_BYTES] if gpu_count else "", gpu_count)
        if slips:
            and_more = f" and {len(slips) - 1} more such" if len(slips) > 1 else ""
            expected = f"expected GPUs below {gpu_count} as in '0,2'"
            self.problems.append(f"{key} has {slips[0][:40]!r}{and_more} in it, {expected}")
        return mask

    def whole_units(self, resource: str) -> int:
        """Return the whole units of the resource in allocatable. A part of a unit can't be given."""
        return min(quantities.MAX_AMOUNT, int(self.quantity(resource)))

    def allocatable(self) -> Resources:
        """Return the allocatable resources other than GPUs."""
        names = sorted(name for name in self._allocatable if self.settings.is_other(name))
        other_resources = tuple((name, amount) for name in names if (amount := self.whole_units(name)))
        cpu = quantities.milli(self.quantity("cpu"))
        return Resources(cpu, self.whole_units("memory"), self.whole_units("pods"), other_resources)

    def installed_units(self, resource: str) -> int:
        """Return the number of units in capacity, where failed GPUs still count."""
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


def _kinds_of_links(topology: GpuTopology) -> list[list[str]]:
    return [[link.kind if link else "" for link in row] for row in topology.links]


def _served_resources(reader: _NodeReader, offered: frozenset[str]) -> frozenset[str]:
    """Read the node's mode, and return the offered GPU resources that may be planned.

    A mode serves one kind of GPU resource. Without the label, or with an unknown mode, all are served.
    """
    key = keys.ACK_NODE_MODE
    mode = reader.labels.get(key)
    if mode == "default":
        return offered - {ALIYUN_GPU, GPU_MEM}
    if mode == keys.ACK_TOPOLOGY:
        return offered & {ALIYUN_GPU}
    if mode in SHARING_MODES:
        return offered & {GPU_MEM}
    if mode == "disabled":
        return frozenset()
    if mode is not None:
        reader.problems.append(
            f"the label {key} is {mode!r}; known are default, topology, share, cgpu and disabled: it is read "
            "as no label"
        )
    return offered


def _read_memory_by_gpu(reader: _NodeReader, gpu_mem: int, gpu_count: int) -> tuple[int, ...]:
    """Read the GiB of each GPU of a node with `gpu_mem` GiB in all; () if `gpu_mem` is 0."""
    if not gpu_mem:
        return ()
    if not gpu_count:
        reader.problems.append(
            f"allocatable has {gpu_mem} {GPU_MEM}, but neither {keys.SHARED_GPUS} nor the "
            f"label {keys.GPU_COUNT} says of how many GPUs: nothing of it is served"
        )
        return ()
    share, remainder = divmod(gpu_mem, gpu_count)
    text = reader.annotations.get(keys.MEMORY_BY_GPU)
    if text is not None:
        by_gpu = _numbers_in(text)
        if len(by_gpu) == gpu_count and sum(by_gpu) == gpu_mem:
            return by_gpu
        example = ",".join(str(share + (gpu < remainder)) for gpu in range(min(gpu_count, 8)))
        reader.problems.append(
            f"{keys.MEMORY_BY_GPU} is {text[:SHOWN]!r}, expected GiB of each of {gpu_count} GPUs, "
            f"{gpu_mem} in all, as in {example!r}: an even split is used"
        )
    if remainder:
        reader.problems.append(
            f"{gpu_mem} GiB on {gpu_count} GPUs are not the same on each: {share} on each are used; the "
            f"annotation {keys.MEMORY_BY_GPU} can say more"
        )
    return (share,) * gpu_count if share else ()


def _note_lost_memory(reader: _NodeReader, units: int, by_gpu: tuple[int, ...], unhealthy: int) -> None:
    """Note a problem if allocatable has `units` less than capacity, and unhealthy GPUs do not explain them
    all.

    Other broken GPUs are unknown, so only kube-scheduler's sum of units keeps pods away from them.
    """
    broken = sum(units for gpu, units in enumerate(by_gpu) if unhealthy >> gpu & 1)
    if by_gpu and units > broken:
        reader.problems.append(
            f"allocatable has {units} {GPU_MEM} less than capacity, {broken} of them on "
            "GPUs that are known to be unhealthy: which others are broken is not said"
        )


def _read_placement(reader: _NodeReader) -> bool:
    """Read whether slices go to the GPU with the most free memory. Otherwise they go to the fullest GPU."""
    placement = reader.labels.get(keys.ACK_NODE_PLACEMENT, BINPACK)
    if placement not in (BINPACK, SPREAD):
        label = f"the label {keys.ACK_NODE_PLACEMENT} is {placement!r}"
        reader.problems.append(f"{label}; known are {BINPACK} and {SPREAD}: it is read as {BINPACK}")
    return placement == SPREAD


def _read_cdi_devices(reader: _NodeReader, gpu_count: int, resources: frozenset[str]) -> tuple[str, ...]:
    """Read the names of the node's CDI devices by GPU; () without the label of the setting `nri_nodes`."""
    label, uuids_key = reader.settings.nri_nodes, keys.GPU_UUIDS
    key, _, value = label.partition("=")
    if not key or reader.labels.get(key) != value:
        return ()
    asks = f"the label {label} asks for annotations of NVIDIA's NRI plugin"
    if FOLLOWED_RESOURCE not in resources:
        reader.problems.append(
            f"{asks}, which are written for {FOLLOWED_RESOURCE} alone: the node offers none"
        )
        return ()
    uuids = [uuid.strip() for uuid in reader.annotations.get(uuids_key, "")[:MAX_BYTES].split(",")]
    if len(set(uuids)) != gpu_count or len(uuids) != gpu_count or not all(map(_UUID.fullmatch, uuids)):
        expected = f"the annotation {uuids_key} with {gpu_count} different uuids, as in GPU-1,GPU-2"
        reader.problems.append(f"{asks}, which need {expected}: none are written")
        return ()
    return tuple(f"{CDI_KIND}={uuid}" for uuid in uuids)


def _numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as "16,8"; () if an item is no number."""
    if len(text) > MAX_GPUS * 12:
        return ()
    numbers = tuple(natural(part.strip()) for part in text.split(","))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


def _topology_by_labels(reader: _NodeReader, gpu_count: int, amd: bool) -> GpuTopology:
    """Read the topology from labels; it is unknown if no label is about links.

    The first of these labels counts: `gpu.topology/nvlink-domain`, `nvidia.com/gpu.clique` (both put all GPUs
    of the node into one domain), `gpu.topology/nvlink-domain-size`, `nvidia.com/nvswitch.present`,
    `gpu.topology/interconnect`, `nvidia.com/gpu.product`. A later label that contradicts it is a problem.
    `topology.kubernetes.io/numa-node` puts all GPUs of the node into one NUMA node.
    """
    labels = reader.labels
    joined_by = _read_interconnect(reader) or (NVSWITCH if products.implies_switch(labels, gpu_count) else "")
    size, switched = _read_island_size(reader, gpu_count, joined_by)
    if (joined_by == PCIE and size not in (None, 1)) or (joined_by == NVSWITCH and not switched):
        contradiction = f"{keys.INTERCONNECT} is {joined_by}, but other labels say otherwise"
        reader.problems.append(f"{contradiction}: they are used")
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
    behind_switch = switched or (size > products.LARGEST_WITHOUT_SWITCH and joined_by != NVLINK)
    generation = products.read_generation(labels, reader.problems)
    inner_link = Link.of_kind(products.kind_in_island(generation, size, behind_switch))
    return GpuTopology.of_islands(gpu_count, size, inner_link, outer_link)


def _note_contradictions(reader: _NodeReader, topology: GpuTopology) -> None:
    """Note a problem for each label that contradicts the matrix."""
    if not topology.is_known:
        return
    labels, problems = reader.labels, reader.problems
    islands = [island.bit_count() for island in topology.islands]
    shape = f"the matrix has NVLink islands of {', '.join(map(str, islands))} GPUs"
    ending = f"{shape}: the matrix is used" if topology.has_fabric else products.NO_NVLINK
    domain = keys.NVLINK_DOMAIN if keys.NVLINK_DOMAIN in labels else keys.CLIQUE
    if domain in labels and len(islands) > 1:
        problems.append(f"{domain} puts all GPUs into one domain, but {shape}: the label decides the domain")
    size = labels.get(keys.NVLINK_DOMAIN_SIZE)
    if size is not None and set(islands) != {min(positive(size) or 0, topology.gpu_count)}:
        problems.append(f"{keys.NVLINK_DOMAIN_SIZE} is {size!r}, but {ending}")
    if labels.get(keys.NVSWITCH_PRESENT) == "true" and len(islands) > 1:
        problems.append(f"{keys.NVSWITCH_PRESENT} is true, but {ending}")
    joined_by = _read_interconnect(reader)
    if joined_by and (joined_by == PCIE) == topology.has_fabric:
        problems.append(f"{keys.INTERCONNECT} is {joined_by}, but {ending}")
    kinds = {link.kind for row in topology.links for link in row if link is not None}
    problems += products.contradictions(labels, topology.has_fabric, kinds)
    if labels.get(keys.NUMA_NODE) and "SYS" in kinds:
        problems.append(f"{keys.NUMA_NODE} names one, but the matrix has SYS links: the matrix is used")


def _read_interconnect(reader: _NodeReader) -> str:
    """Read the word for what joins the GPUs, one of `INTERCONNECTS`; "" without a usable label."""
    word = reader.labels.get(keys.INTERCONNECT, "")
    if not word or word.lower() in INTERCONNECTS:
        return word.lower()
    label = f"{keys.INTERCONNECT} is {word!r}"
    reader.problems.append(f"{label}, known are {', '.join(INTERCONNECTS)}: it is read as no label")
    return ""


def _read_island_size(reader: _NodeReader, gpu_count: int, joined_by: str) -> tuple[int | None, bool]:
    """Read the number of GPUs of an NVLink island (None if unknown), and whether a switch joins them."""
    labels = reader.labels
    label = labels.get(keys.NVSWITCH_PRESENT)
    switched = label == "true" if label is not None else joined_by == NVSWITCH
    if labels.get(keys.NVLINK_DOMAIN) or labels.get(keys.CLIQUE):
        return gpu_count, True
    text = labels.get(keys.NVLINK_DOMAIN_SIZE)
    if text is None:
        return (gpu_count if switched or joined_by in (NVLINK, XGMI) else None), switched
    size, label_is = positive(text), f"{keys.NVLINK_DOMAIN_SIZE} is {text!r}"
    if size is None:
        reader.problems.append(f"{label_is}, expected a positive number of GPUs: it is read as no label")
        return (gpu_count if switched else None), switched
    # A domain may be wider than the node (an NVL72 tray has 4 of 72).
    size = min(size, gpu_count)
    if size and gpu_count % size:
        ending = "the node is used without topology"
        reader.problems.append(f"{label_is}, which does not divide the node's {gpu_count} GPUs; {ending}")
        return None, False
    return size, switched
