"""Scores of nodes, for pods with preferences: who is asked about, and what scores change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.node import Resources
from muster.domain.pod import Pod
from muster.domain.request import Role, Segment
from muster.gangs.messages.calls import BindingFate, InTreeAnswer
from tests.gangs.test_in_tree import NAMES, but, cluster
from tests.gangs.world import pod


def preferring(uid: str, **more: object) -> Pod:
    return pod(uid, preferences=True, **more)  # type: ignore[arg-type]


def favours(**scores: int) -> InTreeAnswer:
    return InTreeAnswer(scores=scores)


def test_a_pod_with_preferences_goes_to_the_node_that_scores_most() -> None:
    world = cluster()
    world.see(preferring("x", gang=""))
    assert not world.solves
    assert [question.pods for question in world.questions] == [(("x", "x"),)]
    world.report(favours(n31=60, n32=100, n33=99))
    assert world.home(0, "x") == "n32"


def test_what_the_plugins_refuse_counts_more_than_what_they_score() -> None:
    world = cluster()
    world.see(preferring("x", gang=""))
    world.report(but("n05", "n06", scores={"n04": 100, "n06": 1}))
    assert world.home(0, "x") == "n06"


def test_without_scores_a_pod_with_preferences_waits_as_long_as_others() -> None:
    world = cluster()
    world.auto = False
    world.see(preferring("x", gang=""))
    world.wait(world.settings.answers_s - 0.1)
    assert not world.solves
    world.wait(0.2)
    assert [dict(role.scores) for role in world.solves[0].request.roles] == [{}]


def test_other_scores_neither_move_a_planned_gang_nor_wake_a_refused_one() -> None:
    world = cluster(["n1", "n2"])
    world.see(preferring("x", gang="", gpus=8), preferring("y", gang="", gpus=16))
    for question in list(world.questions):
        world.report(favours(n1=100), question=question)
    assert world.planned("x")
    assert world.home(0, "x") == "n1"
    assert world.phase("y") == "unplaceable"
    asked_before, verdicts = world.asked, len(world.verdicts)
    for question in list(world.questions):
        world.report(favours(n2=100), question=question)
    world.wait(1)
    assert (world.asked, len(world.verdicts)) == (asked_before, verdicts)
    assert world.home(0, "x") == "n1"


def test_late_scores_wake_nobody() -> None:
    world = cluster(["n1"])
    world.see(preferring("x", gang="", gpus=16))
    world.wait(world.settings.answers_s)
    asked_before = world.asked
    assert world.phase("x") == "unplaceable"
    world.report(favours(n1=100))
    world.wait(0.1)
    assert world.asked == asked_before


def test_new_scores_count_at_the_next_plan() -> None:
    world = cluster(["n1", "n2", "n3"])
    world.see(pod("old", gang="", gpus=8))
    home = world.home(0, "old")
    world.run("old")
    free = [name for name in ("n1", "n2", "n3") if name != home]
    world.auto = False
    world.see(preferring("x", gang="", gpus=8))
    world.report(favours(**{free[0]: 100}))
    world.report(favours(**{free[1]: 100}))
    world.solve()  # asked with the first scores, and taken: scores alone make no plan void
    assert world.home(0, "x") == free[0]
    world.auto = True
    world.now += 0.05
    world.unreserve(0, BindingFate.NEVER_SENT, "NodeResourcesFit", "Insufficient cpu", gang="x")
    assert world.home(0, "x") == free[1]


def test_members_with_other_scores_are_roles_of_their_own() -> None:
    world = cluster()
    world.see(preferring("a", gpus=8), preferring("b", gpus=8))
    world.report(favours(n30=100), favours(n07=100), of=((0,), (1,)))
    homes = {name: world.home(i) for i, (name, _) in enumerate(world.verdict().members)}
    assert homes == {"a": "n30", "b": "n07"}


@pytest.mark.parametrize(
    "role",
    [
        Role("w", (), Resources(), required_scope="rack"),
        Role("w", (), Resources(), segments=(Segment(2, "rack"),)),
    ],
    ids=["scope", "segments"],
)
def test_scores_do_not_tear_apart_a_role_that_must_lie_together(role: Role) -> None:
    world = cluster()
    world.auto = False
    world.see(preferring("a"), preferring("b"))
    world.report(but("n30", scores={"n30": 7}), but("n30", scores={"n31": 8}), of=((0,), (1,)))
    solve = world.solves[0]
    members = sorted((m for role in solve.request.roles for m in role.members), key=lambda m: m.name)
    whole = replace(role, members=tuple(members))
    answers = world.coordinator.state.in_tree.answers(solve.gang)
    refined = answers.refine(replace(solve.request, roles=(whole, replace(whole, name="v"))))
    assert [dict(part.scores) for part in refined.roles] == [{"n30": 7}] * 2
    assert [part.members for part in refined.roles] == [whole.members] * 2
    excluded = answers.excluded_nodes(refined.roles)
    assert set(NAMES) - excluded["w"].keys() == {"n30"}
