"""What traces are told: each phase that a gang enters, when, and the trace of what made it."""

from __future__ import annotations

from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Instruction, Moved
from tests.gangs.world import World, node, pod

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def moves(instructions: list[Instruction]) -> list[tuple[str, str]]:
    return [(move.phase, move.link) for move in instructions if isinstance(move, Moved)]


def test_every_phase_is_told_with_its_time_and_link() -> None:
    world = World().start(node("a"))
    coordinator = world.coordinator
    first = coordinator.handle(inputs.PodSeen(world.now, pod("p0", of=2)))
    assert moves(first) == [("collecting", "")]
    world.now += 5.0
    second = coordinator.handle(inputs.PodSeen(world.now, pod("p1", of=2, traceparent=PARENT)))
    later = [move for move in second if isinstance(move, Moved)]
    assert [(move.phase, move.link, move.moved_at) for move in later][-1] == ("planning", PARENT, world.now)
    assert (later[-1].name, later[-1].namespace) == ("g", "ns")


def test_a_gang_that_ends_says_so() -> None:
    world = World().start(node("a"))
    world.see(pod("p0", of=2))
    assert ("finished", "") in moves(world.coordinator.handle(inputs.PodGone(world.now, "p0")))
