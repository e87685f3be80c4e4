"""Gangs that take a planner for long: others do not wait for them, and a namespace has its share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from muster.domain.causes.not_planned import Ended, TookTooLong, TookTooMuchMemory
from muster.domain.decision import MemberPlacement, Placed, Unplaceable
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import EndSolve, Lane, Solve
from muster.gangs.messages.settings import GangSettings
from muster.gangs.pending.planner_share import BACKGROUND, FOREGROUND, PlannerShare
from muster.placement.place import Limits, place
from tests.gangs.invariants import check, waiting_or_refused
from tests.gangs.world import World, node, pod

SLICE_S = 0.3
LIMIT_S = 10.0
STEP_S = 0.05


class Planner:
    """A world whose planners take time: for ever for a gang of namespace "hogs", unless the limit of the lane
    comes or the planner is told to end; `cost_s` for others, whose pods end at once."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._cost_s = cost_s
        self.world = World(GangSettings(settle_s=0.0), auto=False)
        self.world.start(*(node(f"n{i:03}", 8) for i in range(10)))
        self.took: list[tuple[str, float, float]] = []
        """Decisions about hogs in the background: which, when it began, how long it took."""
        self.slices = 0
        """Decisions about hogs in the foreground."""
        self.waited: dict[str, float] = {}
        """Of the others: from the pod to its plan."""
        self._due: list[tuple[float, str, str, int]] = []
        self._began: dict[Lane, float] = {}

    def add(self, name: str, namespace: str, after_s: float = 0.0, priority: int = 0) -> None:
        """Let one pod, a gang of its own, come after this many seconds."""
        self._due.append((self.world.now + after_s, name, namespace, priority))
        self._due.sort()

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        until, world = self.world.now + seconds, self.world
        while world.now < until:
            while self._due and self._due[0][0] <= world.now:
                created, name, namespace, priority = self._due.pop(0)
                single = pod(name, gang="", gpus=1, namespace=namespace, created=created, priority=priority)
                self._send(inputs.PodSeen(world.now, single))
            deadline = world.coordinator.next_deadline()
            if deadline is not None and deadline <= world.now:
                self._send(inputs.Tick(world.now))
            while of_others := [queued for queued in world.solves if queued.request.gang.namespace != "hogs"]:
                world.solves.remove(of_others[0])
                self._place(of_others[0])
            for solve in list(world.solves):
                limit_s = SLICE_S if solve.lane is Lane.FOREGROUND else LIMIT_S
                if world.now >= self._began[solve.lane] + limit_s:
                    self._end(solve, interrupted=False)
            world.now += STEP_S

    def _send(self, message: inputs.Input) -> None:
        out = self.world.coordinator.handle(message)
        self._began |= {
            instruction.lane: self.world.now for instruction in out if isinstance(instruction, Solve)
        }
        self.world.take(out)
        for end in out:
            if isinstance(end, EndSolve):
                (solve,) = (instruction for instruction in self.world.solves if instruction.gang == end.gang)
                self._end(solve, interrupted=True)

    def _end(self, solve: Solve, interrupted: bool) -> None:
        self.world.solves.remove(solve)
        began = self._began[solve.lane]
        took = self.world.now - began
        if solve.lane is Lane.BACKGROUND:
            self.took.append((solve.request.gang.name, began, took))
        else:
            self.slices += 1
        decision = Unplaceable(solve.request.gang, (TookTooLong(took, interrupted),))
        self._send(inputs.SolveAnswered(self.world.now, solve.gang, solve.generation, decision))

    def _place(self, solve: Solve) -> None:
        role = solve.request.roles[0]
        self.waited[role.members[0].name] = self.world.now - solve.request.created
        decision = place(solve.snapshot, solve.request, Limits())
        self.world.now += self._cost_s
        self._send(inputs.SolveAnswered(self.world.now, solve.gang, solve.generation, decision))
        self._send(inputs.PodGone(self.world.now, role.members[0].uid))


def test_a_gang_that_was_ended_waits_longer_each_time_whatever_comes_free() -> None:
    planner = Planner()
    planner.add("hog", "hogs")
    for number in range(300):
        planner.add(f"other-{number}", "others", after_s=LIMIT_S + 10 * number)  # each frees something
    planner.run(3000)
    pauses = [later - began - took for (_, began, took), (_, later, _) in pairwise(planner.took)]
    times = [took for _, _, took in planner.took]
    assert all(later >= 1.9 * pause for pause, later in pairwise(pauses[:5]))
    assert max(pauses) <= GangSettings().pause_max_s + 1
    assert sum(times) < 0.04 * 3000


def test_a_decision_is_ended_only_while_others_wait_for_it() -> None:
    alone, beside, before = Planner(), Planner(), Planner()
    for planner in (alone, beside, before):
        planner.add("hog", "hogs")
    for number in range(100):
        beside.add(f"other-{number}", "others", after_s=0.25 * number)
        before.add(f"other-{number}", "others", after_s=0.25 * number, priority=-1)
    for planner in (alone, beside, before):
        planner.run(25)
    ends = [[round(took) for _, _, took in planner.took[:1]] for planner in (alone, beside, before)]
    assert ends == [[LIMIT_S], [LIMIT_S], [GangSettings().patience_s]]
    assert max(beside.waited.values()) <= SLICE_S + 2 * STEP_S
    assert max(before.waited.values()) <= SLICE_S + GangSettings().patience_s + 4 * STEP_S


def test_others_do_not_wait_long_for_a_namespace_of_hogs() -> None:
    planner, seconds = Planner(), 300.0
    for number in range(100):
        planner.add(f"hog-{number}", "hogs")
    for number in range(1000):
        planner.add(f"other-{number}", "others", after_s=0.3 * number)
    planner.run(seconds)
    waited = sorted(planner.waited.values())
    assert len(waited) > 990
    assert waited[-1] <= 3 * SLICE_S + 2 * STEP_S, "a namespace has a few slices at once"
    assert planner.slices * SLICE_S <= FOREGROUND.share * seconds + FOREGROUND.burst_s
    assert len({name for name, _, _ in planner.took}) > 10, "the hogs have their turns"


@pytest.mark.slow
def test_a_namespace_of_hogs_holds_up_lower_priorities_for_its_share_of_the_time() -> None:
    planner, seconds, cost_s = Planner(cost_s=0.2), 200.0, 0.2
    for number in range(100):
        planner.add(f"hog-{number}", "hogs")
    for number in range(1000):
        planner.add(f"other-{number}", "others", after_s=cost_s * number, priority=-1)
    planner.run(seconds)
    assert len(planner.waited) * cost_s >= (1 - BACKGROUND.share - FOREGROUND.share - 0.1) * seconds
    assert len({name for name, _, _ in planner.took}) > 5, "the hogs have their turns"


def test_the_older_of_two_slow_gangs_does_not_hold_up_the_other_one() -> None:
    planner = Planner()
    for name in ("first", "second"):
        planner.add(name, "hogs")
    planner.run(10)
    assert [name for name, _, _ in planner.took[:2]] == ["first", "second"]
    assert planner.took[0][2] == pytest.approx(GangSettings().patience_s, abs=2 * STEP_S)


def test_a_slow_gang_is_placed_by_the_background_planner_while_others_go_on() -> None:
    world = World(GangSettings(settle_s=0), auto=False).start(node("a", 8), node("b", 4))
    world.see(pod("slow", gang="", gpus=8))
    world.solve(replace(_placed(world, 0), truncated=True))
    world.see(pod("quick", gang="", gpus=4))
    assert [solve.lane for solve in world.solves] == [Lane.BACKGROUND, Lane.FOREGROUND]
    world.solve(at=1)
    assert world.phase("quick") == "planned"
    world.solve()
    assert world.phase("slow") == "planned"
    assert {place.node for gang in ("quick", "slow") for place in _plan(world, gang)} == {"a", "b"}


def test_a_background_plan_whose_gpus_were_taken_is_made_again_and_its_equals_wait() -> None:
    world = World(GangSettings(settle_s=0), auto=False).start(node("a", 8))
    world.see(pod("slow", gang="", gpus=4))
    world.solve(replace(_placed(world, 0), truncated=True))
    world.see(pod("quick", gang="", gpus=2))
    world.solve(at=1)
    world.solve()
    assert world.phase("slow") == "planning", "both had chosen the same GPUs"
    world.see(pod("equal", gang="", gpus=2), pod("urgent", gang="", gpus=2, priority=1))
    assert [solve.request.gang.name for solve in world.solves] == ["slow", "urgent"]
    world.solve()
    assert world.phase("slow") == "planned"
    while world.solves:
        world.solve()
    assert (world.phase("urgent"), world.phase("equal")) == ("planned", "unplaceable")


def test_no_gang_may_wait_for_both_planners() -> None:
    world = World(auto=False).start(node("a"))
    world.see(pod("one", gang="", gpus=1), pod("other", gang="", gpus=1))
    state = world.coordinator.state
    (waits,) = waiting_or_refused(state.queue)
    for lane in Lane:
        state.queue.add_waiting(state.gangs[waits], lane, state.queue_order(state.gangs[waits]))
    assert check(world.coordinator) == [f"{waits} waits for both planners"]


@pytest.mark.parametrize("cause", [TookTooLong(10.0), TookTooMuchMemory(1024)])
def test_an_ended_decision_is_told_and_not_called_a_proof(cause: Ended) -> None:
    world = World(auto=False).start(node("a"))
    world.see(pod("hog", gang="", gpus=1))
    while world.solves:
        world.solve(Unplaceable(world.solves[0].request.gang, (cause,)))
    assert world.verdict("hog").reason.startswith("Not decided: the planner was ended")
    assert world.phase("hog") == "unplaceable"


def test_a_namespace_rests_until_its_share_is_met_and_short_decisions_are_free() -> None:
    share = PlannerShare(BACKGROUND)
    share.note_begin("a", 0.0, 2.0)
    assert share.note_end(0.4) == pytest.approx(0.4)
    assert not share.resting_namespaces(0.4)
    share.note_begin("a", 5.0, 2.0)
    assert share.note_end(9.0, waited_s=3.8) == pytest.approx(0.2)
    assert not share.resting_namespaces(9.0), "the planner's process was started meanwhile"
    share.note_begin("a", 10.0, 2.0)
    assert not share.becomes_late(11.9)
    assert share.becomes_late(12.0)
    assert not share.becomes_late(12.0), "it is told once"
    share.note_end(12.0)
    rests_s = 2 / BACKGROUND.share - 2
    assert share.resting_namespaces(12.0 + rests_s - 0.1) == {"a"}
    assert not share.resting_namespaces(12.0 + rests_s)


def test_a_busy_machine_makes_no_namespace_rest_from_the_foreground() -> None:
    share = PlannerShare(FOREGROUND)
    for turn in range(100):
        share.note_begin("a", 10.0 * turn, 2.0)
        assert share.note_end(10.0 * turn + 9.0, processor_s=0.05) == pytest.approx(9.0)
        assert not share.resting_namespaces(10.0 * turn + 9.0)
    share.note_begin("a", 2000.0, 2.0)
    share.note_end(2000.4, processor_s=0.35)
    assert share.resting_namespaces(2000.4) == {"a"}


def test_a_gang_whose_decision_was_ended_has_longer_each_time_but_its_namespace_seldom() -> None:
    share = PlannerShare(BACKGROUND)
    ends = []
    for now, ended in ((0.0, 1), (100.0, 2), (1000.0, 3)):
        share.resting_namespaces(now)
        share.note_begin("a", now, 2.0, ended)
        assert share.ends_at is not None
        ends.append(share.ends_at - now)
        share.note_end(now)
    assert ends == [4.0, 2.0, 16.0]


def _placed(world: World, at: int) -> Placed:
    solve = world.solves[at]
    decision = place(solve.snapshot, solve.request, Limits())
    assert isinstance(decision, Placed)
    return decision


def _plan(world: World, gang: str) -> tuple[MemberPlacement, ...]:
    (planned_gang,) = (
        candidate for candidate in world.coordinator.state.gangs.values() if f"/{gang}/" in candidate.key
    )
    assert planned_gang.plan is not None
    return planned_gang.plan.placed.members
