"""Start a session with the shim, and postpone timers after an outage."""

from __future__ import annotations

from muster.gangs.lifecycle import eviction, reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import Phase


def new_session(state: State, gang: Gang, now: float) -> None:
    """Tell a new shim what it must know about the gang, and restart the gang's timers.

    The grace of a partially bound gang starts again, even if it was given up: another service may have
    completed it meanwhile.
    """
    if gang.phase is Phase.GIVEN_UP:
        reconciliation._reconcile_members(state, gang, state.fresh(gang), now)
    kinds = gang.kinds
    state.publisher.forget(gang)
    if (question := state.in_tree.ask_again(gang)) is not None:
        state.publisher.instruct(question)
    gang.timers.pop(Timer.PARTIAL, None)
    state.fresh(gang)
    eviction.note_partially_bound(state, gang, now)
    if gang.phase is Phase.INVALID:
        state.publisher.refuse(gang, EventReason.INVALID, kinds, gang.reason, now)
    elif gang.phase is Phase.UNPLACEABLE:
        state.publisher.refuse(gang, EventReason.UNPLACEABLE, kinds, gang.reason, now)
    elif gang.phase is Phase.COLLECTING and gang.group.waits_for is not None:
        state.timers.set(gang, now + state.settings.waiting_s)


def postpone(state: State, seconds: float) -> None:
    """Postpone everything that is due by the seconds in which the service could see nothing."""
    state.timers.postpone(seconds)
    state.backfill.postpone(seconds)
    state.orphans = {uid: until + seconds for uid, until in state.orphans.items()}
    for gang in state.gangs.values():
        if gang.awaited:
            gang.awaited = {uid: until + seconds for uid, until in gang.awaited.items()}
            # One that was set again meanwhile still has the old time, which would look like a standstill.
            state.timers.set(gang, min(gang.awaited.values()))
