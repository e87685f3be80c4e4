"""The auditor on slices of GPU memory: forged violations that it must find, honest ones that it must pass."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from e2e.audit import judge
from e2e.facts import NodeFacts, PodFacts

NODE = NodeFacts.of(
    {
        "metadata": {"name": "a", "annotations": {"gpu.topology/gpu-mem": "16,40"}},
        "status": {
            "allocatable": {"aliyun.com/gpu": "2", "aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "56"}
        },
    }
)


def pod(
    name: str, amounts: Mapping[str, int], annotations: Mapping[str, str], gpus: int = 0, node: str = "a"
) -> PodFacts:
    """A bound pod; `gpus` is the value of its label aliyun.com/gpu-count."""
    return PodFacts.of(
        {
            "metadata": {
                "uid": name,
                "namespace": "n",
                "name": name,
                "labels": {"aliyun.com/gpu-count": str(gpus)} if gpus else {},
                "annotations": annotations,
            },
            "spec": {
                "schedulerName": "muster",
                "nodeName": node,
                "containers": [{"resources": {"limits": {key: str(n) for key, n in amounts.items()}}}],
            },
            "status": {"phase": "Running"},
        }
    )


def written(units_by_gpu: Mapping[int, int], of_gpu: int = 16, **changed: str) -> dict[str, str]:
    """All annotations of a slice, `other` in place of some: MEM_POD="4" is ALIYUN_COM_GPU_MEM_POD."""
    units = {str(gpu): amount for gpu, amount in units_by_gpu.items()}
    full = {
        "MEM_IDX": ",".join(units),
        "MEM_DEV": str(of_gpu),
        "MEM_POD": str(sum(units_by_gpu.values())),
        "MEM_ASSIGNED": "false",
        "MEM_ASSUME_TIME": "1",
    } | changed
    return {
        **{f"ALIYUN_COM_GPU_{key}": text for key, text in full.items() if text},
        "gpu.topology/allocation": json.dumps({"gpus": list(units_by_gpu), "gpu_mem": units}),
        "scheduler.framework.gpushare.allocation": json.dumps({"0": units}),
    }


def share(name: str, units_by_gpu: Mapping[int, int], of_gpu: int = 16, **changed: str) -> PodFacts:
    """A pod that has just what it asked for."""
    amounts = {"aliyun.com/gpu-mem": sum(units_by_gpu.values())}
    return pod(name, amounts, written(units_by_gpu, of_gpu, **changed), len(units_by_gpu))


WHOLE = {"gpu.topology/allocation": '{"gpus":[0]}', "ALIYUN_COM_GPU_GROUP": "0"}
UNEVEN = pod("p", {"aliyun.com/gpu-mem": 8}, written({0: 2, 1: 6}), 2)

MOMENTS: dict[str, tuple[list[PodFacts], set[str]]] = {
    "two slices that fill a GPU": ([share("p", {0: 10}), share("q", {0: 6})], set()),
    "one GiB too many": ([share("p", {0: 10}), share("q", {0: 7})], {"memory-overcommitted"}),
    "as much on the larger GPU": ([share("p", {1: 30}, 40), share("q", {1: 10}, 40)], set()),
    "over both GPUs": ([share("p", {0: 8, 1: 8})], set()),
    "over both GPUs, not evenly": ([UNEVEN], {"slice-size"}),
    "less than asked for": ([pod("p", {"aliyun.com/gpu-mem": 4}, written({0: 3}))], {
        "slice-size", "annotations-disagree",
    }),
    "on one GPU instead of two": ([pod("p", {"aliyun.com/gpu-mem": 8}, written({0: 8}), 2)], {"slice-size"}),
    "a GPU that the node lacks": ([share("p", {2: 4})], {"gpu-out-of-range"}),
    "another index": ([share("p", {0: 4}, MEM_IDX="1")], {"annotations-disagree"}),
    "another size of the GPU": ([share("p", {1: 4}, 16)], {"annotations-disagree"}),
    "assigned before it starts": ([share("p", {0: 4}, MEM_ASSIGNED="true")], {"annotations-disagree"}),
    "an annotation is missing": ([share("p", {0: 4}, MEM_ASSUME_TIME="")], {"annotation-missing"}),
    "a slice of a GPU that is given whole": (
        [share("p", {0: 4}), pod("q", {"aliyun.com/gpu": 1}, WHOLE)],
        {"gpu-twice"},
    ),
    "a slice beside a GPU that is given whole": (
        [share("p", {1: 4}, 40), pod("q", {"aliyun.com/gpu": 1}, WHOLE)],
        set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOMENTS)
def test_a_moment_is_judged(name: str) -> None:
    pods, expected = MOMENTS[name]
    violations = judge(pods, [NODE])
    assert {violation.rule for violation in violations} == expected, list(map(str, violations))
