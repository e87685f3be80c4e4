"""Bindings that may be under way without a plan: of a past session, or of a pod that changed gangs."""

from __future__ import annotations

from muster.gangs.lifecycle.state import State
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Permitted, Trigger


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


def all_bindings_known(state: State, gang: Gang) -> None:
    """Note that no other Bindings are under way.

    If the bound members and these are enough, no member counts as missed yet.
    """
    there = (*gang.group.bound, *(pod for pod in gang.group.unbound if pod.uid in gang.awaited))
    gang.missed &= not gang.group.enough(there)


def drop_orphan(state: State, uid: str) -> None:
    """Forget an orphaned Binding, and release what it held."""
    if state.orphans.pop(uid, None) is not None:
        state.ledger.release((uid,))
