"""A refusal names the gangs of lower priority whose end would make room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.clearing import Clearing
from muster.domain.pod import Pod
from muster.domain.preemption import Preemption
from muster.gangs.lifecycle import victims
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Outcome
from muster.gangs.messages.settings import GangSettings, Preempt
from muster.gangs.record.gang import GangView
from muster.gangs.record.phases import Trigger
from muster.placement.clearing import clear
from muster.placement.limits import Limits
from tests.gangs.world import World, foreign, node, pod, with_topology

CLAUSE = "The gang would fit if ns/low ended (priority 0, 4 GPUs, running 15 min)"


def running(uid: str = "low", on: str = "a", priority: int = 0) -> Pod:
    """A gang of one with all GPUs of a node."""
    started = 1000.0 - 15 * 60
    new_pod = pod(uid, gang="", gpus=4, priority=priority, started=started, running=True)
    return replace(new_pod, node=on, allocation=0b1111)


def waiting(uid: str = "high", gpus: int = 4, priority: int = 10, namespace: str = "ns") -> Pod:
    return pod(uid, gang="", gpus=gpus, priority=priority, namespace=namespace)


def full(**settings: object) -> World:
    """A node, and a gang of low priority on all of it."""
    world = World(replace(GangSettings(settle_s=0), **settings)).start(node("a"))  # type: ignore[arg-type]
    world.see(running())
    return world


def without_answers() -> World:
    """That world, in which the test answers each question."""
    world = full()
    world.auto = False
    return world


def view(world: World, name: str) -> GangView:
    (only,) = (view for view in world.coordinator.summary() if view.name == name)
    return only


def test_a_refusal_names_the_victims_and_says_so_once() -> None:
    world = full()
    world.see(waiting())
    assert CLAUSE in world.verdict("high").reason
    assert [event.message for event in world.events] == [world.verdict("high").reason]
    assert world.outcomes() == ["refused"]
    facts = view(world, "high").clearing
    assert facts is not None
    assert [(victim["name"], victim["pods"]) for victim in facts["victims"]] == [("ns/low", ["ns/low"])]


@pytest.mark.parametrize(
    ("settings", "priority"), [({}, 0), ({"preempt": Preempt.OFF}, 10)], ids=["equal priority", "off"]
)
def test_a_gang_that_may_have_no_victims_does_not_wait_for_them(
    settings: dict[str, Preempt], priority: int
) -> None:
    world = full(**settings)
    world.see(waiting(priority=priority))
    assert "ended" not in world.verdict("high").reason
    assert view(world, "high").clearing is None


def test_a_gang_that_does_not_fit_an_empty_node_has_no_victims() -> None:
    world = without_answers()
    world.see(waiting(gpus=5))
    world.solve()
    assert not world.victim_questions
    assert world.verdict("high").outcome is Outcome.REFUSED


def test_while_budgets_may_not_be_read_all_gangs_and_lone_pods_are_protected() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"), node("b"))
    world.see(running(), foreign("lone", "b", gpus=4))
    world.see(waiting())
    assert "ended" in world.verdict("high").reason
    world.send(inputs.BudgetsUnread(world.now, True))
    world.see(waiting("later", gpus=3))
    reason = world.verdict("later").reason
    assert "the service may not read PodDisruptionBudgets" in reason
    assert "ended" not in reason
    world.send(inputs.BudgetsUnread(world.now, False))
    world.see(waiting("last", gpus=2))
    assert "ended" in world.verdict("last").reason


def test_the_refusal_waits_a_moment_and_victims_that_are_found_later_are_added() -> None:
    world = without_answers()
    world.see(waiting())
    world.solve()
    assert not world.verdicts
    assert "ended" not in view(world, "high").reason
    world.wait(world.settings.victims_s)
    assert "ended" not in world.verdict("high").reason
    world.find_victims()
    assert CLAUSE in world.verdict("high").reason
    assert world.outcomes() == ["refused", "refused"]


def test_the_refusal_does_not_wait_while_a_watch_is_interrupted() -> None:
    world = without_answers()
    world.see(waiting())
    world.send(inputs.WatchInterrupted(world.now, "pods"))
    world.solve()
    assert "ended" not in world.verdict("high").reason
    world.send(inputs.WatchResumed(world.now, "pods"))
    world.find_victims()
    assert CLAUSE in world.verdict("high").reason


def test_without_an_answer_the_refusal_says_nothing_and_asks_no_more_for_a_while() -> None:
    world = without_answers()
    world.see(waiting())
    world.solve()
    world.answer_victims(None)
    assert "ended" not in world.verdict("high").reason
    assert "decided" not in world.verdict("high").reason
    world.wait(world.settings.numbers_s / 2)
    assert not world.victim_questions


def test_gangs_with_equal_needs_share_the_answer() -> None:
    world = without_answers()
    world.see(*(waiting(f"h{number}") for number in range(4)))
    while world.solves:
        world.solve()
    assert len(world.victim_questions) == 1
    world.find_victims()
    assert not world.victim_questions
    assert all(CLAUSE in world.verdict(f"h{number}").reason for number in range(4))
    world.see(waiting("h4"))
    world.solve()
    assert CLAUSE in world.verdict("h4").reason
    assert not world.victim_questions


def test_one_input_tells_gangs_with_a_bounded_number_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "MAX_MEMBERS_PER_INPUT", 2)
    world = without_answers()
    world.see(*(waiting(f"h{number}") for number in range(5)))
    while world.solves:
        world.solve()
    world.find_victims()
    told_uids = {uid for verdict in world.verdicts for _, uid in verdict.members}
    assert told_uids == {"h0", "h1", "h2"}
    world.wait(0)
    assert all(CLAUSE in world.verdict(f"h{number}").reason for number in range(5))


def test_a_reservation_of_another_gang_keeps_what_a_victim_would_free() -> None:
    world = full(backfill_after_s=10.0)
    world.see(waiting("h0"))
    world.wait(20)
    assert "reserved for it" in world.verdict("h0").reason
    world.see(waiting("h1"))
    assert CLAUSE in world.verdict("h0").reason
    assert CLAUSE not in world.verdict("h1").reason
    assert "what comes free on its nodes is reserved for another gang" in world.verdict("h1").reason
    world.see(waiting("h2", priority=20))
    assert CLAUSE in world.verdict("h2").reason


def test_pods_that_go_from_the_nodes_of_a_reservation_make_no_room_for_others() -> None:
    world = full(backfill_after_s=10.0)
    world.see(waiting("h0"))
    world.wait(20)
    world.see(replace(world.pods["low"], terminating=True, ends=world.now + 30))
    world.see(waiting("h1"))
    assert "being deleted" not in world.verdict("h1").reason


def test_namespaces_take_turns() -> None:
    world = without_answers()
    world.see(*(waiting(f"a{number}", gpus=1 + number) for number in range(3)), waiting("b", namespace="b"))
    while world.solves:
        world.solve()
    names: list[str] = []
    while world.victim_questions:
        names.append(world.victim_questions[0].request.gang.name)
        world.find_victims()
    assert names[1] == "b"
    assert len(names) == 4


def test_a_gang_that_is_refused_again_keeps_its_turn() -> None:
    world = without_answers()
    world.see(*(waiting(f"h{number}", gpus=1 + number, namespace=f"ns{number}") for number in range(3)))
    while world.solves:
        world.solve()
    state = world.coordinator.state
    (again,) = (gang for gang in state.gangs.values() if gang.group.gang.name == "h1")
    state.replan(again, Trigger.FREED)
    world.send(inputs.Tick(world.now))
    world.solve()
    names: list[str] = []
    while world.victim_questions:
        names.append(world.victim_questions[0].request.gang.name)
        world.find_victims()
    assert names == ["h0", "h1", "h2"]


def test_an_answer_holds_as_long_as_its_victims_are_there() -> None:
    world = full()
    world.start(node("b"))
    world.see(running("other", "b", priority=5), waiting())
    assert CLAUSE in world.verdict("high").reason
    world.see(waiting("higher", priority=20))
    world.gone("low")
    world.run("higher")
    assert "if ns/other ended (priority 5" in view(world, "high").reason
    world.wait(world.settings.numbers_s)
    assert "if ns/other ended (priority 5" in world.verdict("high").reason


def test_an_old_answer_stays_in_the_refusal_until_the_next_is_there() -> None:
    world = full()
    world.start(node("b", 1))
    world.see(running("other", "b", priority=50), foreign("f", "b"), waiting())
    world.auto = False
    world.wait(world.settings.numbers_s)
    world.gone("f")
    world.wait(world.settings.numbers_s)
    world.solve()
    assert CLAUSE in world.verdict("high").reason
    (question,) = world.victim_questions
    assert question.request.gang.name == "high"
    world.find_victims()
    assert CLAUSE[:30] in world.verdict("high").reason


def test_victims_that_come_and_go_are_published_at_most_once_a_minute() -> None:
    world = without_answers()
    world.start(node("b", 1))
    world.see(waiting())
    world.solve()
    world.find_victims()
    assert world.outcomes() == ["refused"]
    for number in range(5):
        world.gone(*(uid for uid in world.pods if uid.startswith("low")))
        world.see(running(f"low{number}"))
        while world.solves:
            world.solve()
        world.wait(world.settings.victims_s)
        world.find_victims()
        world.wait(1)
    assert "ns/low4 ended" in view(world, "high").reason
    assert world.outcomes() == ["refused"]
    world.wait(world.settings.numbers_s)
    assert "ns/low4 ended" in world.verdict("high").reason
    assert world.outcomes() == ["refused", "refused"]


def test_a_gang_that_is_gone_or_planned_is_not_told() -> None:
    world = without_answers()
    world.see(waiting("h0"), waiting("h1"))
    while world.solves:
        world.solve()
    world.gone("h0")
    world.gone("low")
    while world.solves:
        world.solve()
    assert world.planned("h1")
    world.answer_victims(None)
    assert world.outcomes()[-1] == "planned"


@pytest.mark.parametrize(
    "change",
    [
        {"terminating": True, "ends": 1030.0},
        {"preemption": Preemption(protected="is not preemptible")},
    ],
    ids=["being deleted", "protected"],
)
def test_victims_that_changed_while_they_were_searched_are_not_named(change: dict[str, Any]) -> None:
    world = without_answers()
    world.see(waiting())
    world.solve()
    question = world.victim_questions[0]
    old_answer = clear(question.snapshot, question.request, Limits())
    assert isinstance(old_answer, Clearing)
    world.see(replace(world.pods["low"], **change))
    world.answer_victims(old_answer)
    assert len(world.victim_questions) == 1
    world.find_victims()
    world.wait(world.settings.numbers_s)
    assert "would fit if" not in world.verdict("high").reason


def test_optional_members_have_no_victims() -> None:
    world = full()
    world.start(node("b"))
    world.see(with_topology("m0", gpus=4, node="b", allocation=0b1111, priority=10))
    world.see(with_topology("m1", gpus=4, priority=10))
    assert "would fit" not in world.verdict().reason
