"""Gangs that take the planner for long: others do not wait for them, and a namespace has its share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from muster.domain.decision import Unplaceable
from muster.domain.pod import Pod
from muster.domain.reasons import Ended, TookTooLong, TookTooMuchMemory
from muster.gangs.messages import events
from muster.gangs.messages.instructions import EndSolve, Solve
from muster.gangs.messages.settings import Settings
from muster.gangs.pending.planner_share import SHARE, PlannerShare
from muster.placement.place import Limits, place
from tests.gangs.world import World, node, pod

LIMIT_S = 10.0
STEP_S = 0.05


class Planner:
    """A world whose planner takes time: for ever for a gang of namespace "hogs", unless its limit comes or it
    is told to end; `cost_s` for others, whose pods end at once."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._cost_s = cost_s
        self.world = World(Settings(settle_s=0.0), auto=False)
        self.world.start(*(node(f"n{i:03}", 8) for i in range(10)))
        self.took: list[tuple[str, float, float]] = []
        """Decisions about hogs: which, when it began, how long it took."""
        self.waited: dict[str, float] = {}
        """Of the others: from the pod to its plan."""
        self._due: list[tuple[float, str, str]] = []
        self._began = self.world.now

    def add(self, name: str, namespace: str, after_s: float = 0.0) -> None:
        """Let one pod, a gang of its own, come after this many seconds."""
        self._due.append((self.world.now + after_s, name, namespace))
        self._due.sort()

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        until, world = self.world.now + seconds, self.world
        while world.now < until:
            while self._due and self._due[0][0] <= world.now:
                created, name, namespace = self._due.pop(0)
                self._send(events.PodSeen(world.now, self._pod(name, namespace, created)))
            deadline = world.coordinator.next_deadline()
            if deadline is not None and deadline <= world.now:
                self._send(events.Tick(world.now))
            while world.solves and world.solves[0].request.gang.namespace != "hogs":
                self._place(world.solves.pop(0))
            if world.solves and world.now >= self._began + LIMIT_S:
                self._end(told=False)
            world.now += STEP_S

    def _pod(self, name: str, namespace: str, created: float) -> Pod:
        return pod(name, gang="", gpus=1, namespace=namespace, created=created)

    def _send(self, event: events.Event) -> None:
        out = self.world.coordinator.handle(event)
        if any(isinstance(each, Solve) for each in out):
            self._began = self.world.now
        self.world.take(out)
        if any(isinstance(each, EndSolve) for each in out):
            self._end(told=True)

    def _end(self, told: bool) -> None:
        asked = self.world.solves.pop(0)
        took = self.world.now - self._began
        self.took.append((asked.request.gang.name, self._began, took))
        decision = Unplaceable(asked.request.gang, (TookTooLong(took, told),))
        self._send(events.Decided(self.world.now, asked.gang, asked.generation, decision))

    def _place(self, asked: Solve) -> None:
        role = asked.request.roles[0]
        self.waited[role.members[0].name] = self.world.now - asked.request.created
        decision = place(asked.snapshot, asked.request, Limits())
        self.world.now += self._cost_s
        self._send(events.Decided(self.world.now, asked.gang, asked.generation, decision))
        self._send(events.PodGone(self.world.now, role.members[0].uid))


def test_a_gang_that_was_ended_waits_longer_each_time_whatever_comes_free() -> None:
    planner = Planner()
    planner.add("hog", "hogs")
    for number in range(300):
        planner.add(f"other-{number}", "others", after_s=LIMIT_S + 10 * number)  # each frees something
    planner.run(3000)
    pauses = [later - began - took for (_, began, took), (_, later, _) in pairwise(planner.took)]
    times = [took for _, _, took in planner.took]
    assert all(later >= 1.9 * pause for pause, later in pairwise(pauses[:5]))
    assert max(pauses) <= Settings().pause_max_s + 1
    assert sum(times) < 0.03 * 3000


@pytest.mark.slow
def test_a_decision_is_ended_only_while_others_wait_and_later_each_time() -> None:
    alone, among = Planner(), Planner()
    for planner in (alone, among):
        planner.add("hog", "hogs")
    for number in range(4000):
        among.add(f"other-{number}", "others", after_s=0.25 + 0.25 * number)
    alone.run(300)
    among.run(1000)
    assert [took for _, _, took in alone.took] == pytest.approx([LIMIT_S] * len(alone.took), abs=2 * STEP_S)
    assert [took for _, _, took in among.took[:2]] == pytest.approx([2, 4], abs=2 * STEP_S)
    assert max(took for _, _, took in among.took) == pytest.approx(LIMIT_S, abs=2 * STEP_S), "in the end"


def test_others_do_not_wait_long_for_a_namespace_of_hogs() -> None:
    planner = Planner()
    for number in range(100):
        planner.add(f"hog-{number}", "hogs")
    for number in range(1000):
        planner.add(f"other-{number}", "others", after_s=0.3 * number)
    planner.run(300)
    waited = sorted(planner.waited.values())
    assert len(waited) > 980
    late = [seconds for seconds in waited if seconds > Settings().patience_s + 2 * STEP_S]
    assert len(late) < 0.1 * len(waited)
    assert waited[-1] <= LIMIT_S + 2 * STEP_S
    assert len({name for name, _, _ in planner.took}) > 10, "the hogs have their turns"


@pytest.mark.slow
def test_while_others_always_wait_a_namespace_of_hogs_has_its_share_of_the_time() -> None:
    planner, seconds, cost_s = Planner(cost_s=0.2), 200.0, 0.2
    for number in range(100):
        planner.add(f"hog-{number}", "hogs")
    for number in range(1000):
        planner.add(f"other-{number}", "others", after_s=cost_s * number)
    planner.run(seconds)
    spent = sum(took for _, _, took in planner.took)
    assert 0.1 * seconds < spent <= (SHARE + 0.05) * seconds
    assert len(planner.waited) * cost_s >= (1 - SHARE - 0.25) * seconds


@pytest.mark.parametrize("cause", [TookTooLong(10.0), TookTooMuchMemory(1024)])
def test_an_ended_decision_is_told_and_not_called_a_proof(cause: Ended) -> None:
    world = World(auto=False).start(node("a"))
    world.see(pod("hog", gang="", gpus=1))
    world.solve(Unplaceable(world.solves[0].request.gang, (cause,)))
    assert world.verdict("hog").reason.startswith("Not decided: the planner was ended")
    assert world.phase("hog") == "unplaceable"


def test_a_namespace_rests_until_its_share_is_met_and_short_decisions_are_free() -> None:
    share = PlannerShare()
    share.began("a", 0.0, 2.0)
    assert share.over(0.4) == pytest.approx(0.4)
    assert not share.resting(0.4)
    share.began("a", 5.0, 2.0)
    assert share.over(9.0, waited_s=3.8) == pytest.approx(0.2)
    assert not share.resting(9.0), "the planner's process was started meanwhile"
    share.began("a", 10.0, 2.0)
    assert not share.late(11.9)
    assert share.late(12.0)
    assert not share.late(12.0), "it is told once"
    share.over(12.0)
    rests_s = 2 / SHARE - 2
    assert share.resting(12.0 + rests_s - 0.1) == {"a"}
    assert not share.resting(12.0 + rests_s)
