"""ResourceSlices as the drivers of AMD and Intel publish them: attributes of their public sources.

ROCm/k8s-gpu-dra-driver (cmd/gpu-kubeletplugin/deviceinfo.go, docs/driver-attributes.md) and
intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-gpu-plugin/node_state.go).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from muster.dialects.devices.objects import ResourceSlice
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.nodes import nodes
from muster.dialects.settings import DEFAULTS
from muster.domain.node import Node
from tests.dialects.objects import node_object
from tests.dialects.test_dra import device_class, names, piece

AMD, INTEL = "gpu.amd.com", "gpu.intel.com"
BUS, ROOT = "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot"
WITH_INTEL = replace(DEFAULTS, gpu_resources=(*DEFAULTS.gpu_resources, "intel.com/gpu"))
OF_AMD = device_class(f"device.driver == '{AMD}'", AMD, "amd.com/gpu")
OF_INTEL = device_class(f'device.driver == "{INTEL}"', INTEL, "intel.com/gpu")
"""The selectors are those of the drivers' charts."""


def mi300x(card: int, bus: str, numa: int, root: str, **more: Any) -> dict[str, Any]:
    """A whole MI300X. Cards are numbered by the kernel, and not in the order of their addresses."""
    attributes = {
        "type": {"string": "amdgpu"},
        "productName": {"string": "AMD_Instinct_MI300X_OAM"},
        "numaNode": {"int": numa},
        "driverVersion": {"version": "6.12.12"},
        "driverVersionFull": {"string": "6.12.12.60401-2164967.22.04"},
        "deviceID": {"string": "0x74a1"},
        "partitionProfile": {"string": "spx_nps1"},
        BUS: {"string": f"0000:{bus}:00.0"},
        ROOT: {"string": root},
    }
    capacity = {
        "memory": {"value": "196288Mi"},
        "computeUnits": {"value": "304"},
        "simdUnits": {"value": "1216"},
    }
    device = {"name": f"gpu-{card}-{128 + card}", "attributes": attributes, "capacity": capacity}
    return device | more


EIGHT = [
    mi300x(9, "05", 0, "pci0000:00"),
    mi300x(1, "26", 0, "pci0000:20"),
    mi300x(10, "46", 0, "pci0000:40"),
    mi300x(2, "65", 0, "pci0000:60"),
    mi300x(17, "85", 1, "pci0000:80"),
    mi300x(3, "a6", 1, "pci0000:a0"),
    mi300x(18, "c6", 1, "pci0000:c0"),
    mi300x(4, "e5", 1, "pci0000:e0"),
]


def read(driver: str, devices: list[dict[str, Any]], settings: Any = DEFAULTS) -> Node:
    """A node with these devices of a driver, in one slice."""
    slices = ResourceSlices(settings)
    slices.see_slice("s", piece(devices, driver=driver))
    for gpu_class in (OF_AMD, OF_INTEL):
        slices.see_class(gpu_class.metadata.name, gpu_class)
    return nodes.read(node_object({"cpu": "8"}), settings, offer=slices.offer("n"))


def test_amds_gpus_are_counted_by_address_whatever_their_cards_are_called() -> None:
    node = read(AMD, sorted(EIGHT, key=lambda device: str(device["name"])))
    assert names(node) == [str(device["name"]) for device in EIGHT]
    assert (set(node.gpu_resources), node.unhealthy, len(node.problems)) == ({"amd.com/gpu"}, 0, 0)


def test_amds_gpus_of_one_numa_node_may_be_asked_for_together() -> None:
    groups = read(AMD, EIGHT).attribute_groups
    assert groups[f"{AMD}/numaNode"] == (0b00001111, 0b11110000)
    assert groups[f"{AMD}/productName"] == (0b11111111,)
    assert ROOT not in groups


def older(device: dict[str, Any]) -> dict[str, Any]:
    """The device as the driver's first releases published it: its address in an attribute of its own."""
    attributes = dict(device["attributes"])
    address = attributes.pop(BUS)
    card, render = (int(part) for part in str(device["name"]).split("-")[1:])
    attributes |= {"pciAddr": address, "cardIndex": {"int": card}, "renderIndex": {"int": render}}
    return device | {"attributes": attributes}


def test_amds_older_driver_has_the_address_under_another_name() -> None:
    node = read(AMD, [older(device) for device in reversed(EIGHT)])
    assert names(node) == [str(device["name"]) for device in EIGHT]


def test_amds_partitions_that_are_made_on_demand_are_not_planned() -> None:
    """Each mode of a GPU is a device of its own, and all share a counter."""
    counters = [{"counterSet": "gpu-0-mutex", "counters": {"partition-mode": {"value": "1"}}}]
    modes = [
        mi300x(0, "05", 0, "pci0000:00", name=f"gpu-0-{mode}", consumesCounters=counters)
        for mode in ("spx-nps1", "dpx-nps2", "cpx-nps1", "cpx-nps4")
    ]
    slices = ResourceSlices(DEFAULTS)
    shared = [{"name": "gpu-0-mutex", "counters": {"partition-mode": {"value": "1"}}}]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": AMD, "pool": pool, "nodeName": "n", "sharedCounters": shared}
    slices.see_slice("c", msgspec.convert({"metadata": {"name": "c"}, "spec": spec}, ResourceSlice))
    slices.see_slice("s", piece([*modes, EIGHT[1]], driver=AMD, count=2))
    slices.see_class(AMD, OF_AMD)
    node = nodes.read(node_object({"cpu": "8"}), DEFAULTS, offer=slices.offer("n"))
    assert names(node) == [EIGHT[1]["name"]]
    (problem,) = node.problems
    shown = ", ".join(str(mode["name"]) for mode in modes)
    assert problem.startswith(f"node n: of pool n of {AMD} the devices {shown} overlap")


def flex(bus: str, health: str = "Healthy", **more: Any) -> dict[str, Any]:
    """A Flex 170, whose name is its address and its model."""
    attributes = {
        "model": {"string": "Flex 170"},
        "family": {"string": "Data Center Flex"},
        "driver": {"string": "i915"},
        "sriov": {"bool": True},
        "pciId": {"string": "0x56c0"},
        "pciAddress": {"string": f"0000:{bus}:00.0"},
        "health": {"string": health},
        "pciRoot": {"string": "16"},
        ROOT: {"string": "pci0000:16"},
        BUS: {"string": f"0000:{bus}:00.0"},
    }
    capacity = {"memory": {"value": "16288Mi"}, "millicores": {"value": "1k"}}
    return {"name": f"0000-{bus}-00-0-0x56c0", "attributes": attributes, "capacity": capacity, **more}


def test_intels_gpus_count_where_the_settings_name_their_resource() -> None:
    devices = [flex("a3"), flex("1d"), flex("9a")]
    node = read(INTEL, devices, WITH_INTEL)
    assert names(node) == ["0000-1d-00-0-0x56c0", "0000-9a-00-0-0x56c0", "0000-a3-00-0-0x56c0"]
    assert (set(node.gpu_resources), len(node.problems)) == ({"intel.com/gpu"}, 0)
    assert node.attribute_groups[ROOT] == (0b111,)
    assert read(INTEL, devices).topology.gpu_count == 0


@pytest.mark.parametrize("key", ["HealthIssues-coretemperature", "HealthIssues-memorytemperature_power"])
def test_an_unhealthy_gpu_of_intel_is_not_planned_on(key: str) -> None:
    sick = flex("9a", "Unhealthy", taints=[{"key": key, "effect": "NoExecute"}])
    assert read(INTEL, [flex("1d"), sick], WITH_INTEL).unhealthy == 0b10
