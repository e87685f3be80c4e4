"""Keep or give up the places of members whose Bindings were lost, are unknown, or came alone.

- A Binding may be under way without a plan: of a past session, or of a pod that changed gangs.
- A partially bound gang gets a grace period. Its bound members are evicted after it.
- A running gang keeps the place of a lost member for `lost_s`, until a replacement comes: a controller makes
  the new pod some seconds after the old one failed. While replacements wait, the gang comes before others of
  its priority. Both are for what was lost and no more: a user must gain nothing by deleting a member.
"""

from __future__ import annotations

from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs.lifecycle import planning
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason, Evict
from muster.gangs.messages.settings import Partial
from muster.gangs.record.gang import Gang, Lost, Timer
from muster.gangs.record.partial import is_partially_bound, was_fully_bound
from muster.gangs.record.phases import GivenUp, Permitted, Phase, Trigger
from muster.gangs.reporting.publisher import short


def add_binding_in_flight(state: State, gang: Gang, uid: str, until: float) -> None:
    """Wait until `until` for this member's Binding, which is not part of the gang's current plan."""
    permitted = gang.in_phase
    if not isinstance(permitted, Permitted):
        permitted = Permitted()
        state.go(gang, Trigger.IN_FLIGHT, permitted)
        gang.late = set()
        gang.was_complete &= bool(gang.group.bound)
    gang.missed |= uid not in permitted.awaited
    gang.retained.discard(uid)
    permitted.awaited[uid] = until
    state.timers.set(gang, min(permitted.awaited.values()))


def all_bindings_known(gang: Gang) -> None:
    """Note that no other Bindings are under way.

    If the bound members and these are enough, no member counts as missed yet.
    """
    members = (*gang.group.bound, *(pod for pod in gang.group.unbound if pod.uid in gang.awaited))
    gang.missed &= not gang.group.enough(members)


def drop_orphan(state: State, uid: str) -> None:
    """Forget an orphaned Binding, and release what it held."""
    if state.orphans.pop(uid, None) is not None:
        state.ledger.release((uid,))


def all_bound(state: State, gang: Gang) -> bool:
    """Return whether all members of the last Permit were bound, including those of another gang by now."""
    if gang.awaited or gang.missed or gang.late:
        return False
    return all((pod := state.roster.pods.get(uid)) and pod.node for uid in gang.elsewhere)


def note_partially_bound(state: State, gang: Gang, now: float) -> None:
    """Start or end the grace period, after the gang's bound members changed."""
    gang.was_complete |= was_fully_bound(gang.group)
    if not is_partially_bound(gang):
        gang.timers.pop(Timer.PARTIAL, None)
    else:
        start_partial_grace(state, gang, now)


def start_partial_grace(state: State, gang: Gang, now: float) -> None:
    """Start the grace period of a gang with some members bound and others missing."""
    if gang.phase is not Phase.GIVEN_UP and Timer.PARTIAL not in gang.timers:
        state.timers.set(gang, now + state.settings.partial_for(gang.group.needed), Timer.PARTIAL)


def partial_grace_over(state: State, gang: Gang, now: float) -> None:
    """Evict the bound members of a partially bound gang, or let the others wait, as the setting says.

    Without a session nothing is evicted: another service may have the shim and complete the gang. A new
    session starts a new grace period.
    """
    group = state.fresh(gang)
    gang.was_complete |= all_bound(state, gang)
    if not is_partially_bound(gang) or gang.phase is Phase.GIVEN_UP or not state.active:
        return
    if state.settings.partial is Partial.KEEP:
        gang.was_complete = True
        state.retained.release(gang, gang.retained)
        return
    why = f"only {len(group.bound)} of {group.needed} members could be bound in time"
    if len(group.bound) >= group.needed:
        short_of = next(group.roles_short(group.bound))
        fit = f"{short_of.present} of {short_of.needed}"
        why = f"only {fit} members of role {short_of.role} could be bound"
    held_uids = (gang.reserved | gang.retained) - gang.awaited.keys()
    state.orphans |= gang.awaited
    given_up = GivenUp()
    state.void(gang, Trigger.PARTIAL_TOO_LONG, given_up, short(why))
    members = (*((pod.name, pod.uid) for pod in group.bound), *gang.waiting())
    state.publisher.emit(
        gang, EventReason.WITHDRAWN, f"gang given up: {why}; what is bound is evicted", members
    )
    state.retained.release(gang, held_uids)
    evict(state, gang, given_up, now)


def evict(state: State, gang: Gang, given_up: GivenUp, now: float, again: bool = False) -> None:
    """Ask for the eviction of the gang's bound members that were not asked for yet.

    `again`: ask for all of them, which is repeated until they are gone.
    """
    evicting = frozenset() if again else given_up.evicting
    pods = tuple((pod.name, pod.uid) for pod in gang.group.bound if pod.uid not in evicting)
    if pods and state.active:
        given_up.evicting = evicting.union(uid for _, uid in pods)
        state.publisher.instruct(Evict(gang.group.gang.namespace, pods, gang.reason))
    if Timer.PHASE not in gang.timers:
        state.timers.set(gang, now + state.settings.partial_s)


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
