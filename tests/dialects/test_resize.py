"""Pods that are resized in place count as in kube-scheduler. The expected numbers are those of
k8s.io/component-helpers/resource, PodRequests with UseStatusResources and
InPlacePodLevelResourcesVerticalScalingEnabled (1.37.1)."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects.pods.pods import read
from muster.domain.node import Resources
from tests.dialects.objects import pod_object
from tests.gangs.world import World, node, pod

GIB = 1 << 30
INFEASIBLE = [
    {"type": "Ready", "reason": ""},
    {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


def container(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, **more}


def state(name: str, allocated: str | None = None, running: str | None = None) -> dict[str, Any]:
    """The status of a container: what the kubelet has allocated, and what runs, of CPU."""
    fields: dict[str, Any] = {"name": name}
    if allocated is not None:
        fields["allocatedResources"] = {"cpu": allocated, "memory": "1Gi"}
    if running is not None:
        fields["resources"] = {"requests": {"cpu": running, "memory": "1Gi"}}
    return fields


MAIN = [container("main", "2")]
TWO = [container("main", "2"), container("side", "1")]
SIDECAR = [container("proxy", "1", restartPolicy="Always")]
WHOLE = {"requests": {"cpu": "8"}}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "nothing is allocated yet": ({"containers": MAIN}, {}, 2000),
    "as asked for": ({"containers": MAIN}, {"containerStatuses": [state("main", "2", "2")]}, 2000),
    "grows: the spec counts": ({"containers": MAIN}, {"containerStatuses": [state("main", "1", "1")]}, 2000),
    "shrinks: what is allocated counts": (
        {"containers": MAIN},
        {"containerStatuses": [state("main", "4", "2")]},
        4000,
    ),
    "shrinks: what runs counts": (
        {"containers": MAIN},
        {"containerStatuses": [state("main", "2", "5")]},
        5000,
    ),
    "what runs is not known: what is allocated": (
        {"containers": MAIN},
        {"containerStatuses": [state("main", "3")]},
        3000,
    ),
    "infeasible: the spec does not count": (
        {"containers": MAIN},
        {"conditions": INFEASIBLE, "containerStatuses": [state("main", "1", "1")]},
        1000,
    ),
    "infeasible: the larger of allocated and running": (
        {"containers": MAIN},
        {"conditions": INFEASIBLE, "containerStatuses": [state("main", "500m", "1")]},
        1000,
    ),
    "infeasible, and of one container nothing is known": (
        {"containers": TWO},
        {"conditions": INFEASIBLE, "containerStatuses": [state("main", "500m", "500m")]},
        500,
    ),
    "deferred: the spec counts": (
        {"containers": MAIN},
        {"conditions": DEFERRED, "containerStatuses": [state("main", "1", "1")]},
        2000,
    ),
    "the first condition of the type counts": (
        {"containers": MAIN},
        {"conditions": DEFERRED + INFEASIBLE, "containerStatuses": [state("main", "1", "1")]},
        2000,
    ),
    "sums are compared, not containers": (
        {"containers": TWO},
        {"containerStatuses": [state("main", "1", "1"), state("side", "3", "1")]},
        4000,
    ),
    "a status of another container is none": (
        {"containers": MAIN},
        {"containerStatuses": [state("other", "9", "9")]},
        2000,
    ),
    "a sidecar": (
        {"containers": MAIN, "initContainers": SIDECAR},
        {"initContainerStatuses": [state("proxy", "3", "1")]},
        5000,
    ),
    "sums of the pod take the place of its containers'": (
        {"containers": MAIN},
        {
            "containerStatuses": [state("main", "9", "9")],
            "allocatedResources": {"cpu": "3"},
            "resources": {"requests": {"cpu": "2500m"}},
        },
        3000,
    ),
    "the pod as a whole grows": (
        {"containers": MAIN, "resources": WHOLE},
        {"allocatedResources": {"cpu": "6"}, "resources": {"requests": {"cpu": "6"}}},
        8000,
    ),
    "the pod as a whole can't grow": (
        {"containers": MAIN, "resources": WHOLE},
        {
            "conditions": INFEASIBLE,
            "allocatedResources": {"cpu": "6"},
            "resources": {"requests": {"cpu": "5"}},
        },
        6000,
    ),
    "the pod as a whole, and the kubelet says nothing of it": (
        {"containers": MAIN, "resources": WHOLE},
        {"conditions": INFEASIBLE, "containerStatuses": [state("main", "1", "1")]},
        8000,
    ),
}


@pytest.mark.parametrize(("spec", "status", "milli"), CASES.values(), ids=CASES)
def test_what_a_resized_pod_counts_as(spec: dict[str, Any], status: dict[str, Any], milli: int) -> None:
    obj = pod_object(node="a", spec=spec, status={"phase": "Running", **status})
    assert read(obj).resources.cpu_milli == milli


def test_gpus_are_never_resized() -> None:
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 4}
    status = {"phase": "Running", "conditions": INFEASIBLE, "containerStatuses": [state("main", "1", "1")]}
    pod = read(pod_object(node="a", limits=limits, status=status))
    assert (pod.resources, pod.gpus) == (Resources(1000, GIB, 1), 4)


def test_a_pod_that_waits_counts_by_its_spec() -> None:
    """As in kube-scheduler, where the status of a pod that is to be placed says nothing."""
    status = {"phase": "Pending", "containerStatuses": [state("main", "9", "9")]}
    assert read(pod_object(spec={"containers": MAIN}, status=status)).resources.cpu_milli == 2000


def test_an_infeasible_resize_shuts_no_node_to_gangs() -> None:
    world = World().start(node("a", 8), node("b", 8))
    for name in "ab":
        small = {"requests": {"cpu": "10m"}}
        status = {
            "phase": "Running",
            "conditions": INFEASIBLE,
            "containerStatuses": [
                {"name": "main", "allocatedResources": small["requests"], "resources": small}
            ],
        }
        spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "10000"}}}]}
        obj = pod_object(
            name=name, uid=name, node=name, scheduler="default-scheduler", spec=spec, status=status
        )
        world.see(read(obj))
    world.see(pod("train", gang="", gpus=8))
    assert world.planned("train")
