"""GPUs that share counters with their partitions: which are a node's GPUs, and which counters count."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from muster.dialects.devices.objects import CounterSet, ResourceSlice, SliceDevice
from muster.dialects.devices.published import counters_of
from muster.dialects.devices.resource_slices import ResourceSlices
from muster.dialects.nodes import nodes
from muster.dialects.settings import DEFAULTS
from muster.domain.node import Node, PoolCounters
from tests.dialects.drawn_counters import CASES, NUMBER
from tests.dialects.objects import node_object
from tests.dialects.test_dra import NVIDIA, device_class, gpu, slices_of

POOL = (NVIDIA, "n")


def uses(number: int, memory: str = "80Gi", name: str = "memory") -> dict[str, Any]:
    """What a device consumes of the counter set of a GPU."""
    return {"consumesCounters": [{"counterSet": f"gpu-{number}", "counters": {name: {"value": memory}}}]}


def whole_gpu(number: int) -> dict[str, Any]:
    return gpu(number, **uses(number))


def part(number: int, at: int, kind: str = "mig") -> dict[str, Any]:
    attributes = {"type": {"string": kind}}
    return {"name": f"gpu-{number}-mig-{at}", "attributes": attributes, **uses(number, "40Gi")}


def counter_set(number: int, memory: str = "80Gi") -> dict[str, Any]:
    return {"name": f"gpu-{number}", "counters": {"memory": {"value": memory}}}


def piece(name: str = "s", generation: int = 1, count: int = 2, **more: Any) -> ResourceSlice:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": count}
    spec = {"driver": NVIDIA, "pool": pool, **more}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def devices(*gpus: dict[str, Any], name: str = "d", node: str = "n", **more: Any) -> ResourceSlice:
    return piece(name, nodeName=node, devices=gpus, **more)


def sets(*counter_sets: dict[str, Any], name: str = "c", **more: Any) -> ResourceSlice:
    return piece(name, **({"nodeName": "n"} | more), sharedCounters=counter_sets)


def read(slices: ResourceSlices) -> Node:
    return nodes.read(node_object({"cpu": "8"}), DEFAULTS, offer=slices.offer("n"))


def names(node: Node) -> set[str]:
    return {device.name for device in node.devices if device is not None}


def without_room(node: Node, *allocated: str) -> set[str]:
    free = sorted(names(node) - set(allocated))
    return node.counters[POOL].names_without_room(free, allocated)


BOTH_GPUS = [whole_gpu(0), part(0, 0), part(0, 1), whole_gpu(1), part(1, 0), part(1, 1)]
TWO = [counter_set(0), counter_set(1)]


def test_whole_gpus_are_planned_and_their_partitions_take_them() -> None:
    node = read(slices_of(devices(*BOTH_GPUS), sets(*TWO)))
    assert (names(node), node.problems) == ({"gpu-0", "gpu-1"}, ())
    assert without_room(node) == set()
    assert without_room(node, "gpu-1-mig-0") == {"gpu-1"}
    assert without_room(node, "gpu-1-mig-0", "gpu-0-mig-1") == {"gpu-0", "gpu-1"}


ELSEWHERE: dict[str, dict[str, Any]] = {
    "on the node": {},
    "on all nodes": {"nodeName": None, "allNodes": True},
    "by device": {"nodeName": None, "perDeviceNodeSelection": True},
    "on another node": {"nodeName": "m"},
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_counters_count_wherever_their_slice_is(case: str) -> None:
    node = read(slices_of(devices(*BOTH_GPUS), sets(*TWO, **ELSEWHERE[case])))
    assert (names(node), node.problems) == ({"gpu-0", "gpu-1"}, ())


def test_a_slice_of_counters_completes_a_pool_and_is_seen_when_it_changes() -> None:
    slices = slices_of(devices(*BOTH_GPUS))
    assert "1 of 2 slices" in read(slices).problems[0]
    assert slices.see_slice("c", sets(*TWO)) == {"n"}
    assert names(read(slices)) == {"gpu-0", "gpu-1"}
    assert slices.see_slice("c", sets(counter_set(0, "60Gi"), counter_set(1))) == {"n"}
    assert names(read(slices)) == {"gpu-1"}
    assert slices.see_slice("c", None) == {"n"}
    assert names(read(slices)) == set()
    assert slices.see_slice("d", None) == {"n"}
    assert slices.see_slice("c", sets(*TWO)) == set()  # counters alone are of no node
    assert slices.drivers == frozenset()


def test_counters_of_an_older_generation_do_not_count() -> None:
    old = sets(counter_set(0, "1Gi"), name="old")
    new = (devices(*BOTH_GPUS, generation=2), sets(*TWO, generation=2))
    assert names(read(slices_of(old, *new))) == {"gpu-0", "gpu-1"}


OVERLAPS: dict[str, tuple[list[dict[str, Any]], set[str], str]] = {
    "a GPU and its partitions": (
        [whole_gpu(0), part(0, 0, "gpu"), part(0, 1, "gpu"), whole_gpu(1)],
        {"gpu-1"},
        "node n: of pool n of gpu.nvidia.com the devices gpu-0, gpu-0-mig-0, gpu-0-mig-1 overlap",
    ),
    "too few counters for one": (
        [gpu(0, **uses(0, "81Gi")), whole_gpu(1)],
        {"gpu-1"},
        "the devices gpu-0 overlap",
    ),
    "many": ([gpu(number, **uses(0)) for number in range(6)], set(), "gpu-0, gpu-1, gpu-2, gpu-3 and 2 more"),
    "partitions that fit": ([part(0, 0, "gpu"), part(0, 1, "gpu")], {"gpu-0-mig-0", "gpu-0-mig-1"}, ""),
    "some without counters": ([gpu(0), whole_gpu(1)], {"gpu-0", "gpu-1"}, ""),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_devices_of_the_class_that_overlap_are_left_out_and_named(case: str) -> None:
    gpus, planned, sentence = OVERLAPS[case]
    node = read(slices_of(devices(*gpus), sets(*TWO)))
    assert names(node) == planned
    assert [sentence in line for line in node.problems] == [True] * bool(sentence)


BROKEN = {
    "a set that is not there": ([whole_gpu(0)], [counter_set(1)], "set gpu-0, which is not there"),
    "a counter that is not there": (
        [gpu(0, **uses(0, name="slices"))],
        [counter_set(0)],
        "counter slices of set gpu-0, which is not there",
    ),
    "two sets of a name": ([whole_gpu(0)], [counter_set(0), counter_set(0)], "two counter sets of one name"),
    "a partition's set": ([gpu(1), part(0, 0)], [counter_set(1)], "set gpu-0, which is not there"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_nothing_of_a_pool_is_used_whose_counters_are_broken(case: str) -> None:
    gpus, counters, sentence = BROKEN[case]
    node = read(slices_of(devices(*gpus), sets(*counters)))
    assert names(node) == set()
    assert sentence in node.problems[0]
    assert "nothing of it is used" in node.problems[0]


def test_equal_nodes_share_what_is_kept_of_counters() -> None:
    slices = slices_of(devices(*BOTH_GPUS), sets(*TWO))
    second = devices(*BOTH_GPUS, name="e", node="m", count=2)
    pool = msgspec.structs.replace(second.spec.pool, name="m")
    for obj in (second, sets(*TWO, name="f")):
        spec = msgspec.structs.replace(obj.spec, pool=pool)
        slices.see_slice(obj.metadata.name, msgspec.structs.replace(obj, spec=spec))
    assert slices.offer("m").counters[NVIDIA, "m"] is slices.offer("n").counters[POOL]


def test_pools_without_counters_keep_none() -> None:
    assert read(slices_of(devices(gpu(0), count=1))).counters == {}
    nic = device_class("device.driver == 'other'")
    assert read(slices_of(devices(*BOTH_GPUS), sets(*TWO), classes=(nic,))).counters == {}


ROOM: dict[str, tuple[tuple[int, ...], dict[str, int], list[str], list[str], set[str]]] = {
    # available, amount of counter 0 that each consumes, wanted, allocated → without room
    "nothing allocated": ((2,), {"a": 1, "b": 1}, ["a", "b"], [], set()),
    "one left": ((2,), {"a": 1, "b": 1, "p": 1}, ["a", "b"], ["p"], {"b"}),
    "in the order of what is wanted": ((2,), {"a": 1, "b": 1, "p": 1}, ["b", "a"], ["p"], {"a"}),
    "a smaller one may fit": ((3,), {"a": 3, "b": 1, "p": 1}, ["a", "b"], ["p"], {"a"}),
    "exceeded, so none that consumes": ((1, 9), {"a": 0, "p": 2}, ["a", "x"], ["p"], {"a"}),
    "an allocated one that is not known": ((1,), {"a": 1}, ["a"], ["gone"], set()),
}


@pytest.mark.parametrize("case", ROOM)
def test_room(case: str) -> None:
    available, amounts, names, allocated, without = ROOM[case]
    needs = tuple((name, ((0, amount),)) for name, amount in amounts.items())
    assert PoolCounters(available, needs).names_without_room(names, allocated) == without


def test_counters_and_the_in_tree_allocator_agree() -> None:
    """The answers are those of kube-scheduler 1.37.1's allocator, which a Go test compares with the file."""
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert len(cases) == NUMBER
    for number, case in enumerate(cases):
        sets = msgspec.convert(case["Sets"], list[CounterSet])
        pool = counters_of(sets, msgspec.convert(case["Devices"], list[SliceDevice]))
        without = pool.names_without_room(case["Wanted"], case["Allocated"]) if pool is not None else set()
        assert sorted(without) == case["Without"], number
    assert sum(0 < len(case["Without"]) < len(case["Wanted"]) for case in cases) > NUMBER // 4


def test_amounts_are_compared_exactly() -> None:
    """As quantities of Kubernetes, not as floats: 100m + 200m are 300m."""
    gpus = [gpu(number, **uses(0, amount)) for number, amount in enumerate(("100m", "200m"))]
    assert names(read(slices_of(devices(*gpus), sets(counter_set(0, "300m"))))) == {"gpu-0", "gpu-1"}
