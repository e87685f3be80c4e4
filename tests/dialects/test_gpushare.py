"""Memory of shared GPUs: what pods ask for, what nodes offer, what is written and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.dialects.nodes import nodes
from muster.dialects.pods import pods
from muster.domain import allocation
from muster.domain.causes.ill_formed import BadValue
from muster.domain.decision import MemberPlacement
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.request import Slice
from muster.domain.topology import mask_of
from tests.dialects.objects import node_object, pod_object

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def _containers(*amounts: int, **inits: int) -> dict[str, Any]:
    """Containers c0, c1 … by their GiB, sidecars by name."""

    def made(name: str, amount: int, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {MEM: amount}}, **more}

    return {
        "containers": [made(f"c{i}", amount) for i, amount in enumerate(amounts)],
        "initContainers": [made(name, amount, restartPolicy="Always") for name, amount in inits.items()],
    }


SLICES: dict[str, tuple[dict[str, Any], Slice, tuple[tuple[str, int], ...]]] = {
    "the document's pod": ({"limits": {MEM: 3}}, Slice(3), (("main", 3),)),
    "as text": ({"limits": {MEM: "3"}}, Slice(3), (("main", 3),)),
    "over two GPUs": ({"limits": {MEM: 8}, "labels": {COUNT: "2"}}, Slice(4, 2), (("main", 4),)),
    "over one": ({"limits": {MEM: 8}, "labels": {COUNT: "1"}}, Slice(8), (("main", 8),)),
    "of three containers": ({"spec": _containers(2, 0, 4)}, Slice(6), (("c0", 2), ("c1", 0), ("c2", 4))),
    "of two over two": (
        {"spec": _containers(2, 4), "labels": {COUNT: "2"}}, Slice(3, 2), (("c0", 1), ("c1", 2)),
    ),
    "with a sidecar": ({"spec": _containers(2, agent=1)}, Slice(3), (("c0", 2), ("agent", 1))),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "share", "containers"), SLICES.values(), ids=SLICES.keys())
def test_what_a_pod_asks_of_shared_gpus(
    fields: dict[str, Any], share: Slice, containers: tuple[tuple[str, int], ...]
) -> None:
    pod = pods.read(pod_object(**fields))
    assert (pod.slice, pod.container_gpus, pod.causes) == (share, containers, ())
    assert (pod.gpus, pod.gpu_resource) == (0, "")
    assert sum(units for _, units in containers) == share.units
    assert pod.claim is not None
    assert pod.claim.lone


def test_an_init_container_that_asks_for_most_is_what_counts() -> None:
    init = {"name": "load", "resources": {"limits": {MEM: 6}}}
    pod = pods.read(pod_object(limits={MEM: 4}, spec={"initContainers": [init]}))
    assert (pod.slice, pod.container_gpus) == (Slice(6), (("main", 4),))


@pytest.mark.parametrize(
    "gang",
    [
        {"labels": {"gpu-topology": "g", "gpu-topology-replica": "2"}},
        {"annotations": {"gpu.topology/group": "g", "gpu.topology/min-member": "2"}},
        {"annotations": {"scheduling.run.ai/pod-group": "g"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    ],
)
def test_a_sharing_pod_is_a_member_like_others(gang: dict[str, Any]) -> None:
    pod = pods.read(pod_object(limits={MEM: 3}, **gang))
    assert (pod.slice, pod.causes) == (Slice(3), ())
    assert pod.claim is not None
    assert (pod.claim.name, pod.claim.lone) == ("g", False)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a unit": ({"limits": {MEM: "3Gi"}}, f"main: {MEM}"),
    "half a GiB": ({"limits": {MEM: "500m"}}, f"main: {MEM}"),
    "negative": ({"limits": {MEM: -1}}, f"main: {MEM}"),
    "beside whole GPUs": ({"limits": {MEM: 3, "aliyun.com/gpu": 1}}, "resources"),
    "7 over 2": ({"limits": {MEM: 7}, "labels": {COUNT: "2"}}, MEM),
    "5 and 3 over 2": ({"spec": _containers(5, 3), "labels": {COUNT: "2"}}, f"c0: {MEM}"),
    "over no GPU": ({"limits": {MEM: 8}, "labels": {COUNT: "0"}}, f"label {COUNT}"),
    "over too many": ({"limits": {MEM: 514}, "labels": {COUNT: "257"}}, f"label {COUNT}"),
    "over no number": ({"limits": {MEM: 8}, "labels": {COUNT: "two"}}, f"label {COUNT}"),
    "a label beside whole GPUs": (
        {"limits": {"aliyun.com/gpu": 1}, "labels": {COUNT: "2"}},
        f"label {COUNT}",
    ),
    "the count as a resource": ({"limits": {MEM: 8, COUNT: 2}}, f"resource {COUNT}"),
    "the count as a resource alone": ({"limits": {COUNT: 2}}, f"resource {COUNT}"),
    "the label among the annotations": (
        {"limits": {MEM: 8}, "annotations": {COUNT: "2"}},
        f"annotation {COUNT}",
    ),
}


@pytest.mark.parametrize(("fields", "field"), BAD.values(), ids=BAD.keys())
def test_what_can_not_be_asked(fields: dict[str, Any], field: str) -> None:
    pod = pods.read(pod_object(**fields))
    assert pod.claim is not None
    assert field in [cause.field for cause in pod.causes if isinstance(cause, BadValue)]


def test_the_label_alone_says_nothing_on_a_pod_that_is_not_held() -> None:
    pod = pods.read(pod_object(labels={COUNT: "2"}))
    assert (pod.claim, pod.causes, pod.slice) == (None, (), None)


def test_an_uneven_pod_that_is_bound_counts_rounded_up() -> None:
    pod = pods.read(pod_object(limits={MEM: 7}, labels={COUNT: "2"}, node="n", scheduler="other"))
    assert pod.usage == Usage("u", "n", pod.resources, unindexed_gpus=2, units=4)


# --- nodes -----------------------------------------------------------------------------------------


def offers(gpus: object, memory: object, **more: Any) -> dict[str, Any]:
    return {"allocatable": {COUNT: gpus, MEM: memory}, **more}


def by_gpu(text: str) -> dict[str, Any]:
    return offers(4, 112, annotations={"gpu.topology/gpu-mem": text})


MEMORY: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "four of 16": (offers(4, 64), (16,) * 4, ""),
    "as text": (offers("2", "30"), (15, 15), ""),
    "not even": (offers(4, 63), (15,) * 4, "63 GiB on 4 GPUs are not the same on each: 15 on each are used"),
    "less than a GiB each": (offers(4, 3), (), "3 GiB on 4 GPUs"),
    "no GPU": (offers(0, 64), (), "nothing of it is served"),
    "counted by label": (offers(0, 64, labels={"nvidia.com/gpu.count": "4"}), (16,) * 4, ""),
    "counted by whole GPUs": ({"allocatable": {"nvidia.com/gpu": 4, MEM: 64}}, (16,) * 4, ""),
    "no memory": (offers(4, 0), (), ""),
    "no quantity": (offers(4, "much"), (), "no quantity"),
    "by GPU": (by_gpu("16,16,40,40"), (16, 16, 40, 40), ""),
    "by GPU with blanks": (by_gpu("16, 16, 40, 40"), (16, 16, 40, 40), ""),
    "by GPU, one too few": (by_gpu("16,16,80"), (28,) * 4, "expected GiB of each of 4 GPUs"),
    "by GPU, another sum": (by_gpu("16,16,40,41"), (28,) * 4, "112 in all"),
    "by GPU, no numbers": (by_gpu("16,16,40,x"), (28,) * 4, "expected GiB of each"),
    "by GPU, negative": (by_gpu("-16,48,40,40"), (28,) * 4, "expected GiB of each"),
    "one GPU broken": (
        offers(4, 48, capacity={COUNT: 4, MEM: 64}),
        (16,) * 4,
        "allocatable has 16 aliyun.com/gpu-mem less than capacity, 0 of them on GPUs that are known",
    ),
    "one GPU broken and not counted": (offers(3, 48, capacity={COUNT: 4, MEM: 64}), (16,) * 4, "not said"),
    "all GPUs broken": (offers(4, 0, capacity={COUNT: 4, MEM: 64}), (), ""),
    "capacity that is none": (offers(4, 64, capacity={COUNT: "x", MEM: -1}), (16,) * 4, ""),
    "by GPU, very long": (by_gpu("1," * 9_000), (28,) * 4, "expected GiB of each"),
}


@pytest.mark.parametrize(("fields", "memory", "says"), MEMORY.values(), ids=MEMORY.keys())
def test_what_a_node_offers(fields: dict[str, Any], memory: tuple[int, ...], says: str) -> None:
    node = nodes.read(node_object(**fields))
    assert node.gpu_memory == memory
    assert (says in "; ".join(node.problems)) if says else node.problems == ()
    assert not memory or node.topology.gpu_count == len(memory)


EVERYTHING = {"nvidia.com/gpu": 4, "aliyun.com/gpu": 4, COUNT: 4, MEM: 64}
MODES: dict[str, tuple[dict[str, str], set[str], bool]] = {
    "no label": ({}, {"nvidia.com/gpu", "aliyun.com/gpu"}, True),
    "default": ({"ack.node.gpu.schedule": "default"}, {"nvidia.com/gpu"}, False),
    "topology": ({"ack.node.gpu.schedule": "topology"}, {"aliyun.com/gpu"}, False),
    "share": ({"ack.node.gpu.schedule": "share"}, set(), True),
    "cgpu": ({"ack.node.gpu.schedule": "cgpu"}, set(), True),
    "disabled": ({"ack.node.gpu.schedule": "disabled"}, set(), False),
}


@pytest.mark.parametrize(("labels", "whole", "slices"), MODES.values(), ids=MODES.keys())
def test_a_mode_serves_one_kind_alone(labels: dict[str, str], whole: set[str], slices: bool) -> None:
    node = nodes.read(node_object(EVERYTHING, labels))
    assert node.gpu_resources == whole
    assert node.gpu_memory == ((16,) * 4 if slices else ())
    assert node.topology.gpu_count == 4  # what runs there keeps its GPUs
    assert node.problems == ()


PLACEMENTS = {"": (False, 0), "binpack": (False, 0), "spread": (True, 0), "Spread": (False, 1)}


@pytest.mark.parametrize(("placement", "expected"), PLACEMENTS.items())
def test_how_a_node_places_slices(placement: str, expected: tuple[bool, int]) -> None:
    labels = {"ack.node.gpu.placement": placement} if placement else {}
    node = nodes.read(node_object({COUNT: 2, MEM: 32}, labels))
    assert (node.spreads_slices, len(node.problems)) == expected


# --- written and read back -------------------------------------------------------------------------

WALL_NS = 1_700_000_000_000_000_000


def bound(annotations: dict[str, str], **fields: Any) -> Pod:
    return pods.read(pod_object(node="n", annotations=annotations, **fields))


def written(pod: Pod, gpus: tuple[int, ...], sizes: tuple[int, ...] = (16,) * 8) -> dict[str, str]:
    place = MemberPlacement(pod.uid, pod.name, "", "n", gpus, pod.slice.units if pod.slice else 0)
    return allocation.with_times(allocation.write(pod, place, 7, "{}", sizes), WALL_NS)


def test_what_a_binding_carries_of_a_slice() -> None:
    carried = written(pods.read(pod_object(spec=_containers(2, 0, 4))), (3,), (16, 16, 16, 24))
    assert json.loads(carried[allocation.ALLOCATION]) == {
        "version": 1,
        "generation": 7,
        "containers": {"c0": [3], "c2": [3]},
        "gpus": [3],
        "indices": "advisory",
        "gpu_mem": {"3": 6},
    }
    del carried[allocation.ALLOCATION], carried[allocation.DECISION]
    assert carried == {
        "ALIYUN_COM_GPU_MEM_IDX": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        "scheduler.framework.gpushare.allocation": '{"0":{"3":2},"2":{"3":4}}',
    }


def test_what_a_binding_carries_of_a_slice_on_two_gpus() -> None:
    pod = pods.read(pod_object(limits={MEM: 8}, labels={COUNT: "2"}))
    carried = written(pod, (0, 2), (24, 16, 16))
    assert carried["ALIYUN_COM_GPU_MEM_IDX"] == "0,2"
    assert carried["ALIYUN_COM_GPU_MEM_DEV"] == "16"  # the smallest of the two
    assert carried["ALIYUN_COM_GPU_MEM_POD"] == "8"
    assert json.loads(carried["scheduler.framework.gpushare.allocation"]) == {"0": {"0": 4, "2": 4}}


def test_all_that_is_written_is_reserved() -> None:
    for limits in ({MEM: 3}, {"aliyun.com/gpu": 1}):
        assert set(written(pods.read(pod_object(limits=limits)), (0,))) <= set(allocation.RESERVED_KEYS)


def test_hundreds_of_containers_stay_within_the_bound() -> None:
    names = _containers(*[62] * 300)["containers"]
    pod = pods.read(pod_object(spec={"containers": names}, labels={COUNT: "62"}))
    gpus = tuple(range(62))
    carried = written(pod, gpus, (1000,) * 62)
    assert max(map(len, carried.values())) <= allocation.MAX_BYTES
    assert allocation.read(carried, pod) == mask_of(gpus)


@given(
    st.sets(st.integers(0, 61), min_size=1, max_size=16),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    st.sets(st.sampled_from([allocation.ALLOCATION, allocation.SHARES, allocation.MEM_GPUS]), max_size=2),
)
def test_what_is_written_is_read_back_from_any_of_its_annotations(
    gpus: set[int], units: list[int], missing: set[str]
) -> None:
    amounts = [amount * len(gpus) for amount in units]
    fields: dict[str, Any] = {"spec": _containers(*amounts), "labels": {COUNT: str(len(gpus))}}
    pod = pods.read(pod_object(**fields))
    assert pod.slice == Slice(sum(units), len(gpus))
    carried = written(pod, tuple(sorted(gpus)), (100,) * 62)
    annotations = {key: text for key, text in carried.items() if key not in missing}
    usage = bound(annotations, **{**fields, "spec": {**fields["spec"], "nodeName": "n"}}).usage
    assert usage == Usage("u", "n", pod.resources, gpus=mask_of(sorted(gpus)), units=sum(units))


SHARES = "scheduler.framework.gpushare.allocation"
READ: dict[str, tuple[dict[str, str], dict[str, Any], int | None]] = {
    # what: annotations, the pod, the mask that is believed
    "an old gpushare scheduler's": (
        {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "8"}, {"limits": {MEM: 8}}, 0b10,
    ),
    "its index alone": ({"ALIYUN_COM_GPU_MEM_IDX": "1"}, {"limits": {MEM: 8}}, 0b10),
    "its pending mark": ({"ALIYUN_COM_GPU_MEM_IDX": "-1"}, {"limits": {MEM: 8}}, None),
    "of another amount": (
        {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "3"}, {"limits": {MEM: 8}}, None,
    ),
    "of another number of GPUs": ({"ALIYUN_COM_GPU_MEM_IDX": "0,1"}, {"limits": {MEM: 8}}, None),
    "two containers on one GPU": (
        {SHARES: '{"0":{"1":1},"1":{"1":7}}'}, {"spec": {**_containers(1, 7), "nodeName": "n"}}, 0b10,
    ),
    "two containers on two GPUs": (
        {SHARES: '{"0":{"0":4},"1":{"1":4}}'}, {"spec": {**_containers(4, 4), "nodeName": "n"}}, None,
    ),
    "shares of another amount": ({SHARES: '{"0":{"1":3}}'}, {"limits": {MEM: 8}}, None),
    "uneven shares": (
        {SHARES: '{"0":{"0":5,"1":3}}', "ALIYUN_COM_GPU_MEM_IDX": "0,1", "ALIYUN_COM_GPU_MEM_POD": "8"},
        {"limits": {MEM: 8}, "labels": {COUNT: "2"}}, None,
    ),
    "shares that are no object": ({SHARES: "[]"}, {"limits": {MEM: 8}}, None),
    "shares of no object": ({SHARES: '{"0":8}'}, {"limits": {MEM: 8}}, None),
    "shares that are no numbers": ({SHARES: '{"0":{"1":"8"}}'}, {"limits": {MEM: 8}}, None),
    "shares of no GPU": ({SHARES: '{"0":{"x":8}}'}, {"limits": {MEM: 8}}, None),
    "ours before theirs": (
        {allocation.ALLOCATION: '{"version":1,"gpus":[2],"gpu_mem":{"2":8}}', "ALIYUN_COM_GPU_MEM_IDX": "1"},
        {"limits": {MEM: 8}}, 0b100,
    ),
    "theirs where ours can't be true": (
        {allocation.ALLOCATION: '{"version":1,"gpus":[2],"gpu_mem":{"2":9}}', "ALIYUN_COM_GPU_MEM_IDX": "1"},
        {"limits": {MEM: 8}}, 0b10,
    ),
    "ours without memory": ({allocation.ALLOCATION: '{"version":1,"gpus":[2]}'}, {"limits": {MEM: 8}}, None),
    "a gputopology scheduler's": (
        {"ALIYUN_COM_GPU_GROUP": "0,2,3"}, {"limits": {"aliyun.com/gpu": 3}}, 0b1101,
    ),
    "with another number": ({"ALIYUN_COM_GPU_GROUP": "0,2"}, {"limits": {"aliyun.com/gpu": 3}}, None),
    "one GPU twice": ({"ALIYUN_COM_GPU_GROUP": "2,2"}, {"limits": {"aliyun.com/gpu": 2}}, None),
    "no list": ({"ALIYUN_COM_GPU_GROUP": "all"}, {"limits": {"aliyun.com/gpu": 1}}, None),
    "beyond any node": ({"ALIYUN_COM_GPU_GROUP": "999"}, {"limits": {"aliyun.com/gpu": 1}}, None),
    "of another device plugin": ({"ALIYUN_COM_GPU_GROUP": "0"}, {"limits": {"nvidia.com/gpu": 1}}, None),
}  # fmt: skip


@pytest.mark.parametrize(("annotations", "fields", "mask"), READ.values(), ids=READ.keys())
@pytest.mark.parametrize("scheduler", ["muster", "another"])
def test_what_is_believed_of_a_bound_pod(
    annotations: dict[str, str], fields: dict[str, Any], mask: int | None, scheduler: str
) -> None:
    pod = bound(annotations, scheduler=scheduler, **fields)
    assert pod.allocation == mask
    assert pod.usage is not None
    assert (pod.usage.unindexed_gpus == 0) == (mask is not None)
    assert pod.usage.units == (pod.slice.units if pod.slice else 0)


def test_a_plan_for_whole_gpus_is_written_as_before() -> None:
    pod = pods.read(pod_object(limits={"aliyun.com/gpu": 2}))
    carried = written(pod, (0, 3))
    assert carried["ALIYUN_COM_GPU_GROUP"] == "0,3"
    assert not any(key.startswith("ALIYUN_COM_GPU_MEM") for key in carried)
    assert allocation.read(carried, replace(pod, node="n")) == 0b1001
