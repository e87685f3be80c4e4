"""Move gangs to the phase that follows from their members alone, and withdraw plans.

Members may be lost, or bound without the others:

- A Binding may be under way without a plan: an earlier session sent it, or its pod changed gangs.
- A partially bound gang gets a grace period. After that its bound members are evicted.
- A running gang keeps the place of a lost member for `lost_s`, until a replacement comes: a controller makes
  the new pod some seconds after the old one failed. While replacements wait, the gang comes before others of
  its priority. Places and precedence cover lost members only: a user must gain nothing by deleting a member.
"""

from __future__ import annotations

import math

from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.sentences import sentence
from muster.gangs.capacity.ledger import fits
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import Group
from muster.gangs.messages.instructions import EventReason, Evict
from muster.gangs.messages.settings import Partial
from muster.gangs.record.exclusions import Exclusions
from muster.gangs.record.gang import Gang, LostMember, Timer
from muster.gangs.record.phases import (
    AcceptedPlan,
    Collecting,
    GivenUp,
    Invalid,
    Permitted,
    Phase,
    Planning,
    Running,
    Trigger,
    Withdrawn,
    usages,
)
from muster.gangs.reporting.publisher import kinds_of, shorten


def reconcile(state: State, gang: Gang) -> None:
    """Move a gang without Bindings under way to the phase that follows from its members."""
    group = state.regroup_if_stale(gang)
    note_partially_bound(state, gang)
    if isinstance(given_up := gang.in_phase, GivenUp) and group.bound and given_up.evicting:
        evict(state, gang, given_up)
    else:
        reconcile_members(state, gang, group)
    state.regroup_if_stale(gang)  # a stale gang is regrouped, whatever its phase is now


def reconcile_members(state: State, gang: Gang, group: Group) -> None:
    """Move a gang that is not given up to the phase that follows from its members."""
    if gang.phase is Phase.COLLECTING and gang.change_window is None:
        note_pod_change(state, gang)  # the missing pods have come
    review_losses(state, gang)
    if not gang.is_partially_bound:
        state.retained.release(gang, gang.retained_uids - gang.lost_members.keys())
    own_orphans = state.orphans.keys() & {pod.uid for pod in group.unbound} if state.orphans else ()
    if own_orphans:
        for uid in sorted(own_orphans):
            add_binding_in_flight(state, gang, uid, state.orphans.pop(uid))
        note_all_bindings_known(gang)
        return
    if not group.unbound:
        state.transition(gang, Trigger.ALL_BOUND, Running(gang.plan))
        gang.failed_attempts, gang.reason, gang.last_event, gang.change_window = 0, "", None, None
        state.publisher.forget(gang)
        gang.exclusions = Exclusions()
        if gang.is_partially_bound and group.waits_for is not None:
            gang.reason = sentence((group.waits_for,))
    elif group.causes:
        state.transition(gang, Trigger.ILL_FORMED, Invalid())
        kinds = kinds_of(group.causes)
        state.publisher.refuse(gang, EventReason.INVALID, kinds, sentence(group.causes))
    elif group.waits_for is not None:
        state.transition(gang, Trigger.MEMBERS_MISSING, Collecting())
        gang.reason, gang.change_window = sentence((group.waits_for,)), None
        state.publisher.withdraw_verdict(gang)
        state.timers.set(gang, state.now + state.settings.waiting_s)
    elif (until := _expect_more_until(state, gang)) > state.now:
        state.transition(gang, Trigger.IN_MOTION, Collecting())
        gang.reason = ""
        state.timers.set(gang, until, Timer.REGROUP)
        state.queue.note_lacking(gang)
    else:
        state.transition(gang, Trigger.COMPLETE, Planning())
        gang.exclusions.end_expired(state.now, state.unbound_gone_at)
        state.timers.set(gang, state.now + state.settings.waiting_s)
        state.enqueue(gang)


def note_pod_change(state: State, gang: Gang) -> None:
    """Extend the gang's change window: a pod came or went now."""
    gang.change_window = (gang.change_window[0] if gang.change_window else state.now, state.now)


def _expect_more_until(state: State, gang: Gang) -> float:
    """Return until when the gang waits for more pods; -inf if it need not wait, as a partially bound gang."""
    may_grow = gang.group.expects_more or gang.group.ambiguous
    if gang.change_window is None or not may_grow or gang.is_partially_bound:
        return -math.inf
    return state.settings.settle_until(gang.change_window)


def withdraw(
    state: State,
    gang: Gang,
    trigger: Trigger,
    why: str,
    pause: bool = False,
    cause_is_excluded: bool = False,
    pause_s: float = 0.0,
) -> None:
    """Void the plan, release its capacity, and plan the gang again.

    The gang is planned again at once for `prompt_retries` consecutive withdrawals, and then after a back-off.
    With `pause` it always waits for the back-off, and with `pause_s` for this number of seconds.
    `cause_is_excluded`: no later plan can fail for this cause, such as an excluded node, so the withdrawal
    does not count.
    """
    why, silent = shorten(why), trigger is Trigger.SESSION_OVER
    held_uids = gang.reserved_uids
    state.void(gang, trigger, Withdrawn(), why, silent)
    if not silent:
        gang.failed_attempts += not cause_is_excluded
        state.publisher.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
    state.regroup_if_stale(gang)
    if gang.is_partially_bound:
        state.retained.keep(gang, held_uids)
        release_retained(state, gang)
        for node in sorted({usage.node for usage in state.retained.retained_usages(gang)}):
            state.retained.release_taken(node)
    else:
        state.retained.release(gang, held_uids | gang.retained_uids)
        if Timer.LOST in gang.timers:
            state.retained.keep_lost(gang)
    if pause_s:
        state.timers.set(gang, state.now + pause_s)
    elif pause or (not cause_is_excluded and gang.failed_attempts > state.settings.prompt_retries):
        state.timers.set(gang, state.now + state.settings.backoff(gang.failed_attempts))
    else:
        reconcile(state, gang)


def release_retained(state: State, gang: Gang) -> None:
    """Release retained capacity of pods that are bound now, or belong to another gang."""
    unbound = {pod.uid for pod in gang.group.unbound} if gang.retained_uids else set()
    settled_uids = {
        uid for uid in gang.retained_uids - unbound if (pod := state.roster.pods.get(uid)) and pod.present
    }
    state.retained.release(gang, settled_uids)


def plan_still_fits(state: State, plan: AcceptedPlan) -> bool:
    """Return whether the capacity that the plan takes is still free for it."""
    return fits(state.ledger.snapshot_without(set(plan.order)), usages(plan.placed, plan.pods))


def add_binding_in_flight(state: State, gang: Gang, uid: str, until: float) -> None:
    """Wait until `until` for this member's Binding, which is not part of the gang's current plan."""
    permitted = gang.in_phase
    if not isinstance(permitted, Permitted):
        permitted = Permitted()
        state.transition(gang, Trigger.IN_FLIGHT, permitted)
        gang.last_permit.given_up_uids = set()
        gang.was_complete &= bool(gang.group.bound)
    gang.last_permit.is_incomplete |= uid not in permitted.awaited_bindings
    gang.retained_uids.discard(uid)
    permitted.awaited_bindings[uid] = until
    state.timers.set(gang, min(permitted.awaited_bindings.values()))


def note_all_bindings_known(gang: Gang) -> None:
    """Note that the shim has reported all Bindings of the gang that are under way.

    If the bound and the awaited members are enough, the last Permit does not count as incomplete.
    """
    members = (*gang.group.bound, *(pod for pod in gang.group.unbound if pod.uid in gang.awaited_bindings))
    gang.last_permit.is_incomplete &= not gang.group.is_enough(members)


def drop_orphan(state: State, uid: str) -> None:
    """Forget an orphaned Binding, and release its capacity."""
    if state.orphans.pop(uid, None) is not None:
        state.ledger.release((uid,))


def all_bound(state: State, gang: Gang) -> bool:
    """Return whether all members of the last Permit were bound, including pods that now belong to another
    gang."""
    if gang.awaited_bindings or gang.last_permit.lacks_bindings:
        return False
    return all((pod := state.roster.pods.get(uid)) and pod.node for uid in gang.last_permit.uids_elsewhere)


def note_partially_bound(state: State, gang: Gang) -> None:
    """Start or end the grace period, after the gang's bound members changed."""
    gang.was_complete |= gang.group.was_fully_bound
    if not gang.is_partially_bound:
        gang.timers.pop(Timer.PARTIAL, None)
    else:
        start_partial_grace(state, gang)


def start_partial_grace(state: State, gang: Gang) -> None:
    """Start the grace period of a gang with some members bound and others missing."""
    if gang.phase is not Phase.GIVEN_UP:
        state.timers.start(gang, state.now + state.settings.partial_for(gang.group.needed), Timer.PARTIAL)


def end_partial_grace(state: State, gang: Gang) -> None:
    """Evict the bound members of a partially bound gang, or keep them, as the setting `partial` says.

    Without a session nothing is evicted: another service may have the shim and complete the gang. A new
    session starts a new grace period.
    """
    group = state.regroup_if_stale(gang)
    gang.was_complete |= all_bound(state, gang)
    if not gang.is_partially_bound or gang.phase is Phase.GIVEN_UP or not state.active:
        return
    if state.settings.partial is Partial.KEEP:
        gang.was_complete = True
        state.retained.release(gang, gang.retained_uids)
        return
    why = f"only {len(group.bound)} of {group.needed} members could be bound in time"
    if len(group.bound) >= group.needed:
        missing = next(group.roles_short(group.bound))
        bound_of_role = f"{missing.present} of {missing.needed}"
        why = f"only {bound_of_role} members of role {missing.role} could be bound"
    held_uids = gang.idle_uids
    state.orphans |= gang.awaited_bindings
    given_up = GivenUp()
    state.void(gang, Trigger.PARTIAL_TOO_LONG, given_up, shorten(why))
    members = (*((pod.name, pod.uid) for pod in group.bound), *gang.waiting_members())
    state.publisher.emit(
        gang, EventReason.WITHDRAWN, f"gang given up: {why}; what is bound is evicted", members
    )
    state.retained.release(gang, held_uids)
    evict(state, gang, given_up)


def evict(state: State, gang: Gang, given_up: GivenUp, again: bool = False) -> None:
    """Request the eviction of bound members, except for members whose eviction was requested before.

    `again`: request the eviction of all bound members. A timer repeats this until they are gone.
    """
    requested_uids = frozenset() if again else given_up.evicting
    pods = tuple((pod.name, pod.uid) for pod in gang.group.bound if pod.uid not in requested_uids)
    if pods and state.active:
        given_up.evicting = requested_uids.union(uid for _, uid in pods)
        state.publisher.instruct(Evict(gang.group.gang.namespace, pods, gang.reason))
    state.timers.start(gang, state.now + state.settings.partial_s, Timer.PHASE)


_MAX_NOTED_LOSSES = 256
"""Largest number of lost members that a gang records: each loss costs a look at the bound members."""


def note_lost_member(state: State, gang: Gang, pod: Pod, usage: Usage) -> None:
    """Note that a running gang lost a member that it needs, and retain the member's place."""
    if len(gang.lost_members) < _MAX_NOTED_LOSSES:
        gang.lost_members[pod.uid] = LostMember(pod, usage)
    elif len(gang.retained_uids) <= state.roster.size(gang.name) - len(gang.group.unbound):
        return  # the gang already retains more places than it has bound members
    # `start` and not `set`: a second loss must not extend the time of the first place.
    state.timers.start(gang, state.now + state.settings.lost_s, Timer.LOST)
    state.retained.keep_lost(gang)
    if gang.phase is Phase.UNPLACEABLE:  # the replacement was there before the place came free
        state.replan(gang, Trigger.FREED)


def review_losses(state: State, gang: Gang) -> None:
    """Forget lost members if the gang has enough members again, or if no replacement came in time."""
    group = gang.group
    replacements_wait = bool(group.unbound) and group.waits_for is None
    # A large gang is regrouped later.
    lacks_members = bool(group.bound) and (gang.stale or not group.enough_bound)
    if gang.lost_members and not (lacks_members and (replacements_wait or Timer.LOST in gang.timers)):
        state.retained.release(gang, gang.retained_uids & gang.lost_members.keys())
        gang.lost_members = {}
        gang.timers.pop(Timer.LOST, None)


def inherit_losses(state: State, gang: Gang, predecessor: Gang) -> None:
    """Take over the lost members of a gang that ended: its bound members now belong to this gang."""
    gang.lost_members |= predecessor.lost_members
    if Timer.LOST in predecessor.timers:
        state.timers.hand_over(predecessor, gang, Timer.LOST)
        state.retained.keep_lost(gang)
