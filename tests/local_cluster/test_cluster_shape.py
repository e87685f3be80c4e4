"""Shapes are decoded strictly, and become the Node objects that they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_cluster.nodes import nodes_of, shape_nodes
from local_cluster.places import SOURCE
from local_cluster.shape import ShapeError, parse_shape

SHAPES = SOURCE / "shapes"

BAD = {
    "unknown field": (
        "nodes: [{name: a, gpu: 8}]",
        "s.yaml: nodes[0] (a): object contains unknown field `gpu`; known fields: name, count, racks",
    ),
    "unknown field at the top": (
        "node: []\nnodes: []",
        "s.yaml: top level: object contains unknown field `node`",
    ),
    "unknown field of a taint": (
        "nodes: [{name: a, taints: [{key: k, effect: NoSchedule, when: now}]}]",
        "s.yaml: nodes[0] (a): taints[0]: object contains unknown field `when`; known fields: key, effect",
    ),
    "wrong type": (
        "nodes: [{name: a, count: two}]",
        "s.yaml: nodes[0] (a): count: expected `int`, got `str`",
    ),
    "a number where Kubernetes wants text": (
        "nodes: [{name: a, labels: {x: 1}}]",
        "s.yaml: nodes[0] (a): labels[...]: expected `str`, got `int`",
    ),
    "no name": ("nodes: [{count: 2}]", "nodes[0] (no name): object missing required field `name`"),
    "group is no mapping": ("nodes: [a]", "nodes[0] (no mapping): expected `object`, got `str`"),
    "no nodes": ("nodes: []", "s.yaml: nodes: at least one node group is needed"),
    "no mapping": ("- a", "a mapping with the field 'nodes' is needed, this is list"),
    "broken YAML": ("nodes: [", "s.yaml: not valid YAML:"),
    "key twice": ("nodes: [{name: a, cpu: '1', cpu: '2'}]", "given twice: cpu"),
    "count": ("nodes: [{name: a, count: 0}]", "nodes[0] (a): count: 0 is too few, 1 or more is needed"),
    "quantity": ("nodes: [{name: a, memory: 64 GB}]", "memory: '64 GB' is no quantity"),
    "placeholder": ("nodes: [{name: 'a-{node}'}]", "{node} is not known; use {zone}, {rack} or {index}"),
    "placeholder that reaches inside": ("nodes: [{name: 'a-{index.real}'}]", "{index.real} is not known"),
    "placeholder that is not closed": ("nodes: [{name: 'a-{index'}]", "nodes[0] (a-{index): name:"),
    "same name twice": (
        "nodes: [{name: a, count: 2}]",
        "name: 'a' comes out twice; number the nodes with {index}",
    ),
    "bad node name": ("nodes: [{name: A_1}]", "name: 'A_1' is no node name"),
    "bad label value": ("nodes: [{name: a, labels: {x: 'a b'}}]", "x: 'a b' is no label value"),
    "bad label key": ("nodes: [{name: a, labels: {'a b': x}}]", "'a b' is no key"),
    "unknown topology": (
        "nodes: [{name: a, topology: dgx, resources: [aliyun.com/gpu]}]",
        "nodes[0] (a): topology: topology 'dgx' is not known; known: a100-8x",
    ),
    "unknown resource": (
        "nodes: [{name: a, gpus: 1, resources: [gpu]}]",
        "resources[0]: invalid enum value 'gpu'; one of aliyun.com/gpu, ",
    ),
    "unknown effect": (
        "nodes: [{name: a, taints: [{key: k, effect: Never}]}]",
        "taints[0].effect: invalid enum value 'Never'; one of NoSchedule, PreferNoSchedule, NoExecute",
    ),
    "unknown way to publish": ("nodes: [{name: a, publish: yes}]", "publish: expected `str`, got `bool`"),
    "unknown schedule": ("nodes: [{name: a, schedule: now}]", "'now'; one of default, topology, share"),
    "more GPUs than the topology has": (
        "nodes: [{name: a, gpus: 9, topology: two-islands-of-four, resources: [aliyun.com/gpu]}]",
        "gpus: 9 is more than the 8 of two-islands-of-four",
    ),
    "resource without GPUs": ("nodes: [{name: a, resources: [nvidia.com/gpu]}]", "on a node without GPUs"),
    "GPUs without a resource": ("nodes: [{name: a, gpus: 2}]", "the node has GPUs but offers none"),
    "publish nothing": ("nodes: [{name: a, publish: labels}]", "labels needs a topology to publish"),
    "gpu-mem without memory": (
        "nodes: [{name: a, gpus: 2, resources: [aliyun.com/gpu-mem]}]",
        "aliyun.com/gpu-mem needs the memory of one GPU",
    ),
    "islands that labels can't tell": (
        "nodes: [{name: a, topology: a100-8x-interleaved-bridged-pairs, publish: labels, "
        "resources: [nvidia.com/gpu]}]",
        "its NVLink islands are {0,2} {1,3} {4,5} {6,7}, and labels can only tell of equal ones in a row",
    ),
    "links without words": (
        "nodes: [{name: a, topology: mi300-class-8x-xgmi, publish: gpu-topology-annotation, "
        "resources: [amd.com/gpu]}]",
        "GPU_TOPOLOGY has no words for link XGMI (GPUs 0, 1); publish it as labels",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_named_with_file_group_and_field(text: str, message: str) -> None:
    with pytest.raises(ShapeError) as problem:
        shape_nodes(parse_shape(text, "s.yaml"), "s.yaml")
    assert message in str(problem.value)
    assert str(problem.value).startswith("s.yaml: ")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ShapeError, match=r"nowhere.yaml: cannot be read: No such file"):
        nodes_of(Path("nowhere.yaml"))


def by_name(shape: str) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["name"]: node for node in nodes_of(SHAPES / f"{shape}.yaml")}


def test_the_demo_shape() -> None:
    nodes = by_name("demo")
    assert list(nodes) == ["v100-0", "v100-1", "v100-2", "h100-0", "h100-1"]
    v100, h100 = nodes["v100-1"], nodes["h100-0"]
    assert v100["metadata"]["labels"]["topology.kubernetes.io/rack"] == "r1"
    assert v100["metadata"]["labels"]["ack.node.gpu.schedule"] == "topology"
    assert v100["status"]["allocatable"] == {
        "cpu": "96",
        "memory": "384Gi",
        "pods": "110",
        "aliyun.com/gpu": "8",
    }
    assert json.loads(v100["metadata"]["annotations"]["GPU_TOPOLOGY"])["GPU_NV2_0_3"] == "Two NVLinks"
    assert (
        h100["metadata"]["labels"]
        | {
            "nvidia.com/gpu.count": "8",
            "nvidia.com/nvswitch.present": "true",
            "gpu.topology/nvlink-domain-size": "8",
            "topology.kubernetes.io/rack": "r2",
        }
        == h100["metadata"]["labels"]
    )
    assert "GPU_TOPOLOGY" not in h100["metadata"]["annotations"]


def test_shared_gpus_are_offered_as_memory() -> None:
    assert (
        by_name("small")["shared"]["status"]["allocatable"]
        | {
            "aliyun.com/gpu-mem": "32",
            "aliyun.com/gpu-count": "2",
        }
        == by_name("small")["shared"]["status"]["allocatable"]
    )
    assert by_name("small")["islands"]["metadata"]["labels"]["gpu.topology/nvlink-domain-size"] == "4"


def test_the_large_shape_has_500_nodes_in_20_racks_of_4_zones() -> None:
    labels = [node["metadata"]["labels"] for node in by_name("large").values()]
    assert len(labels) == 500
    racks = {
        (node_labels["topology.kubernetes.io/zone"], node_labels["topology.kubernetes.io/rack"])
        for node_labels in labels
    }
    assert len(racks) == 20
    assert len({zone for zone, _ in racks}) == 4
    assert ("h1", "h05") in racks  # racks are numbered on over the zones


def test_fewer_gpus_than_the_topology_has() -> None:
    text = """nodes: [{name: a, gpus: 3, topology: two-islands-of-four, publish: gpu-topology-annotation,
               resources: [aliyun.com/gpu]}]"""
    (node,) = shape_nodes(parse_shape(text, "s"), "s")
    assert len(json.loads(node["metadata"]["annotations"]["GPU_TOPOLOGY"])) == 3
