"""One owner sends several waves of pods one after another: each of them is a gang of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from muster.domain.pod import Pod
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings
from tests.gangs.stuck_gangs import stuck_gangs
from tests.gangs.world import World, foreign, node, pod, with_topology


def first(uid: str, done: bool | None = True, elastic: bool = False) -> Pod:
    """A pod of the first wave of four: it has succeeded, failed (None) or runs still."""
    member_pod = with_topology(uid, of=4, owner="w") if elastic else pod(uid, of=4, owner="w")
    member_pod = replace(member_pod, created=1.0, started=50.0, node="a")
    return member_pod if done is False else replace(member_pod, finished=True, succeeded=bool(done))


def later(uid: str, elastic: bool = False) -> Pod:
    """A pod that was created when the first wave had begun."""
    member_pod = with_topology(uid, of=4, owner="w") if elastic else pod(uid, of=4, owner="w")
    return replace(member_pod, created=100.0 + int(uid[1:]))


def named(letter: str, count: int = 4) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


@dataclass(frozen=True)
class Case:
    """The pods of one owner; gang key (its end) → pods that are there, and how many of them it needs."""

    pods: Sequence[Pod]
    gangs: dict[str, tuple[int, int]]


CASES = {
    "the first of the next wave, the last one still runs": Case(
        [*map(first, named("a", 3)), first("a3", False), *map(later, named("b", 3))],
        {"w": (1, 1), "w#2": (3, 4)},
    ),
    "a complete wave after one that has succeeded": Case(
        [*map(first, named("a")), *map(later, named("b"))], {"w#2": (4, 4)}
    ),
    "some of the wave before were deleted": Case(
        [*map(first, named("a", 2)), *map(later, named("b"))], {"w#2": (4, 4)}
    ),
    "a third wave": Case(
        [
            *map(first, named("a")),
            *(replace(first(uid), created=100.0, started=150.0) for uid in named("b")),
            *(replace(later(uid), created=200.0) for uid in named("c")),
        ],
        {"w#3": (4, 4)},
    ),
    "a failed one is replaced": Case(
        [*map(first, named("a", 3)), first("a3", None), later("b0")], {"w": (1, 1)}
    ),
    "a failed one is replaced while the next wave waits for the last pod": Case(
        [*map(first, named("a", 2)), first("a2", False), first("a3", None), *map(later, named("b", 3))],
        {"w": (2, 2), "w#2": (2, 4)},
    ),
    "an open number: a complete wave": Case(
        [*(first(uid, elastic=True) for uid in named("a")), *(later(uid, True) for uid in named("b"))],
        {"w#2": (4, 4)},
    ),
    "an open number: fewer replace what was lost": Case(
        [*(first(uid, elastic=True) for uid in named("a", 2)), *(later(uid, True) for uid in named("b", 3))],
        {"w": (3, 2)},
    ),
    "an open number: more of it come while it runs": Case(
        [first("a0", elastic=True), *(first(f"a{n}", False, True) for n in (1, 2)), later("b0", True)],
        {"w": (3, 3)},
    ),
    "a rolling update is no wave": Case(
        [*(first(uid, False) for uid in named("a")), later("b0")], {"w": (5, 4)}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_the_pods_of_one_owner_are_dealt_to_its_waves(case: Case, backwards: bool) -> None:
    world = World(GangSettings(), auto=False).start(node("a", 16))
    world.see(*(reversed(case.pods) if backwards else case.pods))
    world.wait(5)
    counts_by_gang = {
        view.key.rpartition("/")[2]: (view.present, view.needed) for view in world.coordinator.summary()
    }
    assert counts_by_gang == case.gangs


@pytest.mark.parametrize("elastic", [False, True])
def test_the_second_wave_is_placed_completely_or_not_at_all(elastic: bool) -> None:
    """Its pods come one after another; two of four GPUs are taken."""
    world = World(GangSettings()).start(node("a", 4))
    world.see(*(first(uid, elastic=elastic) for uid in named("a")))
    world.see(foreign("f", "a", 2))
    for uid in named("b"):
        assert world.verdicts == []
        world.see(later(uid, elastic))
        world.wait(0.1)
    world.wait(5)
    assert world.phase() == "unplaceable"
    world.gone("f")
    world.run()
    assert all(world.pods[uid].node for uid in named("b"))


def test_a_wave_is_bound_in_part_on_its_own() -> None:
    """A complete wave before it does not make it complete."""
    world = World().start(node("a", 4))
    world.see(*map(first, named("a", 3)), first("a3", False), *map(later, named("b", 3)))
    world.see(replace(world.pods["a3"], finished=True, succeeded=True), later("b3"))
    assert world.reserve().claimed
    answer = world.permit()
    world.unreserve(3, BindingFate.REFUSED)
    world.bind(answer, [0, 1, 2])
    world.see(foreign("f", "a"))
    world.wait(60)
    assert {uid for eviction in world.evictions for _, uid in eviction.pods} == {"b0", "b1", "b2"}


def test_a_wave_runs_on_when_the_pods_of_the_one_before_are_deleted() -> None:
    world = World().start(node("a", 4))
    world.see(*map(first, named("a")), *map(later, named("b")))
    world.run()
    for uid in named("b"):
        world.see(replace(world.pods[uid], started=200.0, running=True))
    world.gone(*named("a"))
    world.wait(100)
    (view,) = world.coordinator.summary()
    assert (view.phase, view.bound, world.evictions) == ("running", 4, [])
    world.gone("b0")
    world.see(replace(later("b9"), created=300.0))
    assert world.verdict().members == (("b9", "b9"),)


def test_waiting_pods_replace_pods_of_the_wave_before_soon_after_those_are_deleted() -> None:
    """They are not left until the gang is read again, which may be after minutes if the gang is large."""
    world = World(GangSettings(waiting_s=600)).start(node("a", 4))
    world.see(*map(first, named("a")), *map(later, named("b", 2)))
    world.wait(10)
    world.gone("a0", "a1")
    assert list(stuck_gangs(world, [node("a", 4)])) == []
    world.wait(10)
    assert world.verdict().members == (("b0", "b0"), ("b1", "b1"))


def test_a_plan_of_a_wave_outlives_the_end_of_the_one_before() -> None:
    world = World().start(node("a", 8))
    world.see(*map(first, named("a", 3)), first("a3", False), *map(later, named("b", 4)))
    assert world.verdicts[-1].members == tuple((uid, uid) for uid in named("b"))
    generation = world.verdict().generation
    world.see(replace(world.pods["a3"], finished=True, succeeded=True))
    assert world.verdict().generation == generation
    world.run()
    assert world.phase() == "running"


@pytest.mark.parametrize("looks", ["planner", "summary"])
def test_a_gang_whose_waiting_pods_form_another_one_by_its_turn_is_not_planned(looks: str) -> None:
    """A start is reported late: the pod that waits for the planner is the first of the next wave by then.

    A look at the gang before all gangs of the name are regrouped loses no pod.
    """
    world = World(GangSettings(), auto=False).start(node("a", 16))
    done = replace(pod("p1", of=2, owner="w"), created=1.0, started=20.0, node="a")
    runs = replace(pod("p2", of=2, owner="w"), created=1.0, node="a")
    world.see(done, runs, pod("x", gang=""))
    world.see(replace(pod("p3", of=2, owner="w"), created=10.0))
    world.see(replace(done, finished=True, succeeded=True))
    assert world.phase("g") == "planning"
    world.see(replace(runs, started=5.0, running=True))
    if looks == "planner":
        world.solve()  # of x: it is the turn of the next gang
    else:
        world.coordinator.summary()
    world.wait(2)
    waves = {view.key: view.phase.value for view in world.coordinator.summary() if "/ack/g/" in view.key}
    assert waves == {"ns/ack/g/w": "running", "ns/ack/g/w#2": "collecting"}
