"""Files with what nvidia-smi or rocm-smi printed: they say how the GPUs of nodes are linked."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_cluster.places import TOPOLOGIES
from tests.files.manifests import decisions, gang, node, place, pod, write

PRINTED = (TOPOLOGIES / "v100-8x-hybrid-cube-mesh.txt").read_text()
PAIRS = (TOPOLOGIES / "a100-8x-interleaved-bridged-pairs.txt").read_text()


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def bare(name: str) -> dict[str, object]:
    """A node of eight GPUs about whose links nothing is known."""
    return {**node(name, 8), "metadata": {"name": name}}


def test_a_file_named_like_the_node_says_its_links(tmp_path: Path) -> None:
    cluster = write(tmp_path, bare("gpu-1"), *gang("g", 2))
    (before,) = decisions(cluster)["gangs"]
    (after,) = decisions(cluster, file(tmp_path, "gpu-1.txt", PAIRS))["gangs"]
    assert before["bandwidth_gb_per_s"] is None
    assert after["bandwidth_gb_per_s"] == 300.0
    assert sorted(gpu for member in after["members"] for gpu in member["gpus"]) in (
        [0, 2],
        [1, 3],
        [4, 5],
        [6, 7],
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("10.0.0.1", ""),  # a node's name may have dots, and no .txt
        ("links.txt", "# nodes: 10.0.0.1\n"),
        ("links", "# Nodes: other, 10.0.*\n"),
        ("links.md", "# node: 10.0.0.1 ,\n"),
    ],
)
def test_how_a_file_names_its_nodes(tmp_path: Path, name: str, line: str) -> None:
    cluster = write(tmp_path, bare("10.0.0.1"), bare("other"), *gang("g", 8))
    answer = decisions(cluster, file(tmp_path, name, line + PRINTED))
    assert answer["notes"] == []
    assert answer["gangs"][0]["bandwidth_gb_per_s"] == 50.0
    assert {member["node"] for member in answer["gangs"][0]["members"]} <= {"10.0.0.1", "other"}


def test_one_file_may_hold_for_many_nodes(tmp_path: Path) -> None:
    cluster = write(tmp_path, *(bare(f"dgx-{i}") for i in range(3)), *gang("g", 24))
    (gang_shown,) = decisions(cluster, file(tmp_path, "dgx.txt", "# nodes: dgx-*\n" + PRINTED))["gangs"]
    assert gang_shown["objective"]["ring_gb_per_s"] == 3 * 400.0


def test_a_file_comes_before_what_the_node_says_and_that_is_noted(tmp_path: Path) -> None:
    manifest = bare("gpu-1")
    manifest["metadata"] = {"name": "gpu-1", "annotations": {"GPU_TOPOLOGY": PRINTED}}
    text = file(tmp_path, "gpu-1.txt", PAIRS)
    answer = decisions(write(tmp_path, manifest, *gang("g", 2)), text)
    assert answer["gangs"][0]["bandwidth_gb_per_s"] == 300.0
    assert f"Node gpu-1: its links are those of {text}, not its GPU_TOPOLOGY" in answer["notes"]


def test_a_torn_file_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    cluster = write(tmp_path, bare("gpu-1"), *gang("g", 2))
    torn_text = "\n".join(PAIRS.splitlines()[:6]).replace("SYS     NV12", "SYS     NV??", 1)
    torn = file(tmp_path, "gpu-1.txt", torn_text)
    answer = decisions(cluster, torn)
    assert answer["gangs"][0]["bandwidth_gb_per_s"] == 300.0
    assert sorted(gpu for member in answer["gangs"][0]["members"] for gpu in member["gpus"]) == [1, 3]
    assert len([note for note in answer["notes"] if note.startswith("Node gpu-1: GPU_TOPOLOGY: ")]) == 2


@pytest.mark.parametrize("output", ["table", "svg"])
def test_links_that_are_partly_unknown_are_drawn(tmp_path: Path, output: str) -> None:
    cluster = write(tmp_path, bare("gpu-1"), *gang("g", 2))
    for number, text in enumerate((PRINTED, PAIRS)):
        for lines in (3, 5, 8):
            torn = file(
                tmp_path, f"{number}{lines}.txt", "# nodes: gpu-1\n" + "\n".join(text.splitlines()[:lines])
            )
            result = place(cluster, torn, "-o", output)
            assert (result.exit_code, result.stdout != "") == (0, True)


BAD = {
    "no such node": ({"x.txt": PRINTED}, 'no node of the input is named "x"'),
    "no such node by line": (
        {"gpu-1.txt": "# nodes: gpu-1, y-*\n" + PRINTED},
        'no node of the input is named "y-*"',
    ),
    "two files for one": (
        {"gpu-1.txt": PRINTED, "z.txt": "# nodes: gpu-*\n" + PAIRS},
        "node gpu-1 has its links from",
    ),
    "no matrix": ({"gpu-1.txt": "nvidia-smi: command not found\n"}, "no links of GPUs in it"),
    "nothing": ({"gpu-1.txt": ""}, "no links of GPUs in it"),
}


@pytest.mark.parametrize(("files", "says"), BAD.values(), ids=BAD)
def test_a_file_that_is_of_no_use_is_bad_input(tmp_path: Path, files: dict[str, str], says: str) -> None:
    cluster = write(tmp_path, bare("gpu-1"), *gang("g", 2))
    result = place(cluster, *(file(tmp_path, name, text) for name, text in files.items()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_manifest_that_carries_a_matrix_is_a_manifest(tmp_path: Path) -> None:
    manifest = bare("gpu-1")
    manifest["metadata"] = {"name": "gpu-1", "annotations": {"GPU_TOPOLOGY": PAIRS}}
    text = Path(write(tmp_path, manifest, *gang("g", 2))).read_text()
    answer = decisions(file(tmp_path, "cluster.txt", text))
    assert answer["gangs"][0]["bandwidth_gb_per_s"] == 300.0


MATRICES = Path(__file__).parents[1] / "dialects" / "matrices"


def test_a_table_of_amd_smi_says_the_links(tmp_path: Path) -> None:
    amd = {
        **bare("mi"),
        "status": {"allocatable": {"cpu": "96", "memory": "1Ti", "pods": "9", "amd.com/gpu": 4}},
    }
    member = pod("two")
    member["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": 2}}
    text = (MATRICES / "amd-smi-4x.txt").read_text()
    answer = decisions(write(tmp_path, amd, member), file(tmp_path, "mi.txt", text))
    assert (answer["gangs"][0]["bandwidth_gb_per_s"], answer["notes"]) == (64.0, [])


def test_a_table_without_nvlink_against_the_name_of_the_gpus_is_noted(tmp_path: Path) -> None:
    """As nvidia-smi topo -mp prints it (DeepEP#60)."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    manifest = {**bare("hx"), "metadata": {"name": "hx", "labels": labels}}
    text = (MATRICES / "nvidia-8x-h100-topo-mp.txt").read_text()
    (note,) = decisions(write(tmp_path, manifest, pod("x", gpus=4)), file(tmp_path, "hx.txt", text))["notes"]
    assert "nvidia-smi topo -mp leaves NVLink out" in note
