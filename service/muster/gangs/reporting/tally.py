"""Count all gangs at once, for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.gangs.record.gang import Gang
from muster.gangs.record.partial import is_partially_bound


@dataclass(slots=True)
class Tally:
    """What there is of gangs.

    `phases`, `queues`: gangs by phase, and by the queue of their PodGroup. `oldest`: phase → creation of the
    oldest gang in it that has members to bind. `reserved`: members with reservations, by kind.
    """

    phases: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, float] = field(default_factory=dict)
    partially_bound: int = 0
    reserved: Counter[str] = field(default_factory=Counter)


def tally(gangs: Iterable[Gang], orphans: int) -> Tally:
    """Count these gangs. `orphans` is the number of orphaned Bindings."""
    found = Tally()
    found.reserved["binding"] += orphans
    for gang in gangs:
        group, phase = gang.group, gang.phase.value
        found.phases[phase] += 1
        if group.pod_group is not None and group.pod_group.queue:
            found.queues[group.pod_group.queue] += 1
        if group.unbound:
            found.oldest[phase] = min(found.oldest.get(phase, group.since), group.since)
        found.partially_bound += is_partially_bound(gang)
        found.reserved["plan"] += len(gang.reserved) - len(gang.awaited)
        found.reserved["binding"] += len(gang.awaited)
        found.reserved["retained"] += len(gang.retained)
    return found
