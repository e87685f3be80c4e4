"""Topology from node labels alone, where no matrix is published: islands of GPUs, their links' generation.

First that speaks wins: `gpu.topology/nvlink-domain`, `nvidia.com/gpu.clique` (both: all GPUs of the node are
in one domain), the matrix (not here: `gputopology`), `gpu.topology/nvlink-domain-size`,
`nvidia.com/nvswitch.present`, `gpu.topology/interconnect`, `nvidia.com/gpu.product`. What a label says
against the one that won is a problem of the node. `topology.kubernetes.io/numa-node` puts all GPUs of the
node into one NUMA node.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from muster.dialects import keys
from muster.dialects.nodes.bounds import NodeKeys
from muster.dialects.reading import positive
from muster.domain.topology import GpuTopology, Link

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
"""Parts of the names of other boards whose GPUs are always joined with NVLink, in whatever shape."""
LINKED_PRODUCTS = frozenset({*SWITCHED_PRODUCTS, "H20", "H20-3e", "H800", "H100-64GB-HBM2", "H100-96GB-HBM3"})
"""Products of boards alone, whose names do not say so: their cards have -PCIe or -NVL."""
NEVER_LINKED = frozenset(
    {"Tesla-T4", "T4", "A2", "A10", "A10G", "A16", "L2", "L4", "L20", "L40", "L40S", "L40G"}
)
"""Products that have no connector for NVLink, by their datasheets; without "NVIDIA-"."""
SWITCHED_BOARD = 8
"""GPUs of these boards. Fewer may be on a board without a switch, or a part of one in a virtual machine."""

FEWEST_BEHIND_A_SWITCH = 6
"""The links of the oldest generation that has NVSwitch, for GPUs with an unknown model."""
LARGEST_WITHOUT_SWITCH = 4
"""GPUs that are joined all to all without a switch, at most: HGX A100 and H100 boards of four."""


_NO_NVLINK = "the matrix has no NVLink and is used; nvidia-smi topo -mp leaves NVLink out, and topo -m has it"

NVSWITCH, NVLINK, XGMI, PCIE = "nvswitch", "nvlink", "xgmi", "pcie"
INTERCONNECTS = (NVSWITCH, NVLINK, XGMI, PCIE)
"""What joins the GPUs of a node, all of them where no label says more: through switches, directly with NVLink
or xGMI, or nothing but PCIe."""


def of_labels(node: NodeKeys, gpu_count: int, amd: bool) -> GpuTopology:
    """Return the topology that the labels tell of, unknown if they tell nothing."""
    labels = node.labels
    joined_by = _interconnect(node) or _by_product(node, gpu_count)
    size, switched = _islands(node, gpu_count, joined_by)
    if (joined_by == PCIE and size not in (None, 1)) or (joined_by == NVSWITCH and not switched):
        contradiction = f"{keys.INTERCONNECT} is {joined_by}, but other labels say otherwise"
        node.problems.append(f"{contradiction}: they are used")
    # Between islands nothing is known but that; the slowest kind promises nothing.
    between = Link.of_kind("NODE" if labels.get(keys.NUMA_NODE) else "SYS")
    if size is None and between.kind == "SYS" and joined_by == PCIE:
        between = Link.of_kind("PCIE")
    if gpu_count < 2 or (size is None and between.kind == "SYS"):
        return GpuTopology.unknown(gpu_count)
    if size is None:
        return GpuTopology.of_islands(gpu_count, 1, between, between)
    if amd or joined_by == XGMI:
        return GpuTopology.of_islands(gpu_count, size, Link.of_kind(XGMI.upper()), between)
    behind_switch = switched or (size > LARGEST_WITHOUT_SWITCH and joined_by != NVLINK)
    inside = Link.of_kind(_kind(_generation(node, node.problems), size, behind_switch))
    return GpuTopology.of_islands(gpu_count, size, inside, between)


def note_against(node: NodeKeys, topology: GpuTopology) -> None:
    """Note what the labels say against a matrix that was read."""
    if not topology.known:
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


def _against_product(node: NodeKeys, has_fabric: bool, kinds: Set[str]) -> Iterator[str]:
    """Yield what the name of the GPUs, or their NVLink generation, says against a matrix with these links."""
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
    most = max((int(kind[2:]) for kind in kinds if kind.startswith("NV")), default=0)
    if generation is not None and most > LINKS_OF_VERSION[generation]:
        by_labels = f"the GPUs have {LINKS_OF_VERSION[generation]} NVLinks by their labels"
        yield f"{by_labels}, but the matrix has NV{most}: the matrix is used"


def _interconnect(node: NodeKeys) -> str:
    """Return the word for what joins the GPUs, "" if no word can be read."""
    word = node.labels.get(keys.INTERCONNECT, "")
    if not word or word.lower() in INTERCONNECTS:
        return word.lower()
    label = f"{keys.INTERCONNECT} is {word!r}"
    node.problems.append(f"{label}, known are {', '.join(INTERCONNECTS)}: it is read as no label")
    return ""


def _by_product(node: NodeKeys, gpu_count: int) -> str:
    """Return NVSWITCH if the product implies it and no other label speaks of NVLink; else ""."""
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


def _islands(node: NodeKeys, gpu_count: int, joined_by: str) -> tuple[int | None, bool]:
    """Return the GPUs of one island, None if unknown, and whether a switch joins them."""
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


def _generation(node: NodeKeys, problems: list[str]) -> str | None:
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
