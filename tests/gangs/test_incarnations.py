"""A name used again, while the first run is there: whose pods are whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from muster.domain.pod import Pod
from muster.domain.snapshot import Snapshot
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import Filter, Permit, PlanRef, Reserve
from muster.gangs.messages.settings import GangSettings
from muster.placement.limits import Limits
from muster.placement.place import place
from tests.gangs.world import World, bound, node, pod, with_topology

BEGAN = 50.0


def first(uid: str, owner: str, of: int = 2, elastic: bool = False) -> Pod:
    """A pod that waits since before any began."""
    member = with_topology(uid, of=of) if elastic else pod(uid, of=of)
    return replace(member, owner=owner, created=1.0)


def runs(uid: str, owner: str, of: int = 2, elastic: bool = False) -> Pod:
    """One that has begun."""
    return replace(first(uid, owner, of, elastic), node="a", started=BEGAN)


def later(uid: str, owner: str, of: int = 2, elastic: bool = False) -> Pod:
    """One that came after that."""
    return replace(first(uid, owner, of, elastic), created=BEGAN + 9)


def done(uid: str, owner: str, of: int = 2, *, created: float = BEGAN, started: float = BEGAN) -> Pod:
    """One that has succeeded."""
    member = pod(uid, of=of, finished=True, succeeded=True)
    return replace(member, owner=owner, created=created, started=started)


@dataclass(frozen=True)
class Case:
    """Pods, and the owners and sizes of the gangs that they are."""

    pods: Sequence[Pod]
    gangs: dict[str, int]


CASES = {
    "a complete second incarnation": Case(
        [runs("p0", "A"), later("q0", "B"), later("q1", "B")],
        {"A": 1, "B": 2},
    ),
    "a complete second incarnation of an elastic gang": Case(
        [runs("p0", "A", elastic=True), *(later(f"q{i}", "B", elastic=True) for i in range(3))],
        {"A": 1, "B": 3},
    ),
    "a complete second incarnation of two owners": Case(
        [
            runs("m", "A1", of=3),
            runs("w0", "A2", of=3),
            later("m2", "B1", of=3),
            later("w2", "B2", of=3),
            later("w3", "B2", of=3),
        ],
        {"A1/A2": 2, "B1/B2": 3},
    ),
    "a third incarnation": Case(
        [runs("p0", "A"), *(later(f"{o}{i}", o) for o in "BC" for i in (0, 1))],
        {"A": 1, "B": 2, "C": 2},
    ),
    "its own replacement, and the second incarnation": Case(
        [runs("p0", "A"), later("p1", "A"), later("q0", "B"), later("q1", "B")],
        {"A": 2, "B": 2},
    ),
    "one that began in the second in which all were created, and has succeeded": Case(
        [
            done("p0", "A", of=3),
            replace(first("p1", "B", of=3), created=BEGAN),
            replace(first("p2", "C", of=3), created=BEGAN),
        ],
        {"A/B/C": 2},
    ),
    "one that succeeded before the others were created": Case(
        [done("p0", "A"), later("q0", "B"), later("q1", "C")],
        {"B/C": 2},
    ),
    "master and workers": Case(
        [first("m", "A1", of=3), first("w0", "A2", of=3), first("w1", "A2", of=3)],
        {"A1/A2": 3},
    ),
    "workers that were made anew": Case(
        [runs("m", "A1", of=3), later("w0", "A3", of=3), later("w1", "A3", of=3)],
        {"A1/A3": 3},
    ),
    "master and elastic workers, more of them than it needs": Case(
        [first("m", "A1", elastic=True), *(first(f"w{i}", "A2", elastic=True) for i in range(3))],
        {"A1/A2": 4},
    ),
}


def gangs(world: World) -> dict[str, int]:
    return {
        view.key.removeprefix("ns/ack/g").removeprefix("ns/annotations/g").removeprefix("/"): view.present
        for view in world.coordinator.summary()
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_pods_of_one_name_are_dealt_to_its_runs(case: Case) -> None:
    world = World(GangSettings()).start(node("a", 8))
    world.see(*case.pods)
    world.wait(0.5)
    assert gangs(world) == case.gangs


def test_the_first_pods_of_a_second_run_are_not_planned_beside_the_first_one() -> None:
    world = World(GangSettings()).start(node("a", 8))
    world.see(runs("p0", "A"), later("q0", "B"))
    world.wait(0.4)
    world.see(later("q1", "B"))
    assert [verdict.members for verdict in world.verdicts] == [(("q0", "q0"), ("q1", "q1"))]
    assert gangs(world) == {"A": 1, "B": 2}
    world.see(later("p1", "A"))
    assert world.verdict().members == (("p1", "p1"),)


def test_a_gang_whose_owner_goes_is_not_planned_with_the_pods_of_that_owner() -> None:
    """While others are waited for, and the gang is shown meanwhile."""
    world = World(GangSettings()).start(node("a", 8))
    world.see(first("m", "A1", of=3, elastic=True))
    world.see(*(replace(first(f"w{i}", "A2", of=3, elastic=True), created=2.0) for i in range(3)))
    world.gone("m")
    assert gangs(world) == {"A2": 3}
    world.wait(5)
    assert {uid for _, uid in world.verdict().members} == {"w0", "w1", "w2"}


def test_what_is_left_of_a_complete_incarnation_is_not_evicted_with_the_next_one() -> None:
    """No pod has begun to run yet, so what is left of the first looks like a member of the second."""
    world = World(GangSettings(settle_s=0)).start(node("a"))
    world.see(first("p0", ""), first("p1", ""), *(replace(first(f"q{i}", "B"), created=2.0) for i in (0, 1)))
    gang = world.verdicts[0].gang
    ref = PlanRef(world.epoch, gang, world.verdicts[0].generation)
    home = world.ask(Filter(world.now, ref)).candidates[0][0]
    world.ask(Reserve(world.now, ref, 0, home))
    answer = world.ask(Permit(world.now, ref, 1))
    for uid, carried in zip(("p0", "p1"), answer.annotations, strict=True):
        world.see(bound(world.pods[uid], home, carried))
    assert world.reserve().claimed
    world.permit()
    world.wait(21)  # its Bindings got lost: the second incarnation has begun, and is not complete
    world.gone("p1")
    world.wait(100)
    assert world.evictions == []


def test_what_is_left_of_a_partially_bound_incarnation_is_evicted_even_if_the_next_one_has_come() -> None:
    """What is left looks like a member of the next run, which is one too many with it."""
    world = World(GangSettings(settle_s=0)).start(node("a", 2))
    world.see(first("p0", ""), first("p1", ""))
    assert world.reserve().claimed
    world.bind(world.permit(), members=(0,))
    world.see(*(replace(first(f"q{i}", "B"), created=2.0) for i in (0, 1)))
    world.gone("p1")
    assert world.phase() == "invalid"
    world.wait(30)
    assert [eviction.pods for eviction in world.evictions] == [(("p0", "p0"),)]
    world.gone("p0")
    world.run()
    assert gangs(world) == {"B": 2}


def test_a_complete_incarnation_stays_when_the_one_before_it_is_given_up() -> None:
    """With the first pod that is evicted, those of the next run, bare ones, look like its replacements."""
    world = World(GangSettings(settle_s=0)).start(node("a", 2))
    world.see(first("p0", "A"), first("p1", "A"))
    assert world.reserve().claimed
    world.bind(world.permit(), members=(0,))
    world.see(pod("f", gang="", claim=None, node="a"))
    world.wait(60)
    assert [set(eviction.pods) for eviction in world.evictions] == [{("p0", "p0")}] * 2
    world.send(inputs.NodeSeen(world.now, node("b", 2)))
    world.see(*(replace(first(f"q{i}", ""), created=2.0, node="b") for i in (0, 1)))
    world.see(replace(world.pods["p0"], terminating=True))
    world.wait(100)
    assert {uid for eviction in world.evictions for _, uid in eviction.pods} == {"p0"}


def test_what_another_owner_sends_for_a_lost_pod_is_planned_when_no_more_has_come() -> None:
    world = World(GangSettings()).start(node("a", 8))
    world.see(runs("m", "A1"), later("w", "A2"))
    assert world.verdicts == []
    world.wait(0.5)
    assert world.verdict().members == (("w", "w"),)


def test_the_pods_of_the_next_run_replace_what_the_first_has_lost_a_moment_later() -> None:
    """None of them has begun to run, so that they may be one."""
    world = World(GangSettings()).start(node("a", 8))
    world.see(replace(first("p0", "A", of=3), node="a"), replace(first("p1", "A", of=3), node="a"))
    world.see(replace(first("p2", "A", of=3), node="a"))
    world.see(replace(first("q0", "B", of=3), created=2.0))
    assert gangs(world) == {"A": 3, "B": 1}
    world.gone("p2")
    world.wait(0.5)
    assert gangs(world) == {"A/B": 3}


def test_a_bare_pod_takes_the_place_of_a_finished_one_that_is_deleted() -> None:
    """Both came before any pod began, so it may be of the same run. Nothing else changes."""
    world = World(GangSettings(settle_s=0)).start(node("a", 8))
    world.see(first("p0", "A"), first("p1", "A"), replace(first("b", ""), created=2.0))
    world.run()
    assert gangs(world) == {"": 1, "A": 2}
    for uid in ("p0", "p1"):
        world.see(replace(world.pods[uid], finished=True, succeeded=True, started=BEGAN))
    assert gangs(world) == {"": 1}
    world.gone("p1")
    world.wait(0.5)
    assert gangs(world) == {"A": 1}
    assert world.verdict().members == (("b", "b"),)


@dataclass(frozen=True)
class Bare:
    """Pods, some without an owner; what then goes and comes; the gangs that they are a moment later, and who
    was planned by then."""

    pods: Sequence[Pod]
    gone: Sequence[str]
    come: Sequence[Pod]
    gangs: dict[str, int]
    planned: set[str]


def bare(uid: str) -> Pod:
    return replace(first(uid, "", elastic=True), created=2.0)


PAIR = [replace(first(uid, "A", elastic=True), node="a") for uid in ("p0", "p1")]
BARE = {
    "they replace what the run beside them has lost": Bare(
        [*PAIR, bare("q0"), bare("q1")], ["p1"], [], {"A": 3}, {"q0", "q1"}
    ),
    "they leave the run after it for the one before it": Bare(
        [*PAIR, bare("q0"), *(replace(first(f"r{i}", "B", elastic=True), created=3.0) for i in (0, 1))],
        ["p1"],
        [],
        {"A": 2, "B": 2},
        {"q0", "r0", "r1"},
    ),
    "their run has enough without them": Bare(
        [first("p0", "A", elastic=True), bare("q0")],
        [],
        [first("p1", "A", elastic=True)],
        {"A": 2, "": 1},
        {"p0", "p1"},
    ),
}


@pytest.mark.parametrize("connects", [True, False], ids=["a session opens", "the gangs are shown"])
@pytest.mark.parametrize("case", BARE.values(), ids=BARE.keys())
def test_pods_without_an_owner_are_of_one_run(case: Bare, connects: bool) -> None:
    """Also where each run is looked at before all of the name are regrouped."""
    world = World(GangSettings()).start(node("a", 8))
    look = world.connect if connects else world.coordinator.summary
    world.see(*case.pods)
    look()
    world.gone(*case.gone)
    world.see(*case.come)
    look()
    world.wait(0.5)
    assert gangs(world) == case.gangs
    assert {uid for verdict in world.verdicts for _, uid in verdict.members} == case.planned


def test_a_gang_of_many_owners_has_a_short_key_that_is_theirs_alone() -> None:
    def key(owners: list[str]) -> str:
        world = World(GangSettings(settle_s=0)).start(node("a", 8))
        world.see(*(pod(f"p-{owner}", of=len(owners), owner=owner) for owner in owners))
        (view,) = world.coordinator.summary()
        assert view.present == len(owners)
        return view.key

    assert key(["o0", "o1", "o2", "o3"]) == "ns/ack/g/o0/o1/o2/o3"
    owners = [f"o{number}" for number in range(8)]
    assert key(owners) == key(owners[::-1]) == "ns/ack/g/8-owners/d07fadd2be3fc216ebcef42d5077ecdd"
    assert len({key([*owners[:7], last_owner]) for last_owner in ("o7", "o8", "o9")}) == 3


def test_what_many_owners_send_is_of_their_gang() -> None:
    """Next to another incarnation, in place of a lost pod, and another gang with the last pod of an owner."""
    world = World(GangSettings(settle_s=0)).start(node("a", 8))
    world.see(*(runs(f"p{number}", f"o{number}", of=6) for number in range(6)))
    world.see(runs("p6", "o5", of=6))
    world.see(*(later(f"q{number}", "B", of=6) for number in range(6)))
    first_run = next(view.key for view in world.coordinator.summary() if "6-owners" in view.key)
    world.gone("p6")
    assert {view.key: view.present for view in world.coordinator.summary()} == {
        first_run: 6,
        "ns/ack/g/B": 6,
    }
    world.gone("p5")
    assert first_run not in {view.key for view in world.coordinator.summary()}


def test_an_owner_all_of_whose_pods_were_replaced_stays_in_its_gang() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", 8))
    workers = [first(f"w{i}", "A2", elastic=True) for i in range(3)]
    world.see(runs("m", "A1", elastic=True), *workers)
    world.gone("w0", "w1", "w2")
    world.see(replace(world.pods["m"], running=True, node="a", priority=1))
    world.see(*(later(f"x{i}", "A2", elastic=True) for i in range(3)))
    assert gangs(world) == {"A1/A2": 4}


def test_whose_pods_are_whose_is_asked_again_when_the_first_is_seen_to_run() -> None:
    """Its kubelet reports late that it began before the others came: they are another incarnation."""
    world = World(GangSettings(), auto=False).start(node("a", 8))
    world.see(replace(runs("p0", "A", elastic=True), started=0.0))
    world.see(later("q0", "B", elastic=True), later("q1", "B", elastic=True))
    world.wait(1)
    assert gangs(world) == {"A/B": 3}
    world.see(runs("p0", "A", elastic=True))
    world.wait(0.5)
    assert gangs(world) == {"A": 1, "B": 2}


def test_the_pods_of_a_complete_gang_that_begin_to_run_are_not_counted_again() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", 8))
    world.see(*(first(f"p{i}", "A", of=4) for i in range(4)))
    world.run()
    for uid in list(world.pods):
        world.send(inputs.PodSeen(world.now, replace(world.pods[uid], started=BEGAN)))
        assert world.coordinator.next_deadline() is None


def test_what_is_dealt_anew_while_its_gang_is_refused_is_looked_at_after_it() -> None:
    """A gang of two owners waits for the planner. Its older owner gets enough pods for a gang of its own; the
    planner is asked, and refuses the gang as it was, before it is regrouped."""
    world = World(GangSettings(), auto=False).start(node("a", gpus=2))
    world.see(with_topology("e0", of=2, owner="one", created=1.0))
    world.see(*(with_topology(f"e{i}", of=2, owner="two", created=2.0) for i in (1, 2)))
    world.see(pod("busy", gang=""))
    world.wait(1)
    world.see(with_topology("e3", of=2, owner="one", created=3.0))
    world.solve()
    solve = world.solves[0]
    assert solve.request.gang.name == "g"
    world.send(inputs.NodeGone(world.now, "a"))
    world.solve(place(Snapshot.of((), ()), solve.request, Limits()))
    world.auto = True
    world.wait(4)
    assert sorted(view.present for view in world.coordinator.summary() if view.name == "g") == [2, 2]
