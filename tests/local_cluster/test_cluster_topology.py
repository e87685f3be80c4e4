"""The matrices are read as printed, and published as the documents show it."""

from __future__ import annotations

from itertools import combinations

import pytest

from local_cluster.places import TOPOLOGIES
from local_cluster.topology import TopologyError, load_topology, parse_topology

# The gputopology document's own annotation, its folded lines joined (seed document 001).
DOCUMENT = (
    '{"GPU_NV1_0_1":"Single NVLink","GPU_NV1_0_2":"Single NVLink","GPU_NV1_1_3":"Single NVLink",'
    '"GPU_NV1_2_4":"Single NVLink","GPU_NV1_3_5":"Single NVLink","GPU_NV1_4_6":"Single NVLink",'
    '"GPU_NV1_5_7":"Single NVLink","GPU_NV1_6_7":"Single NVLink","GPU_NV2_0_3":"Two NVLinks",'
    '"GPU_NV2_0_6":"Two NVLinks","GPU_NV2_1_2":"Two NVLinks","GPU_NV2_1_7":"Two NVLinks",'
    '"GPU_NV2_2_3":"Two NVLinks","GPU_NV2_4_5":"Two NVLinks","GPU_NV2_4_7":"Two NVLinks",'
    '"GPU_NV2_5_6":"Two NVLinks","GPU_SYS_0_4":"Cross CPU socket","GPU_SYS_0_5":"Cross CPU socket",'
    '"GPU_SYS_0_7":"Cross CPU socket","GPU_SYS_1_4":"Cross CPU socket","GPU_SYS_1_5":"Cross CPU socket",'
    '"GPU_SYS_1_6":"Cross CPU socket","GPU_SYS_2_5":"Cross CPU socket","GPU_SYS_2_6":"Cross CPU socket",'
    '"GPU_SYS_2_7":"Cross CPU socket","GPU_SYS_3_4":"Cross CPU socket","GPU_SYS_3_6":"Cross CPU socket",'
    '"GPU_SYS_3_7":"Cross CPU socket"}'
)

ISLANDS = {
    "a100-8x-interleaved-bridged-pairs": [(0, 2), (1, 3), (4, 5), (6, 7)],
    "a100-pcie-4x-bridged-pairs": [(0, 1), (2, 3)],
    "dgx2-16x-v100-nvswitch": [tuple(range(16))],
    "gb200-nvl72-tray-4x": [(0, 1, 2, 3)],
    "hgx-a100-8x-nps4": [tuple(range(8))],
    "hgx-h100-8x-nvswitch": [tuple(range(8))],
    "mi300-class-8x-xgmi": [tuple(range(8))],
    "pcie-8x-pix-node-sys": [(i,) for i in range(8)],
    "power9-4x-v100-nv3-pairs": [(0, 1), (2, 3)],
    "two-islands-of-four": [(0, 1, 2, 3), (4, 5, 6, 7)],
    "v100-8x-gputopology-document": [tuple(range(8))],
    "v100-8x-hybrid-cube-mesh": [tuple(range(8))],
}

BAD = {
    "no matrix": ("nothing here", "no matrix in it"),
    "a row is missing": (" GPU0 GPU1\nGPU0 X SYS\n", "2 columns, but not 2 rows"),
    "a cell is missing": (" GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS\n", "2 columns, but not 2 rows"),
    "two directions disagree": (
        " GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n",
        "GPU0–GPU1 is NV1 in one row and NV2",
    ),
    "no kind of link": (" GPU0 GPU1\nGPU0 X ?\nGPU1 ? X\n", "GPU0–GPU1 is '?', which is no kind of link"),
}


def test_the_annotation_is_the_document_s_byte_for_byte() -> None:
    assert load_topology("v100-8x-gputopology-document").annotation() == DOCUMENT


def test_every_matrix_is_read_and_names_its_source() -> None:
    assert {path.stem for path in TOPOLOGIES.glob("*.txt")} == set(ISLANDS)
    assert all(path.read_text().startswith("# source: ") for path in TOPOLOGIES.glob("*.txt"))


@pytest.mark.parametrize("name", ISLANDS)
def test_islands(name: str) -> None:
    assert load_topology(name).islands() == ISLANDS[name]


def test_the_two_cube_meshes_are_one_with_other_numbers() -> None:
    def spectrum(name: str) -> list[list[str]]:
        return sorted(sorted(row) for row in load_topology(name).links)

    document, pytorch = "v100-8x-gputopology-document", "v100-8x-hybrid-cube-mesh"
    assert spectrum(document) == spectrum(pytorch)
    assert load_topology(document).links != load_topology(pytorch).links


def test_links_beyond_what_the_original_plugin_knew_have_words() -> None:
    annotation = load_topology("hgx-h100-8x-nvswitch").annotation()
    assert '"GPU_NV18_0_1":"Eighteen NVLinks"' in annotation


def test_labels_without_nvlink_claim_none() -> None:
    assert load_topology("pcie-8x-pix-node-sys").labels() == {"nvidia.com/gpu.count": "8"}


def test_a_header_of_one_gpu() -> None:
    topology = parse_topology("one", "        GPU0    CPU Affinity\nGPU0     X      0-7\n")
    assert topology.links == (("X",),)
    assert topology.annotation() == "{}"


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_broken_matrix_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as problem:
        parse_topology("t", text)
    assert message in str(problem.value)


def test_first_gpus_of_a_topology() -> None:
    four = load_topology("v100-8x-gputopology-document").first(4)
    assert [four.links[i][j] for i, j in combinations(range(4), 2)] == [
        "NV1",
        "NV1",
        "NV2",
        "NV2",
        "NV1",
        "NV2",
    ]
