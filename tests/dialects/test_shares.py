"""Devices that several claims share → GPUs shared by memory, and what claims take of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from muster.dialects import quantities
from muster.dialects.devices import shares
from muster.dialects.devices.objects import AllocatedDevice, SliceDevice
from muster.dialects.devices.published import MAX_ROUNDINGS
from muster.dialects.devices.published import PublishedSlice as Published
from muster.dialects.devices.shares import NOT_ROUNDED, Rounding
from muster.domain.node import Node
from muster.domain.request import Slice
from tests.dialects.test_claims import Case, create_claims, read, request
from tests.dialects.test_dra import gpu, names, piece, slices_of
from tests.dialects.test_dra import read as read_node

GI = 1 << 30
RANGE = {"default": "10Gi", "validRange": {"min": "2Gi", "max": "80Gi", "step": "4Gi"}}
VALUES = {"default": "80Gi", "validValues": ["5Gi", "20Gi", "80Gi"]}


def shared_gpu(number: int, memory: str = "80Gi", policy: Any = None, name: str = "memory") -> dict[str, Any]:
    """A GPU that several claims may share."""
    capacity = {"value": memory, **({"requestPolicy": policy} if policy is not None else {})}
    return gpu(number, allowMultipleAllocations=True, capacity={name: capacity})


def of(*devices: dict[str, Any]) -> Node:
    return read_node(slices_of(piece(list(devices))))


def test_a_node_whose_gpus_claims_share_has_gpus_shared_by_memory() -> None:
    node = of(shared_gpu(0, "79.6Gi"), shared_gpu(1, "40Gi"))
    assert names(node) == ["gpu-1", "gpu-0"]
    assert node.gpu_memory == (40, 79)
    assert node.memory_resources == {"memory of nvidia.com/gpu"}
    assert node.gpu_resources == {"nvidia.com/gpu"}
    assert node.problems == ()


def test_a_gpu_that_is_not_published_has_no_memory() -> None:
    node = read_node(slices_of(piece([shared_gpu(0)])), uuids="GPU-9,GPU-0")
    assert (node.gpu_memory, node.unhealthy) == ((0, 80), 0b01)


def test_the_driver_may_be_named_in_the_capacity() -> None:
    node = of(shared_gpu(0, name="gpu.nvidia.com/memory"))
    assert node.memory_resources == {"gpu.nvidia.com/memory of nvidia.com/gpu"}


@pytest.mark.parametrize(
    ("policy", "whole"),
    [(None, True), ({}, True), (VALUES, True), (RANGE, False), ({"default": "80Gi"}, True)],
)
def test_whole_gpus_where_a_request_without_capacity_takes_all(policy: Any, whole: bool) -> None:
    node = of(shared_gpu(0, policy=policy))
    assert node.gpu_memory == (80,)
    assert node.gpu_resources == ({"nvidia.com/gpu"} if whole else set())
    assert ["no whole GPUs are planned" in problem for problem in node.problems] == [True] * (not whole)


NOT_SHARED = {
    "two capacities": {"memory": {"value": "80Gi"}, "compute": {"value": "100"}},
    "another capacity": {"compute": {"value": "100"}},
    "no capacity": {},
    "less than a GiB": {"memory": {"value": "100Mi"}},
    "no quantity": {"memory": {"value": "much"}},
}


@pytest.mark.parametrize("case", NOT_SHARED)
def test_devices_that_can_not_be_shared_by_memory_are_left_out(case: str) -> None:
    node = of(gpu(0), gpu(1, allowMultipleAllocations=True, capacity=NOT_SHARED[case]))
    assert (names(node), node.gpu_memory) == (["gpu-0"], ())
    assert "may be allocated several times, and has more capacities than memory" in node.problems[0]


@pytest.mark.parametrize(
    "device", [gpu(1), shared_gpu(1, policy=RANGE), shared_gpu(1, name="gpu.nvidia.com/memory")], ids=str
)
def test_mixed_nodes_have_the_devices_of_one_claim_alone(device: dict[str, Any]) -> None:
    node = of(shared_gpu(0), device)
    assert names(node) == (["gpu-1"] if "capacity" not in device else [])
    assert node.gpu_memory == ()
    assert "device gpu-0 of gpu.nvidia.com may be allocated several times" in node.problems[0]


ROUNDED = {
    # policy, asked → taken, as the in-tree allocator has it (TestWhatARequestTakes in the shim)
    "no policy": (None, "3Gi", "3Gi"),
    "below the range": (RANGE, "1Gi", "2Gi"),
    "on a step": (RANGE, "6Gi", "6Gi"),
    "between steps": (RANGE, "7Gi", "10Gi"),
    "beyond the range": (RANGE, "81Gi", "82Gi"),
    "a range without steps": ({"default": "2Gi", "validRange": {"min": "2Gi"}}, "3.5Gi", "3.5Gi"),
    "a value": (VALUES, "5Gi", "5Gi"),
    "between values": (VALUES, "6Gi", "20Gi"),
    "beyond all values": (VALUES, "90Gi", "90Gi"),
    "steps that are no numbers": ({"default": "2Gi", "validRange": {"min": "x", "step": "-1"}}, "3Gi", "3Gi"),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_rounding(case: str) -> None:
    policy, amount, rounded = ROUNDED[case]
    rounding = shares.rounding_of(msgspec.convert(shared_gpu(0, policy=policy), SliceDevice))
    assert rounding is not None
    assert rounding[0] == "memory"
    assert rounding[1](_bytes(amount)) == _bytes(rounded)


def _bytes(text: str) -> Fraction:
    value = quantities.parse(text)
    assert value is not None
    return value


def test_what_is_rounded_up_somewhere_is_known() -> None:
    slices = slices_of(piece([shared_gpu(0, policy=RANGE)]), piece([shared_gpu(1)], "t", node="m"))
    assert set(slices.roundings) == {
        ("memory", NOT_ROUNDED),
        ("memory", Rounding(Fraction(2 * GI), Fraction(4 * GI))),
    }
    slices.see_slice("s", None)
    assert set(slices.roundings) == {("memory", NOT_ROUNDED)}
    slices.see_slice("t", piece([gpu(0)], "t"))
    assert not slices.roundings


def test_how_one_node_alone_rounds_up_does_not_count_beside_others() -> None:
    """Else a kubelet could have each pod of the cluster ask for more memory than any GPU has."""
    huge = {"default": "1Gi", "validRange": {"min": "100Ti"}}
    slices = slices_of(
        piece([shared_gpu(0)]),
        piece([shared_gpu(1)], "t", node="m"),
        piece([shared_gpu(2, policy=huge)], "u", node="evil"),
        piece([shared_gpu(3, policy=huge)], "v", node="evil"),
    )
    assert set(slices.roundings) == {("memory", NOT_ROUNDED)}
    slices.see_slice("t", None)
    assert len(set(slices.roundings)) == 2  # each of them is one node's


def test_a_slice_that_rounds_up_in_many_ways_counts_as_one_without() -> None:
    many = [shared_gpu(at, policy={"default": "1Gi", "validValues": [f"{at}Gi"]}) for at in range(100)]
    assert not slices_of(piece(many)).roundings


def test_a_node_that_rounds_up_in_many_ways_counts_as_one_without() -> None:
    """All roundings are looked at when any slice changes, so a node with thousands of slices has none."""
    slices, count = slices_of(piece([shared_gpu(0)], "t", node="m")), MAX_ROUNDINGS + 1
    of_node = [
        piece([shared_gpu(0, policy={"default": "1Gi", "validValues": [f"{at}Gi"]})], f"s{at}", node="evil")
        for at in range(count)
    ]
    for device in (*of_node, of_node[0]):
        slices.see_slice(device.metadata.name, device)
    assert set(slices.roundings) == {("memory", NOT_ROUNDED)}
    slices.see_slice("t", None)
    assert not slices.roundings
    slices.see_slice("s0", None)
    assert len(slices.roundings) == MAX_ROUNDINGS
    for device in of_node:
        slices.see_slice(device.metadata.name, None)
    assert not slices.roundings


def test_only_drivers_of_gpus_round_up() -> None:
    """Memory that another driver serves by another class is no GPU's."""
    nic_slice = piece([shared_gpu(0, policy=RANGE)], "t", driver="cxl.example.com")
    slices = slices_of(piece([shared_gpu(0)]), nic_slice)
    assert set(slices.roundings) == {("memory", NOT_ROUNDED)}
    slices.see_class("gpu.nvidia.com", None)
    assert not slices.roundings


def test_capacities_that_claims_do_not_share_are_not_kept() -> None:
    """NVIDIA's driver publishes them for all GPUs, and there may be 40,000."""
    plain = Published.of(piece([gpu(0)]).spec)
    assert Published.of(piece([gpu(0, capacity={"memory": {"value": "80Gi"}})]).spec) == plain


def request_for(amount: Any, name: str = "memory", **more: Any) -> dict[str, Any]:
    return request(capacity={"requests": {name: amount}}, **more)


UNITS = {
    "30Gi": 30,
    "1": 1,
    "0": 1,
    "1.5Gi": 2,
    "31G": 29,
    "1048576Gi": 1 << 20,
}


@pytest.mark.parametrize("amount", UNITS)
def test_a_request_with_capacity_is_a_slice(amount: str) -> None:
    case = Case(([request_for(amount), request("n", "nic")],))
    pod = read(case, create_claims(case))
    assert pod.slice == Slice(UNITS[amount], 1, "memory of nvidia.com/gpu")
    assert (pod.gpus, pod.gpu_resource, pod.causes) == (0, "", ())


def test_a_request_for_several_gpus_takes_as_much_of_each() -> None:
    case = Case(([request_for("30Gi", count=3)],))
    assert read(case, create_claims(case)).slice == Slice(30, 3, "memory of nvidia.com/gpu")


def test_capacity_without_requests_is_a_request_for_a_whole_gpu() -> None:
    case = Case(([request(capacity={})],))
    pod = read(case, create_claims(case))
    assert (pod.slice, pod.gpus, pod.causes) == (None, 1, ())


def test_the_largest_result_of_all_roundings_counts() -> None:
    case = Case(([request_for("7Gi")],))
    slices = slices_of(piece([shared_gpu(0, policy=RANGE)]), piece([shared_gpu(1)], "t", node="m"))
    pod = read(case, create_claims(case, lambda: slices.roundings))
    assert pod.slice == Slice(10, 1, "memory of nvidia.com/gpu")


WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "several capacities": (
        [request(capacity={"requests": {"memory": "1Gi", "compute": "1"}})],
        'request r, capacity is "compute, memory", expected memory alone',
    ),
    "another capacity": ([request_for("1", "compute")], 'capacity is "compute", expected memory alone'),
    "all": ([request_for("1Gi", allocationMode="All")], "none with allocationMode All"),
    "too many GPUs": (
        [request_for("1Gi", count=257)],
        'request r, count is "257", expected GPUs of one node',
    ),
    "whole GPUs beside it": ([request_for("1Gi"), request("s")], "none beside other requests for GPUs"),
    "two of them": ([request_for("1Gi"), request_for("1Gi")], "none beside other requests for GPUs"),
    "no quantity": ([request_for("much")], 'capacity.requests[memory] is "much", expected memory of one GPU'),
    "negative": ([request_for("-1Gi")], 'capacity.requests[memory] is "-1Gi"'),
    "huge": (
        [request_for("9999999999Ti")],
        'is "9999999999Ti", expected memory of one GPU, at most 1048576Gi',
    ),
    "a long text": ([request_for("1" * 999)], f'is "{"1" * 60}…", expected'),
    "a long name": ([request_for("1", "x" * 999)], f'is "{"x" * 60}…", expected'),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_planned_names_claim_and_field(case: str) -> None:
    requests, words = WRONG[case]
    claim = Case((requests,))
    pod = read(claim, create_claims(claim))
    (cause,) = pod.causes
    assert f"resourceClaims c0, request {requests[0]['name']}" in str(cause)
    assert words in str(cause)
    assert pod.slice is None


def test_memory_by_a_resource_and_by_a_claim() -> None:
    case = Case(([request_for("1Gi")],), limits={"aliyun.com/gpu-mem": "3"})
    (cause,) = read(case, create_claims(case)).causes
    assert "by resources or by claims" in str(cause)


CONSUMED = {
    "a share": ({"memory": "10Gi"}, "id", 10 * GI),
    "of the driver's memory": ({"gpu.nvidia.com/memory": "1500m"}, "id", 2),
    "nothing": ({"memory": "0"}, "id", 1),
    "no share": ({"memory": "10Gi"}, None, 0),
    "nothing is said": ({}, "id", 0),
    "another capacity": ({"compute": "1"}, "id", 0),
    "two capacities": ({"memory": "1Gi", "compute": "1"}, "id", 0),
    "no quantity": ({"memory": "much"}, "id", 0),
    "negative": ({"memory": "-1"}, "id", 0),
}


@pytest.mark.parametrize("case", CONSUMED)
def test_what_an_allocation_takes(case: str) -> None:
    consumed, share_id, amount = CONSUMED[case]
    result = {"driver": "d", "consumedCapacity": consumed, **({"shareID": share_id} if share_id else {})}
    assert shares.taken_bytes(msgspec.convert(result, AllocatedDevice)) == amount
