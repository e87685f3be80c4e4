"""What a running gang keeps of a member that it lost, until a replacement comes.

The place is kept for `lost_s`: a controller makes the new pod some seconds after the old one failed. While
replacements wait, the gang comes before others of its priority. Both are for what was lost and no more: a
user must gain nothing by deleting a member.
"""

from __future__ import annotations

from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs.lifecycle import planning
from muster.gangs.lifecycle.state import State
from muster.gangs.record.gang import Gang, Lost, Timer
from muster.gangs.record.phases import Phase, Trigger

_MOST = 256
"""Lost members of one gang that are noted, at most: each costs a look at its bound members."""


def member_lost(state: State, gang: Gang, pod: Pod, usage: Usage, now: float) -> None:
    """Note that a running gang lost a member that it needs, and keep what the member had."""
    if len(gang.lost) < _MOST:
        gang.lost[pod.uid] = Lost(pod, usage)
    elif len(gang.retained) <= state.roster.size(gang.name) - len(gang.group.unbound):
        return  # it keeps no more than still runs
    if Timer.LOST not in gang.timers:  # a later loss must not keep the first place for longer
        state.timers.set(gang, now + state.settings.lost_s, Timer.LOST)
    state.retained.keep_lost(gang)
    if gang.phase is Phase.UNPLACEABLE:  # the replacement was there before the place came free
        planning.replan(state, gang, Trigger.FREED)


def time_over(state: State, gang: Gang) -> None:
    """Release the places of lost members. Replacements that wait already keep their turn."""
    state.retained.release(gang, gang.retained & gang.lost.keys())
    review(state, gang)


def review(state: State, gang: Gang) -> None:
    """Forget what was lost if the gang has enough members again, or if no replacement came in time."""
    group = gang.group
    waits = bool(group.unbound) and group.waits_for is None
    lacks = bool(group.bound) and (gang.stale or not group.enough_bound)  # a large gang is counted later
    if gang.lost and not (lacks and (waits or Timer.LOST in gang.timers)):
        state.retained.release(gang, gang.retained & gang.lost.keys())
        gang.lost = {}
        gang.timers.pop(Timer.LOST, None)


def inherit(state: State, gang: Gang, before: Gang) -> None:
    """Take over what a gang lost that ended: this gang has its bound members now."""
    gang.lost |= before.lost
    if Timer.LOST in before.timers:
        state.timers.hand_on(before, gang, Timer.LOST)
        state.retained.keep_lost(gang)
