"""Gangs that stand still between plan and running, so that a test can do something just then.

The moments pass within milliseconds: a process is made to hang that would end them (`e2e.chaos.sight`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import objects
from e2e.arena import Arena
from e2e.chaos.sight import (
    BETWEEN,
    LOOKS_EVERY_S,
    PERMITTED,
    RESERVING,
    Sight,
    await_phase,
    look,
    step_to_reserving,
    woken_in_time,
)
from e2e.scene import Scene
from local_cluster.stack import Stack

PLANS_WITHIN_S, PERMITS_WITHIN_S, NOTICED_WITHIN_S = 4.0, 3.0, 4.0
"""On a quiet machine, where a scheduler that hangs for 5 s loses its lease."""
TRIES = 6
API = "kube-apiserver"


@dataclass(frozen=True, slots=True)
class Caught:
    """A gang in that phase: its pods, and where its plan puts them."""

    pods: list[str]
    sight: Sight


@contextlib.contextmanager
def caught(arena: Arena, scene: Scene, phase: str, size: int) -> Iterator[Caught]:
    """A new gang of pods of one GPU in that phase. Within, the scheduler hangs; for the phase permitted the
    API server does, and Bindings are under way. What hangs goes on afterwards.

    A gang that went past the phase before it could be stopped runs, is deleted, and another one is tried.
    """
    assert arena.stack is not None
    assert arena.cluster is not None
    for attempt in range(TRIES):
        name = f"{phase}-{attempt}"
        gang = objects.ack(name, size)
        try:
            arena.stack.scheduler.pause()
            pods = scene.create(*(objects.pod(f"{name}-{rank}", gang=gang) for rank in range(size)))
            sight = await_phase(arena.stack, scene.name, name, BETWEEN, PLANS_WITHIN_S * arena.stack.stretch)
            if sight is not None and phase == RESERVING:
                sight = step_to_reserving(arena.stack, scene.name, name)
            elif sight is not None and phase == PERMITTED:
                arena.cluster.pause(API)
                arena.stack.scheduler.resume()
                sight = await_phase(
                    arena.stack, scene.name, name, {PERMITTED}, PERMITS_WITHIN_S * arena.stack.stretch
                )
            if sight is not None:
                yield Caught(pods, sight)
                return
        finally:
            arena.cluster.resume(API)
            arena.stack.scheduler.resume()
        scene.runs(pods)
        scene.delete(*pods)
    with woken_in_time() as in_time:
        if phase == RESERVING and not in_time:
            pytest.skip(f"no gang was caught {phase} in {TRIES} tries: real time needs CAP_SYS_NICE")
    raise AssertionError(f"no gang was caught {phase} in {TRIES} tries")


def await_commit(stack: Stack, scene: Scene, gang: Caught) -> None:
    """Wait until the shim sends Bindings: the service permits the gang some milliseconds before."""
    never, deadline = threading.Event(), time.monotonic() + PERMITS_WITHIN_S * stack.stretch
    line = f'"Gang committed" pod="{scene.name}/{gang.sight.gang}-'
    while line not in stack.scheduler.log.read_text():
        assert time.monotonic() < deadline, f"{gang.sight.gang} is not committed"
        never.wait(LOOKS_EVERY_S)


def noticed(arena: Arena, scene: Scene, gang: Caught) -> None:
    """Wait until the service knows that the plan is void. Bindings may overtake what it does not know yet.

    A Permit that was on its way when the scheduler was stopped may overtake it as well. Then the scheduler's
    Bindings end the plan, once it goes on.
    """
    assert arena.stack is not None
    never, deadline = threading.Event(), time.monotonic() + NOTICED_WITHIN_S * arena.stack.stretch
    while (now := look(arena.stack, scene.name, gang.sight.gang)) is not None:
        if now.generation != gang.sight.generation or now.phase not in BETWEEN:
            return
        if now.phase == PERMITTED != gang.sight.phase:
            return
        assert time.monotonic() < deadline, f"the service holds fast to the plan of {gang.sight.gang}"
        never.wait(LOOKS_EVERY_S)
