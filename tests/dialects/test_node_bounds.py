"""No more is read of a node than any honest one has, whatever its account writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from muster.dialects.nodes import configmaps, nodes
from muster.dialects.nodes.bounds import (
    MAX_CHARACTERS,
    MAX_LABELS,
    MAX_PROBLEMS,
    MAX_RESOURCES,
    MAX_TAINTS,
    MAX_TEXT,
    TOO_MANY_TAINTS,
)
from muster.dialects.objects import ConfigMapObject, Metadata, NodeObject
from muster.dialects.settings import DEFAULTS
from muster.domain.node import Node
from tests.dialects.objects import node_object

MANY = 5000
GPU = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}


def node_with_taints() -> NodeObject:
    taints = [{"key": f"k{number}", "value": "v", "effect": "PreferNoSchedule"} for number in range(MANY)]
    return node_object(GPU, spec={"taints": taints})


HOSTILE: dict[str, tuple[Callable[[], NodeObject], str]] = {
    "labels": (
        lambda: node_object(GPU, labels={f"l{number:04}": "v" for number in range(MANY)}),
        "it has 5000 labels: the first 1024 by name are read",
    ),
    "taints": (node_with_taints, "it has 5000 taints; at most 64 are read: only who tolerates all fits"),
    "resources": (
        lambda: node_object(GPU | {f"a.example.com/r{number:04}": "1" for number in range(MANY)}),
        "allocatable has 5004 resources: the first 256 by name are read",
    ),
    "resources that are none": (
        lambda: node_object(GPU | {f"a.example.com/r{number:04}": "x" for number in range(MANY)}),
        "allocatable has 5004 resources",
    ),
    "MIG devices that are none": (
        lambda: node_object(GPU | {f"nvidia.com/mig-{number:04}": "x" for number in range(MANY)}),
        "allocatable nvidia.com/mig-0000 is 'x', which is no quantity",
    ),
    "unhealthy GPUs": (
        lambda: node_object(GPU, annotations={"gpu.topology/unhealthy": "x," * MANY}),
        "gpu.topology/unhealthy has 'x' and 4999 more such in it",
    ),
    "a matrix": (
        lambda: node_object(GPU, annotations={"GPU_TOPOLOGY": "GPU0 X NV1\n" * MANY * 2}),
        "GPU_TOPOLOGY: it has more than 32,768 characters; the node is used without topology",
    ),
    "keys of a matrix": (
        lambda: node_object(
            GPU, annotations={"GPU_TOPOLOGY": json.dumps({"x" * at: "" for at in range(200)})}
        ),
        "is not GPU_<ABBR>_<i>_<j>",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_above_a_bound_is_left_out_and_told(case: str) -> None:
    make, sentence = HOSTILE[case]
    node = nodes.read(make())
    assert any(sentence in problem for problem in node.problems)
    assert within_bounds(node)
    assert node.topology.gpu_count == 8
    assert (node.allocatable.cpu_milli, node.allocatable.pods) == (64_000, 110)


def within_bounds(node: Node) -> bool:
    return (
        len(node.labels) <= MAX_LABELS
        and len(node.taints) <= MAX_TAINTS + 1
        and len(node.allocatable.others) <= MAX_RESOURCES
        and len(node.problems) <= MAX_PROBLEMS + 1
        and max(map(len, node.problems)) <= MAX_CHARACTERS
    )


def test_only_who_tolerates_all_taints_fits_a_node_with_too_many() -> None:
    assert nodes.read(node_with_taints()).taints[-1].key == TOO_MANY_TAINTS


def test_the_resources_that_are_planned_are_read_first() -> None:
    """Names of others may come before them."""
    resources = {f"a.example.com/r{number:04}": "1" for number in range(MANY)} | GPU
    assert nodes.read(node_object(resources)).topology.gpu_count == 8


def test_many_problems_are_counted() -> None:
    resources = GPU | {f"a.example.com/r{number}": "x" for number in range(100)}
    *first, more = nodes.read(node_object(resources)).problems
    assert (len(first), more) == (MAX_PROBLEMS, f"and {100 - MAX_PROBLEMS} more problems")


def test_what_is_kept_of_a_node_is_bounded() -> None:
    texts = {"GPU_TOPOLOGY": "x" * 200_000, "other": "x" * 200_000}
    small = nodes.trim(node_object(GPU, annotations=texts))
    assert {key: len(text) for key, text in (small.metadata.annotations or {}).items()} == {
        "GPU_TOPOLOGY": MAX_TEXT + 1
    }
    assert nodes.read(small).problems == nodes.read(node_object(GPU, annotations=texts)).problems


TOPOLOGY = {"ack.node.gpu.schedule": "topology", "nodename": "n"}
MAPS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "a topology": (
        "t",
        TOPOLOGY,
        {"linkType": "[[" * 100_000, "devices": "{" * 100_000, "bandwidth": "[" * 9},
    ),
    "unhealthy GPUs": ("unhealthy-gpu-n", {}, {"gpus": "0," + "x," * 100_000}),
    "another key": ("unhealthy-gpu-n", {}, {"other": "x" * 100_000}),
    "nothing": ("unhealthy-gpu-n", {}, {}),
}


@pytest.mark.parametrize("case", MAPS)
def test_what_is_kept_of_a_config_map_says_the_same(case: str) -> None:
    name, labels, data = MAPS[case]
    meta = Metadata(name, "", "kube-system", "uid", labels=labels, annotations={"a": "x" * 100_000})
    obj = ConfigMapObject(meta, data)
    small = configmaps.trim(obj)
    assert small.metadata.annotations is None
    assert all(len(text) <= MAX_TEXT + 1 for text in (small.data or {}).values())
    assert configmaps.node_of(obj) == configmaps.node_of(small) == "n"
    fact: Any = configmaps.read(small)
    assert fact == configmaps.read(obj)
    assert all(len(problem) <= MAX_CHARACTERS for problem in fact.problems)


def test_config_maps_of_other_namespaces_say_nothing_of_nodes() -> None:
    obj = ConfigMapObject(Metadata("unhealthy-gpu-n", "", "team-a"), {"gpus": "0"})
    assert configmaps.node_of(obj, DEFAULTS) == ""
