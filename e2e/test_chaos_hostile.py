"""The hostile actors of the chaos, and how long others wait: without a cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from e2e import objects
from e2e.chaos import hostile
from e2e.chaos.auditor import ChaosAuditor
from e2e.chaos.strangers import SCHEDULER
from e2e.chaos.waits import WaitReport, Waits
from e2e.facts import PodFacts
from e2e.forged import NAMESPACE, node, pod
from e2e.fuzz.attacks import GROUPS, NODE, NODES, PODS, Attack
from e2e.objects import MUSTER
from e2e.record import NODES as NODES_KIND
from e2e.record import PODS as PODS_KIND
from e2e.record import within
from local_cluster.api import Object

DRAWN = 200


def drawn(draw: hostile.Draw, seed: int = 1) -> list[Attack]:
    dice = random.Random(seed)
    return [draw(dice, number) for number in range(DRAWN)]


def test_no_pod_of_the_hostile_user_can_take_a_gpu_of_others() -> None:
    for attack in drawn(hostile.of_user):
        assert attack.path.startswith((PODS, GROUPS))
        if attack.path != PODS:
            continue
        spec = json.loads(attack.body)["spec"]
        never = attack.name in ("huge gang", "gang that never fits")
        assert never or spec["nodeSelector"].items() >= hostile.NOWHERE.items()
        assert spec.get("nodeName") in (None, NODE)


def test_a_hostile_node_lies_about_itself_alone_and_not_about_how_many_gpus_it_has() -> None:
    for attack in drawn(hostile.of_node("others-{:02}")):
        body = json.loads(attack.body)
        if attack.path == hostile.SLICES:
            assert body["spec"]["nodeName"] == NODE
        else:
            assert attack.path == f"{NODES}/{NODE}"
            assert {*body} == {"metadata"}


@pytest.mark.parametrize("draw", [hostile.of_user, hostile.of_node("others-{:02}")])
def test_a_seed_fixes_what_hostile_actors_send(draw: hostile.Draw) -> None:
    assert drawn(draw) == drawn(draw)
    assert drawn(draw) != drawn(draw, seed=2)


def test_the_user_uses_every_attack() -> None:
    names = {attack.name for attack in drawn(hostile.of_user)}
    assert names >= {"huge gang", "gang that never fits", "labels of a gang", "name of others", "large Pod"}


PAIR, TARGET = objects.ack("g", 2), objects.ack("target-1", 1)
P, Q, R = (pod(name, gang=PAIR) for name in "pqr")
P_BOUND, Q_BOUND = pod("p", "a", (0,), gang=PAIR), pod("q", "a", (1,), gang=PAIR)
L, L_BOUND = pod("l"), pod("l", "a", (2,))
S = L | {"spec": L["spec"] | {"schedulerName": SCHEDULER}}
S_BOUND = L_BOUND | {"spec": L_BOUND["spec"] | {"schedulerName": SCHEDULER}}
NOTHING = WaitReport(0, 0, 0, 0, 0, 0)
WAITS: dict[str, tuple[Sequence[tuple[float, Object]], WaitReport]] = {
    "a gang": ([(0, P), (2, Q), (4, P_BOUND), (7, Q_BOUND)], WaitReport(1, 0, 0, 5, 5, 5)),
    "a pod alone": ([(1, L), (4, L_BOUND)], WaitReport(1, 0, 0, 3, 3, 3)),
    "a gang without a member": ([(0, P)], NOTHING),
    "a gang that waits": ([(0, P), (2, Q), (4, P_BOUND)], WaitReport(0, 0, 1, 0, 0, 0)),
    "an outage meanwhile": ([(8, L), (15, L_BOUND)], WaitReport(0, 1, 0, 0, 0, 0)),
    "an outage before": ([(14, L), (15, L_BOUND)], WaitReport(1, 0, 0, 1, 1, 1)),
    "a target of a fault": ([(0, pod("t", gang=TARGET)), (9, pod("t", "a", (0,), gang=TARGET))], NOTHING),
    "another scheduler's": ([(0, S), (9, S_BOUND)], NOTHING),
}
"""What is seen → how long gangs of Muster wait."""

OUTAGES = [(10.0, 14.0), (9.0, 12.0)]


@pytest.mark.parametrize("name", WAITS)
def test_how_long_gangs_wait(name: str) -> None:
    steps, expected = WAITS[name]
    waits = Waits()
    for at, body in steps:
        waits.pod(at, PodFacts.of(body))
    assert waits.report(MUSTER, OUTAGES) == expected


def test_pods_of_another_scheduler_are_counted_apart() -> None:
    waits = Waits()
    for at, body in ((5, S), (5, L), (8, L_BOUND), (9, S_BOUND)):
        waits.pod(at, PodFacts.of(body), asked_at="2" if body in (S, S_BOUND) else "")
    assert waits.report(SCHEDULER, []) == WaitReport(1, 0, 0, 7, 7, 7)
    assert waits.report(MUSTER, []) == WaitReport(1, 0, 0, 3, 3, 3)


def test_a_member_that_went_before_it_was_bound_is_waited_for_again() -> None:
    waits = Waits()
    for at, body in ((0, P), (1, Q)):
        waits.pod(at, PodFacts.of(body))
    waits.gone(PodFacts.of(Q))
    assert waits.report(MUSTER, []) == NOTHING
    for at, body in ((5, R), (6, P_BOUND), (7, pod("r", "a", (1,), gang=PAIR))):
        waits.pod(at, PodFacts.of(body))
    waits.end()
    waits.pod(9, PodFacts.of(L))
    assert waits.report(MUSTER, []) == WaitReport(1, 0, 0, 2, 2, 2)


def test_nobody_waits_for_room_on_a_hostile_node() -> None:
    waiting, rooms = [pod("l")], [node("a")]
    assert ChaosAuditor(NAMESPACE, 8).fits(waiting, rooms)
    assert not ChaosAuditor(NAMESPACE, 8, hostile_nodes=["a"]).fits(waiting, rooms)


def test_a_record_of_a_namespace_sees_its_pods_and_all_nodes() -> None:
    assert within(PODS_KIND, "n") == "/api/v1/namespaces/n/pods"
    assert within("/apis/a/v1/things", "n") == "/apis/a/v1/namespaces/n/things"
    assert (within(PODS_KIND, ""), within(NODES_KIND, "n")) == (PODS_KIND, NODES_KIND)
