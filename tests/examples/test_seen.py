"""What is read from the API server's objects about an example."""

from __future__ import annotations

import json

import pytest

from local_cluster.api import Object
from local_cluster.examples.catalogue import Outcome
from local_cluster.examples.seen import Said, held, ours, outcome, said, told


def pod(name: str, phase: str = "Running", node: str = "a", why: str = "", **allocation: object) -> Object:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]
    return {
        "metadata": {
            "name": name,
            "annotations": {"gpu.topology/allocation": json.dumps(allocation), "ALIYUN_COM_GPU_GROUP": "0"},
        },
        "spec": {"schedulerName": "muster", **({"nodeName": node} if node else {})},
        "status": {"phase": phase, "conditions": conditions if why else []},
    }


def waiting(name: str, why: str = "") -> Object:
    return pod(name, "Pending", "", why)


def event(name: str, reason: str, message: str = "m") -> Object:
    return {"reason": reason, "message": message, "involvedObject": {"kind": "Pod", "name": name}}


PLACED, REFUSED = "TopologyPlaced", "TopologyUnplaceable"
MOMENTS: dict[str, tuple[list[Object], list[Object], Outcome, bool]] = {
    "nothing yet": ([], [], Outcome(0, 0), True),
    "one runs, and nothing was said of it yet": ([pod("p")], [], Outcome(1, 1), False),
    "one runs": ([pod("p")], [event("p", PLACED)], Outcome(1, 1), True),
    "one waits for another": (
        [waiting("p")],
        [event("p", "TopologyWaiting")],
        Outcome(0, 1, "TopologyWaiting"),
        True,
    ),
    "one is refused, its condition comes later": (
        [waiting("p")],
        [event("p", "TopologyWaiting"), event("p", REFUSED)],
        Outcome(0, 1, REFUSED),
        False,
    ),
    "one is refused": ([waiting("p", "no room")], [event("p", REFUSED)], Outcome(0, 1, REFUSED), True),
    "two run, and the first has the gang's event": (
        [pod("p"), pod("q")],
        [event("p", PLACED)],
        Outcome(2, 2),
        True,
    ),
    "two are refused, and only one has its condition": (
        [waiting("p", "no room"), waiting("q")],
        [event("p", REFUSED)],
        Outcome(0, 2, REFUSED),
        False,
    ),
    "two are refused": (
        [waiting("p", "no room"), waiting("q", "no room")],
        [event("p", REFUSED)],
        Outcome(0, 2, REFUSED),
        True,
    ),
    "another one's event": ([waiting("p")], [event("q", REFUSED)], Outcome(0, 1), False),
    "events of others": ([pod("p")], [event("p", "Scheduled")], Outcome(1, 1), False),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_what_came_of_it(name: str) -> None:
    pods, events, expected, all_told = MOMENTS[name]
    assert outcome(pods, events) == expected
    assert told(pods, events) is all_told


def test_what_a_pod_has() -> None:
    whole = held(pod("p", gpus=[1, 3]))
    part = held(pod("p", gpus=[1], gpu_mem={"1": 3}))
    none = held(pod("p"))
    assert whole is not None
    assert part is not None
    assert none is not None
    assert [seat.phrase for seat in (whole, part, none)] == ["GPUs 1 3", "GPU 1: 3 GiB", "no GPU"]
    assert whole.written == {"ALIYUN_COM_GPU_GROUP": "0"}
    assert held(waiting("q")) is None


def test_equal_events_are_told_once() -> None:
    events = [
        event("p", PLACED, "a  b"),
        event("q", PLACED, "a b"),
        event("q", "Pulled"),
        event("q", REFUSED),
    ]
    assert said(events) == [
        Said(PLACED, "a b", ("pod p", "pod q")),
        Said(REFUSED, "m", ("pod q",)),
    ]


def test_the_pods_of_a_gang_lead_its_podgroup() -> None:
    group = event("g", REFUSED)
    group["involvedObject"]["kind"] = "PodGroup"
    assert said([group, event("p", REFUSED)]) == [Said(REFUSED, "m", ("pod p", "podgroup g"))]


def test_pods_of_other_schedulers_are_not_the_examples() -> None:
    busy = pod("busy")
    busy["spec"]["schedulerName"] = "by-hand"
    assert [own_pod["metadata"]["name"] for own_pod in ours([busy, pod("p")])] == ["p"]
