"""Ill-formed pods and nodes: a clear reason on the pod, no crash, and everything else goes on."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.facts import ALLOCATION, GROUP
from e2e.scene import Scene
from local_cluster.api import ApiError, Object
from local_cluster.stack import Stack


@dataclass(frozen=True)
class Case:
    """The first of `pods` must get an event `reason`, all of them a condition with all of `words`. None of
    them is bound. `guarded`: where Muster is installed with its admission policy, that refuses the pods."""

    pods: Sequence[Object]
    words: Sequence[str]
    reason: str = "TopologyInvalid"
    guarded: bool = False


def _forged(key: str, value: str) -> Object:
    pod = objects.pod("forger")
    pod["metadata"]["annotations"][key] = value
    return pod


CASES = {
    "replicas in words": Case(
        [objects.pod("p", gang=objects.ack("g", "two"))], ["gpu-topology-replica", "two"]
    ),
    "no replicas": Case([objects.pod("p", gang=objects.ack("g", "0"))], ["gpu-topology-replica", "0"]),
    "a fraction of a replica": Case(
        [objects.pod("p", gang=objects.ack("g", "2.5"))], ["gpu-topology-replica", "2.5"]
    ),
    "replicas that disagree": Case(
        [objects.pod("p", gang=objects.ack("g", 2)), objects.pod("q", gang=objects.ack("g", 3))],
        ["2", "3"],
    ),
    "a forged allocation": Case(
        [_forged(ALLOCATION, '{"version":1,"gpus":[0]}')], [ALLOCATION], guarded=True
    ),
    "a forged group": Case([_forged(GROUP, "0")], [GROUP], guarded=True),
    "nine GPUs of eight": Case([objects.pod("p", gpus=9)], ["9", "8"], "TopologyUnplaceable"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_answered_with_a_reason(arena: Arena, scene: Scene, name: str) -> None:
    case = CASES[name]
    if case.guarded and arena.stack is None:
        with pytest.raises(ApiError, match=r"403.*muster-allocations"):
            scene.create(*case.pods)
        return
    scene.node(objects.node("a"))
    pods = scene.create(*case.pods)
    event = scene.event(case.reason, pods[0])
    assert all(word in event.message for word in case.words), event.message
    for pod in pods:
        scene.says(pod, *case.words)
    scene.runs(scene.create(*(objects.pod(f"good-{rank}", gang=objects.ack("good", 2)) for rank in range(2))))
    assert not {*pods} & scene.bound()
    assert [event.pod for event in scene.events(case.reason)] == [pods[0]]


def test_more_pods_than_replicas(scene: Scene) -> None:
    """The gang is refused while there are three of two, and runs when there are two."""
    gang = objects.ack("g", 2)
    scene.node(objects.node("none", gpus=0))  # with no node at all kube-scheduler asks no plugin
    names = scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(3)))
    scene.event("TopologyInvalid", names[0])
    for name in names:
        scene.says(name, "3", "2")
    scene.node(objects.node("a"))
    scene.runs(scene.create(objects.pod("lone")))
    assert not {*names} & scene.bound()
    scene.delete(names[1])
    scene.runs([names[0], names[2]])


def test_one_pod_too_many_for_a_gang_that_runs(scene: Scene) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 2)
    running = scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(2)))
    scene.runs(running)
    (late,) = scene.create(objects.pod("w-2", gang=gang))
    scene.event("TopologyInvalid", late)
    assert scene.bound() == {*running}


BROKEN = {
    "no JSON": '{"GPU_NV2_0_1": "Two NVLinks"',
    "no object": "[1, 2]",
    "an index beyond the node": '{"GPU_NV2_0_12": "Two NVLinks"}',
    "a pair given twice": '{"GPU_NV2_0_1": "Two NVLinks", "GPU_SYS_0_1": "Cross CPU socket"}',
    "nothing": "",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_node_with_a_broken_matrix_is_used_without_it(scene: Scene, name: str) -> None:
    node = scene.node(objects.node("a", annotations={"GPU_TOPOLOGY": BROKEN[name]}))
    assert "GPU_TOPOLOGY" in scene.event("TopologyInvalid", node).message
    scene.runs(
        scene.create(*(objects.pod(f"w-{rank}", gpus=2, gang=objects.ack("g", 2)) for rank in range(2)))
    )
    assert len(scene.binds) == 2


def test_nothing_of_all_this_ends_a_process(scene: Scene, stack: Stack) -> None:
    """All of it at once; both processes are the same ones afterwards."""
    before = (stack.service.pid, stack.scheduler.pid)
    for number, matrix in enumerate(BROKEN.values()):
        scene.node(objects.node(f"n{number}", gpus=1, annotations={"GPU_TOPOLOGY": matrix}))
    bad = []
    for number, case in enumerate(CASES.values()):
        for pod in map(deepcopy, case.pods):
            meta = pod["metadata"]
            meta["name"] += f"-{number}"
            if "gpu-topology" in meta["labels"]:
                meta["labels"]["gpu-topology"] += f"-{number}"
            bad += scene.create(pod)
    for name in bad:
        scene.says(name)
    scene.runs(scene.create(*(objects.pod(f"good-{rank}", gang=objects.ack("good", 2)) for rank in range(2))))
    assert before == (stack.service.pid, stack.scheduler.pid)
    assert None not in before
