"""Follow the Bindings of a permitted gang until each of them is settled."""

from __future__ import annotations

from muster.gangs.lifecycle import eviction, plans, reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.calls import PermitAnswer
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Permitted, Trigger
from muster.gangs.record.plan import Plan


def gang_permitted(state: State, gang: Gang, plan: Plan, answer: PermitAnswer, now: float) -> None:
    """Let the gang go. From now on Bindings may be under way."""
    until = now + state.settings.bind_for(len(plan.order), plan.with_devices)
    state.go(gang, Trigger.PERMITTED, Permitted(plan, answer, dict.fromkeys(plan.order, until)))
    gang.missed, gang.late, gang.elsewhere = False, set(), frozenset()
    gang.was_complete &= bool(gang.group.bound)
    state.timers.set(gang, until)


def settle_bindings(state: State, gang: Gang, permitted: Permitted, now: float, late: bool = False) -> None:
    """Remove settled members from those awaited: seen bound, gone, or given up if `late`.

    When none is left, reconcile the gang. Until then, capacity that was given back is retained, because it is
    not known yet whether the gang is partially bound.
    """
    unbound = {pod.uid for pod in state.fresh(gang).unbound}
    awaited = permitted.awaited
    settled = [uid for uid, until in awaited.items() if uid not in unbound or (late and until <= now)]
    for uid in settled:
        until, pod = awaited.pop(uid), state.roster.pods.get(uid)
        if pod is not None and pod.node:
            continue
        if uid in unbound and pod is not None:
            permitted.lost = f"pod {pod.name} was not seen bound in time"
            gang.late.add(uid)
        else:
            gang.missed = True
        if uid not in unbound and pod is not None and pod.present:
            state.orphans[uid] = until  # its labels changed: it belongs to another gang now
        else:
            state.retained.keep(gang, (uid,))
    if awaited:
        state.timers.set(gang, min(awaited.values()))
        return
    gang.was_complete |= eviction.all_bound(state, gang)
    eviction.note_partially_bound(state, gang, now)
    if permitted.lost and gang.group.unbound:
        trigger = Trigger.TOO_LATE if late else Trigger.GIVEN_BACK
        plans.withdraw(state, gang, trigger, permitted.lost, now, pause=True)
    else:
        reconciliation.reconcile(state, gang, now)


def member_bound(state: State, gang: Gang, permitted: Permitted, uid: str, now: float) -> None:
    """Note that one of several awaited members was bound. Enough members may be bound now."""
    del permitted.awaited[uid]
    gang.stale, gang.landed = True, gang.landed + 1
    if gang.was_complete:
        return
    if len(gang.group.bound) + gang.landed < gang.group.least:
        eviction.start_partial_grace(state, gang, now)
    else:
        state.fresh(gang)
        eviction.note_partially_bound(state, gang, now)


def member_given_back(state: State, gang: Gang, permitted: Permitted, uid: str, why: str, now: float) -> None:
    """Note that the Binding of this permitted member is no longer under way."""
    del permitted.awaited[uid]
    permitted.lost, gang.missed = why, True
    state.retained.keep(gang, (uid,))
    settle_bindings(state, gang, permitted, now)
