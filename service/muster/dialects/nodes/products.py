"""The links of GPUs that follow from the name of their product, and from their NVLink generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from muster.dialects import keys
from muster.dialects.reading import positive

LINKS_BY_GENERATION = {"2": 6, "3": 12, "4": 18, "5": 18}
"""NVLink generation → links of one GPU: NVIDIA's table at https://www.nvidia.com/en-us/data-center/nvlink/
(2nd: V100, 6 links; 3rd: A100, 12; 4th: H100, 18; 5th: B200, 18); the same numbers as in the printouts of
`nvidia-smi topo -m` in local_cluster/topologies (dgx2 NV6, hgx-a100 NV12, hgx-h100 NV18, gb200 NV18)."""

GENERATION_BY_PRODUCT = (
    ("V100", "2"), ("A100", "3"), ("A800", "3"), ("H100", "4"), ("H200", "4"), ("H800", "4"), ("H20", "4"),
    ("B200", "5"), ("B300", "5"),
)  # fmt: skip
"""Part of `nvidia.com/gpu.product` → NVLink generation; the first that occurs (GB200 has B200 in it)."""

SWITCHED_PRODUCTS = frozenset(
    {"A100-SXM4-40GB", "A100-SXM4-80GB", "H100-80GB-HBM3", "H200", "B200", "B300-SXM6-AC"}
)
"""Products of HGX boards with NVSwitch, without "NVIDIA-".

The boards are those of "Platform Support for NVIDIA NVSwitch" (docs/links.md has the address). The names are
in the README of NVIDIA/open-gpu-kernel-modules (595.45.04), with the hyphens of GPU feature discovery. PCIe
cards have other names (H100-PCIe, H100-NVL, H200-NVL). So have MIG devices and GPUs that several pods share:
the discovery appends -MIG-… and -SHARED (internal/lm/resource.go of NVIDIA/k8s-device-plugin)."""
ALWAYS_LINKED = ("SXM", "GB200", "GB300")
"""Parts of the names of other boards whose GPUs are always joined with NVLink, in any shape."""
LINKED_PRODUCTS = frozenset({*SWITCHED_PRODUCTS, "H20", "H20-3e", "H800", "H100-64GB-HBM2", "H100-96GB-HBM3"})
"""Products that are always boards, though their names do not say so: cards have -PCIe or -NVL in the name."""
NEVER_LINKED = frozenset(
    {"Tesla-T4", "T4", "A2", "A10", "A10G", "A16", "L2", "L4", "L20", "L40", "L40S", "L40G"}
)
"""Products that have no connector for NVLink, by their datasheets; without "NVIDIA-"."""
SWITCHED_BOARD = 8
"""Number of GPUs on a board with NVSwitch. Fewer GPUs may be a part of a board, in a virtual machine, or may
be on a board without a switch."""

FEWEST_BEHIND_A_SWITCH = 6
"""Number of links of the oldest generation with NVSwitch, for GPUs of an unknown model."""
LARGEST_WITHOUT_SWITCH = 4
"""Largest number of GPUs that are joined all to all without a switch, as on HGX A100 and H100 boards of four.
"""

NO_NVLINK = "the matrix has no NVLink and is used; nvidia-smi topo -mp leaves NVLink out, and topo -m has it"


def implies_switch(labels: Mapping[str, str], gpu_count: int) -> bool:
    """Return whether the product is a board with NVSwitch, and no other label of the node is about NVLink."""
    product = labels.get(keys.GPU_PRODUCT, "").removeprefix("NVIDIA-")
    board = positive(labels.get(keys.GPU_COUNT)) or gpu_count
    is_switched = product in SWITCHED_PRODUCTS and board == SWITCHED_BOARD and gpu_count <= board
    nvlink_keys = {keys.NVLINK_DOMAIN, keys.CLIQUE, keys.NVLINK_DOMAIN_SIZE, keys.NVSWITCH_PRESENT}
    return is_switched and nvlink_keys.isdisjoint(labels)


def contradictions(labels: Mapping[str, str], has_fabric: bool, kinds: Set[str]) -> Iterator[str]:
    """Yield the contradictions between a matrix with these kinds of links and the product or generation."""
    product = labels.get(keys.GPU_PRODUCT, "")
    name, label = product.removeprefix("NVIDIA-"), labels.get(keys.NVLINK_VERSION)
    if not has_fabric:
        linked = name in LINKED_PRODUCTS or any(part in name for part in ALWAYS_LINKED)
        if linked and not ("-MIG-" in name or name.endswith("-SHARED")):
            yield f"{keys.GPU_PRODUCT} is {product!r}, whose GPUs have NVLink, but {NO_NVLINK}"
        elif label is not None:
            yield f"{keys.NVLINK_VERSION} is {label!r}, but {NO_NVLINK}"
        return
    if name in NEVER_LINKED:
        yield f"{keys.GPU_PRODUCT} is {product!r}, which has no NVLink, but the matrix has: it is used"
    generation = read_generation(labels, [])
    max_links = max((int(kind[2:]) for kind in kinds if kind.startswith("NV")), default=0)
    if generation is not None and max_links > LINKS_BY_GENERATION[generation]:
        by_labels = f"the GPUs have {LINKS_BY_GENERATION[generation]} NVLinks by their labels"
        yield f"{by_labels}, but the matrix has NV{max_links}: the matrix is used"


def read_generation(labels: Mapping[str, str], problems: list[str]) -> str | None:
    """Read the NVLink generation from its own label, else from the product's name. Add contradictions to
    `problems`."""
    key, product = keys.NVLINK_VERSION, labels.get(keys.GPU_PRODUCT, "")
    label = labels.get(key)
    product_generation = next(
        (version for part, version in GENERATION_BY_PRODUCT if part in product.upper()), None
    )
    generation = product_generation if label is None else label.split(".")[0]
    if generation is not None and generation not in LINKS_BY_GENERATION:
        problems.append(f"{key} is {label!r}, known are {', '.join(LINKS_BY_GENERATION)}: it is not read")
        return product_generation
    if product_generation is not None and product_generation != generation:
        problems.append(
            f"{key} is {label!r}, but {product} has NVLink {product_generation}: the version is used"
        )
    return generation


def kind_in_island(generation: str | None, size: int, switched: bool) -> str:
    """Return the kind of the link between two GPUs of an island of this size.

    Behind a switch, a GPU reaches each other GPU by all its links. Without a switch, its peers share its
    links (HGX boards of four: A100 NV4, H100 NV6; a bridged pair of A100: NV12).
    """
    if generation is None:
        return f"NV{FEWEST_BEHIND_A_SWITCH if switched else 1}"
    links = LINKS_BY_GENERATION[generation]
    return f"NV{links if switched else max(1, links // max(1, size - 1))}"
