"""Whether what fits now is asked about now: at every step of the model, not only at its end.

The planner that is asked here knows the cluster's own truth: its nodes, its bound pods, and what is reserved
for other gangs. A gang that fits by that must be queued for the planner or be asked about just now, or wait
for a bounded time that docs/gang-life.md states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.domain.decision import Unplaceable
from muster.domain.node import Node
from muster.domain.snapshot import Snapshot
from muster.gangs import requests
from muster.gangs.earmark import hidden_by
from muster.gangs.gang import Alarm, Gang
from muster.gangs.life import Phase
from muster.gangs.lives import Lives
from muster.gangs.roster import Group
from muster.placement.limits import Limits
from muster.placement.place import place
from tests.gangs.world import World

_COUNTED = (Phase.COLLECTING, Phase.INVALID, Phase.RUNNING)
"""Phases in which nothing but its members brings a gang further."""
_GOES_ON = (Phase.PLANNING, Phase.PLANNED, Phase.RESERVING, Phase.PERMITTED)
"""Phases that end in a bounded time, with what the gang is at: pods that come meanwhile are counted then."""
CATCHES_UP_S = 2.0
"""After the service stood still, everything that was due comes so many seconds later than the first of it."""


def fits_now(world: World, nodes: Iterable[Node], key: str) -> bool:
    """Return whether a gang fits, by a planner that knows the cluster alone and the places of other gangs.

    What is left out for the gang, by answers of in-tree plugins and late refusals too, and what an earmark
    hides from it, is left out here as well.
    """
    lives = world.coordinator.lives
    gang = lives.gangs[key]
    group = _groups(lives, gang).get((key, gang.group.owners), gang.group)
    own = gang.kept | gang.reserved
    bound = {each.uid for each in world.pods.values() if each.usage is not None}
    usages = [usage for each in world.pods.values() if (usage := each.usage) is not None]
    usages += [usage for uid, usage in lives.ledger.held.items() if uid not in own | bound]
    asked = requests.request(group, lives.ledger, lives.roster.policies)
    if lives.in_tree.causes(gang, asked):
        return False
    asked = lives.in_tree.refine(key, asked)
    policies = lives.roster.policies
    snapshot = Snapshot.of(nodes, usages, policies.levels, policies.typical)
    if lives.earmark is not None and lives.earmark.hides_from(gang):
        snapshot = hidden_by(lives.earmark, snapshot)
    limits = Limits(excluded=lives.excluded(gang, asked.roles, {pod.uid: pod for pod in group.unbound}))
    return not isinstance(place(snapshot, asked, limits), Unplaceable)


def asleep(world: World, nodes: Iterable[Node]) -> Iterator[str]:
    """Say which gangs could go on now, and wait for nothing that comes within a stated time."""
    lives = world.coordinator.lives
    if not lives.active or lives.silent:
        return
    queue = lives.backlog._queue._entries
    if queue and lives.solving is None and sum(lives.ahead.values()) < lives.settings.ahead:
        yield f"nobody is asked about, and {sorted(queue)} wait"
    for name in sorted(lives.roster.names):
        gangs = {key: gang for key, gang in lives.gangs.items() if gang.name == name}
        soon = lives.settings.settle_most_s + CATCHES_UP_S
        if any(_within(world, gang, Alarm.COUNT, soon) for gang in gangs.values()):
            continue
        if any(gang.stale and gang.phase in _GOES_ON for gang in gangs.values()):
            continue  # they are counted after that
        for group in lives.roster.groups(name):
            if not group.unbound or group.causes or group.waits_for is not None:
                continue
            if (gang := gangs.get(group.gang.key)) is None:
                yield f"{group.gang.key} is complete, and not known"
            elif gang.phase is Phase.UNPLACEABLE:
                if not _pauses(world, gang) and fits_now(world, nodes, gang.key):
                    yield f"{gang.key} fits now, and nobody asks about it"
            elif gang.phase in _COUNTED:
                yield f"{gang.key} is {gang.phase}, and nobody counts it though it is complete"


def _pauses(world: World, gang: Gang) -> bool:
    """Whether it is asked about within the pause after a failed answer, or one that the cluster overtook."""
    settings = world.settings
    most = settings.backoff_max_s if "not decided" in gang.kinds else settings.recheck_s
    return _within(world, gang, Alarm.PHASE, most + CATCHES_UP_S)


def _within(world: World, gang: Gang, alarm: Alarm, seconds: float) -> bool:
    return gang.alarms.get(alarm, float("inf")) <= world.now + seconds


def _groups(lives: Lives, gang: Gang) -> dict[tuple[str, frozenset[str]], Group]:
    return {(group.gang.key, group.owners): group for group in lives.roster.groups(gang.name)}
