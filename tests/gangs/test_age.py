"""How old a gang is: as its waiting members, from the creation of their owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.gangs.membership.incarnations import MAX_GONE
from muster.gangs.membership.roster import Roster
from tests.gangs.world import World, foreign, node, pod, with_topology


def age(world: World, gang: str = "e") -> float:
    """Since when the gang waits."""
    (view,) = [view for view in world.coordinator.summary() if view.name == gang]
    return view.created


def test_a_pod_that_runs_gives_no_age_to_one_that_is_added_later() -> None:
    world = World().start(node("a", 8), node("b", 8))
    world.see(foreign("f", "a", 8), foreign("h", "b", 7))
    world.see(with_topology("e0", of=1, gang="e", created=0.0, owner="j"))
    world.run("e")
    world.see(pod("victim", gang="", gpus=8, created=100.0))
    world.see(with_topology("e1", of=1, gang="e", gpus=8, created=600.0, owner="j"))
    assert (world.phase("victim"), world.phase("e"), age(world)) == ("unplaceable", "unplaceable", 600.0)
    world.gone("f")
    assert world.planned("victim")


@pytest.mark.parametrize(
    ("runs", "deleted", "created"),
    [(False, False, 10.0), (False, True, 10.0), (True, False, 700.0), (True, True, 700.0)],
    ids=["beside a waiting pod", "in place of it", "beside a running pod", "in place of one that waited too"],
)
def test_the_age_of_an_owners_new_pod(runs: bool, deleted: bool, created: float) -> None:
    world = World().start(node("a", 1))
    if runs:
        world.see(with_topology("e0", of=1, gang="e", created=5.0, owner="j"))
        world.run("e")
        if deleted:
            world.see(with_topology("e1", of=1, gang="e", created=10.0, owner="j", gpus=2))
    else:
        world.see(with_topology("e1", of=1, gang="e", created=10.0, owner="j", gpus=2))
    world.see(with_topology("other", of=1, gang="e", created=600.0, owner="j", gated=True))
    if deleted:
        world.gone("e1")
    world.see(with_topology("e2", of=1, gang="e", created=700.0, owner="j", gpus=2))
    assert age(world) == created


def test_a_pod_that_ran_and_finished_gives_no_age_either() -> None:
    world = World().start(node("a", 1))
    world.see(with_topology("e0", of=2, gang="e", created=5.0, owner="j"))
    world.see(replace(world.pods["e0"], node="a"))
    world.see(replace(world.pods["e0"], finished=True))
    world.see(with_topology("e1", of=2, gang="e", created=700.0, owner="j", gpus=2))
    assert age(world) == 700.0


def test_each_owner_has_its_own_age_and_the_oldest_one_counts() -> None:
    world = World().start(node("a", 1))
    world.see(pod("m", of=2, gang="e", created=50.0, owner="m", gpus=2))
    world.see(pod("w", of=2, gang="e", created=60.0, owner="w", gpus=2))
    world.gone("w")
    world.see(pod("w2", of=2, gang="e", created=90.0, owner="w", gpus=2))
    assert age(world) == 50.0
    world.see(replace(world.pods["m"], node="a"))
    assert age(world) == 60.0


def test_owners_that_are_gone_are_forgotten_in_the_end() -> None:
    roster, uids = Roster(), []
    for run in range(1000):
        member = pod(f"p{run}", of=1, owner=f"job{run}", created=float(run))
        roster.see(member)
        roster.see(replace(member, finished=True, succeeded=True, started=float(run)))
        uids.append(member.uid)
        if len(uids) > 3:
            roster.drop(uids.pop(0))
    (owners,) = roster._owners.values()
    assert len(owners._owners) == 3 + MAX_GONE
    for uid in uids:
        roster.drop(uid)
    assert not roster._owners
