"""What happens to a gang when one of its timers expires."""

from __future__ import annotations

from muster.gangs.lifecycle import (
    bindings,
    eviction,
    losses,
    members,
    planning,
    plans,
    reconciliation,
    refusals,
)
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import (
    Collecting,
    GivenUp,
    Permitted,
    Planned,
    Planning,
    Reserving,
    Trigger,
    Unplaceable,
    Withdrawn,
)


def due(state: State, gang: Gang, timer: Timer, now: float, same: bool) -> None:
    """Handle an expired timer. `same`: the gang is still in the phase in which the timer was set."""
    match timer:
        case Timer.PARTIAL:
            eviction.partial_grace_over(state, gang, now)
        case Timer.LOST:
            losses.time_over(state, gang)
        case Timer.REFUSAL:
            refusals.refresh_refusal(state, gang, now)
        case Timer.RECOUNT if same:
            members.recount(state, gang, now)
        case Timer.IN_TREE if same:
            planning.enqueue_again(state, gang)
        case Timer.PHASE if same:
            _phase_due(state, gang, now)
        case Timer.RECOUNT | Timer.IN_TREE | Timer.PHASE:
            pass  # the phase has ended


def _phase_due(state: State, gang: Gang, now: float) -> None:
    """Handle the expired timer of the gang's phase."""
    match gang.in_phase:
        case Collecting():
            state.publisher.emit(gang, EventReason.WAITING, gang.reason)
            state.publisher.show_waiting(gang, now)
        case Planning():
            state.publisher.waiting_is_over(gang)
        case Planned() | Reserving():
            plans.withdraw(
                state, gang, Trigger.TOO_LATE, "its pods were not ready to bind in time", now, pause=True
            )
        case Permitted() as permitted:
            bindings.settle_bindings(state, gang, permitted, now, late=True)
        case GivenUp() as given_up:
            eviction.evict(state, gang, given_up, now, again=True)
        case Withdrawn():
            reconciliation.reconcile(state, gang, now)
        case Unplaceable():
            gang.exclusions = {key: out for key, out in gang.exclusions.items() if out.until > now}
            planning.replan(state, gang, Trigger.FREED)
        case _:
            pass
