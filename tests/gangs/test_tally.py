"""What metrics show of all gangs: counts, the oldest that waits, and members with a place."""

from __future__ import annotations

from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, node, pod


def test_gangs_are_counted_through_their_life() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"))
    world.see(pod("p0", of=2, gpus=2, created=5.0))
    tally = world.coordinator.tally()
    assert (dict(tally.phases), tally.oldest) == ({"collecting": 1}, {"collecting": 5.0})
    world.see(pod("p1", of=2, gpus=2, created=7.0))
    assert (world.reserve().claimed, +world.coordinator.tally().reserved) == (True, {"plan": 2})

    answer = world.permit()
    assert +world.coordinator.tally().reserved == {"binding": 2}
    world.unreserve(1, BindingFate.REFUSED)
    world.bind(answer, [0])
    tally = world.coordinator.tally()
    assert (tally.partially_bound, +tally.reserved) == (1, {"retained": 1})

    world.wait(2)
    world.run()
    tally = world.coordinator.tally()
    assert (dict(tally.phases), tally.partially_bound, +tally.reserved) == ({"running": 1}, 0, {})
    assert not tally.oldest


def test_each_namespace_has_its_gangs_gpus_and_what_blocks_them() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"))
    world.see(pod("p0", of=2, gpus=2, created=5.0))
    world.see(pod("q0", gang="q", of=1, gpus=1, namespace="team-b", created=6.0))
    namespaces = world.coordinator.tally().namespaces
    default, team_b = namespaces["ns"], namespaces["team-b"]
    assert (dict(default.phases), dict(default.causes)) == ({"collecting": 1}, {"MembersMissing": 1})
    assert (dict(default.gpus), default.oldest) == ({"bound": 0, "waiting": 2}, 5.0)
    assert (team_b.phases.total(), dict(team_b.causes), team_b.gpus["waiting"]) == (1, {}, 1)


def test_many_namespaces_are_cut_to_the_largest_and_a_sum() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"))
    for number in range(5):
        world.see(pod(f"p{number}", gang=f"g{number}", of=2, gpus=1, namespace=f"n{number % 4}", created=9.0))
    tally = world.coordinator.tally()
    cut = tally.only_namespaces({"n0", "n1", "gone"}, "others")
    assert {name: (of.phases.total(), of.gpus["waiting"]) for name, of in cut.items()} == {
        "n0": (2, 2),
        "n1": (1, 1),
        "others": (2, 2),
    }
    assert cut["others"].oldest == 9.0
    assert tally.only_namespaces(tally.namespaces.keys(), "others") == tally.namespaces


def test_gangs_that_are_counted_in_parts_count_as_all_at_once() -> None:
    world = World().start(node("a"))
    world.see(pod("x", gang=""), pod("y", gang="", gpus=8), pod("z0", gang="z", of=2))
    keys = [*world.coordinator.keys(), "ns/ack/gone/"]
    tally = world.coordinator.tally(())
    for key in keys:
        world.coordinator.tally((key,), tally)
    assert tally == world.coordinator.tally()
