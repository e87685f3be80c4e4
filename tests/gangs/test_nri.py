"""What Bindings carry for NVIDIA's NRI plugin, on nodes that have CDI devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.domain.allocation import ALLOCATION
from muster.domain.node import HandsOut
from muster.domain.request import Slice
from tests.gangs.world import World, node, pod

DEVICES = tuple(f"nvidia.com/gpu=GPU-{number}" for number in range(4))
NAMED = node("a", 4, cdi_devices=DEVICES, hands_out=HandsOut.NRI)


def carried(**fields: Any) -> dict[str, str]:
    """What the Binding of a single pod carries there."""
    world = World().start(NAMED)
    world.see(pod("p", of=1, **{"gpu_resource": "aliyun.com/gpu", **fields}))
    (annotations,) = world.run().annotations
    return annotations


def test_each_container_has_its_gpus_in_the_order_of_the_plan() -> None:
    annotations = carried(gpus=3, container_gpus=(("main", 2), ("log", 0), ("side", 1)))
    allocation = json.loads(annotations[ALLOCATION])
    assert allocation["indices"] == "planned"
    devices_of = {key: text for key, text in annotations.items() if key.startswith("nvidia.cdi.k8s.io")}
    assert devices_of == {
        f"nvidia.cdi.k8s.io/container.{name}": ",".join(DEVICES[gpu] for gpu in gpus)
        for name, gpus in allocation["containers"].items()
    }
    assert [*allocation["containers"]] == ["main", "side"]


LONG = "c" * 54
"""With "container." a name of a key that is too long."""


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_resource": "nvidia.com/gpu"},
        {"container_gpus": ((LONG, 1),)},
        {"gpus": 4, "container_gpus": ((LONG, 4),)},
        {"container_gpus": ()},
        {"gpus": 0, "gpu_resource": "", "container_gpus": ()},
    ],
    ids=["another resource", "a long name", "a long name, all GPUs", "containers unknown", "no GPUs"],
)
def test_nothing_is_written_that_the_plugin_can_not_do(fields: dict[str, Any]) -> None:
    annotations = carried(**fields)
    assert not any(key.startswith("nvidia.cdi.k8s.io") for key in annotations)
    if ALLOCATION in annotations:
        assert json.loads(annotations[ALLOCATION])["indices"] == "advisory"


def test_nothing_is_written_for_slices_and_on_other_nodes() -> None:
    shares = node("a", 4, cdi_devices=DEVICES, hands_out=HandsOut.NRI, gpu_memory=(16,) * 4)
    for gpu_node, lone_pod in (
        (shares, pod("p", of=1, gpus=0, slice=Slice(8))),
        (node("a", 4), pod("p", of=1)),
    ):
        world = World().start(gpu_node)
        world.see(lone_pod)
        (annotations,) = world.run().annotations
        assert not any(key.startswith("nvidia.cdi.k8s.io") for key in annotations)
