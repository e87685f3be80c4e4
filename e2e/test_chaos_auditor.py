"""The auditor of the chaos: forged violations that it must report, and honest histories that it must not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e import objects
from e2e.chaos.auditor import (
    ALLOCATION,
    DOUBLE_BOOKED,
    GRACE_S,
    LOST,
    PARTIAL,
    POD_GROUP,
    PODGROUPS,
    WAITS,
    ChaosAuditor,
)
from e2e.objects import Words
from e2e.record import NODES, PODS, Change
from local_cluster.api import Object
from local_cluster.nodes import RACK, SCHEDULE

NAMESPACE = "n"
LATE_S = 1000.0
"""Long after everything, and after every grace."""


def node(name: str, *, gpus: int = 8, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A node that takes pods."""
    made = objects.node(name, gpus=gpus, labels=labels)
    made["metadata"]["uid"] = name
    made["spec"] |= spec
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return made


def pod(
    name: str,
    on: str = "",
    given: tuple[int, ...] = (),
    *,
    gpus: int = 1,
    gang: Words | None = None,
    phase: str = "",
    **meta: Any,
) -> Object:
    """A pod as the API server shows it, on a node with these GPUs."""
    made = objects.pod(name, gpus=gpus, gang=gang)
    made["metadata"] |= {"namespace": NAMESPACE, "uid": name, **meta}
    made["status"] = {"phase": phase or ("Running" if on else "Pending")}
    if on:
        made["spec"]["nodeName"] = on
        made["metadata"]["annotations"] |= {
            "gpu.topology/allocation": json.dumps({"gpus": list(given)}),
            "ALIYUN_COM_GPU_GROUP": ",".join(map(str, given)),
        }
    return made


def own(gang: str, needed: int, scope: str = "") -> Words:
    said = {"gpu.topology/group": gang, "gpu.topology/min-member": str(needed)}
    return Words({}, said | ({"gpu.topology/scope": scope} if scope else {}))


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod's last version, when it went."""

    body: Object


PAIR = objects.ack("g", 2)
P, Q, R = (pod(name, gang=PAIR) for name in "pqr")
P_BOUND, Q_BOUND, R_BOUND = (pod(name, "a", (gpu,), gang=PAIR) for gpu, name in enumerate("pqr"))
L, M = pod("l"), pod("m")
L_BOUND, M_BOUND, L_ELSEWHERE = pod("l", "a", (1,)), pod("m", "a", (1,)), pod("l", "a", (2,))


def bound_by_others(name: str, on: str, gpus: int) -> Object:
    """A pod of another scheduler, whose GPUs nobody names."""
    made = objects.pod(name, gpus=gpus, scheduler="default-scheduler", spec={"nodeName": on})
    made["metadata"] |= {"namespace": NAMESPACE, "uid": name}
    return made | {"status": {"phase": "Running"}}


def unannotated(body: Object) -> Object:
    return body | {"metadata": body["metadata"] | {"annotations": {}}}


def gated(body: Object) -> Object:
    return body | {"spec": body["spec"] | {"schedulingGates": [{"name": "g"}]}}


def greedy() -> Object:
    """A pod that takes all of a node's cpu."""
    made = pod("greedy", gpus=0)
    made["spec"]["nodeName"] = "a"
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
    return made


def evicted(body: Object) -> Object:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    return body | {"status": body["status"] | {"conditions": [condition]}}


@dataclass(frozen=True, slots=True)
class Case:
    """Changes by their seconds, a pod's end as Gone; what is left at the end; the rules that are broken.
    `excused`: UIDs and keys of gangs that were said to be deleted."""

    steps: Sequence[tuple[float, Object | Gone]]
    left: Sequence[Object]
    broken: set[str] = field(default_factory=set)
    excused: Sequence[str] = ()


def auditor_of(case: Case) -> ChaosAuditor:
    auditor = ChaosAuditor(NAMESPACE, 8, grace_s=GRACE_S)
    auditor.see(Change(0, NODES, "ADDED", node("a")))
    auditor.losses.excuse(case.excused)
    for at, step in case.steps:
        if isinstance(step, Gone):
            auditor.see(Change(at, PODS, "DELETED", step.body))
        else:
            auditor.see(Change(at, PODS, "MODIFIED", step))
    auditor.passed(LATE_S)
    return auditor


CASES = {
    "a gang is bound": Case([(0, P), (0, Q), (1, P_BOUND), (1, Q_BOUND)], [P_BOUND, Q_BOUND]),
    "one GPU in two pods": Case(
        [(0, P), (0, Q), (0, L), (1, P_BOUND), (1, Q_BOUND), (2, L_BOUND)],
        [P_BOUND, Q_BOUND, L_BOUND],
        {DOUBLE_BOOKED},
    ),
    "one GPU in two pods for a moment": Case(
        [(0, L), (0, M), (1, L_BOUND), (2, M_BOUND), (3, Gone(L_BOUND))],
        [M_BOUND],
        {DOUBLE_BOOKED},
        excused=["l"],
    ),
    "one GPU in one pod after the other": Case(
        [(0, L), (0, M), (1, L_BOUND), (2, Gone(L_BOUND)), (3, M_BOUND)], [M_BOUND], excused=["l"]
    ),
    "more GPUs than the node has": Case(
        [(0, L), (1, L_BOUND), (2, bound_by_others("o", "a", 8))],
        [L_BOUND, bound_by_others("o", "a", 8)],
        {DOUBLE_BOOKED},
    ),
    "half a gang": Case([(0, P), (0, Q), (1, P_BOUND)], [P_BOUND, Q], {PARTIAL}),
    "half a gang within the grace": Case(
        [(0, P), (0, Q), (1, P_BOUND), (GRACE_S, Q_BOUND)], [P_BOUND, Q_BOUND]
    ),
    "half a gang, whole too late": Case(
        [(0, P), (0, Q), (1, P_BOUND), (GRACE_S + 2, Q_BOUND)], [P_BOUND, Q_BOUND], {PARTIAL}
    ),
    "a running member was deleted, and its replacement waits": Case(
        [(0, P), (0, Q), (1, P_BOUND), (1, Q_BOUND), (2, Gone(Q_BOUND)), (3, R)], [P_BOUND, R], excused=["q"]
    ),
    "a pod vanishes": Case([(0, L), (1, L_BOUND), (2, Gone(L_BOUND))], [], {LOST}),
    "a waiting pod vanishes": Case([(0, L), (2, Gone(L))], [], {LOST}),
    "a pod is deleted": Case([(0, L), (1, L_BOUND), (2, Gone(L_BOUND))], [], excused=["l"]),
    "a gang is withdrawn": Case(
        [(0, P), (0, Q), (1, Gone(P)), (1, Gone(Q))], [], excused=[f"{NAMESPACE}/gpu-topology/g"]
    ),
    "a pod is not there in the end, and nobody saw it go": Case([(0, L), (1, L_BOUND)], [], {LOST}),
    "a half gang is given up": Case(
        [(0, P), (0, Q), (1, P_BOUND), (9, Gone(evicted(P_BOUND)))], [Q], excused=["q"]
    ),
    "a whole gang is evicted": Case(
        [(0, P), (0, Q), (1, P_BOUND), (1, Q_BOUND), (9, Gone(evicted(P_BOUND)))], [Q_BOUND], {LOST}
    ),
    "bound without an allocation": Case(
        [(0, L), (1, unannotated(L_BOUND)), (2, L_BOUND)], [L_BOUND], {ALLOCATION}
    ),
    "bound GPUs change": Case([(0, L), (1, L_BOUND), (2, L_ELSEWHERE)], [L_ELSEWHERE], {ALLOCATION}),
    "bound before its gang was there": Case(
        [(0, P), (1, P_BOUND), (2, Q), (3, Q_BOUND)], [P_BOUND, Q_BOUND], {ALLOCATION}
    ),
    "bound while a member was being deleted": Case(
        [(0, P), (0, Q), (1, Gone(Q)), (1.1, P_BOUND), (2, R), (3, R_BOUND)],
        [P_BOUND, R_BOUND],
        excused=["q"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_history_is_judged(name: str) -> None:
    case = CASES[name]
    verdict = auditor_of(case).verdict(case.left, [node("a")])
    assert {rule for rule, texts in verdict.items() if texts} == case.broken


def test_a_pod_whose_creation_was_answered_counts_though_no_watch_saw_it() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.losses.submitted("l", f"{NAMESPACE}/l", f"{NAMESPACE}/l")
    assert auditor.verdict([], [])[LOST] == [f"lost: {NAMESPACE}/l vanished"]


def test_a_gang_that_was_withdrawn_is_not_missed() -> None:
    auditor = auditor_of(Case([(0, P), (0, Q)], []))
    auditor.losses.excuse([f"{NAMESPACE}/gpu-topology/g"])
    assert not auditor.verdict([], [])[LOST]


def test_the_grace_stands_still_while_the_system_is_down() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8, grace_s=GRACE_S)
    for at, body in ((0, P), (0, Q), (1, P_BOUND)):
        auditor.see(Change(at, PODS, "MODIFIED", body))
    auditor.outage(2, 2 + GRACE_S)
    auditor.passed(2 * GRACE_S)
    assert not auditor.verdict([P_BOUND, Q], [])[PARTIAL]
    auditor.passed(2 * GRACE_S + 4)
    assert auditor.verdict([P_BOUND, Q], [])[PARTIAL]


def test_pods_of_a_node_that_was_taken_away_may_go_until_it_is_back() -> None:
    auditor = auditor_of(Case([(0, L), (1, L_BOUND), (1, M), (1, M_BOUND)], []))
    auditor.losses.node_goes("a", 2)
    auditor.losses.node_is_back("a", 4)
    auditor.see(Change(3, PODS, "DELETED", L_BOUND))
    auditor.see(Change(60, PODS, "DELETED", M_BOUND))
    assert auditor.losses.lost == [f"{NAMESPACE}/m"]


def test_the_load_is_weighted_with_time() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.meter.begin(0)
    auditor.see(Change(1, PODS, "ADDED", pod("x", "a", tuple(range(6)), gpus=6)))
    auditor.see(Change(3, PODS, "ADDED", pod("y", "a", (6, 7), gpus=2)))
    auditor.meter.end(4)
    report = auditor.meter.report()
    assert (report.lowest, report.highest, report.mean) == (0.0, 1.0, (2 * 0.75 + 1.0) / 4)
    assert report.share_of_time_in_range == 0.5


# --- gangs that wait, and what is free ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods and nodes at one moment, and the gangs of which the model says that they fit."""

    pods: Sequence[Object]
    nodes: Sequence[Object]
    fit: set[str] = field(default_factory=set)


def gang(size: int, gpus: int, scope: str = "", needed: int = 0) -> list[Object]:
    words = own("w", needed or size, scope)
    return [pod(f"w-{rank}", gpus=gpus, gang=words) for rank in range(size)]


def mesh(name: str) -> Object:
    """A node with the cube mesh of the gputopology document: one domain of eight."""
    made = node(name)
    made["metadata"]["annotations"] |= objects.node(name, topology=objects.DOCUMENT_MESH)["metadata"][
        "annotations"
    ]
    return made


def islands(name: str) -> Object:
    return node(name, labels={"gpu.topology/nvlink-domain-size": "4"})


W = f"{NAMESPACE}/gpu.topology/group/w"
FILLER = pod("filler", "a", (0, 1, 2, 3, 4), gpus=5)
ENDED = FILLER | {"status": {"phase": "Succeeded"}}
MEMBER = pod("w-0", "a", (0,), gang=own("w", 2, "rack"))

NOT_READY = node("a")["status"] | {"conditions": []}

WAITING = {
    "an empty cluster": Waiting(gang(2, 4), [node("a")], {W}),
    "no room": Waiting(gang(2, 4), [node("a", gpus=4)]),
    "fragments that add up": Waiting(gang(3, 4), [node("a", gpus=6), node("b", gpus=6)]),
    "several nodes": Waiting(gang(3, 4), [node("a"), node("b", gpus=4)], {W}),
    "what others hold is taken": Waiting([*gang(1, 4), FILLER], [node("a")]),
    "what others leave is free": Waiting([*gang(1, 3), FILLER], [node("a")], {W}),
    "what has ended is free": Waiting(
        [*gang(1, 4), FILLER | {"status": {"phase": "Succeeded"}}], [node("a")], {W}
    ),
    "what terminates is taken": Waiting(
        [*gang(1, 4), pod("t", "a", (0, 1, 2, 3, 4), gpus=5, deletionTimestamp="now")], [node("a")]
    ),
    "a member is missing": Waiting(gang(2, 1, needed=3), [node("a")]),
    "an elastic gang needs fewer": Waiting(gang(3, 4, needed=2), [node("a")], {W}),
    "an elastic gang that runs could grow": Waiting(
        [pod("w-9", "a", (0,), gang=own("w", 1)), *gang(1, 4, needed=1)], [node("a")], {W}
    ),
    "a member that goes is none": Waiting(
        [*gang(1, 1, needed=2), pod("w-1", gang=own("w", 2), deletionTimestamp="now")], [node("a")]
    ),
    "a member behind a gate is none": Waiting(
        [*gang(1, 1, needed=2), gated(pod("w-1", gang=own("w", 2)))], [node("a")]
    ),
    "a cordoned node": Waiting(gang(1, 1), [node("a", unschedulable=True)]),
    "a tainted node": Waiting(gang(1, 1), [node("a", taints=[{"key": "k", "effect": "NoSchedule"}])]),
    "a node that is not ready": Waiting(
        gang(1, 1), [node("a") | {"status": {"allocatable": {"aliyun.com/gpu": "8"}}}]
    ),
    "a node that serves others": Waiting(gang(1, 1), [node("a", labels={SCHEDULE: "share"})]),
    "a node that serves by topology": Waiting(gang(1, 1), [node("a", labels={SCHEDULE: "topology"})], {W}),
    "no cpu is left": Waiting([*gang(1, 1), greedy()], [node("a")]),
    "one rack has room": Waiting(
        gang(3, 4, "rack"), [node("a", labels={RACK: "r"}), node("b", labels={RACK: "r"})], {W}
    ),
    "two racks have room together": Waiting(
        gang(3, 4, "rack"), [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})]
    ),
    "a replacement must join its rack, which is full": Waiting(
        [MEMBER, pod("w-1", gpus=8, gang=own("w", 2, "rack"))],
        [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})],
    ),
    "a replacement joins its rack": Waiting(
        [MEMBER, pod("w-1", gpus=7, gang=own("w", 2, "rack"))],
        [node("a", labels={RACK: "r"}), node("b", labels={RACK: "s"})],
        {W},
    ),
    "one node has room": Waiting(gang(2, 4, "node"), [node("a"), node("b")], {W}),
    "no single node has room": Waiting(gang(3, 4, "node"), [node("a"), node("b")]),
    "a mesh is one domain": Waiting(gang(2, 3, "nvlink-domain"), [mesh("a")], {W}),
    "an island is one": Waiting(gang(2, 2, "nvlink-domain"), [islands("a")], {W}),
    "two islands are two": Waiting(gang(2, 3, "nvlink-domain"), [islands("a")]),
    "an island is half taken": Waiting(
        [*gang(2, 2, "nvlink-domain"), pod("x", "a", (0, 4), gpus=2)], [islands("a")]
    ),
    "nobody knows which GPUs others have": Waiting(
        [*gang(2, 2, "nvlink-domain"), bound_by_others("o", "a", 1)], [islands("a")]
    ),
    "no NVLink, no domain": Waiting(gang(1, 1, "nvlink-domain"), [node("a")]),
    "words that the model does not know": Waiting(gang(1, 1, "example.com/pod"), [node("a")]),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_waiting_gang_fits_or_not(name: str) -> None:
    case = WAITING[name]
    assert {fit.gang for fit in ChaosAuditor(NAMESPACE, 8).fits(case.pods, case.nodes)} == case.fit


def test_a_waiting_gang_that_fits_is_reported_with_its_placement() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    pods, nodes = gang(2, 4), [node("a")]
    for body in pods:
        auditor.see(Change(0, PODS, "ADDED", body))
    auditor.waits_though_fits("in the end", auditor.fits(pods, nodes))
    (said,) = auditor.verdict(pods, nodes)[WAITS]
    assert "n/w-0 on a, n/w-1 on a" in said


def test_a_podgroup_says_how_many_and_where() -> None:
    group: Object = {"metadata": {"namespace": NAMESPACE, "name": "pg"}, "spec": {"minMember": 2}}
    members = [pod(f"m-{rank}", gpus=4, gang=Words({}, {POD_GROUP: "pg"})) for rank in range(2)]
    nodes = [node("a", gpus=4, labels={RACK: "r"}), node("b", gpus=4, labels={RACK: "s"})]
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.see(Change(0, PODGROUPS, "ADDED", group))
    assert [fit.gang for fit in auditor.fits(members, nodes)] == [f"{NAMESPACE}/{POD_GROUP}/pg"]
    assert not auditor.fits(members[:1], nodes)
    group["spec"]["topologyPolicy"] = {"scope": "rack"}
    assert not auditor.fits(members, nodes)
