"""Arrivals: take in changes of pods, group the pods into gangs, and update each gang whose members changed.

`deferral.py` says when a gang is regrouped after a change of one of its pods.
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
from muster.gangs.capacity import requests
from muster.gangs.lifecycle import bindings, deferral, reconciliation, refusals
from muster.gangs.lifecycle.deferral import Change, Regroup
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


def _update_gang(state: State, gang: Gang, group: Group) -> None:
    """Update a gang whose pods changed, and move it to the phase that follows."""
    same, levels = gang.group.facts == group.facts, gang.group.subgroups
    same_needs = _needs(gang.group) == _needs(group)
    if group.bound and not gang.group.bound and gang.phase is not Phase.PERMITTED:
        gang.was_complete &= not group.was_split_by_crash  # bound by another service, or late
    if not gang.stale and {pod.uid for pod in group.unbound} - {pod.uid for pod in gang.group.unbound}:
        reconciliation.note_pod_change(state, gang)
    state.set_group(gang, group)
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
            void = changed or _why_void(state, gang, plan)
            if not (void or same_needs or _still_starts(state, gang, plan)):
                void = "the planned members are not enough by what the gang needs now"
            if void:
                reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, void)
        case _:
            gang.failed_attempts = 0
            reconciliation.reconcile(state, gang)


def _forget_late_bound(state: State, gang: Gang) -> None:
    """Remove members from `given_up_uids` that were bound after all."""
    if gang.last_permit.given_up_uids and not gang.awaited_bindings:
        gang.last_permit.given_up_uids = {
            uid
            for uid in gang.last_permit.given_up_uids
            if (pod := state.roster.pods.get(uid)) is None or not pod.node
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


def _needs(group: Group) -> tuple[object, ...]:
    """Return the facts that decide how many members of each role must start."""
    return group.needed, group.quorum, frozenset(pod.uid for pod in group.bound)


def _still_starts(state: State, gang: Gang, plan: AcceptedPlan) -> bool:
    """Return whether the planned members are enough by what the gang needs now."""
    request = requests.without_followers(requests.request(gang.group, state.ledger))
    counts = {role.name: sum(pod.uid in plan.pods for pod in role.members) for role in request.roles}
    return len(plan.order) >= request.min_member and request.starts(counts)


def _add_gang(state: State, gang: Gang, earlier_gangs: Iterable[Gang]) -> None:
    """Add a gang that is seen for the first time, or that continues with pods of `earlier_gangs`.

    `earlier_gangs` are gangs of the same name that ended or lost pods to this gang. Facts recorded about
    these gangs count more than what the pods state.
    """
    state.gangs[gang.key] = gang
    state.occupants.note(gang)
    held_uids = {pod.uid for pod in gang.group.bound}
    held_uids |= {pod.uid for pod in gang.group.unbound if pod.uid in state.orphans}
    predecessors = [predecessor for predecessor in earlier_gangs if held_uids & predecessor.group.uids]
    _inherit(state, gang, predecessors)
    reconciliation.note_pod_change(state, gang)
    reconciliation.reconcile(state, gang)
    if predecessors:
        uids_of_predecessors = {
            uid
            for predecessor in predecessors
            for uid in (*predecessor.awaited_bindings, *predecessor.last_permit.uids_elsewhere)
        }
        gang.last_permit.uids_elsewhere = frozenset(uids_of_predecessors - gang.group.uids)
        pods = (state.roster.pods.get(uid) for uid in gang.last_permit.uids_elsewhere)
        member_gone = any(pod is None or not (pod.present or pod.node) for pod in pods)
        gang.last_permit.is_incomplete &= member_gone or any(
            predecessor.last_permit.lacks_bindings for predecessor in predecessors
        )


def _take_over_history(state: State, gang: Gang, group: Group, earlier_gangs: Iterable[Gang]) -> None:
    """Update a gang whose group may now contain pods of `earlier_gangs`.

    These are gangs of the same name that ended or lost pods. If one was complete, no member of this gang is
    evicted, even if this gang was given up.
    """
    bound = {pod.uid for pod in group.bound}
    # The group of a permitted gang may lack members that were bound just now, so its waiting members count
    # too.
    predecessors = [predecessor for predecessor in earlier_gangs if bound & predecessor.group.uids]
    if not gang.group.bound:
        _inherit(state, gang, predecessors)
    if any(predecessor.was_complete for predecessor in predecessors):
        gang.was_complete = True
        if isinstance(gang.in_phase, GivenUp):
            gang.in_phase.evicting = frozenset()


def _inherit(state: State, gang: Gang, predecessors: Collection[Gang]) -> None:
    """Inherit completeness, grace period and losses of gangs whose bound pods this gang has now."""
    if predecessors:
        gang.was_complete = any(predecessor.was_complete for predecessor in predecessors)
    for predecessor in predecessors:
        if not gang.was_complete and Timer.PARTIAL in predecessor.timers:
            state.timers.hand_over(predecessor, gang, Timer.PARTIAL)
        if predecessor.lost_members:
            reconciliation.inherit_losses(state, gang, predecessor)


def _gangs_losing_members(gangs: Iterable[Gang], groups: Mapping[str, Group]) -> list[Gang]:
    """Return copies of the gangs whose bound members move to other gangs, as the gangs are now.

    `gangs` are the gangs of one name, and `groups` the new groups of their pods by key. Gangs with Bindings
    under way are left out, because it is not known yet whether such a gang is partially bound.
    """
    if len(groups) < 2:
        return []
    now_in = {pod.uid: key for key, group in groups.items() for pod in group.bound}
    return [
        replace(gang, timers=dict(gang.timers), lost_members={}, last_permit=replace(gang.last_permit))
        for gang in gangs
        if gang.key in groups
        and not gang.awaited_bindings
        and any(now_in.get(pod.uid, gang.key) != gang.key for pod in gang.group.bound)
    ]


def _regroup_later(state: State, gang: Gang, change: Change) -> None:
    """Note that a pod came or went. The gang is regrouped once the other pods have come or gone too.

    If a waiting member left, the gang waits for no planner until then.
    """
    gang.stale = True
    reconciliation.note_pod_change(state, gang)
    if gang.phase is Phase.PLANNING and change.is_departure:
        state.transition(gang, Trigger.IN_MOTION, Collecting())
    if gang.phase in deferral.REGROUPED_AFTER_SERIES:
        if gang.change_window is None or Timer.REGROUP not in gang.timers:
            gang.change_window = (state.now, state.now)  # earlier pods have been grouped
        # `Clock` takes a deadline in the past for a service that stood still, and postpones all timers.
        until = max(state.now, state.settings.settle_until(gang.change_window))
        state.timers.set(gang, until, Timer.REGROUP)


def end_series(state: State, gang: Gang) -> None:
    """End a series: its pods have come or gone, so move the gang to the phase that follows."""
    if gang.phase in deferral.REGROUPED_AFTER_SERIES:
        reconciliation.reconcile(state, gang)


def _take_over_bindings(state: State, gang: Gang) -> None:
    """Wait for orphaned Bindings of pods that are members of this gang now."""
    match gang.in_phase:
        case Planned(plan) | Reserving(plan):
            reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, _why_void(state, gang, plan))
        case Permitted() | GivenUp():
            pass
        case _:
            reconciliation.reconcile(state, gang)


def _remove_gang(state: State, gang: Gang) -> None:
    """Remove a gang. Its Bindings that are under way outlive it.

    Each of these Bindings keeps its capacity until the pod is seen bound or is gone, or the Binding is given
    up.
    """
    held_uids = gang.idle_uids
    for uid, until in gang.awaited_bindings.items():
        pod = state.roster.pods.get(uid)
        if pod is not None and pod.present and not pod.node:
            state.orphans[uid] = until
        else:
            held_uids.add(uid)
    gang.reason = "its pods are gone"
    state.publisher.withdraw_verdict(gang)
    state.transition(gang, Trigger.ALL_GONE, Finished(gang.awaited_bindings))
    state.retained.release(gang, held_uids)
    del state.gangs[gang.key]
    state.queue.forget(gang)
    state.victims.remove(gang)
    if (taken_back := state.in_tree.forget(gang)) is not None:
        state.publisher.instruct(taken_back)


GROUPS_AHEAD_S = 5.0
"""A namespace may owe this many seconds of grouping. Above this, changes of its PodGroups wait, and only the
last change of each PodGroup is used. One change costs `deferral.REGROUP_EVERY_S` × (pods that name the
PodGroup + _MORE_PODS)."""
_MORE_PODS = 4
"""Cost of a change of a PodGroup itself, in pods."""

REGROUPED_AT_ONCE = 128
"""When a change concerns all pods, one input groups this number of pods: about 10 ms."""


class PodHandler:
    """Handle changes of pods, and group them into gangs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.differences = Differences(state.publisher, state.ledger)
        self._names: dict[NameKey, set[str]] = {}
        """Name → keys of the gangs that have this name."""
        self._regrouped_at: dict[NameKey, float] = {}
        """Name → when its pods were regrouped last."""
        self._waiting_changes: dict[str, dict[PodGroupKey, PodGroup | None]] = {}
        """Namespace → PodGroups whose last change waits; None for a PodGroup that is gone."""
        self._rate = Rate(GROUPS_AHEAD_S, clock=lambda: state.now)

    def see_pod(self, pod: Pod) -> tuple[str, ...]:
        """Take in a pod's new state. Return the nodes on which usage changed."""
        state = self._state
        self.differences.see(pod)
        old_usage = state.ledger.bound.get(pod.uid)
        changed_nodes = state.ledger.see(pod)
        old_pod = state.roster.pods.get(pod.uid)
        names = state.roster.see(pod)
        if pod.uid in state.orphans and (pod.node or not pod.present):
            reconciliation.drop_orphan(state, pod.uid)
        new_pod = state.roster.pods.get(pod.uid, pod)
        self._regroup_after(names, old_pod, new_pod)
        if old_pod is not None and old_pod.preemption != pod.preemption:
            for key in self.gangs_of((pod.uid,)).values():
                state.occupants.note(state.gangs[key])
        while state.roster.begun_names:
            gangs = self._gangs_of(state.roster.begun_names.pop())
            for gang in gangs if any(gang.group.unbound for gang in gangs) else ():
                gang.stale = True
                state.regroup_soon(gang)
        if old_usage is not None and self._is_lost(old_pod, pod, old_usage):
            self._keep_place_of(old_pod, old_usage)
        return changed_nodes

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        state = self._state
        self.differences.forget(uid)
        old_usage = state.ledger.bound.get(uid)
        state.ledger.forget(uid)
        reconciliation.drop_orphan(state, uid)
        old_pod = state.roster.pods.get(uid)
        names = state.roster.drop(uid)
        self._regroup_after(names, old_pod, None)
        if old_usage is not None:
            self._keep_place_of(old_pod, old_usage)
        else:
            refusals.try_full_nodes(state)

    def see_claim(self, claim: DeviceClaim) -> tuple[str, ...]:
        """Take in the devices that a ResourceClaim holds. Return the nodes on which they changed.

        A refused gang is planned again if the claim is for its pods, because the devices are free for this
        gang alone. A gang in a pause keeps pausing, because users can change claims all the time.
        """
        state = self._state
        old_consumers = state.ledger.device_claims.consumers_of(claim.uid)
        changed_nodes = state.ledger.see_claim(claim)
        self.differences.compare_again({*old_consumers, *claim.consumers})
        for key in self.gangs_of(claim.consumers).values() if changed_nodes else ():
            gang = state.gangs[key]
            if gang.phase is Phase.UNPLACEABLE and not gang.pause_s:
                state.to_wake[key] = None
        return changed_nodes

    def see_pod_group(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Take in a PodGroup's new state, now or later; None if it is gone."""
        synced = self._state.synced  # before, pods are not grouped, so a change costs nothing
        pod_count = self._state.roster.count_pods_naming(key)
        waiting = self._waiting_changes.pop(key[0], {})
        later = synced and bool(pod_count) and self._state.now < self._rate.due_at(key[0])
        if later:
            waiting[key] = group
        else:
            waiting.pop(key, None)
        if waiting:
            self._waiting_changes[key[0]] = waiting
        if not later and (names := self._state.roster.see_pod_group(key, group)):
            if synced:
                self._rate.forget()
                self._rate.charge(key[0], deferral.REGROUP_EVERY_S * (pod_count + _MORE_PODS))
            self.regroup(names)

    def tick(self) -> None:
        """Take in one change of a PodGroup that is due. Only one change, because a change may take long."""
        namespace = min(self._waiting_changes, key=self._rate.due_at, default="")
        if namespace and self._rate.due_at(namespace) <= self._state.now:
            key, group = next(iter(self._waiting_changes[namespace].items()))
            self.see_pod_group(key, group)

    def next_deadline(self) -> float | None:
        """Return when a change of a PodGroup is due, in seconds of the inputs' clock; None if none waits."""
        return min(map(self._rate.due_at, self._waiting_changes), default=None)

    def see_job(self, uid: str, succeeded: int) -> None:
        """Take in how many pods of a Job have succeeded."""
        names = self._state.roster.see_succeeded(uid, succeeded)
        if len(names) <= deferral.MANY or not self._state.synced:
            self._regroup_or_defer(names, {uid})
            return
        for gang in (gang for name in names for gang in self._gangs_of(name)):
            gang.stale = True
            until = self._state.now + deferral.REGROUP_JOB_EVERY_S * len(names)
            self._state.timers.start(gang, until, Timer.REGROUP)

    def see_policies(self, policies: Policies) -> None:
        """Take in new policies, and plan the waiting gangs again.

        Plans that exist stay as they are.
        """
        self._state.roster.policies = policies
        self._state.ledger.set_policies(policies)
        self._state.to_regroup |= dict.fromkeys(self._state.roster.names)
        refusals.note_gangs_to_wake(self._state, anywhere=True)

    def regroup(self, names: set[NameKey]) -> None:
        """Regroup the gangs of these names. Before the cluster is known, only note the names."""
        if not self._state.synced:
            self._state.to_regroup |= dict.fromkeys(names)
            return
        for name in sorted(names):
            groups = {group.gang.key: group for group in self._state.roster.groups(name)}
            self._state.members_regrouped += self._state.roster.size(name)
            old_gangs = self._gangs_of(name)
            losing_gangs = _gangs_losing_members(old_gangs, groups)
            ended = [gang for gang in old_gangs if gang.key not in groups]
            for gang in ended:
                _remove_gang(self._state, gang)
            for key, group in groups.items():
                earlier_gangs = [*ended, *(gang for gang in losing_gangs if gang.key != key)]
                if key in self._state.gangs:
                    _take_over_history(self._state, self._state.gangs[key], group, earlier_gangs)
                    _update_gang(self._state, self._state.gangs[key], group)
                else:
                    _add_gang(
                        self._state,
                        Gang(key, name, group, was_complete=not group.was_split_by_crash),
                        earlier_gangs,
                    )
            self._names[name] = set(groups)
            self._regrouped_at[name] = self._state.now
            if not groups:
                del self._names[name], self._regrouped_at[name]
        for key in sorted(set(self.gangs_of(self._state.orphans).values())):
            _take_over_bindings(self._state, self._state.gangs[key])

    def catch_up(self) -> None:
        """Regroup the gangs of the next few names that are to be regrouped."""
        if not self._state.synced:
            return
        names: set[NameKey] = set()
        pods = 0
        while self._state.to_regroup and pods < REGROUPED_AT_ONCE:
            name = next(iter(self._state.to_regroup))
            del self._state.to_regroup[name]
            names.add(name)
            pods += max(1, self._state.roster.size(name))
        if names:
            self.regroup(names)

    def gangs_of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return UID → key of its gang, for bound and waiting pods. Pods of no gang are left out.

        If several gangs have one name, their members are read once, and not for each UID.
        """
        key_by_uid: dict[str, str] = {}
        keys_by_name: dict[NameKey, dict[str, str]] = {}
        for uid in uids:
            name = self._name_of(uid)
            keys = self._names.get(name, set())
            if len(keys) == 1:
                key_by_uid[uid] = next(iter(keys))
            elif keys and name not in keys_by_name:
                gangs = self._gangs_of(name)
                keys_by_name[name] = {member: gang.key for gang in gangs for member in gang.group.uids}
            if uid in (key_by_member := keys_by_name.get(name, {})):
                key_by_uid[uid] = key_by_member[uid]
        return key_by_uid

    def _name_of(self, uid: str) -> NameKey:
        """Return the name of the gang that the pod belongs to; all parts are "" if it belongs to none."""
        pod = self._state.roster.pods.get(uid)
        if pod is None or pod.claim is None:
            return ("", "", "", "")
        return name_key(pod)

    def gangs_named(self, name: NameKey) -> list[Gang]:
        """Return the gangs of a name, regrouped if they are stale."""
        gangs = self._gangs_of(name)
        for gang in gangs:
            self._state.regroup_if_stale(gang)
        return gangs

    def _gangs_of(self, name: NameKey) -> list[Gang]:
        return [self._state.gangs[key] for key in sorted(self._names.get(name, ()))]

    def _regroup_after(self, names: set[NameKey], old_pod: Pod | None, pod: Pod | None) -> None:
        """Regroup the gangs of these names after a change of a pod, or have them regrouped later."""
        is_present = pod is not None and pod.present
        owners = [pod_state.owner for pod_state in (old_pod, pod) if pod_state is not None]
        owner = owners[0] if owners else ""
        gang = self._find_gang_of_change(names, owner, is_present)
        if gang is None:
            self._regroup_or_defer(names, set(owners))
            return
        state, change = self._state, Change(old_pod, pod, self._count_present(gang))
        match deferral.when_to_regroup(gang, change):
            case Regroup.NOW:
                self._regroup_or_defer(names, set(owners))
            case Regroup.AFTER_SERIES:
                _regroup_later(state, gang, change)
            case Regroup.AFTER_BINDINGS:
                assert pod is not None
                bindings.note_bound(state, gang, pod.uid)
            case Regroup.WHEN_READ:
                gang.stale = True
                if not is_present and (len(self._names[gang.name]) > 1 or owner not in gang.group.owners):
                    state.regroup_soon(gang)  # owners may be assigned anew
                if gang.phase is Phase.COLLECTING:
                    # New pods need conditions. A large gang has a longer pause.
                    pause_s = max(state.settings.waiting_s, state.settings.member_s * change.present)
                    state.timers.set_earlier(gang, state.now + pause_s)

    def _is_lost(self, old_pod: Pod | None, pod: Pod, old_usage: Usage) -> bool:
        """Return whether a bound pod fails now, or is deleted while its node is gone or not ready.

        The kubelet of such a node does not end the pod. On other nodes a deleted pod keeps its place until
        the pod ends. Otherwise a user could delete a pod and get a second place while the first is still
        occupied.
        """
        if pod.finished or old_pod is None or not old_pod.present:
            return pod.finished and not pod.succeeded
        node = self._state.ledger.nodes.get(old_usage.node)
        return pod.terminating and (node is None or not node.ready)

    def _keep_place_of(self, pod: Pod | None, old_usage: Usage) -> None:
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
            reconciliation.note_lost_member(self._state, gang, pod, old_usage)
        for gang in gangs:
            reconciliation.review_losses(self._state, gang)

    def _is_short(self, gang: Gang) -> bool:
        """Return whether some members are bound, and fewer than the gang needs.

        A large gang is not regrouped, because thousands of its pods may end together.
        """
        size = self._state.roster.size(gang.name)
        if size < deferral.MANY:
            group = self._state.regroup_if_stale(gang)
            return bool(group.bound) and not group.enough_bound
        return 0 < size - len(gang.group.unbound) < gang.group.fewest_needed

    def _regroup_or_defer(self, names: set[NameKey], owners: set[str]) -> None:
        """Regroup the gangs of these names, except for names that `_try_defer_by_rate` takes."""
        self.regroup({name for name in names if not self._try_defer_by_rate(name, owners)})

    def _try_defer_by_rate(self, name: NameKey, owners: set[str]) -> bool:
        """Have the gangs of a name regrouped later, if they have many pods and were just regrouped.

        This limits the time that one name can take, however often its pods change. Return whether the gangs
        are regrouped later; until then they wait for no planner. `owners` are the owners of the pod that
        changed.
        """
        state, size = self._state, self._state.roster.size(name)
        until = self._regrouped_at.get(name, -math.inf) + deferral.REGROUP_EVERY_S * size
        if size < deferral.MANY or state.now >= until:
            return False
        later = deferral.gangs_to_regroup_later(self._gangs_of(name), owners)
        for gang in later:
            gang.stale = True
            reconciliation.note_pod_change(state, gang)
            if gang.phase is Phase.PLANNING:
                state.transition(gang, Trigger.IN_MOTION, Collecting())
            state.timers.start(gang, until, Timer.REGROUP)
        return bool(later)

    def _find_gang_of_change(self, names: set[NameKey], owner: str, stays: bool) -> Gang | None:
        """Return the gang that a change of a pod of this owner concerns.

        Return None if the change may concern several gangs, or the owners that make up a gang. `stays`: the
        pod is still present.
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
            return None  # the owner's last pod went: the gang has other owners now
        if gang.group.ambiguous and gang.phase is Phase.PLANNING:
            return None  # its pods may form two gangs
        return gang

    def _count_present(self, gang: Gang) -> int:
        """Return how many present pods have the gang's name.

        If other gangs have the name too, count only pods of this gang's owners.
        """
        size = self._state.roster.size
        if len(self._names[gang.name]) == 1:
            return size(gang.name)
        return sum(size(gang.name, owner) for owner in gang.group.owners)
