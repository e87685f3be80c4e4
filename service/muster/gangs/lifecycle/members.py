"""Take in changes of a gang's pods: gangs that appear, join, change and go."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from muster.domain.sentences import sentence
from muster.gangs.lifecycle import bindings, eviction, losses, plans, reconciliation
from muster.gangs.lifecycle.coalescing import Change
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import Group, planning_facts
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.partial import was_split_by_crash
from muster.gangs.record.phases import (
    Collecting,
    Finished,
    GivenUp,
    Permitted,
    Phase,
    Planned,
    Reserving,
    Trigger,
)
from muster.gangs.record.plan import Plan

_COUNTED_LATER = (
    Phase.COLLECTING,
    Phase.RUNNING,
    Phase.UNPLACEABLE,
    Phase.INVALID,
    Phase.WITHDRAWN,
)
"""Phases in which pods that come one after another are counted once they have come. In the others, what the
gang is doing goes on, and the pods are counted after it."""


def members_changed(state: State, gang: Gang, group: Group, now: float) -> None:
    """Look at a gang again, because its pods changed."""
    same, levels = gang.group.facts == group.facts, gang.group.subgroups
    if group.bound and not gang.group.bound and gang.phase is not Phase.PERMITTED:
        gang.was_complete &= not was_split_by_crash(group)  # bound by another service, or late
    if not gang.stale and {pod.uid for pod in group.unbound} - {pod.uid for pod in gang.group.unbound}:
        reconciliation.note_arrival(state, gang, now)
    gang.group, gang.stale, gang.landed = group, False, 0
    _forget_late_bound(state, gang)
    eviction.note_partially_bound(state, gang, now)
    plans.release_retained(state, gang)
    match gang.in_phase:
        case Permitted() as permitted:
            bindings.settle_bindings(state, gang, permitted, now)
        case _ if same:
            return
        case Planned(plan) | Reserving(plan):
            changed = "" if levels == group.subgroups else "the levels of its PodGroup changed"
            if void := changed or _why_void(state, gang, plan):
                plans.withdraw(state, gang, Trigger.MEMBERS_CHANGED, void, now)
        case _:
            gang.attempts = 0
            reconciliation.reconcile(state, gang, now)


def _forget_late_bound(state: State, gang: Gang) -> None:
    """Stop counting members as late that were bound after they were given up."""
    if gang.late and not gang.awaited:
        gang.late = {uid for uid in gang.late if (pod := state.roster.pods.get(uid)) is None or not pod.node}
        gang.was_complete |= eviction.all_bound(state, gang)


def _why_void(state: State, gang: Gang, plan: Plan) -> str:
    """Return why the plan no longer matches the members; "" if it does."""
    group = gang.group
    if group.causes:
        return sentence(group.causes)
    there = {pod.uid: pod for pod in group.unbound}
    for uid, pod in plan.pods.items():
        now = there.get(uid)
        if now is None:
            return f"pod {pod.name} went, was bound elsewhere or can't be scheduled any more"
        if planning_facts(now) != planning_facts(pod):
            return f"pod {pod.name} was changed"
    for uid in state.orphans.keys() & there.keys():
        return f"a Binding of pod {there[uid].name} may be under way"
    return sentence((group.waits_for,)) if group.waits_for is not None else ""


def gang_appeared(state: State, gang: Gang, now: float, others: Iterable[Gang]) -> None:
    """Take in a gang that is seen for the first time, or that goes on with pods of `others`.

    `others` are gangs of the same name that ended or gave pods away. What is known about them decides, not
    what the pods state.
    """
    state.gangs[gang.key] = gang
    begun = {pod.uid for pod in gang.group.bound}
    begun |= {pod.uid for pod in gang.group.unbound if pod.uid in state.orphans}
    forerunners = [before for before in others if begun & before.group.uids]
    _inherit(state, gang, forerunners)
    reconciliation.note_arrival(state, gang, now)
    reconciliation.reconcile(state, gang, now)
    if forerunners:
        theirs = {uid for before in forerunners for uid in (*before.awaited, *before.elsewhere)}
        gang.elsewhere = frozenset(theirs - gang.group.uids)
        pods = (state.roster.pods.get(uid) for uid in gang.elsewhere)
        gone = any(pod is None or not (pod.present or pod.node) for pod in pods)
        gang.missed &= gone or any(before.missed or before.late for before in forerunners)


def gang_joined(state: State, gang: Gang, group: Group, others: Iterable[Gang]) -> None:
    """Take in a group that may now include what is left of `others`, gangs of the same name.

    If one of these was complete, no member of this gang is evicted, even if this gang was given up.
    """
    bound = {pod.uid for pod in group.bound}
    # Members bound just now may not be counted yet in a permitted gang: waiting ones count too.
    forerunners = [before for before in others if bound & before.group.uids]
    if not gang.group.bound:
        _inherit(state, gang, forerunners)
    if any(before.was_complete for before in forerunners):
        gang.was_complete = True
        if isinstance(gang.in_phase, GivenUp):
            gang.in_phase.evicting = frozenset()


def _inherit(state: State, gang: Gang, forerunners: Collection[Gang]) -> None:
    """Inherit completeness, grace period and losses of gangs whose bound pods this gang has now."""
    if forerunners:
        gang.was_complete = any(before.was_complete for before in forerunners)
    for before in forerunners:
        if not gang.was_complete and Timer.PARTIAL in before.timers:
            state.timers.hand_on(before, gang, Timer.PARTIAL)
        if before.lost:
            losses.inherit(state, gang, before)


def members_moving(state: State, gang: Gang, change: Change, now: float) -> None:
    """Note that a pod came or went, and that the gang is counted after the others have done so."""
    gang.stale = True
    reconciliation.note_arrival(state, gang, now)
    if gang.phase is Phase.PLANNING and change.leaves():
        state.go(gang, Trigger.IN_MOTION, Collecting())
    if gang.phase in _COUNTED_LATER:
        if gang.arrived is None or Timer.RECOUNT not in gang.timers:
            gang.arrived = (now, now)  # earlier pods have been counted
        # A time in the past would look as if the service had stood still since then.
        state.timers.set(gang, max(now, state.settings.settled(gang.arrived)), Timer.RECOUNT)


def count_later(state: State, gang: Gang, until: float, now: float) -> None:
    """Note that the gang's pods changed, and that it is counted at `until`."""
    gang.stale = True
    reconciliation.note_arrival(state, gang, now)
    if gang.phase is Phase.PLANNING:
        state.go(gang, Trigger.IN_MOTION, Collecting())
    if Timer.RECOUNT not in gang.timers:
        state.timers.set(gang, until, Timer.RECOUNT)


def tell_soon(state: State, gang: Gang, there: int, now: float) -> None:
    """Have the pods told in a moment what they wait for: some of them may be new.

    A gang of thousands, whose pods come one after another, is not looked at every few seconds. A timer that
    is due earlier stays as it was set: set again, it would look as if the service had stood still since then.
    """
    soon = now + max(state.settings.waiting_s, state.settings.member_s * there)
    if soon < gang.timers.get(Timer.PHASE, math.inf):
        state.timers.set(gang, soon)


def recount(state: State, gang: Gang, now: float) -> None:
    """Count the gang: the pods that came or went one after another have done so."""
    if gang.phase in _COUNTED_LATER:
        reconciliation.reconcile(state, gang, now)


def take_over_bindings(state: State, gang: Gang, now: float) -> None:
    """Wait for Bindings that may be under way of pods that are members of this gang now."""
    match gang.in_phase:
        case Planned(plan) | Reserving(plan):
            plans.withdraw(state, gang, Trigger.MEMBERS_CHANGED, _why_void(state, gang, plan), now)
        case Permitted() | GivenUp():
            pass
        case _:
            reconciliation.reconcile(state, gang, now)


def gang_gone(state: State, gang: Gang) -> None:
    """Forget a gang. Bindings that are under way outlive it.

    They keep what they hold until they are seen, gone or given up.
    """
    held = (gang.reserved | gang.retained) - gang.awaited.keys()
    for uid, until in gang.awaited.items():
        pod = state.roster.pods.get(uid)
        if pod is not None and pod.present and not pod.node:
            state.orphans[uid] = until
        else:
            held.add(uid)
    gang.reason = "its pods are gone"
    state.publisher.withdraw_verdict(gang)
    state.go(gang, Trigger.ALL_GONE, Finished(gang.awaited))
    state.retained.release(gang, held)
    del state.gangs[gang.key]
    state.queue.forget(gang)
    if (taken_back := state.in_tree.forget(gang)) is not None:
        state.publisher.instruct(taken_back)
