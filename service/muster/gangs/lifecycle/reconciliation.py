"""Decide what a gang does next from its members alone, and withdraw plans."""

from __future__ import annotations

import math

from muster.domain.sentences import sentence
from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle import losses, planning
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import Group
from muster.gangs.messages.instructions import EventReason
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.partial import is_partially_bound
from muster.gangs.record.phases import (
    Collecting,
    GivenUp,
    Invalid,
    Phase,
    Planning,
    Reserving,
    Running,
    Trigger,
    Withdrawn,
)
from muster.gangs.record.plan import Plan, usages
from muster.gangs.reporting.publisher import short


def reconcile(state: State, gang: Gang, now: float) -> None:
    """Move the gang to the phase that its members call for, once none of its Bindings is under way."""
    group = state.fresh(gang)
    losses.note_partially_bound(state, gang, now)
    match gang.in_phase:
        case GivenUp(evicting=evicting) as given_up if group.bound and evicting:
            losses.evict(state, gang, given_up, now)
        case _:
            reconcile_members(state, gang, group, now)
    state.fresh(gang)  # stale members are looked at again, whatever the phase is now


def reconcile_members(state: State, gang: Gang, group: Group, now: float) -> None:
    """Move a gang that is not given up to the phase that its members call for."""
    if gang.phase is Phase.COLLECTING and gang.arrived is None:
        note_arrival(gang, now)  # the missing pods have come
    losses.review(state, gang)
    if not is_partially_bound(gang):
        state.retained.release(gang, gang.retained - gang.lost.keys())
    own_orphans = state.orphans.keys() & {pod.uid for pod in group.unbound} if state.orphans else ()
    if own_orphans:
        for uid in sorted(own_orphans):
            losses.add_binding_in_flight(state, gang, uid, state.orphans.pop(uid))
        losses.all_bindings_known(gang)
        return
    if not group.unbound:
        state.go(gang, Trigger.ALL_BOUND, Running(gang.plan))
        gang.attempts, gang.reason, gang.announced, gang.arrived = 0, "", None, None
        state.publisher.forget(gang)
        gang.refusals, gang.exclusions = {}, {}
        gang.voided.clear()
        if is_partially_bound(gang) and group.waits_for is not None:
            gang.reason = sentence((group.waits_for,))
    elif group.causes:
        state.go(gang, Trigger.ILL_FORMED, Invalid())
        kinds = tuple(map(planning.kind, group.causes))
        state.publisher.refuse(gang, EventReason.INVALID, kinds, sentence(group.causes), now)
    elif group.waits_for is not None:
        state.go(gang, Trigger.MEMBERS_MISSING, Collecting())
        gang.reason, gang.arrived = sentence((group.waits_for,)), None
        state.publisher.withdraw_verdict(gang)
        state.timers.set(gang, now + state.settings.waiting_s)
    elif (until := _expect_more_until(state, gang)) > now:
        state.go(gang, Trigger.IN_MOTION, Collecting())
        gang.reason = ""
        state.timers.set(gang, until, Timer.RECOUNT)
        state.queue.lacks(gang)
    else:
        state.go(gang, Trigger.COMPLETE, Planning())
        gang.end_exclusions(now, state.unbound_gone_at)
        state.timers.set(gang, now + state.settings.waiting_s)
        planning.enqueue(state, gang)


def note_arrival(gang: Gang, now: float) -> None:
    """Note that a pod came or went since the planner was last asked."""
    gang.arrived = (gang.arrived[0] if gang.arrived else now, now)


def _expect_more_until(state: State, gang: Gang) -> float:
    """Return until when more pods are expected; -inf if the gang need not wait for them.

    A partially bound gang does not wait for more pods.
    """
    open_ended = gang.group.expects_more or gang.group.ambiguous
    if gang.arrived is None or not open_ended or is_partially_bound(gang):
        return -math.inf
    return state.settings.settled(gang.arrived)


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
    held_uids = gang.reserved
    state.void(gang, trigger, Withdrawn(), why, silent)
    if not silent:
        gang.attempts += not learnt
        state.publisher.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
    state.fresh(gang)
    if is_partially_bound(gang):
        state.retained.keep(gang, held_uids)
        release_retained(state, gang)
        for node in sorted({usage.node for usage in state.retained.places(gang)}):
            state.retained.release_taken(node)
    else:
        state.retained.release(gang, held_uids | gang.retained)
        if Timer.LOST in gang.timers:
            state.retained.keep_lost(gang)
    if pause_s:
        state.timers.set(gang, now + pause_s)
    elif pause or (not learnt and gang.attempts > state.settings.prompt_retries):
        state.timers.set(gang, now + state.settings.backoff(gang.attempts))
    else:
        reconcile(state, gang, now)


def release_retained(state: State, gang: Gang) -> None:
    """Release retained capacity of pods that are bound by now, or belong to another gang."""
    unbound = {pod.uid for pod in gang.group.unbound} if gang.retained else set()
    settled_uids = {
        uid for uid in gang.retained - unbound if (pod := state.roster.pods.get(uid)) and pod.present
    }
    state.retained.release(gang, settled_uids)


def member_reserved(gang: Gang, plan: Plan) -> None:
    """Move a planned gang on: its first member reserves. The plan's deadline stays."""
    gang.enter(Trigger.RESERVED, Reserving(plan))


def plan_still_fits(state: State, plan: Plan) -> bool:
    """Return whether everything that the plan takes is still free for it."""
    return fits(state.ledger.without(set(plan.order)), usages(plan.placed, plan.pods))
