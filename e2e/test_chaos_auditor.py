"""The auditor of the chaos: forged violations that it must report, and honest histories that it must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from e2e import objects
from e2e.chaos.auditor import (
    ALLOCATION,
    DOUBLE_BOOKED,
    GRACE_S,
    LOST,
    NATIVE_PODGROUPS,
    PARTIAL,
    RACE_S,
    ChaosAuditor,
)
from e2e.forged import NAMESPACE, bound_by_others, node, pod, sharing, slice_pod
from e2e.record import NODES, PODS, Change
from local_cluster.api import Object

LATE_S = 1000.0
"""Long after everything, and after every grace."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod's last version, when it went."""

    body: Object


PAIR = objects.ack("g", 2)
P, Q, R = (pod(name, gang=PAIR) for name in "pqr")
P_BOUND, Q_BOUND, R_BOUND = (pod(name, "a", (gpu,), gang=PAIR) for gpu, name in enumerate("pqr"))
L, M = pod("l"), pod("m")
L_BOUND, M_BOUND, L_ELSEWHERE = pod("l", "a", (1,)), pod("m", "a", (1,)), pod("l", "a", (2,))
SLICE, OTHER_SLICE = slice_pod("x", 10), slice_pod("y", 10)
SLICE_BOUND, OTHER_SLICE_BOUND = slice_pod("x", 10, {0: 10}), slice_pod("y", 10, {0: 10})
OTHER_SLICE_BESIDE = slice_pod("y", 10, {1: 10})


def unannotated(body: Object) -> Object:
    return body | {"metadata": body["metadata"] | {"annotations": {}}}


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
    for body in (node("a"), sharing("s")):
        auditor.see(Change(0, NODES, "ADDED", body))
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
    "more memory than the GPU has": Case(
        [(0, SLICE), (0, OTHER_SLICE), (1, SLICE_BOUND), (2, OTHER_SLICE_BOUND)],
        [SLICE_BOUND, OTHER_SLICE_BOUND],
        {DOUBLE_BOOKED},
    ),
    "slices side by side": Case(
        [(0, SLICE), (0, OTHER_SLICE), (1, SLICE_BOUND), (2, OTHER_SLICE_BESIDE)],
        [SLICE_BOUND, OTHER_SLICE_BESIDE],
    ),
    "a slice without its annotations": Case(
        [(0, SLICE), (1, unannotated(SLICE_BOUND)), (2, SLICE_BOUND)], [SLICE_BOUND], {ALLOCATION}
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
    verdict = auditor_of(case).verdict(case.left, [node("a"), sharing("s")])
    assert {rule for rule, texts in verdict.items() if texts} == case.broken


def native(name: str, on: str = "", gpu: int = 0) -> Object:
    body = pod(name, on, (gpu,) if on else ())
    body["spec"]["schedulingGroup"] = {"podGroupName": "x"}
    return body


def says(count: int) -> Object:
    """A PodGroup of Kubernetes; basic for 0."""
    policy = {"gang": {"minCount": count}} if count else {"basic": {}}
    return {
        "metadata": {"namespace": NAMESPACE, "name": "x", "uid": "x"},
        "spec": {"schedulingPolicy": policy},
    }


FIRST, SECOND, FIRST_BOUND, SECOND_BOUND = native("p"), native("q"), native("p", "a"), native("q", "a", 1)
NATIVE_CASES: dict[str, tuple[Sequence[tuple[float, Object]], Sequence[Object], set[str]]] = {
    "bound": (
        [(0, says(2)), (0, FIRST), (0, SECOND), (1, FIRST_BOUND), (1, SECOND_BOUND)],
        [FIRST_BOUND, SECOND_BOUND],
        set(),
    ),
    "half": ([(0, says(2)), (0, FIRST), (0, SECOND), (1, FIRST_BOUND)], [FIRST_BOUND, SECOND], {PARTIAL}),
    "bound before the other was there": (
        [(0, says(2)), (0, FIRST), (1, FIRST_BOUND)],
        [FIRST_BOUND],
        {PARTIAL, ALLOCATION},
    ),
    "basic": ([(0, says(0)), (0, FIRST), (0, SECOND), (1, FIRST_BOUND)], [FIRST_BOUND, SECOND], set()),
    "needs fewer now": (
        [(0, says(2)), (0, FIRST), (0, SECOND), (1, FIRST_BOUND), (2, says(1))],
        [FIRST_BOUND, SECOND],
        set(),
    ),
    "needs more while it runs": (
        [(0, says(1)), (0, FIRST), (0, SECOND), (1, FIRST_BOUND), (2, says(2)), (3, SECOND)],
        [FIRST_BOUND, SECOND],
        set(),
    ),
    "needed more long before it started": (
        [(0, says(1)), (0, FIRST), (0, SECOND), (1, says(2)), (2 + RACE_S, FIRST_BOUND)],
        [FIRST_BOUND, SECOND],
        {PARTIAL},
    ),
    "needed more just before it started": (
        [(0, says(1)), (0, FIRST), (0, SECOND), (2, says(2)), (3, FIRST_BOUND)],
        [FIRST_BOUND, SECOND],
        set(),
    ),
}


@pytest.mark.parametrize("name", NATIVE_CASES)
def test_a_gang_needs_what_its_podgroup_of_kubernetes_says(name: str) -> None:
    steps, pods_at_end, broken = NATIVE_CASES[name]
    auditor = ChaosAuditor(NAMESPACE, 8, grace_s=GRACE_S)
    auditor.see(Change(0, NODES, "ADDED", node("a")))
    for at, body in steps:
        kind = PODS if "containers" in body["spec"] else NATIVE_PODGROUPS
        auditor.see(Change(at, kind, "MODIFIED", body))
    auditor.passed(LATE_S)
    verdict = auditor.verdict(pods_at_end, [node("a")])
    assert {rule for rule, texts in verdict.items() if texts} == broken


def test_a_pod_whose_creation_was_answered_counts_though_no_watch_saw_it() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.losses.submitted("l", f"{NAMESPACE}/l", f"{NAMESPACE}/l")
    assert auditor.verdict([], [])[LOST] == [f"lost: {NAMESPACE}/l vanished"]


def test_a_gang_that_was_withdrawn_is_not_missed() -> None:
    auditor = auditor_of(Case([(0, P), (0, Q)], []))
    auditor.losses.excuse([f"{NAMESPACE}/gpu-topology/g"])
    assert not auditor.verdict([], [])[LOST]


def test_a_single_pods_replacement_is_withdrawn_with_it() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.losses.submitted("l-1", f"{NAMESPACE}/l-1", f"{NAMESPACE}/l")
    auditor.losses.excuse([f"{NAMESPACE}/l"])
    auditor.see(Change(1, PODS, "DELETED", pod("l-1")))
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


@pytest.mark.parametrize(("last_seen", "names"), [(L, []), (L_BOUND, [f"{NAMESPACE}/l"])])
def test_a_binding_that_nobody_saw_may_have_been_to_a_node_that_is_away(
    last_seen: Object, names: list[str]
) -> None:
    """The API server was away between the Binding and the end of the pod."""
    auditor = auditor_of(Case([(0, L), (1, last_seen)], []))
    auditor.losses.node_goes("b", 2)
    auditor.see(Change(3, PODS, "DELETED", last_seen, watched=False))
    auditor.see(Change(3, PODS, "DELETED", M))
    assert auditor.losses.lost == [*names, f"{NAMESPACE}/m"]


def test_the_load_is_weighted_with_time() -> None:
    auditor = ChaosAuditor(NAMESPACE, 8)
    auditor.meter.begin(0)
    auditor.see(Change(1, PODS, "ADDED", pod("x", "a", tuple(range(6)), gpus=6)))
    auditor.see(Change(3, PODS, "ADDED", pod("y", "a", (6, 7), gpus=2)))
    auditor.meter.end(4)
    report = auditor.meter.report()
    assert (report.lowest, report.highest, report.mean) == (0.0, 1.0, (2 * 0.75 + 1.0) / 4)
    assert report.share_of_time_in_range == 0.5
