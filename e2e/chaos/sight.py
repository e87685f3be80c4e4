"""Where a gang is in its life, as the service's /gangs shows it: what a fault is aimed by."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from local_cluster.stack import Stack

PLANNED, RESERVING, PERMITTED, RUNNING = "planned", "reserving", "permitted", "running"
BETWEEN = frozenset({PLANNED, RESERVING, PERMITTED})
"""Phases between plan and running."""

LOOKS_EVERY_S = 0.005
STEPS_FOR_S = 3.0
STEP_S = 0.0005
"""So long the scheduler goes on at a time until the first member has reserved: less than one takes."""
CALLS_LAND_S = 0.05
"""A call that it made just before it hung is answered by then."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One gang at one moment. `nodes`: member's UID → the node that the plan gives it."""

    gang: str
    phase: str
    generation: int
    needed: int
    reason: str
    nodes: Mapping[str, str]


def look(stack: Stack, namespace: str, gang: str) -> Sight | None:
    """The gang now; None when the service does not know it, or does not answer."""
    try:
        shown = json.loads(stack.service_get(f"/gangs?namespace={namespace}&name={gang}"))["gangs"]
    except OSError:
        return None
    for gang_shown in shown:
        if (gang_shown["namespace"], gang_shown["name"]) == (namespace, gang):
            members = (gang_shown.get("plan") or {}).get("members") or ()
            nodes = {str(member["uid"]): str(member["node"]) for member in members}
            return Sight(
                gang,
                str(gang_shown["phase"]),
                int(gang_shown["generation"]),
                int(gang_shown["needed"]),
                str(gang_shown["reason"]),
                nodes,
            )
    return None


def await_phase(stack: Stack, namespace: str, gang: str, phases: Set[str], within_s: float) -> Sight | None:
    """The gang as soon as its phase is a wanted one; None when that does not come in time.

    The service does not announce a change of phase, and these last for milliseconds: it is asked again and
    again.
    """
    never = threading.Event()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        sight = look(stack, namespace, gang)
        if sight is not None and sight.phase in phases:
            return sight
        never.wait(LOOKS_EVERY_S)
    return None


def step_to_reserving(stack: Stack, namespace: str, gang: str) -> Sight | None:
    """Of a gang that is planned, while the scheduler hangs: have that go on step by step until some members
    have reserved and others have not. It hangs in the end; None when it went past that, or did not get there.
    """
    deadline = time.monotonic() + STEPS_FOR_S * stack.stretch
    with woken_in_time():
        while time.monotonic() < deadline:
            stack.scheduler.resume()
            time.sleep(STEP_S)
            stack.scheduler.pause()
            sight = look(stack, namespace, gang)
            if sight is None or sight.phase != PLANNED:
                time.sleep(CALLS_LAND_S)
                sight = look(stack, namespace, gang)
                return sight if sight is not None and sight.phase == RESERVING else None
    return None


@contextlib.contextmanager
def woken_in_time() -> Iterator[bool]:
    """Within, this thread runs as soon as its sleep ends, also on a busy machine. False where it may not.

    Otherwise it waits up to 40 ms for a processor, and a gang of 40 goes from its first Reserve to its last.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:  # needs CAP_SYS_NICE
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
