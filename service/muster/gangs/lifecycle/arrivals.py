"""Arrivals: take in changes of pods, group the pods into gangs, and update each gang whose members changed.

`deferral.py` says when a gang is counted after a change of one of its pods.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from muster.domain.node import DeviceClaim, Usage
from muster.domain.pod import Pod
from muster.domain.podgroup import PodGroup, PodGroupKey
from muster.domain.policies import Policies
from muster.domain.rate import Rate
from muster.domain.sentences import sentence
from muster.gangs.lifecycle import bindings, planning, reconciliation
from muster.gangs.lifecycle.deferral import MAY_LEAVE, Change, Count, when_to_count
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.group import Group, NameKey, name_key, planning_facts
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import (
    AcceptedPlan,
    Collecting,
    Finished,
    GivenUp,
    Permitted,
    Phase,
    Planned,
    Reserving,
    Trigger,
)
from muster.gangs.reporting.differences import Differences

_COUNTED_LATER = (
    Phase.COLLECTING,
    Phase.RUNNING,
    Phase.UNPLACEABLE,
    Phase.INVALID,
    Phase.WITHDRAWN,
)
"""Phases in which pods that come one after another are counted together, after the last of them. In other
phases they are counted when the phase ends."""


def _members_changed(state: State, gang: Gang, group: Group) -> None:
    """Update a gang whose pods changed, and move it to the phase that follows."""
    same, levels = gang.group.facts == group.facts, gang.group.subgroups
    if group.bound and not gang.group.bound and gang.phase is not Phase.PERMITTED:
        gang.was_complete &= not group.was_split_by_crash  # bound by another service, or late
    if not gang.stale and {pod.uid for pod in group.unbound} - {pod.uid for pod in gang.group.unbound}:
        reconciliation.note_arrival(state, gang)
    gang.group, gang.stale, gang.bound_since_count = group, False, 0
    _forget_late_bound(state, gang)
    reconciliation.note_partially_bound(state, gang)
    reconciliation.release_retained(state, gang)
    match gang.in_phase:
        case Permitted() as permitted:
            bindings.settle_bindings(state, gang, permitted)
        case _ if same:
            return
        case Planned(plan) | Reserving(plan):
            changed = "" if levels == group.subgroups else "the levels of its PodGroup changed"
            if void := changed or _why_void(state, gang, plan):
                reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, void)
        case _:
            gang.attempts = 0
            reconciliation.reconcile(state, gang)


def _forget_late_bound(state: State, gang: Gang) -> None:
    """Remove members from `given_up_uids` that were bound after all."""
    if gang.given_up_uids and not gang.awaited:
        gang.given_up_uids = {
            uid for uid in gang.given_up_uids if (pod := state.roster.pods.get(uid)) is None or not pod.node
        }
        gang.was_complete |= reconciliation.all_bound(state, gang)


def _why_void(state: State, gang: Gang, plan: AcceptedPlan) -> str:
    """Return why the plan no longer matches the members; "" if it does."""
    group = gang.group
    if group.causes:
        return sentence(group.causes)
    unbound_pods = {pod.uid: pod for pod in group.unbound}
    for uid, pod in plan.pods.items():
        now = unbound_pods.get(uid)
        if now is None:
            return f"pod {pod.name} went, was bound elsewhere or can't be scheduled any more"
        if planning_facts(now) != planning_facts(pod):
            return f"pod {pod.name} was changed"
    for uid in state.orphans.keys() & unbound_pods.keys():
        return f"a Binding of pod {unbound_pods[uid].name} may be under way"
    return sentence((group.waits_for,)) if group.waits_for is not None else ""


def _gang_appeared(state: State, gang: Gang, earlier_gangs: Iterable[Gang]) -> None:
    """Add a gang that is seen for the first time, or that continues with pods of `earlier_gangs`.

    `earlier_gangs` are gangs of the same name that ended or lost pods to this gang. Facts recorded about
    these gangs count more than what the pods state.
    """
    state.gangs[gang.key] = gang
    begun = {pod.uid for pod in gang.group.bound}
    begun |= {pod.uid for pod in gang.group.unbound if pod.uid in state.orphans}
    forerunners = [before for before in earlier_gangs if begun & before.group.uids]
    _inherit(state, gang, forerunners)
    reconciliation.note_arrival(state, gang)
    reconciliation.reconcile(state, gang)
    if forerunners:
        theirs = {
            uid for before in forerunners for uid in (*before.awaited, *before.permitted_elsewhere_uids)
        }
        gang.permitted_elsewhere_uids = frozenset(theirs - gang.group.uids)
        pods = (state.roster.pods.get(uid) for uid in gang.permitted_elsewhere_uids)
        member_gone = any(pod is None or not (pod.present or pod.node) for pod in pods)
        gang.permit_incomplete &= member_gone or any(
            before.permit_incomplete or before.given_up_uids for before in forerunners
        )


def _gang_joined(state: State, gang: Gang, group: Group, earlier_gangs: Iterable[Gang]) -> None:
    """Update a gang whose group may now contain pods of `earlier_gangs`.

    These are gangs of the same name that ended or lost pods. If one was complete, no member of this gang is
    evicted, even if this gang was given up.
    """
    bound = {pod.uid for pod in group.bound}
    # A permitted gang may not have counted members that were bound just now, so its waiting members count
    # too.
    forerunners = [before for before in earlier_gangs if bound & before.group.uids]
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
            reconciliation.inherit_losses(state, gang, before)


def _gangs_losing_members(gangs: Iterable[Gang], groups: Mapping[str, Group]) -> list[Gang]:
    """Return copies, made before the regrouping, of the gangs whose bound members move to other gangs.

    `gangs` are the gangs of one name, and `groups` the new groups of their pods by key. Gangs with Bindings
    under way are left out, because it is not known yet whether they are partially bound.
    """
    if len(groups) < 2:
        return []
    now_in = {pod.uid: key for key, group in groups.items() for pod in group.bound}
    return [
        replace(gang, timers=dict(gang.timers), lost={})
        for gang in gangs
        if gang.key in groups
        and not gang.awaited
        and any(now_in.get(pod.uid, gang.key) != gang.key for pod in gang.group.bound)
    ]


def _members_moving(state: State, gang: Gang, change: Change) -> None:
    """Note that a pod came or went. The gang is counted once the other pods have come or gone too.

    If a waiting member left, a gang that waits for a planner no longer does so.
    """
    gang.stale = True
    reconciliation.note_arrival(state, gang)
    if gang.phase is Phase.PLANNING and change.is_departure:
        state.transition(gang, Trigger.IN_MOTION, Collecting())
    if gang.phase in _COUNTED_LATER:
        if gang.arrival_window is None or Timer.RECOUNT not in gang.timers:
            gang.arrival_window = (state.now, state.now)  # earlier pods have been counted
        # A deadline in the past would be taken for a service that stood still, and `Clock` would postpone all
        # timers.
        state.timers.set(gang, max(state.now, state.settings.settled(gang.arrival_window)), Timer.RECOUNT)


def recount(state: State, gang: Gang) -> None:
    """Count the gang, now that the pods of a series have come or gone."""
    if gang.phase in _COUNTED_LATER:
        reconciliation.reconcile(state, gang)


def _take_over_bindings(state: State, gang: Gang) -> None:
    """Wait for Bindings that may be under way, of pods that now are members of this gang."""
    match gang.in_phase:
        case Planned(plan) | Reserving(plan):
            reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, _why_void(state, gang, plan))
        case Permitted() | GivenUp():
            pass
        case _:
            reconciliation.reconcile(state, gang)


def _gang_gone(state: State, gang: Gang) -> None:
    """Remove a gang. Its Bindings that are under way outlive it.

    These Bindings keep their capacity until the pod is seen bound, is gone, or is given up.
    """
    held_uids = gang.idle_places
    for uid, until in gang.awaited.items():
        pod = state.roster.pods.get(uid)
        if pod is not None and pod.present and not pod.node:
            state.orphans[uid] = until
        else:
            held_uids.add(uid)
    gang.reason = "its pods are gone"
    state.publisher.withdraw_verdict(gang)
    state.transition(gang, Trigger.ALL_GONE, Finished(gang.awaited))
    state.retained.release(gang, held_uids)
    del state.gangs[gang.key]
    state.queue.forget(gang)
    if (taken_back := state.in_tree.forget(gang)) is not None:
        state.publisher.instruct(taken_back)


MANY = 64
"""From this number of pods on, the gangs of a name are not counted for each change. A count takes 5 to 20 µs
per pod."""
COUNT_EVERY_S = 0.0005
"""Seconds between two counts of such gangs, for each pod: a gang of 4,000 is counted once in 2 s."""
_MAY_WAIT = (*MAY_LEAVE, Phase.RUNNING)
"""Phases in which a gang of many pods is counted later."""
_COUNT_JOB_EVERY_S = 0.002
"""If the pods of a Job name more than `MANY` gangs, seconds until their count, for each gang."""
GROUPS_AHEAD_S = 5.0
"""A namespace may owe this many seconds of counting. Above this, changes of its PodGroups wait, and only the
last change of each PodGroup is used. One change costs COUNT_EVERY_S × (pods that name the PodGroup +
_MORE_PODS)."""
_MORE_PODS = 4

GROUPED_AT_ONCE = 128
"""Number of pods that one input regroups when a change concerns all pods: about 10 ms."""


class PodHandler:
    """Handle changes of pods, and group them into gangs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.differences = Differences(state.publisher, state.ledger)
        self._names: dict[NameKey, set[str]] = {}
        """Name → keys of the gangs that have this name."""
        self._counted_at: dict[NameKey, float] = {}
        """Name → when its pods were grouped last."""
        self._groups: dict[str, dict[PodGroupKey, PodGroup | None]] = {}
        """Namespace → PodGroups whose last change waits; None for a PodGroup that is gone."""
        self._rate = Rate(GROUPS_AHEAD_S, clock=lambda: state.now)

    def pod_seen(self, pod: Pod) -> tuple[str, ...]:
        """Take in a pod's new state. Return the nodes on which usage changed."""
        state = self._state
        self.differences.see(pod)
        usage_before = state.ledger.bound.get(pod.uid)
        touched = state.ledger.see(pod)
        before = state.roster.pods.get(pod.uid)
        names = state.roster.see(pod)
        if pod.uid in state.orphans and (pod.node or not pod.present):
            reconciliation.drop_orphan(state, pod.uid)
        after = state.roster.pods.get(pod.uid, pod)
        self._count_after(names, before, after)
        while state.roster.begun:
            gangs = self._gangs_of(state.roster.begun.pop())
            for gang in gangs if any(gang.group.unbound for gang in gangs) else ():
                gang.stale = True
                state.recount_soon(gang)
        if usage_before is not None and self._is_lost(before, pod, usage_before):
            self._keep_place_of(before, usage_before)
        return touched

    def pod_gone(self, uid: str) -> None:
        """Forget a pod that is gone."""
        state = self._state
        self.differences.forget(uid)
        usage_before = state.ledger.bound.get(uid)
        state.ledger.forget(uid)
        reconciliation.drop_orphan(state, uid)
        before = state.roster.pods.get(uid)
        names = state.roster.drop(uid)
        self._count_after(names, before, None)
        if usage_before is not None:
            self._keep_place_of(before, usage_before)
        else:
            planning.try_full_nodes(state)

    def claim_seen(self, claim: DeviceClaim) -> tuple[str, ...]:
        """Take in the devices that a ResourceClaim holds. Return the nodes on which they changed.

        A refused gang is planned again if the claim is for its pods, because the devices are free for this
        gang alone. A gang in a pause keeps pausing, because users can change claims all the time.
        """
        state = self._state
        before = state.ledger.device_claims.consumers_of(claim.uid)
        touched = state.ledger.see_claim(claim)
        self.differences.claims_changed({*before, *claim.consumers})
        for key in self.gangs_of(claim.consumers).values() if touched else ():
            gang = state.gangs[key]
            if gang.phase is Phase.UNPLACEABLE and not gang.pause_s:
                state.to_wake[key] = None
        return touched

    def group_seen(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Take in a PodGroup's new state, now or later; None if it is gone."""
        synced = self._state.synced  # before, pods are not grouped, so a change costs nothing
        pod_count, waiting = self._state.roster.naming(key), self._groups.pop(key[0], {})
        later = synced and bool(pod_count) and self._state.now < self._rate.due_at(key[0])
        if later:
            waiting[key] = group
        else:
            waiting.pop(key, None)
        if waiting:
            self._groups[key[0]] = waiting
        if not later and (names := self._state.roster.see_pod_group(key, group)):
            if synced:
                self._rate.forget()
                self._rate.charge(key[0], COUNT_EVERY_S * (pod_count + _MORE_PODS))
            self.regroup(names)

    def tick(self) -> None:
        """Take in one change of a PodGroup that is due. Only one, because it may take long."""
        namespace = min(self._groups, key=self._rate.due_at, default="")
        if namespace and self._rate.due_at(namespace) <= self._state.now:
            key, group = next(iter(self._groups[namespace].items()))
            self.group_seen(key, group)

    def next_deadline(self) -> float | None:
        """Return when a change of a PodGroup is due, in seconds of the inputs' clock; None if none waits."""
        return min(map(self._rate.due_at, self._groups), default=None)

    def job_seen(self, uid: str, succeeded: int) -> None:
        """Take in how many pods of a Job have succeeded."""
        names = self._state.roster.see_succeeded(uid, succeeded)
        if len(names) <= MANY or not self._state.synced:
            self._count(names, {uid})
            return
        for gang in (gang for name in names for gang in self._gangs_of(name)):
            gang.stale = True
            self._state.timers.start(gang, self._state.now + _COUNT_JOB_EVERY_S * len(names), Timer.RECOUNT)

    def policies_seen(self, policies: Policies) -> None:
        """Take in new policies, and plan the waiting gangs again.

        Plans that exist stay as they are.
        """
        self._state.roster.policies = policies
        self._state.ledger.set_policies(policies)
        self._state.to_group |= dict.fromkeys(self._state.roster.names)
        planning.capacity_freed(self._state, anywhere=True)

    def regroup(self, names: set[NameKey]) -> None:
        """Group the pods of these names again. Before the cluster is known, only note the names."""
        if not self._state.synced:
            self._state.to_group |= dict.fromkeys(names)
            return
        for name in sorted(names):
            groups = {group.gang.key: group for group in self._state.roster.groups(name)}
            self._state.members_counted += self._state.roster.size(name)
            old_gangs = self._gangs_of(name)
            losing_gangs = _gangs_losing_members(old_gangs, groups)
            ended = [gang for gang in old_gangs if gang.key not in groups]
            for gang in ended:
                _gang_gone(self._state, gang)
            for key, group in groups.items():
                before = [*ended, *(losing_gang for losing_gang in losing_gangs if losing_gang.key != key)]
                if key in self._state.gangs:
                    _gang_joined(self._state, self._state.gangs[key], group, before)
                    _members_changed(self._state, self._state.gangs[key], group)
                else:
                    _gang_appeared(
                        self._state,
                        Gang(key, name, group, was_complete=not group.was_split_by_crash),
                        before,
                    )
            self._names[name] = set(groups)
            self._counted_at[name] = self._state.now
            if not groups:
                del self._names[name], self._counted_at[name]
        for key in sorted(set(self.gangs_of(self._state.orphans).values())):
            _take_over_bindings(self._state, self._state.gangs[key])

    def catch_up(self) -> None:
        """Group the pods of the next few names that are to be grouped again."""
        if not self._state.synced:
            return
        names: set[NameKey] = set()
        pods = 0
        while self._state.to_group and pods < GROUPED_AT_ONCE:
            name = next(iter(self._state.to_group))
            del self._state.to_group[name]
            names.add(name)
            pods += max(1, self._state.roster.size(name))
        if names:
            self.regroup(names)

    def gangs_of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return UID → key of its gang, for bound and waiting pods. Pods of no gang are left out.

        If several gangs have one name, their members are searched once and not for each UID.
        """
        key_by_uid: dict[str, str] = {}
        of_name: dict[NameKey, dict[str, str]] = {}
        for uid in uids:
            name = self._name_of(uid)
            keys = self._names.get(name, set())
            if len(keys) == 1:
                key_by_uid[uid] = next(iter(keys))
            elif keys and name not in of_name:
                gangs = self._gangs_of(name)
                of_name[name] = {member: gang.key for gang in gangs for member in gang.group.uids}
            if uid in (members_of := of_name.get(name, {})):
                key_by_uid[uid] = members_of[uid]
        return key_by_uid

    def _name_of(self, uid: str) -> NameKey:
        """Return the name of the gang that the pod belongs to; all parts are "" if it belongs to none."""
        pod = self._state.roster.pods.get(uid)
        if pod is None or pod.claim is None:
            return ("", "", "", "")
        return name_key(pod)

    def gangs_named(self, name: NameKey) -> list[Gang]:
        """Return the gangs of a name, with fresh counts."""
        gangs = self._gangs_of(name)
        for gang in gangs:
            self._state.fresh(gang)
        return gangs

    def _gangs_of(self, name: NameKey) -> list[Gang]:
        return [self._state.gangs[key] for key in sorted(self._names.get(name, ()))]

    def _count_after(self, names: set[NameKey], before: Pod | None, pod: Pod | None) -> None:
        """Count the gangs of these names after a change of a pod, or have them counted later."""
        is_present = pod is not None and pod.present
        owners = [pod_state.owner for pod_state in (before, pod) if pod_state is not None]
        owner = owners[0] if owners else ""
        gang = self._gang_touched(names, owner, is_present)
        if gang is None:
            self._count(names, set(owners))
            return
        state, change = self._state, Change(before, pod, self._present(gang))
        match when_to_count(gang, change):
            case Count.NOW:
                self._count(names, set(owners))
            case Count.AFTER_SERIES:
                _members_moving(state, gang, change)
            case Count.AFTER_BINDINGS:
                assert pod is not None
                bindings.member_bound(state, gang, pod.uid)
            case Count.WHEN_READ:
                gang.stale = True
                if not is_present and (len(self._names[gang.name]) > 1 or owner not in gang.group.owners):
                    state.recount_soon(gang)  # owners may be assigned anew
                if gang.phase is Phase.COLLECTING:
                    # New pods need conditions. A large gang has a longer pause.
                    pause_s = max(state.settings.waiting_s, state.settings.member_s * change.present)
                    state.timers.set_earlier(gang, state.now + pause_s)

    def _is_lost(self, before: Pod | None, pod: Pod, usage_before: Usage) -> bool:
        """Return whether a bound pod fails now, or is deleted while its node is gone or not ready.

        The kubelet of such a node does not end the pod. On other nodes a deleted pod has its place until it
        ends. Otherwise a user could delete a pod and get a second place while the first is still occupied.
        """
        if pod.finished or before is None or not before.present:
            return pod.finished and not pod.succeeded
        node = self._state.ledger.nodes.get(usage_before.node)
        return pod.terminating and (node is None or not node.ready)

    def _keep_place_of(self, pod: Pod | None, usage_before: Usage) -> None:
        """Keep the place of a pod that failed or is gone, if a running gang needs it."""
        if pod is None or pod.claim is None or pod.claim.lone:
            return
        gangs = self._gangs_of(name_key(pod))
        gangs_short_of_members = [gang for gang in gangs if gang.was_complete and self._is_short(gang)]
        gang = next(
            (gang for gang in gangs_short_of_members if pod.owner in gang.group.owners),
            next(iter(gangs_short_of_members), None),
        )
        if gang is not None and self._state.synced:
            reconciliation.member_lost(self._state, gang, pod, usage_before)
        for gang in gangs:
            reconciliation.review_losses(self._state, gang)

    def _is_short(self, gang: Gang) -> bool:
        """Return whether fewer members than the gang needs are bound, and some are.

        For a large gang this compares two counts of members, so that the end of such a gang does not take
        long.
        """
        size = self._state.roster.size(gang.name)
        if size < MANY:
            group = self._state.fresh(gang)
            return bool(group.bound) and not group.enough_bound
        return 0 < size - len(gang.group.unbound) < gang.group.fewest_needed

    def _count(self, names: set[NameKey], owners: set[str]) -> None:
        """Count the gangs of these names, except for names that `_try_defer_by_rate` takes."""
        self.regroup({name for name in names if not self._try_defer_by_rate(name, owners)})

    def _try_defer_by_rate(self, name: NameKey, owners: set[str]) -> bool:
        """Have the gangs of a name counted later, if they have many pods and were just counted.

        `owners` are the owners of the pod that changed. Return whether the gangs are counted later. This
        limits the time that one name can take, however often its pods change. A gang of these owners that
        holds a plan or is partially bound is counted at once. Other gangs wait for no planner until then.
        """
        state, size = self._state, self._state.roster.size(name)
        until = self._counted_at.get(name, -math.inf) + COUNT_EVERY_S * size
        if size < MANY or state.now >= until:
            return False
        gangs = self._gangs_of(name)
        later = [gang for gang in gangs if gang.phase in _MAY_WAIT and not gang.is_partially_bound]
        if not later or any(owners & gang.group.owners for gang in gangs if gang not in later):
            return False
        for gang in later:
            gang.stale = True
            reconciliation.note_arrival(state, gang)
            if gang.phase is Phase.PLANNING:
                state.transition(gang, Trigger.IN_MOTION, Collecting())
            state.timers.start(gang, until, Timer.RECOUNT)
        return True

    def _gang_touched(self, names: set[NameKey], owner: str, stays: bool) -> Gang | None:
        """Return the gang that a change of a pod of this owner concerns; None if it may concern several
        gangs, or the gang's identity.

        `stays`: the pod is still present.
        """
        incarnations = [self._state.gangs[key] for name in names for key in self._names.get(name, ())]
        if len(incarnations) > 1:
            if any(gang.group.ambiguous for gang in incarnations):
                return None  # if a pod goes, or joins an ambiguous gang, owners are assigned anew
            incarnations = [gang for gang in incarnations if owner in gang.group.owners]
            if not stays and any(gang.phase is not Phase.RUNNING for gang in incarnations):
                return None
        if len(names) != 1 or len(incarnations) != 1 or not self._state.synced:
            return None
        (gang,) = incarnations
        if len(gang.group.owners) > 1 and not self._state.roster.size(gang.name, owner):
            return None  # the owner's last pod: the gang has another identity now
        if gang.group.ambiguous and gang.phase is Phase.PLANNING:
            return None  # its pods may form two gangs
        return gang

    def _present(self, gang: Gang) -> int:
        """Return how many present pods have the gang's name.

        If other gangs have the name too, count only pods of this gang's owners.
        """
        size = self._state.roster.size
        if len(self._names[gang.name]) == 1:
            return size(gang.name)
        return sum(size(gang.name, owner) for owner in gang.group.owners)
