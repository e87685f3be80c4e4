"""What nodes offer, and their topology from a matrix or from labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_cluster.topology import load_topology
from muster.dialects.nodes.matrices import topology
from muster.dialects.nodes.nodes import read
from muster.domain.node import Resources
from muster.domain.topology import GpuTopology, mask_of
from tests.dialects.objects import as_json, full_matrix, node_object

BOTH_RESOURCES = {"nvidia.com/gpu": "8", "aliyun.com/gpu": "8"}
ANNOTATED = [
    path.stem
    for path in sorted((Path(__file__).parents[2] / "local_cluster" / "topologies").glob("*.txt"))
    if not path.stem.startswith("mi300")
]

MODES: dict[str, tuple[dict[str, str], set[str], int]] = {
    "no label": ({}, {"nvidia.com/gpu", "aliyun.com/gpu"}, 0),
    "default": ({"ack.node.gpu.schedule": "default"}, {"nvidia.com/gpu"}, 0),
    "topology": ({"ack.node.gpu.schedule": "topology"}, {"aliyun.com/gpu"}, 0),
    "share": ({"ack.node.gpu.schedule": "share"}, set(), 0),
    "cgpu": ({"ack.node.gpu.schedule": "cgpu"}, set(), 0),
    "disabled": ({"ack.node.gpu.schedule": "disabled"}, set(), 0),
    "unknown": ({"ack.node.gpu.schedule": "topolgy"}, {"nvidia.com/gpu", "aliyun.com/gpu"}, 1),
}


@pytest.mark.parametrize(("labels", "resources", "problems"), MODES.values(), ids=MODES.keys())
def test_what_a_mode_serves(labels: dict[str, str], resources: set[str], problems: int) -> None:
    node = read(node_object(BOTH_RESOURCES, labels))
    assert node.gpu_resources == resources
    assert node.topology.gpu_count == 8  # what runs there keeps its GPUs
    assert len(node.problems) == problems


def test_an_unknown_word_for_the_node_agent_is_a_problem() -> None:
    node = read(node_object(BOTH_RESOURCES, {"gpu.topology/node-agent": "second"}), agent=True)
    assert node.hands_out == "reads-annotations"
    assert node.problems == ("the label gpu.topology/node-agent is 'second', expected second-endpoint",)


SECOND = {"gpu.topology/node-agent": "second-endpoint"}
TOPOLOGY_MODE = {"ack.node.gpu.schedule": "topology"}
NVIDIA, AMD, ALIYUN = ({f"{vendor}/gpu": "8"} for vendor in ("nvidia.com", "amd.com", "aliyun.com"))
MEMORY = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}
LISTED = {"gpu.topology/gpu-uuids": "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e,GPU-f,GPU-g,GPU-h"}
Case = tuple[dict[str, str], dict[str, str], dict[str, str], bool, str]
HANDED_OUT: dict[str, Case] = {
    "NVIDIA's device plugin": (NVIDIA, {}, {}, False, "own-choice"),
    "the same, and an agent that has nothing to do there": (NVIDIA, {}, {}, True, "own-choice"),
    "a second endpoint": (NVIDIA, SECOND, {}, True, "second-endpoint"),
    "a second endpoint that is away": (NVIDIA, SECOND, {}, False, "agent-away"),
    "an agent does not know AMD's device plugin": (AMD, SECOND, {}, True, "own-choice"),
    "ACK's device plugin": (ALIYUN, TOPOLOGY_MODE, {}, False, "reads-annotations"),
    "ACK's device plugin for shared GPUs": (MEMORY, {}, {}, False, "reads-annotations"),
    "an agent that offers GPUs": (ALIYUN, TOPOLOGY_MODE, LISTED, True, "agent"),
    "an agent that offers memory": (MEMORY, {"ack.node.gpu.schedule": "share"}, LISTED, True, "agent"),
    "the same, away": (ALIYUN, TOPOLOGY_MODE, LISTED, False, "agent-away"),
    "ACK's device plugin, and an agent that lists no GPUs": (
        ALIYUN,
        TOPOLOGY_MODE,
        {},
        True,
        "reads-annotations",
    ),
    "a second endpoint offers none of its own": (
        ALIYUN,
        TOPOLOGY_MODE | SECOND,
        LISTED,
        True,
        "reads-annotations",
    ),
}


@pytest.mark.parametrize(
    ("offered", "labels", "annotations", "agent", "hands_out"), HANDED_OUT.values(), ids=HANDED_OUT.keys()
)
def test_what_hands_out_gpus(
    offered: dict[str, str], labels: dict[str, str], annotations: dict[str, str], agent: bool, hands_out: str
) -> None:
    node = read(node_object(offered, labels, annotations=annotations), agent=agent)
    assert node.hands_out == hands_out


def test_what_a_node_offers() -> None:
    spec = {"unschedulable": True, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    node = read(node_object({"cpu": "1500m"}, spec=spec, ready="Unknown"))
    assert node.allocatable == Resources(1500, 16 << 30, 110)
    assert (node.unschedulable, node.ready, node.gpu_resources) == (True, False, frozenset())
    assert [(taint.key, taint.value, taint.effect) for taint in node.taints] == [("k", "v", "NoSchedule")]


@pytest.mark.parametrize(
    ("annotations", "unhealthy", "problems"),
    [
        ({"gpu.topology/unhealthy": "1,3"}, 0b1010, 0),
        ({"gpu.topology/unhealthy": "1, x,9"}, 0b10, 1),
        ({}, 0, 0),
    ],
)
def test_a_node_agent_lists_all_gpus_and_the_unhealthy_ones(
    annotations: dict[str, str], unhealthy: int, problems: int
) -> None:
    """Allocatable counts healthy GPUs alone: without the list, GPUs after a broken one would move up."""
    listed = {"gpu.topology/gpu-uuids": "GPU-a,GPU-b,GPU-c,GPU-d"}
    node = read(node_object({"aliyun.com/gpu": "2"}, annotations=listed | annotations))
    assert (node.topology.gpu_count, node.unhealthy, len(node.problems)) == (4, unhealthy, problems)


def test_a_node_whose_agent_is_away_offers_nothing_and_says_so() -> None:
    listed = {"gpu.topology/gpu-uuids": "GPU-a,GPU-b"}
    for mode, problems in (("topology", 1), ("cgpu", 1), ("default", 0)):
        labels = {"ack.node.gpu.schedule": mode}
        node = read(node_object({"aliyun.com/gpu": "0"}, labels, annotations=listed))
        assert (node.topology.gpu_count, node.gpu_resources) == (0, frozenset())
        assert len(node.problems) == problems


def test_further_resources_are_counted_by_name() -> None:
    node = read(node_object({"nvidia.com/gpu": "8", "rdma/hca": "4", "ephemeral-storage": "1Ki", "x/y": "0"}))
    assert node.allocatable.others == (("ephemeral-storage", 1024), ("rdma/hca", 4))


MACHINES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    # name: labels, annotations, the machine
    "the document's": ({}, {"NODE_TYPE": "ecs.sccgn6.24xlarge"}, "ecs.sccgn6.24xlarge"),
    "the cloud's label": ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, {}, "p5.48xlarge"),
    "both": ({"node.kubernetes.io/instance-type": "a"}, {"NODE_TYPE": "b"}, "b"),
    "no name": ({}, {"NODE_TYPE": "a\nb"}, ""),
    "nothing": ({}, {}, ""),
}


@pytest.mark.parametrize(("labels", "annotations", "machine"), MACHINES.values(), ids=MACHINES)
def test_what_machine_it_is(labels: dict[str, str], annotations: dict[str, str], machine: str) -> None:
    node = read(node_object(labels=labels, annotations=annotations))
    assert (node.machine, node.problems) == (machine, ())


BAD_ALLOCATABLE = {
    "no quantity": ({"nvidia.com/gpu": "many"}, 0, "no quantity"),
    "negative": ({"nvidia.com/gpu": "-1"}, 0, "no quantity"),
    "more than any node has": ({"nvidia.com/gpu": "1000000"}, 62, "62 of them are used"),
    "counted differently": ({"nvidia.com/gpu": "8", "aliyun.com/gpu": "4"}, 8, "counts its GPUs differently"),
}


@pytest.mark.parametrize(
    ("allocatable", "gpus", "says"), BAD_ALLOCATABLE.values(), ids=BAD_ALLOCATABLE.keys()
)
def test_allocatable_that_can_not_be(allocatable: dict[str, str], gpus: int, says: str) -> None:
    node = read(node_object(allocatable))
    assert node.topology.gpu_count == gpus
    assert says in node.problems[0]


@pytest.mark.parametrize("name", ANNOTATED)
def test_every_matrix_we_have_is_read_as_it_was_printed(name: str) -> None:
    printed = load_topology(name)
    links, _, problems = topology(printed.annotation(), printed.gpu_count, "k")
    assert problems == ()
    assert links.islands == tuple(mask_of(island) for island in printed.islands())
    for i, row in enumerate(printed.links):
        assert [link.kind if link else "X" for link in links.links[i]] == list(row)


def test_a_matrix_that_can_not_be_read_is_reported_and_not_replaced_by_labels() -> None:
    node = read(node_object({"aliyun.com/gpu": 3}, {"nvidia.com/nvswitch.present": "true"}))
    assert node.topology.is_known
    node = read(node_object({"aliyun.com/gpu": 3}, {"nvidia.com/nvswitch.present": "true"}, matrix="{"))
    assert node.topology == GpuTopology.unknown(3)
    assert node.problems[0].startswith("GPU_TOPOLOGY: it is no JSON")
    assert node.problems[0].endswith("; the node is used without topology")


WORDS = {
    "Cross CPU socket": "SYS",
    "Same CPU socket": "NODE",
    "Host PCI bridge": "PHB",
    "Multiple PCI switches": "PXB",
    "Single PCI switch": "PIX",
    "Same board": "PSB",
    "Single NVLink": "NV1",
    "Two NVLinks": "NV2",
    "eighteen nvlinks": "NV18",
}


@pytest.mark.parametrize(("words", "kind"), WORDS.items())
def test_the_words_count_where_the_abbreviation_is_unknown(words: str, kind: str) -> None:
    links, _, problems = topology(as_json({"GPU_N-A_0_1": words}), 2, "k")
    assert problems == ()
    assert links.link(1, 0) == links.link(0, 1)
    assert (link := links.link(0, 1)) is not None
    assert link.kind == kind


def test_one_gpu_has_an_empty_matrix() -> None:
    assert topology("{}", 1, "k") == (GpuTopology.unknown(1), (), ())


H100, A100, V100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM3-32GB"
SWITCH = {"nvidia.com/nvswitch.present": "true"}
SIZE = "gpu.topology/nvlink-domain-size"
PRODUCT = "nvidia.com/gpu.product"
JOINED = "gpu.topology/interconnect"
NUMA = "topology.kubernetes.io/numa-node"
LABELS: dict[str, tuple[dict[str, str], int, str, tuple[int, ...], str]] = {
    # name: labels, GPUs, link inside, sizes of islands, a problem
    "the document's H100": (
        {**SWITCH, "nvidia.com/gpu.product": H100, "nvidia.com/nvlink.version": "4", SIZE: "8"},
        8, "NV18", (8,), "",
    ),
    "A100 behind a switch": ({**SWITCH, "nvidia.com/gpu.product": A100}, 8, "NV12", (8,), ""),
    "V100 behind a switch": ({**SWITCH, "nvidia.com/gpu.product": V100}, 16, "NV6", (16,), ""),
    "a switch and nothing else": (SWITCH, 8, "NV6", (8,), ""),
    "two islands of four H100": ({SIZE: "4", "nvidia.com/gpu.product": H100}, 8, "NV6", (4, 4), ""),
    "four A100 on a board": ({SIZE: "4", "nvidia.com/gpu.product": A100}, 4, "NV4", (4,), ""),
    "bridged pairs of A100": ({SIZE: "2", "nvidia.com/nvlink.version": "3.0"}, 4, "NV12", (2, 2), ""),
    "islands of an unknown GPU": ({SIZE: "2"}, 4, "NV1", (2, 2), ""),
    "no NVLink by size": ({SIZE: "1"}, 2, "SYS", (1, 1), ""),
    "size before switch": ({SIZE: "4", **SWITCH, "nvidia.com/gpu.product": H100}, 8, "NV18", (4, 4), ""),
    "a domain over nodes": (
        {"gpu.topology/nvlink-domain": "rack1", "nvidia.com/gpu.product": "NVIDIA-GB200"},
        4, "NV18", (4,), "",
    ),
    "a clique before size": (
        {"nvidia.com/gpu.clique": "c.1", SIZE: "2", "nvidia.com/nvlink.version": "5"}, 4, "NV18", (4,), "",
    ),
    "a domain of 72 on a tray of 4": ({SIZE: "72", "nvidia.com/nvlink.version": "5"}, 4, "NV6", (4,), ""),
    "a size that does not divide": ({SIZE: "3"}, 8, "", (), "does not divide"),
    "a size that is no number": ({SIZE: "all"}, 8, "", (), "expected a positive number"),
    "a switch beside such a size": ({SIZE: "0", **SWITCH}, 8, "NV6", (8,), "expected a positive number"),
    "an unknown generation": ({**SWITCH, "nvidia.com/nvlink.version": "x"}, 8, "NV6", (8,), "known are 2, 3"),
    "generation against product": (
        {**SWITCH, "nvidia.com/nvlink.version": "3", "nvidia.com/gpu.product": H100},
        8, "NV12", (8,), "has NVLink 4",
    ),
    "no switch": ({"nvidia.com/nvswitch.present": "false"}, 8, "", (), ""),
    "the interconnect alone": ({JOINED: "nvswitch", "nvidia.com/gpu.product": H100}, 8, "NV18", (8,), ""),
    "in another case": ({JOINED: "NVSwitch"}, 8, "NV6", (8,), ""),
    "NVLink without a switch": ({JOINED: "nvlink", "nvidia.com/gpu.product": V100}, 8, "NV1", (8,), ""),
    "NVLink on a board of four": ({JOINED: "nvlink", "nvidia.com/gpu.product": A100}, 4, "NV4", (4,), ""),
    "xGMI": ({JOINED: "xgmi"}, 8, "XGMI", (8,), ""),
    "nothing but PCIe": ({JOINED: "pcie"}, 8, "PCIE", (1,) * 8, ""),
    "eight H100 by product": ({PRODUCT: H100}, 8, "NV18", (8,), ""),
    "eight A100 by product": ({PRODUCT: A100}, 8, "NV12", (8,), ""),
    "A100 as they were named before": ({PRODUCT: "A100-SXM4-40GB"}, 8, "NV12", (8,), ""),
    "eight H200 by product": ({PRODUCT: "NVIDIA-H200"}, 8, "NV18", (8,), ""),
    "eight B200 by product": ({PRODUCT: "NVIDIA-B200"}, 8, "NV18", (8,), ""),
    "eight B300 by product": ({PRODUCT: "NVIDIA-B300-SXM6-AC"}, 8, "NV18", (8,), ""),
    "one of eight is broken": (
        {PRODUCT: H100, "nvidia.com/gpu.count": "8"}, 7, "NV18", (7,), "but allocatable has 7",
    ),
    "four H100, perhaps without a switch": ({PRODUCT: H100}, 4, "", (), ""),
    "PCIe cards": ({PRODUCT: "NVIDIA-H100-PCIe"}, 8, "", (), ""),
    "PCIe cards with bridges": ({PRODUCT: "NVIDIA-H100-NVL"}, 8, "", (), ""),
    "PCIe cards of H200": ({PRODUCT: "NVIDIA-H200-NVL"}, 8, "", (), ""),
    "V100 of a cube mesh": ({PRODUCT: "Tesla-V100-SXM2-32GB"}, 8, "", (), ""),
    "MIG devices as GPUs": ({PRODUCT: f"{A100}-MIG-1g.10gb"}, 8, "", (), ""),
    "GPUs that are shared in time": ({PRODUCT: f"{A100}-SHARED"}, 8, "", (), ""),
    "a product against no switch": (
        {PRODUCT: H100, "nvidia.com/nvswitch.present": "false"}, 8, "", (), "",
    ),
    "a product against PCIe": ({PRODUCT: H100, JOINED: "pcie"}, 8, "PCIE", (1,) * 8, ""),
    "a product against a size": ({PRODUCT: H100, SIZE: "4"}, 8, "NV6", (4, 4), ""),
    "islands behind switches": (
        {JOINED: "nvswitch", SIZE: "4", "nvidia.com/gpu.product": H100}, 8, "NV18", (4, 4), "",
    ),
    "PCIe and no NVLink by size": ({JOINED: "pcie", SIZE: "1"}, 2, "SYS", (1, 1), ""),
    "an interconnect that nobody knows": ({JOINED: "ib"}, 8, "", (), "known are nvswitch, nvlink"),
    "PCIe against a switch": ({JOINED: "pcie", **SWITCH}, 8, "NV6", (8,), "other labels say otherwise"),
    "PCIe against a size": ({JOINED: "pcie", SIZE: "2"}, 4, "NV1", (2, 2), "other labels say otherwise"),
    "PCIe against a domain": (
        {JOINED: "pcie", "gpu.topology/nvlink-domain": "d"}, 4, "NV6", (4,), "other labels say otherwise",
    ),
    "a switch that is not there": (
        {JOINED: "nvswitch", "nvidia.com/nvswitch.present": "false"}, 8, "", (), "other labels say otherwise",
    ),
    "one NUMA node": ({NUMA: "0"}, 4, "NODE", (1, 1, 1, 1), ""),
    "pairs on one NUMA node": ({NUMA: "1", SIZE: "2"}, 4, "NV1", (2, 2), ""),
    "another count": ({"nvidia.com/gpu.count": "4"}, 8, "", (), "but allocatable has 8"),
    "nothing": ({}, 8, "", (), ""),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "gpus", "kind", "islands", "says"), LABELS.values(), ids=LABELS.keys())
def test_topology_from_labels(
    labels: dict[str, str], gpus: int, kind: str, islands: tuple[int, ...], says: str
) -> None:
    node = read(node_object({"nvidia.com/gpu": gpus}, labels))
    if islands:
        assert (link := node.topology.link(0, 1)) is not None
        assert link.kind == kind
        assert tuple(island.bit_count() for island in node.topology.islands) == islands
    else:
        assert node.topology == GpuTopology.unknown(gpus)
    assert (says in "; ".join(node.problems)) if says else node.problems == ()


FABRICS: dict[str, tuple[dict[str, str], str | None]] = {
    "the first part of a clique": (
        {"nvidia.com/gpu.clique": "3183419e-9edc-4f0e.17044"},
        "3183419e-9edc-4f0e",
    ),
    "a clique without a dot": ({"nvidia.com/gpu.clique": "c"}, None),
    "said by a label": ({"nvidia.com/gpu.clique": "c.1", "gpu.topology/nvlink-fabric": "row-7"}, "row-7"),
    "no clique": ({"gpu.topology/nvlink-domain": "a.1"}, None),
}


@pytest.mark.parametrize(("labels", "fabric"), FABRICS.values(), ids=FABRICS)
def test_the_fabric_around_a_clique(labels: dict[str, str], fabric: str | None) -> None:
    node = read(node_object({"nvidia.com/gpu": 4}, labels))
    assert node.labels == {**labels, **({"gpu.topology/nvlink-fabric": fabric} if fabric else {})}


def test_amd_islands_are_xgmi() -> None:
    node = read(node_object({"amd.com/gpu": 8}, {SIZE: "8"}))
    assert (link := node.topology.link(0, 7)) is not None
    assert link.kind == "XGMI"


def test_islands_on_one_numa_node_are_not_across_sockets() -> None:
    labels = {NUMA: "1", SIZE: "2"}
    topology = read(node_object({"nvidia.com/gpu": 4}, labels)).topology
    assert {link.kind for row in topology.links for link in row if link} == {"NV1", "NODE"}


AGAINST = {
    "a domain over islands": ({"gpu.topology/nvlink-domain": "d"}, "puts all GPUs into one domain"),
    "a size": ({SIZE: "4"}, "is '4', but the matrix has NVLink islands of 2, 2 GPUs"),
    "a switch": (SWITCH, "the matrix is used"),
    "no NVLink": ({JOINED: "pcie"}, "is pcie, but the matrix has NVLink islands of 2, 2 GPUs"),
    "an interconnect that nobody knows": ({JOINED: "ib"}, "known are nvswitch"),
    "one NUMA node": ({NUMA: "0"}, "the matrix has SYS links"),
}


@pytest.mark.parametrize(("labels", "says"), AGAINST.values(), ids=AGAINST.keys())
def test_the_matrix_wins_and_labels_that_disagree_are_reported(labels: dict[str, str], says: str) -> None:
    pairs = {**full_matrix(4, "SYS", "Cross CPU socket")}
    for i, j in ((0, 1), (2, 3)):
        del pairs[f"GPU_SYS_{i}_{j}"]
        pairs[f"GPU_NV2_{i}_{j}"] = "Two NVLinks"
    node = read(node_object({"nvidia.com/gpu": 4}, labels, matrix=as_json(pairs)))
    assert len(node.topology.islands) == 2
    assert says in node.problems[0]
    assert len(node.problems) == 1


def test_a_matrix_without_nvlink_against_the_interconnect() -> None:
    matrix = as_json(full_matrix(2, "PIX", "Single PCI switch"))
    (problem,) = read(node_object({"nvidia.com/gpu": 2}, {JOINED: "nvlink"}, matrix=matrix)).problems
    assert problem == (
        f"{JOINED} is nvlink, but the matrix has no NVLink and is used; "
        "nvidia-smi topo -mp leaves NVLink out, and topo -m has it"
    )


BY_PRODUCT: dict[str, tuple[dict[str, str], str, str]] = {
    # name: labels, the link of all pairs, what is said ("" for nothing)
    "a board with NVSwitch": ({PRODUCT: H100, "nvidia.com/gpu.count": "8"}, "SYS", "whose GPUs have NVLink"),
    "a board without a switch": ({PRODUCT: "Tesla-V100-SXM2-32GB"}, "PIX", "topo -mp leaves NVLink out"),
    "a tray": ({PRODUCT: "NVIDIA-GB200"}, "SYS", "whose GPUs have NVLink"),
    "a board that is made for one market": ({PRODUCT: "NVIDIA-H800"}, "SYS", "whose GPUs have NVLink"),
    "a newer board of that kind": ({PRODUCT: "NVIDIA-H20"}, "NODE", "whose GPUs have NVLink"),
    "its card": ({PRODUCT: "NVIDIA-H800-PCIe"}, "SYS", ""),
    "a generation alone": (
        {"nvidia.com/nvlink.version": "4.0"},
        "SYS",
        "is '4.0', but the matrix has no NVLink and is used",
    ),
    "a PCIe card": ({PRODUCT: "NVIDIA-H100-PCIe"}, "SYS", ""),
    "a PCIe card with bridges": ({PRODUCT: "NVIDIA-A100-80GB-PCIe"}, "NV12", ""),
    "parts of GPUs": ({PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "SYS", ""),
    "a card that has none": ({PRODUCT: "NVIDIA-L40S"}, "NV4", "which has no NVLink, but the matrix has"),
    "a card that has none, without": ({PRODUCT: "NVIDIA-L40S"}, "SYS", ""),
    "more links than the GPUs have": (
        {PRODUCT: "NVIDIA-A100-SXM4-80GB"},
        "NV18",
        "have 12 NVLinks by their labels",
    ),
    "as many as they have": ({PRODUCT: H100}, "NV18", ""),
    "fewer than they have": ({PRODUCT: H100}, "NV6", ""),
}


@pytest.mark.parametrize("name", BY_PRODUCT)
def test_a_matrix_that_the_product_contradicts_is_told(name: str) -> None:
    labels, kind, says = BY_PRODUCT[name]
    node = read(node_object({"nvidia.com/gpu": 4}, labels, matrix=as_json(full_matrix(4, kind, ""))))
    assert {link.kind for row in node.topology.links for link in row if link} == {kind}
    assert (says in "; ".join(node.problems)) if says else node.problems == ()
