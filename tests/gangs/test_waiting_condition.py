"""What pods of an incomplete gang are told to show, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.pod import KUBERNETES, Controller, GangClaim, Pod
from muster.domain.podgroup import PodGroup
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import ShowWaiting
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, foreign, node, pod

DEFAULTS = GangSettings()
LONG_ENOUGH_S = DEFAULTS.waiting_s + 0.1


def gang(*names: str, of: int) -> list[Pod]:
    return [replace(pod(name, of=of), owner="job") for name in names]


def told(world: World) -> list[tuple[str, str, list[str], bool]]:
    """Reason, message, pods and `renew` of each instruction since the last look."""
    conditions = [(s.reason, s.message, [name for name, _ in s.pods], s.renew) for s in world.shown]
    world.shown.clear()
    return conditions


def test_pods_of_an_incomplete_gang_say_what_it_waits_for_until_it_is_refused() -> None:
    world = World().start(node("a", 2))
    world.see(foreign("f", "a", gpus=2), *gang("p0", "p1", of=3))
    assert told(world) == []
    world.wait(LONG_ENOUGH_S)
    missing = "Waiting for 1 more member: 2 of 3 are here"
    assert told(world) == [("MembersMissing", missing, ["p0", "p1"], True)]
    world.see(*gang("p2", of=3))
    world.wait(LONG_ENOUGH_S)
    assert told(world) == [("", "", ["p0", "p1", "p2"], True)], "now they fail with the refusal's sentence"


def made_by(kind: str, name: str, *pods: str) -> list[Pod]:
    controller = Controller("apps/v1", kind, name, f"uid-of-{name}")
    return [replace(pod(uid, of=4), owner=controller.uid, controller=controller) for uid in pods]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (made_by("StatefulSet", "web", "web-0"), "web"),
        ([*made_by("StatefulSet", "b", "b-0"), *made_by("StatefulSet", "a", "a-0")], "a"),
        (made_by("StatefulSet", "web", "web-0", "web-1"), ""),
        (made_by("ReplicaSet", "web", "web-0"), ""),
        ([*made_by("StatefulSet", "web", "web-0"), pod("bare", of=4)], ""),
    ],
)
def test_pods_say_that_a_stateful_set_may_make_them_one_by_one(pods: list[Pod], expected: str) -> None:
    """From a review: such a gang waited for ever, and the sentence did not say what to change."""
    world = World().start(node("a", 2))
    world.see(*pods)
    world.wait(2 * LONG_ENOUGH_S)
    sentence = (
        f"StatefulSet {expected} makes its pods one by one, unless it has podManagementPolicy: Parallel"
    )
    *_, last = told(world)
    assert (sentence in last[1]) == bool(expected)


def test_pods_that_come_are_told_at_once_and_the_others_after_a_minute() -> None:
    world = World().start(node("a", 8))
    world.see(*gang("p0", of=4))
    world.wait(LONG_ENOUGH_S)
    world.see(*gang("p1", of=4))
    world.wait(LONG_ENOUGH_S)
    first, second = told(world)
    assert (first[2], first[3]) == (["p0"], True)
    assert (second[2], second[3]) == (["p0", "p1"], False)
    world.wait(1.5 * DEFAULTS.numbers_s)
    assert told(world) == [(*second[:3], True)]
    assert first[1] != second[1]


@pytest.mark.parametrize("reader", ["the PodGroup's status", "a status page"])
def test_a_reader_between_two_pods_does_not_keep_the_old_number(reader: str) -> None:
    """From a review: the status of a PodGroup was computed between the second pod and the first sentence."""
    claim = GangClaim(KUBERNETES, "x", by_object=True)
    world = World().start(node("a", 8))
    if reader == "the PodGroup's status":
        group = PodGroup("ns", KUBERNETES, "x", "g", min_member=4, api_version="scheduling.k8s.io/v1beta1")
        world.send(inputs.PodGroupSeen(world.now, group))
        world.see(*(replace(waiting_pod, claim=claim) for waiting_pod in gang("p0", "p1", of=4)))
        world.wait(DEFAULTS.status_s)
    else:
        world.see(*gang("p0", "p1", of=4))
        world.coordinator.summary()
    world.wait(LONG_ENOUGH_S)
    missing = "Waiting for 2 more members: 2 of 4 are here"
    assert told(world) == [("MembersMissing", missing, ["p0", "p1"], True)]
    assert {event.message for event in world.events} == {missing}
    (shown_gang,) = world.coordinator.summary()
    assert shown_gang.reason == missing


def test_pods_that_come_do_not_make_the_others_be_told_again() -> None:
    world = World().start(node("a", 8))
    world.see(*gang("p0", of=40))
    world.wait(LONG_ENOUGH_S)
    for rank in range(1, 9):
        world.see(*gang(f"p{rank}", of=40))
        world.wait(LONG_ENOUGH_S)
    assert [renew for *_, renew in told(world)] == [True, *[False] * 8]


def test_a_complete_gang_that_is_placed_at_once_is_told_nothing() -> None:
    """Each of its pods is bound, and the writer takes back what a bound pod says."""
    world = World().start(node("a", 8))
    world.see(*gang("p0", "p1", of=2))
    world.run()
    world.wait(1.5 * DEFAULTS.numbers_s)
    assert told(world) == []


def test_a_complete_gang_that_waits_for_the_planner_does_not_wait_for_members() -> None:
    world = World(auto=False).start(node("a", 8))
    world.see(*gang("p0", of=2))
    world.wait(LONG_ENOUGH_S)
    world.see(*gang("p1", of=2))
    world.wait(LONG_ENOUGH_S)
    assert [reason for reason, *_ in told(world)] == ["MembersMissing", ""]


def test_without_a_scheduler_nothing_is_said_and_a_new_one_says_all_again() -> None:
    world = World().start(node("a", 8))
    world.see(*gang("p0", of=2))
    world.send(inputs.SessionClosed(world.now, world.epoch))
    world.wait(LONG_ENOUGH_S)
    assert told(world) == []
    world.connect()
    world.wait(LONG_ENOUGH_S)
    assert [(reason, renew) for reason, _, _, renew in told(world)] == [("MembersMissing", True)]


def test_pods_of_others_are_told_nothing() -> None:
    world = World().start(node("a", 8))
    world.see(pod("p0", claim=None, scheduler_name="default-scheduler"))
    world.wait(1.5 * DEFAULTS.numbers_s)
    assert world.shown == list[ShowWaiting]()


def test_gangs_that_were_told_at_once_are_told_again_one_after_another() -> None:
    """When the service starts, all gangs are regrouped at once. One Tick for all would hold up the shim."""
    world = World().start(node("a", 8))
    world.see(*(replace(pod(f"p{i}", gang=f"g{i}"), owner=f"job{i}") for i in range(200)))
    world.wait(LONG_ENOUGH_S)
    assert len(told(world)) == 200
    most = 0
    for _ in range(200):
        due = world.coordinator.next_deadline()
        assert due is not None
        world.now = max(world.now, due)
        world.send(inputs.Tick(world.now))
        most = max(most, len(told(world)))
    assert most == 1
