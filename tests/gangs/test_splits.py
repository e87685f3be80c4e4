"""After a restart the pods alone tell which gang was split. Only what is proven is evicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from muster.domain import allocation
from muster.domain.node import Usage
from muster.domain.pod import Batch, Pod
from muster.domain.podgroup import PodGroup
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings, Partial
from tests.gangs.test_podgroups import named
from tests.gangs.world import World, bound, foreign, node, with_topology

NEWEST = 50.0
ALL = Batch(needed=2, left_out=0, newest=NEWEST)
POLICIES = pytest.mark.parametrize("partial", list(Partial))


@dataclass(frozen=True)
class Case:
    """A gang that needs `needed` now. `batches` are those of its bound members. Of the waiting
    pods, `there` existed before and `later` came later."""

    batches: tuple[Batch | None, ...]
    there: int = 0
    later: int = 0
    needed: int = 2
    split: bool = False


CASES = {
    "one of two": Case((ALL,), there=1, split=True),
    "one of two, and its replacement": Case((ALL,), later=1),
    "one of two, and another one came": Case((ALL,), there=1, later=1, split=True),
    "one of two died": Case((ALL,)),
    "more are needed now": Case((replace(ALL, left_out=1),) * 2, there=1, needed=3),
    "more are needed now, and one died": Case((replace(ALL, left_out=2),), there=2, needed=3),
    "fewer are needed now": Case((replace(ALL, needed=3),) * 2, there=1),
    "one was left over, another died": Case((replace(ALL, needed=3, left_out=1),) * 2, there=1, needed=3),
    "one was left over, another was not bound": Case(
        (replace(ALL, needed=3, left_out=1),) * 2, there=2, needed=3, split=True
    ),
    "two of three died, one was left over": Case(
        (replace(ALL, needed=3, left_out=1),), there=1, later=1, needed=3
    ),
    "one was bound next to a complete gang": Case((replace(ALL, needed=0),), there=1),
    "of several batches the one that proves least": Case((ALL, replace(ALL, needed=0)), there=2, needed=4),
    "bound by others, or by an older version": Case((None,), there=1),
}


@POLICIES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_was_split_is_proven_by_what_was_written_on_its_pods(case: Case, partial: Partial) -> None:
    world = World(GangSettings(settle_s=0, partial=partial))
    for number, batch in enumerate(case.batches):
        world.see(member(f"b{number}", case.needed, node="a", allocation=1 << number, batch=batch))
    world.see(*(member(f"w{number}", case.needed) for number in range(case.there)))
    world.see(*(replace(member(f"x{n}", case.needed), created=NEWEST + 9) for n in range(case.later)))
    world.see(foreign("f", "a", 4 - len(case.batches)))
    world.start(node("a"))
    world.wait(29)
    assert world.evictions == []
    world.wait(100)
    assert bool(world.evictions) == (case.split and partial is Partial.EVICT)


def member(uid: str, min_member: int, **more: object) -> Pod:
    return replace(with_topology(uid, of=min_member, created=NEWEST), **more)  # type: ignore[arg-type]


@POLICIES
@pytest.mark.parametrize("restart", ["before", "after", "never"])
def test_a_running_gang_of_which_more_is_asked_is_not_evicted(partial: Partial, restart: str) -> None:
    """Its surplus member has waited since before the others began to run."""
    world = World(GangSettings(settle_s=0, partial=partial)).start(node("a", gpus=2))
    needs(world, 2)
    world.see(*(named(f"p{number}") for number in range(3)))
    world.run("train")
    assert world.phase("train") == "unplaceable"
    if restart == "before":
        again(world, 2)
    needs(world, 3)
    if restart == "after":
        again(world, 3)
    world.wait(300)
    assert (world.evictions, world.phase("train")) == ([], "unplaceable")
    world.send(inputs.NodeSeen(world.now, node("b")))
    assert world.planned("train")


@POLICIES
def test_a_gang_that_a_crash_has_split_is_given_up_though_more_is_asked_of_it(partial: Partial) -> None:
    world = World(GangSettings(settle_s=0, partial=partial)).start(node("a", gpus=2))
    needs(world, 2)
    world.see(*(named(f"p{number}") for number in range(2)))
    assert world.reserve(gang="train").claimed
    answer = world.permit("train")
    world.unreserve(1, BindingFate.REFUSED, gang="train")
    world.bind(answer, [0], "train")
    world.see(foreign("f", "a"))
    again(world, 3)
    world.see(named("p2"))
    world.wait(100)
    assert bool(world.evictions) == (partial is Partial.EVICT)


def needs(world: World, members: int) -> None:
    world.send(inputs.PodGroupSeen(world.now, PodGroup("ns", "kai", "train", uid="g", min_member=members)))


def again(world: World, members: int, in_flight: tuple[Usage, ...] = ()) -> None:
    """The service restarts, and a shim connects."""
    world.restart()
    needs(world, members)
    for known_pod in world.pods.values():
        world.send(inputs.PodSeen(world.now, known_pod))
    world.start(node("a", gpus=2), in_flight=in_flight)


@POLICIES
def test_more_that_is_asked_of_a_gang_on_its_way_splits_it_not(partial: Partial) -> None:
    """Both are let go as a gang of two; it needs three when they are seen bound by another service."""
    world = World(GangSettings(settle_s=0, partial=partial)).start(node("a", gpus=2))
    needs(world, 2)
    world.see(*(named(f"p{number}") for number in range(2)))
    assert world.reserve(gang="train").claimed
    answer = world.permit("train")
    pending = dict(world.pods)
    again(world, 3, tuple(world.coordinator.state.ledger.reservations.values()))
    for (_, uid), carried in zip(world.verdict("train").members, answer.annotations, strict=True):
        world.see(bound(pending[uid], "a", carried))
    world.wait(100)
    assert (world.evictions, world.phase("train")) == ([], "running")


def test_a_binding_carries_with_whom_it_was_let_go() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=2))
    world.see(*(member(f"p{number}", 2) for number in range(2)), replace(member("p9", 2), created=NEWEST + 9))
    carried = world.run().annotations[0]
    assert allocation.read_batch(carried) == Batch(needed=2, left_out=0, newest=NEWEST)
    world.send(inputs.NodeSeen(world.now, node("a", gpus=3)))
    carried = world.run().annotations[0]
    assert allocation.read_batch(carried) == Batch(needed=0, left_out=0, newest=NEWEST + 9)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "{}", '{"needed":"2","left_out":0,"newest":1}', '{"needed":2,"left_out":0}']
)
def test_what_cannot_be_read_proves_nothing(text: str) -> None:
    assert allocation.read_batch({allocation.DECISION: text} if text else {}) is None
