"""The auditor's rules of devices: forged violations that it must report, and histories that it must not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from e2e.device_claims import LATE_S, LEFT_S, ClaimFacts, DeviceHistory, DevicePod
from e2e.forged import NAMESPACE, pod
from local_cluster.api import Object

Step = Callable[[DeviceHistory, float], None]
DEVICES = ("d.example.com/a/gpu-0", "d.example.com/a/gpu-1", "d.example.com/a/gpu-2")


def claim(name: str, *numbers: int, of: str = "", reserved: str = "", in_order: bool = True) -> Step:
    """A claim that holds these devices is seen."""
    results = [dict(zip(("driver", "pool", "device"), DEVICES[n].split("/"), strict=True)) for n in numbers]
    owners = [{"kind": "Pod", "name": of, "uid": of, "controller": True}] if of else []
    body: Object = {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "ownerReferences": owners},
        "status": {
            **({"allocation": {"devices": {"results": results}}} if results else {}),
            **(
                {"reservedFor": [{"resource": "pods", "name": reserved, "uid": reserved}]} if reserved else {}
            ),
        },
    }
    return lambda history, at: history.claim(at, ClaimFacts.of(body), in_order=in_order)


def bound(name: str, *numbers: int, phase: str = "") -> Step:
    body = pod(name, "a", (0,), gpus=0, phase=phase)
    allocation = {"gpus": [0], "devices": [DEVICES[n] for n in numbers]}
    body["metadata"]["annotations"] = {"gpu.topology/allocation": json.dumps(allocation)}
    return lambda history, at: history.pod(at, DevicePod.of(body))


def waiting(name: str) -> Step:
    return lambda history, at: history.pod(at, DevicePod.of(pod(name, gpus=0)))


def gone(name: str) -> Step:
    return lambda history, at: history.pod_gone(at, name)


def freed(name: str) -> Step:
    return lambda history, at: history.claim_gone(at, name)


CASES: dict[str, tuple[Sequence[tuple[float, Step]], set[str]]] = {
    "a member gets its devices": ([(0, claim("c", 0, 1, of="p")), (1, bound("p", 0, 1))], set()),
    "by two claims": (
        [(0, claim("c", 0, of="p")), (0, claim("d", 1, of="p")), (1, bound("p", 0, 1))],
        set(),
    ),
    "its pod is seen first": ([(0, bound("p", 0)), (LATE_S / 2, claim("c", 0, of="p"))], set()),
    "another device than planned": (
        [(0, claim("c", 2, of="p")), (1, bound("p", 0))],
        {"device-not-planned"},
    ),
    "one too few": ([(0, claim("c", 0, of="p")), (1, bound("p", 0, 1))], {"device-not-planned"}),
    "one without a plan": ([(0, claim("c", 0, of="p")), (1, bound("p"))], {"device-not-planned"}),
    "none": ([(1, bound("p", 0))], {"device-not-planned"}),
    "for a moment": ([(0, claim("c", 2, of="p")), (1, bound("p", 0)), (2, claim("c", 0, of="p"))], set()),
    "one device in two claims": (
        [(0, claim("c", 0, of="p")), (0, bound("p", 0)), (1, claim("d", 0, of="q")), (2, freed("d"))],
        {"device-twice"},
    ),
    "freed before it is given again": (
        [(0, claim("c", 0, of="p")), (1, claim("c", of="p")), (2, claim("d", 0, of="q")), (2, bound("q", 0))],
        set(),
    ),
    "a list whose order says nothing": (
        [
            (0, claim("c", 0, of="p")),
            (1, claim("d", 0, of="q", in_order=False)),
            (1, claim("c", of="p", in_order=False)),
            (2, bound("q", 0)),
        ],
        set(),
    ),
    "left by a pod that is gone": (
        [(0, claim("c", 0, of="p")), (1, bound("p", 0)), (2, gone("p"))],
        {"device-left"},
    ),
    "left by a pod that ended": (
        [(0, claim("c", 0, of="p")), (1, bound("p", 0, phase="Failed"))],
        {"device-left"},
    ),
    "left by a pod that waits": ([(0, claim("c", 0, of="p")), (0, waiting("p"))], {"device-left"}),
    "reserved for another pod than its owner": (
        [(0, claim("c", 0, of="p", reserved="q")), (1, bound("q", 0))],
        set(),
    ),
    "freed in time": (
        [(0, claim("c", 0, of="p")), (0, waiting("p")), (LEFT_S - 1, claim("c", of="p"))],
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rules_of_devices(case: str) -> None:
    steps, rules = CASES[case]
    history = DeviceHistory()
    for at, step in steps:
        step(history, at)
    for later in (LATE_S, LEFT_S, 2 * LEFT_S + LATE_S):
        history.passed(later)
    assert {rule for rule, _ in history.found} == rules
