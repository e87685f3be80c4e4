"""Moments in a gang's life between plan and running, and how to be there in time.

They pass within milliseconds, so a process is made to hang that would end them: the scheduler while a plan is
made or its members reserve, the API server while Bindings are under way. To their peers both look like
processes starved of CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from e2e.chaos.sight import (
    BETWEEN,
    PERMITTED,
    RESERVING,
    RUNNING,
    Sight,
    await_phase,
    look,
    step_to_reserving,
)
from e2e.chaos.submissions import Submission, target
from e2e.chaos.world import World
from e2e.record import TooLateError

BINDING = "binding"
"""The moment after the phases planned, reserving and permitted: some members are bound, others not."""

PLANS_WITHIN_S = 4.0
"""On a quiet machine, where a scheduler that hangs for 5 s loses its lease."""

PERMITS_WITHIN_S = 3.0
BINDS_WITHIN_S = 10.0
LASTS_S = (2, 8)
SIZES = {RESERVING: (6, 9), BINDING: (8, 12)}
SMALL = (3, 6)
"""Members of targets: more where the time between the first and the last of them is to be hit."""


@dataclass(frozen=True, slots=True)
class Target:
    """The gang that a fault is aimed at, as submitted and as the service sees it."""

    submission: Submission
    sight: Sight


class MissedError(Exception):
    """The moment did not come, or was over."""


@contextlib.contextmanager
def aim(world: World, moment: str, number: int, dialects: Sequence[str]) -> Iterator[Target]:
    """Submit a gang and be there at the moment. What hangs for it goes on afterwards, but for the API server
    at the moments permitted and binding: who breaks things wakes it, or `World.restore` does.

    Raises:
        MissedError: with what the service said of the gang instead.
    """
    chance = world.chance
    members = chance.randint(*SIZES.get(moment, SMALL))
    submission = target(chance, number, dialects, members, chance.randint(*LASTS_S))
    if moment == BINDING:
        world.crowd.submit(submission)
        yield Target(submission, _binding(world, submission))
        return
    scheduler = world.stack.scheduler
    scheduler.pause()
    try:
        world.crowd.submit(submission)
        sight = await_phase(
            world.stack, world.namespace, submission.name, BETWEEN, PLANS_WITHIN_S * world.stack.stretch
        )
        if sight is not None and moment == RESERVING:
            sight = step_to_reserving(world.stack, world.namespace, submission.name)
        if sight is not None and moment == PERMITTED:
            world.hang_api()
            scheduler.resume()
            sight = await_phase(
                world.stack,
                world.namespace,
                submission.name,
                {PERMITTED},
                PERMITS_WITHIN_S * world.stack.stretch,
            )
        if sight is None:
            raise _missed(world, submission)
        yield Target(submission, sight)
    finally:
        scheduler.resume()


def _binding(world: World, submission: Submission) -> Sight:
    """Wait for the first Binding, and have the API server hang before it has done them all."""
    begun = BETWEEN | {RUNNING}
    planned = await_phase(
        world.stack, world.namespace, submission.name, begun, BINDS_WITHIN_S * world.stack.stretch
    )
    try:
        world.record.until(
            lambda: any(pod["spec"].get("nodeName") for pod in world.crowd.pods(submission)),
            f"a member of {submission.name} is bound",
            BINDS_WITHIN_S,
        )
    except TooLateError:
        raise _missed(world, submission) from None
    world.hang_api()
    sight = look(world.stack, world.namespace, submission.name) or planned
    if sight is None:
        raise _missed(world, submission)
    return sight


def _missed(world: World, submission: Submission) -> MissedError:
    sight = look(world.stack, world.namespace, submission.name)
    return MissedError(f"{sight.phase}: {sight.reason}" if sight else "the service does not know the gang")
