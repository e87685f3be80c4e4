"""Waiting pods that take the name of a running gang, and are not its replacements."""

from __future__ import annotations

from itertools import permutations

import pytest

from muster.domain.causes.ill_formed import BadValue
from muster.domain.pod import Pod
from muster.gangs.messages.instructions import Outcome
from tests.gangs.world import World, node, with_topology

ILL_FORMED = BadValue("pod/ns/stranger", "scope", "rakc", "a scope")
STRANGERS = {
    "another min-member": with_topology("stranger", of=2),
    "a larger min-member": with_topology("stranger", of=9),
    "no min-member": with_topology("stranger", of=None),
    "an ill-formed field": with_topology("stranger", of=4, causes=(ILL_FORMED,)),
}


def running() -> World:
    """A gang of four on nodes with four GPUs, and four more GPUs that are free."""
    world = World().start(node("a"), node("b"))
    world.see(*(with_topology(f"p{number}", of=4) for number in range(4)))
    world.run()
    return world


def is_planned(world: World, uid: str) -> bool:
    planned = [verdict for verdict in world.verdicts if verdict.outcome is Outcome.PLANNED]
    return any((uid, uid) in verdict.members for verdict in planned)


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=list(STRANGERS))
@pytest.mark.parametrize("order", list(permutations(("lost", "stranger", "replacement"))))
def test_a_stranger_holds_up_no_replacement(stranger: Pod, order: tuple[str, ...]) -> None:
    """From a review: the members disagreed, so the running gang got its replacement never."""
    world = running()
    for step in order:
        match step:
            case "lost":
                world.gone("p3")
            case "stranger":
                world.see(stranger)
            case "replacement":
                world.see(with_topology("p4", of=4))
    assert is_planned(world, "p4")
    assert not any("disagree" in view.reason for view in world.coordinator.summary() if view.bound)


def test_an_update_of_all_members_is_no_stranger() -> None:
    world = running()
    world.gone("p3")
    world.see(with_topology("p4", of=2))
    assert is_planned(world, "p4")
    assert len(world.coordinator.summary()) == 1
