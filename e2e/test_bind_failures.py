"""A member whose Binding the API server refuses, after all others of its gang were let go to bind."""

from __future__ import annotations

import pytest

from e2e import objects
from e2e.audit import EVICTED_S
from e2e.refusals import refused
from e2e.scene import Scene
from local_cluster.api import Object
from local_cluster.stack import Stack

SIZE = 4
REFUSED = "g-1"


def gang() -> list[Object]:
    """The one whose Binding will be refused comes first."""
    return [objects.pod(f"g-{rank}", gpus=2, gang=objects.ack("g", SIZE)) for rank in (1, 0, 2, 3)]


@pytest.mark.grace(EVICTED_S)
def test_the_others_stay_and_the_member_is_planned_again(scene: Scene, stack: Stack) -> None:
    scene.node(objects.node("a"))
    first, *later_members = gang()
    scene.create(first)
    with refused(scene, REFUSED):
        names = scene.create(*later_members)
        scene.until(lambda: scene.bound() == {*names}, "all but one are bound")
        second_gang = scene.create(*(objects.pod(f"o-{rank}", gang=objects.ack("o", 2)) for rank in range(2)))
        scene.event("TopologyUnplaceable", second_gang[0])  # the place of the refused one is kept for it
    scene.runs([*names, REFUSED])


@pytest.mark.grace(EVICTED_S)
def test_a_gang_that_stays_half_is_given_up(scene: Scene, stack: Stack) -> None:
    """Those that were bound are evicted, nothing is held, and the gang can begin anew."""
    scene.node(objects.node("a"))
    first, *later_members = gang()
    scene.create(first)
    with refused(scene, REFUSED):
        names = scene.create(*later_members)
        scene.until(lambda: {*names} <= scene.bound(), "all but one are bound")
        event = "those that were bound are evicted"
        scene.until(lambda: {*scene.pods()} == {REFUSED}, event)
        scene.runs(scene.create(objects.pod("all-of-it", gpus=8)))
        scene.delete("all-of-it")
    scene.create(*later_members)
    scene.runs([*names, REFUSED])
