"""Give a partially bound gang a grace period, and evict its bound members after it."""

from __future__ import annotations

from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason, Evict
from muster.gangs.messages.settings import Partial
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.partial import is_partially_bound, was_fully_bound
from muster.gangs.record.phases import GivenUp, Phase, Trigger
from muster.gangs.reporting.publisher import short


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
    held = (gang.reserved | gang.retained) - gang.awaited.keys()
    state.orphans |= gang.awaited
    given_up = GivenUp()
    state.void(gang, Trigger.PARTIAL_TOO_LONG, given_up, short(why))
    both = (*((pod.name, pod.uid) for pod in group.bound), *gang.waiting())
    state.publisher.emit(gang, EventReason.WITHDRAWN, f"gang given up: {why}; what is bound is evicted", both)
    state.retained.release(gang, held)
    evict(state, gang, given_up, now)


def evict(state: State, gang: Gang, given_up: GivenUp, now: float, again: bool = False) -> None:
    """Ask for the eviction of the gang's bound members that were not asked for yet.

    `again`: ask for all of them, which is repeated until they are gone.
    """
    asked = frozenset() if again else given_up.evicting
    pods = tuple((pod.name, pod.uid) for pod in gang.group.bound if pod.uid not in asked)
    if pods and state.active:
        given_up.evicting = asked.union(uid for _, uid in pods)
        state.publisher.instruct(Evict(gang.group.gang.namespace, pods, gang.reason))
    if Timer.PHASE not in gang.timers:
        state.timers.set(gang, now + state.settings.partial_s)
