"""What a node says of its GPUs: the documents' annotation, labels, and what was lost."""

from __future__ import annotations

import json

import pytest

from local_cluster.topology import load_topology
from muster.dialects import keys
from muster.node_agent.hardware import (
    PUBLISHED,
    Hardware,
    annotations_of,
    changed_uuid,
    changes,
    labels_of,
    matrix,
    with_lost,
)
from muster.node_agent.inventory import Gpu, Inventory
from tests.local_cluster.test_cluster_topology import DOCUMENT


def hardware(name: str, *sick: int, clique: str = "", numa: tuple[int, ...] = ()) -> Hardware:
    links = load_topology(name).links
    gpus = tuple(Gpu(index, f"GPU-{index}", 16, index not in sick) for index in range(len(links)))
    return Hardware(Inventory(gpus), links, numa or (-1,) * len(links), clique=clique)


def test_the_matrix_of_document_2_gives_its_annotation() -> None:
    assert matrix(hardware("v100-8x-gputopology-document").links) == DOCUMENT


def test_a_link_without_words_gives_no_annotation() -> None:
    assert matrix((("X", "XGMI"), ("XGMI", "X"))) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hgx-h100-8x-nvswitch", {"interconnect": "nvswitch", "nvlink-domain-size": "8"}),
        ("v100-8x-hybrid-cube-mesh", {"interconnect": "nvlink", "nvlink-domain-size": "8"}),
        ("two-islands-of-four", {"nvlink-domain-size": "4"}),
        ("pcie-8x-pix-node-sys", {"interconnect": "pcie"}),
        ("a100-8x-interleaved-bridged-pairs", {}),
    ],
)
def test_labels_tell_what_can_be_told(name: str, expected: dict[str, str]) -> None:
    labels = labels_of(hardware(name), shared=False)
    assert {key.partition("/")[2]: value for key, value in labels.items() if value} == expected


def test_labels_of_one_numa_node_and_of_a_domain_over_nodes() -> None:
    labels = labels_of(hardware("gb200-nvl72-tray-4x", clique="7f3a.1", numa=(1, 1, 1, 1)), shared=True)
    assert labels["gpu.topology/nvlink-domain"] == "7f3a.1"
    assert labels["topology.kubernetes.io/numa-node"] == "1"
    assert labels["nvidia.com/gpu.count"] == "4"


def test_unhealthy_gpus_and_memory_are_annotations() -> None:
    annotations = annotations_of(hardware("gb200-nvl72-tray-4x", 1, 3), "ecs.gn7", shared=True)
    assert annotations["gpu.topology/unhealthy"] == "1,3"
    assert annotations["gpu.topology/gpu-mem"] == "16,16,16,16"
    assert annotations["gpu.topology/gpu-uuids"] == "GPU-0,GPU-1,GPU-2,GPU-3"
    assert annotations["NODE_TYPE"] == "ecs.gn7"


def applied(metadata: dict[str, dict[str, str | None]], part: str, before: dict[str, str]) -> dict[str, str]:
    """As a merge patch changes it."""
    merged = {**before, **metadata.get(part, {})}
    return {key: value for key, value in merged.items() if value is not None}


def test_what_is_true_no_more_is_taken_away_and_nothing_else() -> None:
    sick, well = hardware("hgx-h100-8x-nvswitch", 2), hardware("pcie-8x-pix-node-sys")
    first = changes(sick, {"team": "a"}, {"note": "b"}, shared=False)
    labels = applied(first, "labels", {"team": "a"})
    annotations = applied(first, "annotations", {"note": "b"})
    assert labels["gpu.topology/nvlink-domain-size"] == "8"
    assert changes(sick, labels, annotations, shared=False) == {}
    second = changes(well, labels, annotations, shared=False)
    assert applied(second, "labels", labels) == {"team": "a", "gpu.topology/interconnect": "pcie"}
    annotations = applied(second, "annotations", annotations)
    assert "gpu.topology/unhealthy" not in annotations
    assert annotations["note"] == "b"


def test_a_label_of_the_operators_stays() -> None:
    labels = {"gpu.topology/interconnect": "nvlink", "gpu.topology/nvlink-domain": "mine"}
    metadata = changes(hardware("hgx-h100-8x-nvswitch"), labels, {}, shared=False)
    assert metadata["labels"] == {"gpu.topology/nvlink-domain-size": "8"}
    assert "gpu.topology/interconnect" not in str(metadata["annotations"][PUBLISHED])


def test_a_lost_gpu_keeps_its_place() -> None:
    all_of = hardware("v100-8x-gputopology-document")
    before = tuple(gpu.uuid for gpu in all_of.inventory.gpus)
    indices_left = [index for index in range(8) if index != 3]
    gpus = tuple(Gpu(place, f"GPU-{index}", 16) for place, index in enumerate(indices_left))
    links = tuple(tuple(all_of.links[i][j] for j in indices_left) for i in indices_left)
    now = with_lost(before, Hardware(Inventory(gpus), links, (0,) * 7))
    assert [gpu.uuid for gpu in now.inventory.gpus] == list(before)
    assert [gpu.index for gpu in now.inventory.gpus if not gpu.healthy] == [3]
    assert now.links[2][4] == all_of.links[2][4]
    assert now.links[3][4] == "SYS"
    assert json.loads(matrix(now.links) or "")["GPU_NV2_5_6"] == "Two NVLinks"


@pytest.mark.parametrize(
    "before",
    [("GPU-0", "GPU-1", "GPU-2", "GPU-3"), ("GPU-9", "GPU-8"), ("",), ("GPU-1", "GPU-0", "x", "y", "z")],
)
def test_gpus_that_are_new_are_counted_anew(before: tuple[str, ...]) -> None:
    """A uuid that changed, an order that changed, a first start: the node is as it is now."""
    now = hardware("gb200-nvl72-tray-4x")
    assert with_lost(before, now) == now


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (("GPU-0", "GPU-1", "GPU-2", "GPU-3"), ""),
        (("",), ""),
        (("GPU-0", "GPU-1"), ""),
        (("GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4"), ""),
        (("GPU-0", "GPU-a", "GPU-2", "GPU-3"), "GPU 1 was GPU-a and is GPU-1"),
        (("GPU-1", "GPU-0", "GPU-2", "GPU-3"), "GPU 0 was GPU-1 and is GPU-0"),
    ],
)
def test_gpus_with_other_uuids_than_before_are_named(before: tuple[str, ...], says: str) -> None:
    assert changed_uuid(before, hardware("gb200-nvl72-tray-4x")) == says


def test_the_service_reads_the_keys_that_the_agent_writes() -> None:
    about_gpus = (
        keys.MATRIX,
        keys.UNHEALTHY_GPUS,
        keys.MEMORY_BY_GPU,
        keys.MACHINE,
        keys.GPU_UUIDS,
    )
    assert {*annotations_of(hardware("gb200-nvl72-tray-4x", 1), "ecs.gn7", shared=True)} == {*about_gpus}
    labels = (
        keys.NVLINK_DOMAIN,
        keys.NVLINK_DOMAIN_SIZE,
        keys.INTERCONNECT,
        keys.NUMA_NODE,
        keys.GPU_COUNT,
    )
    assert {*labels_of(hardware("gb200-nvl72-tray-4x"), shared=True)} == {*labels}
