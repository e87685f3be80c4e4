"""Nodes that the setting nri_nodes names, and pods that come with annotations of NVIDIA's NRI plugin."""

from __future__ import annotations

import pytest

from muster.dialects.nodes import nodes
from muster.dialects.pods import pods
from muster.dialects.settings import DialectSettings
from muster.domain.causes.ill_formed import ForgedAllocation
from muster.domain.node import HandsOut
from tests.dialects.objects import node_object, pod_object

ON = DialectSettings(nri_nodes="example.com/nri=on")
NRI_LABELS = {"example.com/nri": "on"}
UUIDS = {"gpu.topology/gpu-uuids": "GPU-1, GPU-0"}
GPUS = {"aliyun.com/gpu": "2"}


def test_a_named_node_has_cdi_devices_by_uuid_in_the_order_of_its_gpus() -> None:
    node = nodes.read(node_object(allocatable=GPUS, labels=NRI_LABELS, annotations=UUIDS), ON)
    assert node.cdi_devices == ("nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-0")
    assert (node.hands_out, node.problems) == (HandsOut.NRI, ())


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (DialectSettings(), NRI_LABELS),
        (ON, {}),
        (ON, {"example.com/nri": "off"}),
    ],
)
def test_other_nodes_have_none(settings: DialectSettings, labels: dict[str, str]) -> None:
    node = nodes.read(node_object(allocatable=GPUS, labels=labels, annotations=UUIDS), settings)
    assert (node.cdi_devices, node.problems) == ((), ())
    assert node.hands_out is not HandsOut.NRI


@pytest.mark.parametrize(
    ("allocatable", "uuids", "says"),
    [
        (GPUS, "", "with 2 different uuids"),
        (GPUS, "GPU-1,GPU-1", "with 2 different uuids"),
        (GPUS, "GPU-1,all,x=y", "different uuids"),
        (GPUS, "GPU-1,x=y", "with 2 different uuids"),
        (GPUS, "GPU-1," + "2" * 64, "with 2 different uuids"),
        ({"nvidia.com/gpu": "2"}, "GPU-1,GPU-0", "aliyun.com/gpu alone: the node offers none"),
    ],
)
def test_a_named_node_that_can_have_none_says_why(allocatable: dict[str, str], uuids: str, says: str) -> None:
    annotations = {"gpu.topology/gpu-uuids": uuids} if uuids else {}
    node = nodes.read(node_object(allocatable=allocatable, labels=NRI_LABELS, annotations=annotations), ON)
    assert node.cdi_devices == ()
    assert any(says in problem for problem in node.problems)


KEYS = ["nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main"]


@pytest.mark.parametrize("key", KEYS)
def test_a_pod_that_brings_one_is_refused_where_muster_writes_them(key: str) -> None:
    obj = pod_object(limits={"aliyun.com/gpu": "1"}, annotations={key: "nvidia.com/gpu=0"})
    assert pods.read(obj, ON).causes == (ForgedAllocation(obj.metadata.name, key),)
    assert pods.read(obj).causes == ()
    with_another_container = pod_object(
        limits={"aliyun.com/gpu": "1"}, annotations={"nvidia.cdi.k8s.io.example.com/x": ""}
    )
    assert pods.read(with_another_container, ON).causes == ()
