"""The auditor itself: forged violations that it must find, and histories in which it must find none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from e2e.audit import Auditor, Violation, judge
from e2e.client import Client
from e2e.facts import NodeFacts, PodFacts
from e2e.pace import Pace

NODE = NodeFacts("a", {"aliyun.com/gpu": 8})


def pod(
    name: str, gpus: int = 1, node: str = "", gpu_indices: tuple[int, ...] | None = None, **words: Any
) -> PodFacts:
    """A pod as the API server would show it: `given` are its GPUs in both annotations."""
    annotations = dict(words.get("annotations", {}))
    if gpu_indices is not None:
        annotations.setdefault("gpu.topology/allocation", json.dumps({"gpus": list(gpu_indices)}))
        annotations.setdefault("ALIYUN_COM_GPU_GROUP", ",".join(map(str, gpu_indices)))
    gang, size = words.get("gang", ("", 0))
    labels = {"gpu-topology": gang, "gpu-topology-replica": str(size)} if gang else {}
    return PodFacts.of(
        {
            "metadata": {
                "uid": words.get("uid", name),
                "namespace": "n",
                "name": name,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [{"uid": words.get("owner", ""), "controller": True}],
            },
            "spec": {
                "schedulerName": words.get("scheduler", "muster"),
                "nodeName": node,
                "containers": [{"resources": {"limits": {"aliyun.com/gpu": str(gpus)} if gpus else {}}}],
            },
            "status": {"phase": words.get("phase", "Running" if node else "Pending")},
        }
    )


def without(key: str, gpu_indices: tuple[int, ...]) -> PodFacts:
    """A bound pod that lacks one of the two annotations."""
    full = {
        "gpu.topology/allocation": json.dumps({"gpus": list(gpu_indices)}),
        "ALIYUN_COM_GPU_GROUP": ",".join(map(str, gpu_indices)),
    }
    full.pop(key)
    return pod("p", len(gpu_indices), "a", annotations=full)


def rules(violations: list[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


MOMENTS: dict[str, tuple[list[PodFacts], set[str]]] = {
    "two pods with their own GPUs": ([pod("p", 2, "a", (0, 1)), pod("q", 1, "a", (2,))], set()),
    "one GPU in two pods": ([pod("p", 1, "a", (3,)), pod("q", 1, "a", (3,))], {"gpu-twice"}),
    "the other pod has finished": (
        [pod("p", 1, "a", (3,)), pod("q", 1, "a", (3,), phase="Succeeded")],
        set(),
    ),
    "the same index on another node": ([pod("p", 1, "a", (3,)), pod("q", 1, "b", (3,))], set()),
    "an index beyond the node": ([pod("p", 1, "a", (8,))], {"gpu-out-of-range"}),
    "a negative index": ([pod("p", 1, "a", (-1,))], {"gpu-out-of-range"}),
    "one index twice in a pod": ([pod("p", 2, "a", (1, 1))], {"gpu-out-of-range"}),
    "fewer GPUs than asked for": ([pod("p", 2, "a", (1,))], {"gpu-count"}),
    "more GPUs than asked for": ([pod("p", 1, "a", (1, 2))], {"gpu-count"}),
    "no annotations": ([pod("p", 1, "a")], {"annotation-missing"}),
    "no allocation": ([without("gpu.topology/allocation", (1,))], {"annotation-missing"}),
    "no group": ([without("ALIYUN_COM_GPU_GROUP", (1,))], {"annotation-missing"}),
    "another scheduler's pod needs none": ([pod("p", 1, "a", scheduler="default-scheduler")], set()),
    "a cpu-only pod needs none": ([pod("p", 0, "a")], set()),
    "an unbound pod needs none": ([pod("p", 1)], set()),
    "annotations that disagree": (
        [pod("p", 1, "a", (1,), annotations={"ALIYUN_COM_GPU_GROUP": "2"})],
        {"annotations-disagree"},
    ),
    "an allocation that is no JSON": (
        [pod("p", 1, "a", (1,), annotations={"gpu.topology/allocation": "{"})],
        {"annotation-unreadable"},
    ),
    "more asked for than there is": (
        [pod("p", 8, "a", tuple(range(8))), pod("q", 1, "a", scheduler="default-scheduler")],
        {"overcommitted"},
    ),
    "half a gang": ([pod("p", 1, "a", (0,), gang=("g", 2)), pod("q", 1, gang=("g", 2))], {"gang-partial"}),
    "a whole gang": ([pod("p", 1, "a", (0,), gang=("g", 2)), pod("q", 1, "a", (1,), gang=("g", 2))], set()),
    "a waiting gang": ([pod("p", gang=("g", 2)), pod("q", gang=("g", 2))], set()),
    "a gang whose first member finished": (
        [pod("p", 1, "a", (0,), gang=("g", 2), phase="Succeeded"), pod("q", 1, "a", (0,), gang=("g", 2))],
        set(),
    ),
    "a gang that is over, and of which a pod is gone": (
        [pod("p", 1, "a", (0,), gang=("g", 2), phase="Succeeded")],
        set(),
    ),
    "a finished member, and one that waits": (
        [pod("p", 1, "a", (0,), gang=("g", 2), phase="Succeeded"), pod("q", 1, gang=("g", 2))],
        {"gang-partial"},
    ),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_a_moment_is_judged(name: str) -> None:
    pods, expected = MOMENTS[name]
    assert rules(judge(pods, [NODE])) == expected


def history(*steps: tuple[float, PodFacts | str], grace_s: float = 5.0) -> Auditor:
    """An auditor that saw pods change (or go, by UID) at these seconds."""
    auditor = Auditor(grace_s)
    auditor.node(NODE)
    for at, step in steps:
        if isinstance(step, str):
            auditor.gone(at, step)
        else:
            auditor.pod(at, step)
    return auditor


P, Q = pod("p", gang=("g", 2)), pod("q", gang=("g", 2))
P_BOUND, Q_BOUND = pod("p", 1, "a", (0,), gang=("g", 2)), pod("q", 1, "a", (1,), gang=("g", 2))
R, R_BOUND = pod("r", gang=("g", 2)), pod("r", 1, "a", (0,), gang=("g", 2))
LONE, LONE_BOUND = pod("l"), pod("l", 1, "a", (0,))
MATE, MATE_BOUND = pod("m"), pod("m", 1, "a", (0,))

OF_JOB: dict[str, Any] = {"gang": ("g", 2), "owner": "job"}
DONE = pod("p", 1, "a", (0,), phase="Succeeded", **OF_JOB)
WITH_ITS_NODE = (
    (0, pod("p", **OF_JOB)), (0, pod("q", **OF_JOB)),
    (1, pod("p", 1, "a", (0,), **OF_JOB)), (1, pod("q", 1, "a", (1,), **OF_JOB)),
    (2, DONE), (3, "p"), (3, "q"),
)  # fmt: skip
"""A Job of two on one node: one has succeeded when the node and both pods are deleted."""

HISTORIES: dict[str, tuple[Auditor, set[str]]] = {
    "a gang is bound at once": (history((0, P), (1, Q), (2, P_BOUND), (2.1, Q_BOUND)), set()),
    "a member is bound before the last one exists": (
        history((0, P), (1, P_BOUND), (2, Q), (2.1, Q_BOUND)),
        {"bound-too-early"},
    ),
    "the second bind comes late": (history((0, P), (1, Q), (2, P_BOUND), (9, Q_BOUND)), {"gang-partial"}),
    "the second bind never comes": (history((0, P), (1, Q), (2, P_BOUND), (9, pod("x"))), {"gang-partial"}),
    "bound first, annotated afterwards": (
        history((0, pod("p")), (1, pod("p", 1, "a")), (2, pod("p", 1, "a", (0,)))),
        {"binding-in-two-steps"},
    ),
    "a bound pod gets other GPUs": (
        history((0, pod("p")), (1, pod("p", 1, "a", (0,))), (2, pod("p", 1, "a", (1,)))),
        {"allocation-moved"},
    ),
    "a GPU is given away for a moment": (
        history((0, LONE), (0, MATE), (1, LONE_BOUND), (2, MATE_BOUND), (3, "l")),
        {"gpu-twice"},
    ),
    "a GPU is given again when it is free": (
        history((0, LONE), (0, MATE), (1, LONE_BOUND), (2, "l"), (3, MATE_BOUND)),
        set(),
    ),
    "a waiting member is replaced": (
        history((0, P), (1, "p"), (2, R), (3, Q), (4, Q_BOUND), (4, pod("r", 1, "a", (0,), gang=("g", 2)))),
        set(),
    ),
    "a deleted waiting member does not count": (
        history((0, P), (1, Q), (2, "p"), (3, Q_BOUND), (3.1, "q")),
        {"bound-too-early"},
    ),
    "a running member is replaced": (
        history(
            (0, P),
            (0, Q),
            (1, P_BOUND),
            (1, Q_BOUND),
            (2, "p"),
            (3, R),
            (4, pod("r", 1, "a", (0,), gang=("g", 2))),
        ),
        set(),
    ),
    "a member has succeeded and is deleted, and its Job makes the other one again": (
        history(
            *WITH_ITS_NODE,
            (4, pod("r", **OF_JOB)),
            (99, pod("r", **OF_JOB)),
            (100, pod("r", 1, "a", (0,), **OF_JOB)),
        ),
        set(),
    ),
    "another Job makes the pods after that": (
        history(
            *WITH_ITS_NODE,
            (4, pod("r", gang=("g", 2), owner="job-2")),
            (5, pod("r", 1, "a", (0,), gang=("g", 2), owner="job-2")),
        ),
        {"bound-too-early"},
    ),
    "a bare member has succeeded and is deleted": (
        history((0, P), (0, Q), (1, P_BOUND), (1, Q_BOUND), (2, "q"), (3, "p"), (4, R), (5, R_BOUND)),
        {"bound-too-early"},
    ),
    "the name is used again": (
        history(
            (0, P),
            (0, Q),
            (1, P_BOUND),
            (1, Q_BOUND),
            (2, "p"),
            (2, "q"),
            (3, R),
            (4, pod("r", 1, "a", (0,), gang=("g", 2))),
        ),
        {"bound-too-early"},
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_judged(name: str) -> None:
    auditor, expected = HISTORIES[name]
    assert rules(auditor.violations) == expected


def test_what_existed_before_was_not_seen_being_bound() -> None:
    auditor = Auditor()
    auditor.node(NODE)
    auditor.existed(0, pod("p", 1, "a"))
    assert not auditor.violations
    assert not auditor.binds


def test_a_half_bound_gang_is_named_until_it_is_whole() -> None:
    auditor = history((0, P), (0, Q), (1, P_BOUND))
    assert auditor.half_bound() == ["n/gpu-topology/g"]
    auditor.pod(2, Q_BOUND)
    assert auditor.half_bound() == []
    assert auditor.in_order


class Answers(Client):
    """An API server that has answered a probe at these moments."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(("answers", "late"), [(range(1, 201), True), (range(1, 99), False), ((), False)])
def test_a_gang_is_half_bound_for_as_long_as_the_api_server_answers_a_probe(
    answers: Iterable[int], late: bool
) -> None:
    """Ten seconds are a hundred answers. If these take a second each, it may be half bound for longer."""
    pace = Pace(Answers(), "n")
    pace.answers += answers
    auditor = Auditor(clock=pace.at)
    for at, member in ((0, P), (0, Q), (1, P_BOUND)):
        auditor.pod(at, member)
    assert not auditor.in_order
    auditor.passed(1000)
    assert rules(auditor.violations) == ({"gang-partial"} if late else set())
    assert auditor.in_order is late
