"""What is broken: each fault is a deed on the target gang's world, and what is undone right afterwards.

Nodes, labels and cordons are put right some seconds later, when the next faults have come: they overlap.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from e2e.chaos.aim import BINDING, Target
from e2e.chaos.sight import PERMITTED, PLANNED, RESERVING
from e2e.chaos.submissions import NATIVE, PODGROUP
from e2e.chaos.world import World
from e2e.record import NODES
from local_cluster.api import Object
from local_cluster.nodes import RACK, SCHEDULE

Deed = Callable[[World, Target], int]
"""Gives the API server's revision at which it was done, 0 where it is no deed on the API server."""

Heal = Callable[[World, Target], None]

SHORT_S, LONG_S = 0.5, 5.0
"""How long a process hangs or is away. A Binding has 2 s here and the leader 5 s to renew its lease: the
longer ones outlast both."""

AWAY_S = (20.0, 60.0)
"""How long an API server is away that is not back soon: an upgrade, say."""


class NothingToBreakError(Exception):
    """The fault has nothing to act on at this moment."""


def _nothing(_: World, __: Target) -> None:
    """The system gets over it by itself, or by a repair."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` comes at the moment, `heal` when the processes that were held for it go on. `dialects`: of the
    gangs that it is aimed at; () for all."""

    name: str
    inject: Deed
    heal: Heal = _nothing
    moments: tuple[str, ...] = (PLANNED, RESERVING, PERMITTED)
    dialects: tuple[str, ...] = ()

    @property
    def asks_api(self) -> bool:
        """Whether it is done through the API server, which must not hang then."""
        return BINDING not in self.moments


def _wait(world: World, least_s: float = SHORT_S, most_s: float = LONG_S) -> None:
    """For as long as the fault lasts."""
    threading.Event().wait(world.chance.uniform(least_s, most_s))


def _now(deed: Callable[[World], None]) -> Deed:
    """A deed on processes."""

    def done(world: World, _: Target) -> int:
        deed(world)
        return 0

    return done


def _after_a_while(deed: Callable[[World], None]) -> Heal:
    def done(world: World, _: Target) -> None:
        _wait(world)
        deed(world)

    return done


def _start_api_late(world: World, _: Target) -> None:
    _wait(world, *AWAY_S)
    world.start_api()


def _kill_both(world: World) -> None:
    world.stack.scheduler.kill()
    world.stack.service.kill()


# --- pods and gangs ---------------------------------------------------------------------------------


def _delete_member(world: World, target: Target) -> int:
    """An unbound one where there is one, as last seen."""
    pods = world.crowd.pods(target.submission)
    unbound = [pod for pod in pods if not pod["spec"].get("nodeName")]
    if not pods:
        raise NothingToBreakError("it has no pods any more")
    pod = world.chance.choice(unbound or pods)
    world.crowd.delete_pod(pod)
    return world.revision_when_going("pods", [str(pod["metadata"]["uid"])])


def _withdraw(world: World, target: Target) -> int:
    uids = [str(pod["metadata"]["uid"]) for pod in world.crowd.pods(target.submission)]
    world.crowd.withdraw(target.submission)
    return world.revision_when_going("pods", uids)


def _delete_podgroup(world: World, target: Target) -> int:
    world.crowd.delete_podgroup(target.submission)
    return 0


def _create_podgroup(world: World, target: Target) -> None:
    _wait(world)
    world.crowd.create_podgroup(target.submission)


def _delete_native_podgroup(world: World, target: Target) -> int:
    world.crowd.delete_podgroup(target.submission, at_once=True)
    return 0


def _create_other_podgroup(world: World, target: Target) -> None:
    """Under the same name, basic or with another minCount, and perhaps with another scope."""
    _wait(world)
    submission = target.submission
    needed, scope = world.chance.choice((0, 1, submission.needed)), world.chance.choice(("", "rack"))
    world.crowd.create_podgroup(replace(submission, needed=needed, scope=scope))


def _change_min_count(world: World, target: Target) -> int:
    """Fewer than it has, or more than will ever come."""
    submission = target.submission
    count = world.chance.choice((1, submission.needed - 1, submission.members + 1))
    patched = world.crowd.set_min_count(submission, count)
    if patched is None:
        raise NothingToBreakError("its PodGroup is gone")
    return int(patched["metadata"]["resourceVersion"])


def _restore_min_count(world: World, target: Target) -> None:
    _wait(world)
    world.crowd.set_min_count(target.submission, target.submission.needed)


# --- nodes ------------------------------------------------------------------------------------------


def _planned_node(world: World, target: Target) -> str:
    """A node of the plan that is not broken already."""
    whole = sorted({*target.sight.nodes.values()} & ({*world.nodes} - world.broken()))
    if not whole:
        raise NothingToBreakError("all nodes of the plan are broken already")
    return world.chance.choice(whole)


def _delete_node(world: World, target: Target) -> int:
    """With its pods, as a cloud's controller does, or without, and back with them still on it."""
    name = _planned_node(world, target)
    uids = [str(n["metadata"]["uid"]) for n in world.record.live(NODES) if n["metadata"]["name"] == name]
    world.losses.node_goes(name, time.monotonic())
    world.patient.delete(f"{NODES}/{name}")

    def back() -> None:
        world.patient.create(NODES, world.nodes[name])
        world.losses.node_is_back(name, time.monotonic())

    world.repair_later(name, back)
    if world.chance.random() < 0.5:
        for pod in world.alive():
            if pod["spec"].get("nodeName") == name:
                world.crowd.delete_pod(pod)
    return world.revision_when_going("nodes", uids)


def _flip(label: str, values: Sequence[str]) -> Deed:
    """Another value of the label on a node of the plan."""

    def deed(world: World, target: Target) -> int:
        name = _planned_node(world, target)
        before = world.nodes[name]["metadata"]["labels"].get(label)
        if before is None:
            raise NothingToBreakError(f"{name} has no label {label}")
        restored = world.chance.choice([value for value in values if value != before])
        broken, mended = ({"metadata": {"labels": {label: value}}} for value in (restored, before))
        return _patch(world, name, broken, mended)

    return deed


def _cordon(world: World, target: Target) -> int:
    cordoned, open_again = ({"spec": {"unschedulable": value}} for value in (True, None))
    return _patch(world, _planned_node(world, target), cordoned, open_again)


def _patch(world: World, node: str, broken: Object, mended: Object) -> int:
    path = f"{NODES}/{node}"
    patched = world.patient.patch(path, broken)
    if patched is None:
        raise NothingToBreakError(f"{node} is gone")

    def mend() -> None:
        world.patient.patch(path, mended)

    world.repair_later(node, mend)
    return int(patched["metadata"]["resourceVersion"])


ON_PROCESSES = (PLANNED, RESERVING, PERMITTED, BINDING)
FAULTS = (
    Fault("kill-service", _now(lambda world: world.stack.service.kill()), moments=ON_PROCESSES),
    Fault("kill-scheduler", _now(lambda world: world.stack.scheduler.kill()), moments=ON_PROCESSES),
    Fault("kill-both", _now(_kill_both), moments=ON_PROCESSES),
    Fault(
        "hang-service",
        _now(lambda world: world.stack.service.pause()),
        _after_a_while(lambda world: world.stack.service.resume()),
        ON_PROCESSES,
    ),
    Fault("kill-api-server", _now(World.kill_api), _after_a_while(World.start_api), ON_PROCESSES),
    Fault("hang-api-server", _now(World.hang_api), _after_a_while(World.wake_api), ON_PROCESSES),
    Fault("lose-api-server", _now(World.kill_api), _start_api_late, (PERMITTED, BINDING)),
    Fault("delete-member", _delete_member),
    Fault("withdraw-gang", _withdraw),
    Fault("delete-node", _delete_node),
    Fault("flip-rack", _flip(RACK, ("r0", "r1", "r2", "r9"))),
    Fault("flip-schedule-label", _flip(SCHEDULE, ("disabled", "default", "share"))),
    Fault("cordon", _cordon),
)
PODGROUP_FAULTS = (
    Fault("delete-podgroup", _delete_podgroup, _create_podgroup, (PLANNED, RESERVING), (PODGROUP,)),
    Fault(
        "remake-podgroup", _delete_native_podgroup, _create_other_podgroup, (PLANNED, RESERVING), (NATIVE,)
    ),
    Fault("change-min-count", _change_min_count, _restore_min_count, dialects=(NATIVE,)),
)


def deck(chance: random.Random, dialects: Sequence[str]) -> Iterator[tuple[Fault, str]]:
    """All faults of these dialects at all their moments, shuffled, again and again."""
    faults = (*FAULTS, *(fault for fault in PODGROUP_FAULTS if {*fault.dialects} <= {*dialects}))
    cards = [(fault, moment) for fault in faults for moment in fault.moments]
    while True:
        yield from chance.sample(cards, len(cards))
