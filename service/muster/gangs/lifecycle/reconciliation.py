"""Move gangs to the phase that follows from their members alone, and withdraw plans.

Cases in which members are lost, or bound without the others:

- A Binding may be under way without a plan. It was sent in an earlier session, or its pod changed gangs.
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
from muster.gangs.reporting.publisher import kinds_of, short


def reconcile(state: State, gang: Gang) -> None:
    """Move the gang to the phase that follows from its members, once none of its Bindings is under way."""
    group = state.fresh(gang)
    note_partially_bound(state, gang)
    if isinstance(given_up := gang.in_phase, GivenUp) and group.bound and given_up.evicting:
        evict(state, gang, given_up)
    else:
        reconcile_members(state, gang, group)
    state.fresh(gang)  # a stale gang is counted, whatever its phase is now


def reconcile_members(state: State, gang: Gang, group: Group) -> None:
    """Move a gang that is not given up to the phase that follows from its members."""
    if gang.phase is Phase.COLLECTING and gang.arrival_window is None:
        note_arrival(state, gang)  # the missing pods have come
    review_losses(state, gang)
    if not gang.is_partially_bound:
        state.retained.release(gang, gang.retained - gang.lost.keys())
    own_orphans = state.orphans.keys() & {pod.uid for pod in group.unbound} if state.orphans else ()
    if own_orphans:
        for uid in sorted(own_orphans):
            add_binding_in_flight(state, gang, uid, state.orphans.pop(uid))
        all_bindings_known(gang)
        return
    if not group.unbound:
        state.transition(gang, Trigger.ALL_BOUND, Running(gang.plan))
        gang.attempts, gang.reason, gang.announced, gang.arrival_window = 0, "", None, None
        state.publisher.forget(gang)
        gang.refusals, gang.exclusions = {}, {}
        gang.voided.clear()
        if gang.is_partially_bound and group.waits_for is not None:
            gang.reason = sentence((group.waits_for,))
    elif group.causes:
        state.transition(gang, Trigger.ILL_FORMED, Invalid())
        kinds = kinds_of(group.causes)
        state.publisher.refuse(gang, EventReason.INVALID, kinds, sentence(group.causes))
    elif group.waits_for is not None:
        state.transition(gang, Trigger.MEMBERS_MISSING, Collecting())
        gang.reason, gang.arrival_window = sentence((group.waits_for,)), None
        state.publisher.withdraw_verdict(gang)
        state.timers.set(gang, state.now + state.settings.waiting_s)
    elif (until := _expect_more_until(state, gang)) > state.now:
        state.transition(gang, Trigger.IN_MOTION, Collecting())
        gang.reason = ""
        state.timers.set(gang, until, Timer.RECOUNT)
        state.queue.note_lacking(gang)
    else:
        state.transition(gang, Trigger.COMPLETE, Planning())
        gang.end_exclusions(state.now, state.unbound_gone_at)
        state.timers.set(gang, state.now + state.settings.waiting_s)
        state.enqueue(gang)


def note_arrival(state: State, gang: Gang) -> None:
    """Note that a pod came or went since the planner was last asked."""
    gang.arrival_window = (gang.arrival_window[0] if gang.arrival_window else state.now, state.now)


def _expect_more_until(state: State, gang: Gang) -> float:
    """Return until when the gang waits for more pods; -inf if it need not wait.

    A partially bound gang does not wait for more pods.
    """
    open_ended = gang.group.expects_more or gang.group.ambiguous
    if gang.arrival_window is None or not open_ended or gang.is_partially_bound:
        return -math.inf
    return state.settings.settled(gang.arrival_window)


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

    `cause_is_excluded`: no later plan can fail for this cause, such as an excluded node. The gang is planned
    again at once if `cause_is_excluded`, and otherwise after the first few consecutive withdrawals. After
    more of them, or with `pause`, it waits for a back-off. `pause_s` is a fixed pause in seconds.
    """
    why, silent = short(why), trigger is Trigger.SESSION_OVER
    held_uids = gang.reserved
    state.void(gang, trigger, Withdrawn(), why, silent)
    if not silent:
        gang.attempts += not cause_is_excluded
        state.publisher.emit(gang, EventReason.WITHDRAWN, f"plan withdrawn: {why}")
    state.fresh(gang)
    if gang.is_partially_bound:
        state.retained.keep(gang, held_uids)
        release_retained(state, gang)
        for node in sorted({usage.node for usage in state.retained.places(gang)}):
            state.retained.release_taken(node)
    else:
        state.retained.release(gang, held_uids | gang.retained)
        if Timer.LOST in gang.timers:
            state.retained.keep_lost(gang)
    if pause_s:
        state.timers.set(gang, state.now + pause_s)
    elif pause or (not cause_is_excluded and gang.attempts > state.settings.prompt_retries):
        state.timers.set(gang, state.now + state.settings.backoff(gang.attempts))
    else:
        reconcile(state, gang)


def release_retained(state: State, gang: Gang) -> None:
    """Release retained capacity of pods that are now bound, or belong to another gang."""
    unbound = {pod.uid for pod in gang.group.unbound} if gang.retained else set()
    settled_uids = {
        uid for uid in gang.retained - unbound if (pod := state.roster.pods.get(uid)) and pod.present
    }
    state.retained.release(gang, settled_uids)


def plan_still_fits(state: State, plan: AcceptedPlan) -> bool:
    """Return whether the capacity that the plan takes is still free for it."""
    return fits(state.ledger.without(set(plan.order)), usages(plan.placed, plan.pods))


def add_binding_in_flight(state: State, gang: Gang, uid: str, until: float) -> None:
    """Wait until `until` for this member's Binding, which is not part of the gang's current plan."""
    permitted = gang.in_phase
    if not isinstance(permitted, Permitted):
        permitted = Permitted()
        state.transition(gang, Trigger.IN_FLIGHT, permitted)
        gang.given_up_uids = set()
        gang.was_complete &= bool(gang.group.bound)
    gang.permit_incomplete |= uid not in permitted.awaited
    gang.retained.discard(uid)
    permitted.awaited[uid] = until
    state.timers.set(gang, min(permitted.awaited.values()))


def all_bindings_known(gang: Gang) -> None:
    """Note that no other Bindings are under way.

    If the bound members and the awaited ones are enough, the last Permit does not count as incomplete.
    """
    members = (*gang.group.bound, *(pod for pod in gang.group.unbound if pod.uid in gang.awaited))
    gang.permit_incomplete &= not gang.group.is_enough(members)


def drop_orphan(state: State, uid: str) -> None:
    """Forget an orphaned Binding, and release its capacity."""
    if state.orphans.pop(uid, None) is not None:
        state.ledger.release((uid,))


def all_bound(state: State, gang: Gang) -> bool:
    """Return whether all members of the last Permit were bound, including pods that now belong to another
    gang."""
    if gang.awaited or gang.permit_incomplete or gang.given_up_uids:
        return False
    return all((pod := state.roster.pods.get(uid)) and pod.node for uid in gang.permitted_elsewhere_uids)


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


def partial_grace_over(state: State, gang: Gang) -> None:
    """Evict the bound members of a partially bound gang, or let the other members wait, as the setting says.

    Without a session nothing is evicted: another service may have the shim and complete the gang. A new
    session starts a new grace period.
    """
    group = state.fresh(gang)
    gang.was_complete |= all_bound(state, gang)
    if not gang.is_partially_bound or gang.phase is Phase.GIVEN_UP or not state.active:
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
    held_uids = gang.idle_places
    state.orphans |= gang.awaited
    given_up = GivenUp()
    state.void(gang, Trigger.PARTIAL_TOO_LONG, given_up, short(why))
    members = (*((pod.name, pod.uid) for pod in group.bound), *gang.waiting())
    state.publisher.emit(
        gang, EventReason.WITHDRAWN, f"gang given up: {why}; what is bound is evicted", members
    )
    state.retained.release(gang, held_uids)
    evict(state, gang, given_up)


def evict(state: State, gang: Gang, given_up: GivenUp, again: bool = False) -> None:
    """Request the eviction of bound members, except for members whose eviction was requested before.

    `again`: request the eviction of all bound members. This is repeated until they are gone.
    """
    evicting = frozenset() if again else given_up.evicting
    pods = tuple((pod.name, pod.uid) for pod in gang.group.bound if pod.uid not in evicting)
    if pods and state.active:
        given_up.evicting = evicting.union(uid for _, uid in pods)
        state.publisher.instruct(Evict(gang.group.gang.namespace, pods, gang.reason))
    state.timers.start(gang, state.now + state.settings.partial_s, Timer.PHASE)


_MAX_NOTED_LOSSES = 256
"""Largest number of lost members that are noted of one gang, because each costs a look at the bound members.
"""


def member_lost(state: State, gang: Gang, pod: Pod, usage: Usage) -> None:
    """Note that a running gang lost a member that it needs, and retain the member's place."""
    if len(gang.lost) < _MAX_NOTED_LOSSES:
        gang.lost[pod.uid] = LostMember(pod, usage)
    elif len(gang.retained) <= state.roster.size(gang.name) - len(gang.group.unbound):
        return  # the gang already retains more places than it has bound members
    # `start` and not `set`: a second loss must not extend the time of the first place.
    state.timers.start(gang, state.now + state.settings.lost_s, Timer.LOST)
    state.retained.keep_lost(gang)
    if gang.phase is Phase.UNPLACEABLE:  # the replacement was there before the place came free
        state.replan(gang, Trigger.FREED)


def review_losses(state: State, gang: Gang) -> None:
    """Forget lost members if the gang has enough members again, or if no replacement came in time."""
    group = gang.group
    waits = bool(group.unbound) and group.waits_for is None
    lacks = bool(group.bound) and (gang.stale or not group.enough_bound)  # a large gang is counted later
    if gang.lost and not (lacks and (waits or Timer.LOST in gang.timers)):
        state.retained.release(gang, gang.retained & gang.lost.keys())
        gang.lost = {}
        gang.timers.pop(Timer.LOST, None)


def inherit_losses(state: State, gang: Gang, before: Gang) -> None:
    """Take over the lost members of a gang that ended: its bound members now belong to this gang."""
    gang.lost |= before.lost
    if Timer.LOST in before.timers:
        state.timers.hand_on(before, gang, Timer.LOST)
        state.retained.keep_lost(gang)
