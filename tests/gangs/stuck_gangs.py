"""Find gangs that fit now and that no planner is asked about. The model looks after every step.

The planner of this module knows the true state of the cluster: its nodes, its bound pods, and what is
reserved for other gangs. If a gang fits, it must be in the queue, be planned just now, or wait for a bounded
time that docs/gang-life.md states.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from muster.domain.node import Node
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity import requests
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import Group
from muster.gangs.messages.instructions import Lane
from muster.gangs.pending.scheduling_queue import namespace_of
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import Phase
from muster.placement.cluster.matching import GangCluster
from muster.placement.gang.instance import instance_of, unsupported_rule
from muster.placement.limits import Budget, Limits
from muster.placement.search.search import best_for_most
from tests.gangs.world import World

_REGROUPED = (Phase.COLLECTING, Phase.INVALID, Phase.RUNNING)
"""Phases in which nothing but its members brings a gang further."""
_GOES_ON = (Phase.PLANNING, Phase.PLANNED, Phase.RESERVING, Phase.PERMITTED)
"""Phases that end in a bounded time, with what the gang is at: pods that come meanwhile are grouped then."""
CATCHES_UP_S = 2.0
"""After the service stood still, everything that was due comes this many seconds after the first of it."""


def fits_now(world: World, nodes: Iterable[Node], key: str) -> bool:
    """Return whether a gang fits, by a planner that knows the cluster alone and the places of other gangs.

    What is left out for the gang, by answers of in-tree plugins and late refusals too, and what a backfill
    reservation hides from it, is left out here as well. This is `place` without its explanation of refusals:
    explaining took half of a simulation's time.
    """
    state = world.coordinator.state
    gang = state.gangs[key]
    group = _groups(state, gang).get((key, gang.group.owners), gang.group)
    own_uids = gang.retained_uids | gang.reserved_uids
    bound = {bound_pod.uid for bound_pod in world.pods.values() if bound_pod.usage is not None}
    usages = [usage for bound_pod in world.pods.values() if (usage := bound_pod.usage) is not None]
    usages += [usage for uid, usage in state.ledger.reservations.items() if uid not in own_uids | bound]
    request = requests.request(group, state.ledger)
    answers = state.in_tree.answers(key)
    if answers.causes(key, request):
        return False
    request = answers.refine(request)
    policies = state.roster.policies
    snapshot = Snapshot.of(nodes, usages, policies.levels, policies.typical)
    snapshot = state.backfill.snapshot_for(gang, snapshot)
    request = answers.with_gpu_limits(request, snapshot)
    limits = Limits(excluded=state.excluded_nodes(gang, request.roles, group.unbound))
    instance = instance_of(GangCluster(snapshot, request), limits.excluded)
    if unsupported_rule(instance) is not None:
        return False
    _, plan = best_for_most(instance, Budget(limits))
    return bool(plan.nodes)


def stuck_gangs(world: World, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield a sentence for each gang that could go on now, and that nothing plans within a bounded time."""
    state = world.coordinator.state
    if not state.active or state.interrupted or state.catches_up:
        return
    planned_enough, throttled_namespaces = state.check_ahead_limit()
    if not planned_enough:
        yield from _idle(state, throttled_namespaces)
    for name in sorted(state.roster.names):
        gangs = {key: gang for key, gang in state.gangs.items() if gang.name == name}
        soon = state.settings.settle_most_s + CATCHES_UP_S
        if any(_within(world, gang, Timer.REGROUP, soon) for gang in gangs.values()):
            continue
        if any(gang.stale and gang.phase in _GOES_ON for gang in gangs.values()):
            continue  # they are regrouped after that
        for group in state.roster.groups(name):
            if not group.unbound or group.causes or group.waits_for is not None:
                continue
            if (gang := gangs.get(group.gang.key)) is None:
                yield f"{group.gang.key} is complete, and not known"
            elif gang.phase is Phase.UNPLACEABLE:
                if not _pauses(world, gang) and fits_now(world, nodes, gang.key):
                    yield f"{gang.key} fits now, and nobody asks about it"
            elif gang.phase in _REGROUPED:
                yield f"{gang.key} is {gang.phase}, and nobody regroups it though it is complete"


def _idle(state: State, throttled_namespaces: Collection[str]) -> Iterator[str]:
    """Say which planner is idle although gangs wait for it."""
    background = state.open_questions.get(Lane.BACKGROUND)
    floor = -math.inf if background is None or background.floor is None else background.floor
    for lane in Lane:
        waiting = [
            key for key in state.queue._queues[lane]._entries if namespace_of(key) not in throttled_namespaces
        ]
        if lane is Lane.FOREGROUND:
            waiting = [key for key in waiting if state.gangs[key].group.priority >= floor]
        if waiting and lane not in state.open_questions:
            yield f"the {lane} planner is asked about nothing, and {sorted(waiting)} wait"


def _pauses(world: World, gang: Gang) -> bool:
    """Whether the gang is planned again within the pause after a failed or an outdated answer."""
    settings = world.settings
    most = settings.backoff_max_s if "not decided" in gang.refusal_kinds else settings.recheck_s
    most = settings.pause_max_s if gang.ended_decisions else most
    return _within(world, gang, Timer.PHASE, most + CATCHES_UP_S)


def _within(world: World, gang: Gang, timer: Timer, seconds: float) -> bool:
    return gang.timers.get(timer, float("inf")) <= world.now + seconds


def _groups(state: State, gang: Gang) -> dict[tuple[str, frozenset[str]], Group]:
    return {(group.gang.key, group.owners): group for group in state.roster.groups(gang.name)}
