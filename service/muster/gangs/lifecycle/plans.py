"""Withdraw plans, and keep them while members reserve."""

from __future__ import annotations

from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle import reconciliation
from muster.gangs.lifecycle.state import State
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.partial import is_partially_bound
from muster.gangs.record.phases import Reserving, Trigger, Withdrawn
from muster.gangs.record.plan import Plan, usages
from muster.gangs.reporting.publisher import short


def withdraw(
    state: State,
    gang: Gang,
    trigger: Trigger,
    why: str,
    now: float,
    pause: bool = False,
    learnt: bool = False,
    pause_s: float = 0.0,
) -> None:
    """Void the plan, release what it holds, and plan the gang again.

    The gang is planned at once if something was `learnt` that no later plan repeats, and a few times in a row
    otherwise. After that, or with `pause`, it waits for a back-off. `pause_s` is a fixed pause in seconds.
    """
    why, silent = short(why), trigger is Trigger.SESSION_OVER
    held = gang.reserved
    state.void(gang, trigger, Withdrawn(), why, silent)
    if not silent:
        gang.attempts += not learnt
        state.publisher.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
    state.fresh(gang)
    if is_partially_bound(gang):
        state.retained.keep(gang, held)
        release_retained(state, gang)
        for node in sorted({usage.node for usage in state.retained.places(gang)}):
            state.retained.release_taken(node)
    else:
        state.retained.release(gang, held | gang.retained)
        if Timer.LOST in gang.timers:
            state.retained.keep_lost(gang)
    if pause_s:
        state.timers.set(gang, now + pause_s)
    elif pause or (not learnt and gang.attempts > state.settings.prompt_retries):
        state.timers.set(gang, now + state.settings.backoff(gang.attempts))
    else:
        reconciliation.reconcile(state, gang, now)


def release_retained(state: State, gang: Gang) -> None:
    """Release retained capacity of pods that are bound by now, or belong to another gang."""
    unbound = {pod.uid for pod in gang.group.unbound} if gang.retained else set()
    others = {uid for uid in gang.retained - unbound if (pod := state.roster.pods.get(uid)) and pod.present}
    state.retained.release(gang, others)


def member_reserved(gang: Gang, plan: Plan) -> None:
    """Move a planned gang on: its first member reserves. The plan's deadline stays."""
    gang.enter(Trigger.RESERVED, Reserving(plan))


def plan_still_fits(state: State, plan: Plan) -> bool:
    """Return whether everything that the plan takes is still free for it."""
    return fits(state.ledger.without(set(plan.order)), usages(plan.placed, plan.pods))
