"""ResourceSlices and DeviceClasses → the GPUs of nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.dialects.devices import offers, published, selectors
from muster.dialects.devices.objects import DeviceClassObject, DeviceTaintRule, ResourceSlice
from muster.dialects.devices.offers import KINDS_OF_NODES
from muster.dialects.devices.published import MAX_DEVICES, MAX_POOLS
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.nodes import nodes
from muster.dialects.settings import DEFAULTS
from muster.domain.allocation import MAX_GPUS
from muster.domain.node import Node
from tests.dialects.objects import node_object

NVIDIA = "gpu.nvidia.com"
GPUS = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"


def gpu(number: int, **more: Any) -> dict[str, Any]:
    """A device as NVIDIA's driver publishes it; the PCI order is the other way round than the names."""
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{number}"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{15 - number:02X}:00.0"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, **more}


def piece(
    devices: list[dict[str, Any]],
    name: str = "s",
    driver: str = NVIDIA,
    generation: int = 1,
    count: int = 1,
    node: str | None = "n",
) -> ResourceSlice:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "pool": pool, "nodeName": node, "devices": devices}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def counters(name: str, node: str, generation: int = 1) -> ResourceSlice:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    sets = [{"name": "set", "counters": {"memory": {"value": "1Gi"}}}]
    spec = {"driver": NVIDIA, "pool": pool, "nodeName": node, "sharedCounters": sets}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def device_class(
    expression: str = GPUS,
    name: str = NVIDIA,
    resource: str = "nvidia.com/gpu",
    created: str = "2026-01-01T00:00:00Z",
) -> DeviceClassObject:
    spec = {"extendedResourceName": resource, "selectors": [{"cel": {"expression": expression}}]}
    meta = {"name": name, "creationTimestamp": created}
    return msgspec.convert({"metadata": meta, "spec": spec}, DeviceClassObject)


def slices_of(
    *pieces: ResourceSlice, classes: tuple[DeviceClassObject, ...] = (device_class(),)
) -> ResourceSlices:
    slices = ResourceSlices(DEFAULTS)
    for new_slice in pieces:
        slices.see_slice(new_slice.metadata.name, new_slice)
    for device_class in classes:
        slices.see_class(device_class.metadata.name, device_class)
    return slices


def read(slices: ResourceSlices, allocatable: dict[str, str] | None = None, uuids: str | None = None) -> Node:
    annotations = {"gpu.topology/gpu-uuids": uuids} if uuids is not None else {}
    obj = node_object({"cpu": "8", **(allocatable or {})}, annotations=annotations)
    return nodes.read(obj, DEFAULTS, offer=slices.offer("n"))


def names(node: Node) -> list[str]:
    return [device.name if device is not None else "" for device in node.devices]


def test_gpus_of_slices_are_gpus_of_the_node_in_pci_order() -> None:
    node = read(slices_of(piece([gpu(number) for number in range(3)])))
    assert names(node) == ["gpu-2", "gpu-1", "gpu-0"]
    assert node.topology.gpu_count == 3
    assert node.gpu_resources == {"nvidia.com/gpu"}
    assert str(node.devices[0]) == "gpu.nvidia.com/n/gpu-2"
    assert node.problems == ()


UUIDS = {
    "in the annotation's order": ("GPU-0,GPU-1", ["gpu-0", "gpu-1"], 0, ""),
    "a GPU that is not published keeps its number": (
        "GPU-1, GPU-9, GPU-0",
        ["gpu-1", "", "gpu-0"],
        0b010,
        "",
    ),
    "not all are named": ("GPU-0", ["gpu-1", "gpu-0"], 0, "does not name all GPUs"),
    "one is named twice": ("GPU-0,GPU-0", ["gpu-1", "gpu-0"], 0, "no list of different uuids"),
    "an empty name": ("GPU-0,", ["gpu-1", "gpu-0"], 0, "no list of different uuids"),
}


@pytest.mark.parametrize("case", UUIDS)
def test_uuids_outdo_the_pci_order(case: str) -> None:
    uuids, devices, unhealthy, problem = UUIDS[case]
    node = read(slices_of(piece([gpu(0), gpu(1)])), uuids=uuids)
    assert (names(node), node.unhealthy, node.tainted) == (devices, unhealthy, 0)
    assert [problem in line for line in node.problems] == [True] * bool(problem)


def test_the_example_driver_says_the_number_itself() -> None:
    devices = [{"name": f"gpu-{n}", "attributes": {"index": {"int": i}}} for n, i in enumerate((2, 0, 1))]
    slices = slices_of(
        piece(devices, driver="gpu.example.com"),
        classes=(device_class("device.driver == 'gpu.example.com'"),),
    )
    assert names(read(slices)) == ["gpu-1", "gpu-2", "gpu-0"]


def test_without_attributes_names_are_counted_and_not_spelt() -> None:
    devices = [{"name": f"d-{n}"} for n in (10, 9, 1)]
    slices = slices_of(piece(devices, driver="x"), classes=(device_class("device.driver == 'x'"),))
    assert names(read(slices)) == ["d-1", "d-9", "d-10"]


def test_gpus_that_agree_on_an_attribute() -> None:
    """By number: gpu-3 is the first by PCI address. An attribute without a domain has that of the driver."""
    root, numa = "resource.kubernetes.io/pcieRoot", "numaNode"
    attributes: list[dict[str, Any]] = [
        {root: {"string": "pci0000:01"}, numa: {"int": 0}, "even": {"bool": True}},
        {root: {"string": "pci0000:02"}, numa: {"int": 0}, "even": {"version": "1.0.0"}},
        {root: {"string": "pci0000:01"}, numa: {"string": "0"}, "even": {"bool": True}},
        {numa: {"int": 0}, "even": {"version": "1.0.0"}},
    ]
    devices = [gpu(number) for number in range(4)]
    for device, more in zip(devices, attributes, strict=True):
        device["attributes"] |= more
    groups = read(slices_of(piece(devices))).attribute_groups
    assert {name: sorted(masks) for name, masks in groups.items()} == {
        root: [0b0100, 0b1010],
        f"{NVIDIA}/numaNode": [0b0010, 0b1101],
        f"{NVIDIA}/even": [0b0101, 0b1010],
        f"{NVIDIA}/type": [0b1111],
    }


def test_gpus_below_one_pcie_root_lie_on_one_rail() -> None:
    devices = [gpu(number) for number in range(4)]
    for number, device in enumerate(devices):
        device["attributes"] |= {"resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // 2}"}}
    rails = read(slices_of(piece(devices))).rails
    assert sorted(rails) == [0, 0, 1, 1]
    assert rails[0] == 0, "numbered by the lowest GPU"
    del devices[0]["attributes"]["resource.kubernetes.io/pcieRoot"]
    assert read(slices_of(piece(devices))).rails == ()


def test_partitions_of_nvidias_fabric_manager() -> None:
    """Attributes of its driver with the gate FabricManagerPartitioning: a number for each size."""
    devices = [gpu(number) for number in range(8)]
    for number, device in enumerate(devices):
        sizes = {f"partition{size}": {"int": 16 // size + number // size} for size in (1, 2, 4, 8)}
        device["attributes"] |= sizes | {"gpuModuleID": {"int": number + 1}}
    node = read(slices_of(piece(devices)))
    assert node.partitions == (*((size, f"{NVIDIA}/partition{size}") for size in (1, 2, 4)), (8, ""))
    assert not read(slices_of(piece([gpu(0), gpu(1)]))).partitions
    assert {name: sorted(masks) for name, masks in node.attribute_groups.items() if "partition" in name} == {
        f"{NVIDIA}/partition1": [1 << number for number in range(8)],
        f"{NVIDIA}/partition2": [0b11, 0b1100, 0b110000, 0b11000000],
        f"{NVIDIA}/partition4": [0b1111, 0b11110000],
        f"{NVIDIA}/partition8": [0b11111111],
    }


def test_partitions_of_nvidias_fabric_manager_of_which_no_two_gpus_are_left() -> None:
    """Two GPUs of them would hang as well."""
    devices = [gpu(0), gpu(4)]
    for number, device in enumerate(devices):
        device["attributes"] |= {f"partition{size}": {"int": 16 // size + number} for size in (1, 4)}
    assert read(slices_of(piece(devices))).partitions == (
        (1, f"{NVIDIA}/partition1"),
        (4, f"{NVIDIA}/partition4"),
    )


def test_a_node_that_publishes_something_else_all_the_time_takes_little_memory() -> None:
    slices = slices_of()
    for number in range(2 * KINDS_OF_NODES):
        devices = [gpu(at) for at in range(10)]
        for at, device in enumerate(devices):
            device["attributes"]["even"] = {"bool": bool(number >> at & 1)}
        slices.see_slice("s", piece(devices))
        assert read(slices).attribute_groups
    assert max(published._intern.cache_info().currsize, offers._cached_groups.cache_info().currsize) <= 256


def test_taints_make_gpus_unhealthy() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    mild = {"key": "hot", "effect": "None"}
    node = read(slices_of(piece([gpu(0, taints=[taint]), gpu(1, taints=[mild])])))
    assert node.unhealthy == 0b10  # gpu-0 is the last by PCI address


def rule(effect: str = "NoSchedule", key: str = "broken", **selector: str) -> DeviceTaintRule:
    spec = {"deviceSelector": selector, "taint": {"key": key, "effect": effect}}
    return msgspec.convert({"metadata": {"name": "r"}, "spec": spec}, DeviceTaintRule)


RULES = {
    "a device": (rule(driver=NVIDIA, pool="n", device="gpu-0"), 0b10),
    "a pool": (rule(pool="n"), 0b11),
    "a driver": (rule(driver=NVIDIA), 0b11),
    "all devices": (rule(), 0b11),
    "another driver": (rule(driver="nic.example.com"), 0),
    "another pool": (rule(driver=NVIDIA, pool="m"), 0),
    "a device that is not there": (rule(device="gpu-7"), 0),
    "for information": (rule("None", driver=NVIDIA), 0),
    "to keep other schedulers away": (rule(driver=NVIDIA, key="muster.dev/owned"), 0),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_make_gpus_unhealthy_while_they_exist(case: str) -> None:
    rules, unhealthy = RULES[case]
    slices = slices_of(piece([gpu(0), gpu(1)]))
    assert read(slices).unhealthy == 0
    assert slices.see_rule("r", rules) == ({"n"} if unhealthy or case.startswith("a device") else set())
    assert read(slices).unhealthy == read(slices).tainted == unhealthy
    assert slices.see_rule("r", rules) == set()
    slices.see_rule("r", None)
    assert read(slices).unhealthy == 0


def test_a_rule_without_a_selector_taints_nothing() -> None:
    spec = {"taint": {"key": "k", "effect": "NoSchedule"}}
    slices = slices_of(piece([gpu(0)]))
    assert slices.see_rule("r", msgspec.convert({"spec": spec}, DeviceTaintRule)) == set()
    assert read(slices).unhealthy == 0


POOLS = {
    "a slice is missing": ([piece([gpu(0)], count=2)], [], "1 of 2 slices of generation 1"),
    "both are there": ([piece([gpu(0)], count=2), piece([gpu(1)], "t", count=2)], ["gpu-1", "gpu-0"], ""),
    "the newest generation counts": (
        [piece([gpu(0), gpu(1)]), piece([gpu(1)], "t", generation=2)],
        ["gpu-1"],
        "",
    ),
    "and it is not complete": (
        [piece([gpu(0)]), piece([gpu(1)], "t", generation=2, count=2)],
        [],
        "1 of 2 slices of generation 2",
    ),
    "slices of several nodes": (
        [piece([gpu(0)], count=2), piece([gpu(1)], "t", count=2, node="m")],
        [],
        "has slices of several nodes",
    ),
    "another node has a slice of the pool": (
        [piece([gpu(0)]), piece([{"name": "x"}], "t", node="m")],
        ["gpu-0"],
        "",
    ),
    "and a newer one": (
        [piece([gpu(0)]), piece([], "t", generation=99, node="m")],
        ["gpu-0"],
        "",
    ),
    "and the same device": ([piece([gpu(0)]), piece([gpu(0), gpu(0)], "t", node="m")], ["gpu-0"], ""),
    "and counters of the same name": (
        [piece([gpu(0)]), counters("t", node="m"), counters("u", node="m", generation=9)],
        ["gpu-0"],
        "",
    ),
    "another node is newer than a pool in part": (
        [piece([gpu(0)], count=2), piece([gpu(1)], "t", generation=2, node="m")],
        [],
        "1 of 2 slices of generation 1 are there, and generation 2 of other nodes",
    ),
    "another driver's pool in part": (
        [piece([gpu(0)]), piece([{"name": "nic"}], "t", driver="nic.example.com", count=2)],
        ["gpu-0"],
        "",
    ),
    "a device twice": (
        [piece([gpu(0)], count=2), piece([gpu(0)], "t", count=2)],
        [],
        "names a device twice",
    ),
    "slices of no node": ([piece([gpu(0)], node=None)], [], ""),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools(case: str) -> None:
    pieces, devices, problem = POOLS[case]
    node = read(slices_of(*pieces))
    assert names(node) == devices
    assert [problem in line for line in node.problems] == [True] * bool(problem)


UNPLANNED: dict[str, dict[str, Any]] = {
    "several times": {"allowMultipleAllocations": True},
    "binding conditions": {"bindingConditions": ["ready"]},
}


@pytest.mark.parametrize("words", UNPLANNED)
def test_what_is_not_planned_yet_is_said(words: str) -> None:
    node = read(slices_of(piece([gpu(0), gpu(1, **UNPLANNED[words])])))
    assert names(node) == ["gpu-0"]
    assert words in node.problems[0]


def test_mig_devices_are_no_gpus() -> None:
    mig = gpu(1)
    mig["attributes"]["type"] = {"string": "mig"}
    assert names(read(slices_of(piece([gpu(0), mig])))) == ["gpu-0"]


def test_a_node_whose_gpus_are_published_as_parts_does_not_lack_gpus() -> None:
    mig = gpu(1)
    mig["attributes"]["type"] = {"string": "mig"}
    obj = node_object({"cpu": "8"}, {"nvidia.com/gpu.count": "8"})
    assert nodes.read(obj, DEFAULTS).missing_gpus == 8
    node = nodes.read(obj, DEFAULTS, offer=slices_of(piece([mig])).offer("n"))
    assert (node.missing_gpus, node.problems) == (0, ())


def test_a_device_plugin_outdoes_the_slices() -> None:
    slices = slices_of(piece([gpu(0)]))
    for offered in ({"nvidia.com/gpu": "4"}, {"aliyun.com/gpu": "4"}):
        node = read(slices, offered)
        assert node.devices == ()
        assert node.topology.gpu_count == 4
        assert "a device plugin" in node.problems[0]
    assert names(read(slices, {"nvidia.com/gpu": "0"})) == ["gpu-0"]


def test_the_newest_class_counts_as_for_kube_scheduler() -> None:
    none = device_class("device.driver == 'other'", "new", created="2026-02-01T00:00:00Z")
    slices = slices_of(piece([gpu(0)]), classes=(device_class(), none))
    assert read(slices).devices == ()
    slices.see_class("new", None)
    assert names(read(slices)) == ["gpu-0"]


def test_a_class_that_cannot_be_read_gives_no_gpus_and_says_so() -> None:
    node = read(slices_of(piece([gpu(0)]), classes=(device_class("device.driver.startsWith('gpu')"),)))
    assert node.devices == ()
    assert "DeviceClass gpu.nvidia.com: selector" in node.problems[0]


def test_a_class_of_another_resource_is_no_concern_of_ours() -> None:
    assert read(slices_of(piece([gpu(0)]), classes=(device_class(resource="example.com/nic"),))).devices == ()


def test_changes_name_the_nodes_that_they_concern() -> None:
    slices = ResourceSlices(DEFAULTS)
    assert slices.see_class(NVIDIA, device_class()) == set()
    assert slices.see_slice("s", piece([gpu(0)])) == {"n"}
    assert slices.see_slice("s", piece([gpu(0)])) == set()
    assert slices.see_slice("s", piece([gpu(0)], node="m")) == {"n", "m"}
    assert slices.see_class(NVIDIA, device_class("device.driver == 'x'")) == {"m"}
    assert slices.see_slice("s", piece([gpu(1)], node="m")) == set()  # no class may have its devices now
    assert slices.see_class(NVIDIA, device_class()) == {"m"}
    assert slices.see_slice("s", None) == {"m"}
    assert slices.see_class(NVIDIA, None) == set()


def test_a_slice_of_another_node_concerns_only_nodes_whose_part_of_the_pool_is_not_enough() -> None:
    slices = slices_of(piece([gpu(0)]), piece([gpu(1)], "o", count=3, node="o"))
    assert not read(slices).problems
    assert "2 of 3 slices" in slices.offer("o").problems[0]
    assert slices.see_slice("m", piece([gpu(2)], "m", node="m")) == {"m", "o"}
    assert slices.offer("m").devices
    assert slices.see_slice("m", None) == {"m", "o"}


def test_of_a_node_that_publishes_too_much_the_first_pools_are_read() -> None:
    def pool(name: str, number: int, size: int) -> ResourceSlice:
        published = piece([gpu(at) for at in range(size)], f"{name}-{number}")
        spec = msgspec.structs.replace(
            published.spec, pool=msgspec.structs.replace(published.spec.pool, name=name)
        )
        return msgspec.structs.replace(published, spec=spec)

    many = [pool(f"p{number:03}", number, 1) for number in range(MAX_POOLS + 1)]
    node = read(slices_of(*many))
    assert len(node.devices) == MAX_GPUS
    assert "slices of 65 pools: the first 64" in node.problems[0]
    node = read(slices_of(pool("a", 0, 2), pool("b", 0, MAX_DEVICES - 1), pool("c", 0, 2)))
    assert len(node.devices) == 4
    assert "pool b of gpu.nvidia.com has 1023 devices beside 2 of other pools" in node.problems[0]


def test_a_device_is_decoded_once_however_often_its_node_is_read() -> None:
    slices = slices_of(piece([gpu(0)]))
    assert slices.on_node("n").to_decode
    assert read(slices).devices
    assert not slices.on_node("n").to_decode


READABLE = {
    GPUS: True,
    f'device.driver == "{NVIDIA}"': True,
    "device.driver == 'other'": False,
    f"device.attributes['{NVIDIA}'].cores == 8": True,
    f"device.attributes['{NVIDIA}'].cores == 9": False,
    f"device.attributes['{NVIDIA}'].ecc == true": True,
    f"device.attributes['{NVIDIA}'].cores == true": False,
    f"device.attributes['{NVIDIA}'].none == 'x'": False,
    f"device.driver=='{NVIDIA}'&&device.attributes['{NVIDIA}'].ecc==true": True,
}


@pytest.mark.parametrize("expression", READABLE)
def test_selectors(expression: str) -> None:
    attributes: dict[tuple[str, str], selectors.Value] = {
        (NVIDIA, "type"): "gpu",
        (NVIDIA, "cores"): 8,
        (NVIDIA, "ecc"): True,
    }
    assert selectors.are_satisfied(selectors.read([expression]), NVIDIA, attributes) == READABLE[expression]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        "device.driver == 'a' || true",
        "device.driver != 'a'",
        "device.driver == 'a' &&",
        "!(device.driver == 'a')",
        "device.driver == 'it\\'s'",
        "device.driver == 'a' && " * 1000 + "device.driver == 'a'",
    ],
)
def test_other_cel_is_unreadable(expression: str) -> None:
    with pytest.raises(selectors.UnreadableSelectorError):
        selectors.read([expression])
