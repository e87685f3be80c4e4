"""Arrive: take in changes of pods, group the pods into gangs, and tell each gang that its members changed.

A change marks the gang's name, and all pods of the name are counted at once or later: else a gang of
thousands would be counted again for each pod that comes, is bound or goes.
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
from muster.gangs.lifecycle.state import State, Uncounted
from muster.gangs.membership.group import Group, NameKey, name_key, planning_facts
from muster.gangs.record.gang import Gang, Timer
from muster.gangs.record.phases import (
    Finished,
    GivenUp,
    Permitted,
    Phase,
    Plan,
    Planned,
    Planning,
    Reserving,
    Trigger,
)
from muster.gangs.reporting.differences import Differences


def _members_changed(state: State, gang: Gang, group: Group, changes: Uncounted) -> None:
    """Look at a gang again, because its pods changed."""
    before, gang.group = gang.group, group
    if group.bound and not before.bound and gang.phase is not Phase.PERMITTED:
        gang.was_complete &= not group.was_split_by_crash  # bound by another service, or late
    came_or_went = {pod.uid for pod in group.unbound} ^ {pod.uid for pod in before.unbound}
    if came_or_went - {pod.uid for pod in group.bound}:
        gang.arrived = (gang.arrived[0] if gang.arrived else changes.first, changes.last)
    _forget_late_bound(state, gang)
    reconciliation.note_partially_bound(state, gang)
    reconciliation.release_retained(state, gang)
    only_joined = group.only_joined(before)
    match gang.in_phase:
        case Permitted() as permitted:
            bindings.settle_bindings(state, gang, permitted)
        case _ if only_joined and len(group.unbound) == len(before.unbound):
            return  # nothing changed
        case Planning() if only_joined and group.elastic:
            return  # the planner goes on, and is asked about them later
        case Planned(plan) | Reserving(plan):
            changed = "" if before.subgroups == group.subgroups else "the levels of its PodGroup changed"
            if void := changed or _why_void(state, gang, plan):
                reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, void)
        case _:
            gang.attempts = 0
            reconciliation.reconcile(state, gang)


def _forget_late_bound(state: State, gang: Gang) -> None:
    """Stop counting members as late that were bound after they were given up."""
    if gang.late and not gang.awaited:
        gang.late = {uid for uid in gang.late if (pod := state.roster.pods.get(uid)) is None or not pod.node}
        gang.was_complete |= reconciliation.all_bound(state, gang)


def _why_void(state: State, gang: Gang, plan: Plan) -> str:
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
    """Take in a gang that is seen for the first time, or that goes on with pods of `earlier_gangs`.

    `earlier_gangs` are gangs of the same name that ended or gave pods away. What is known about them decides,
    not what the pods state.
    """
    state.gangs[gang.key] = gang
    begun = {pod.uid for pod in gang.group.bound}
    begun |= {pod.uid for pod in gang.group.unbound if pod.uid in state.orphans}
    forerunners = [before for before in earlier_gangs if begun & before.group.uids]
    _inherit(state, gang, forerunners)
    reconciliation.reconcile(state, gang)
    if forerunners:
        theirs = {uid for before in forerunners for uid in (*before.awaited, *before.elsewhere)}
        gang.elsewhere = frozenset(theirs - gang.group.uids)
        pods = (state.roster.pods.get(uid) for uid in gang.elsewhere)
        member_gone = any(pod is None or not (pod.present or pod.node) for pod in pods)
        gang.missed &= member_gone or any(before.missed or before.late for before in forerunners)


def _gang_joined(state: State, gang: Gang, group: Group, earlier_gangs: Iterable[Gang]) -> None:
    """Take in a group that may now include what is left of `earlier_gangs`, gangs of the same name.

    If one of these was complete, no member of this gang is evicted, even if this gang was given up.
    """
    bound = {pod.uid for pod in group.bound}
    # Members bound just now may not be counted yet in a permitted gang: waiting ones count too.
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


def _givers(gangs: Iterable[Gang], groups: Mapping[str, Group]) -> list[Gang]:
    """Return copies of the gangs that lose bound members to other gangs, as they were before.

    `gangs`: those of one name. `groups`: what their pods form now, by key. Gangs with Bindings under way
    are left out, because it is not known yet whether they are partially bound.
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


def _take_over_bindings(state: State, gang: Gang) -> None:
    """Wait for Bindings that may be under way of pods that are members of this gang now."""
    match gang.in_phase:
        case Planned(plan) | Reserving(plan):
            reconciliation.withdraw(state, gang, Trigger.MEMBERS_CHANGED, _why_void(state, gang, plan))
        case Permitted() | GivenUp():
            pass
        case _:
            reconciliation.reconcile(state, gang)


def _gang_gone(state: State, gang: Gang) -> None:
    """Forget a gang. Bindings that are under way outlive it.

    They keep what they hold until they are seen, gone or given up.
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
    state.go(gang, Trigger.ALL_GONE, Finished(gang.awaited))
    state.retained.release(gang, held_uids)
    del state.gangs[gang.key]
    state.queue.forget(gang)
    if (taken_back := state.in_tree.forget(gang)) is not None:
        state.publisher.instruct(taken_back)


MANY = 64
"""Pods of one name from which on its gangs are not counted for each change: that takes 5 to 20 µs a pod."""
COUNT_EVERY_S = 0.0005
"""They are counted once in this time for each pod: a gang of 4,000 once in 2 s."""
_COUNT_RARELY_EVERY_S = 0.005
"""The same while members are missing: had it been counted just now, its last pod would wait."""
_COUNT_JOB_EVERY_S = 0.002
"""The gangs of a Job whose pods name many are counted once in this time for each of them."""
GROUPS_AHEAD_S = 5.0
"""A change of a PodGroup costs its namespace COUNT_EVERY_S for each pod that names the PodGroup, and for
_MORE_PODS. A namespace that owes more than this has the last change of each PodGroup wait."""
_MORE_PODS = 4

GROUPED_AT_ONCE = 128
"""Pods that are grouped again for one input when a change concerns all: about 10 ms."""


class Pods:
    """Handle changes of pods, and group them into gangs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.differences = Differences(state.publisher, state.ledger)
        self._names: dict[NameKey, set[str]] = {}
        """Name → keys of the gangs that have it."""
        self._counted: dict[NameKey, float] = {}
        """Name → when its pods were grouped last."""
        self._groups: dict[str, dict[PodGroupKey, PodGroup | None]] = {}
        """Namespace → PodGroups whose last change waits; None if it is gone."""
        self._rate = Rate(GROUPS_AHEAD_S, clock=lambda: state.now)

    def seen(self, pod: Pod) -> tuple[str, ...]:
        """Take in a pod's new state. Return the nodes on which usage changed."""
        state = self._state
        self.differences.see(pod)
        had = state.ledger.bound.get(pod.uid)
        touched = state.ledger.see(pod)
        before = state.roster.pods.get(pod.uid)
        names = state.roster.see(pod)
        if pod.uid in state.orphans and (pod.node or not pod.present):
            reconciliation.drop_orphan(state, pod.uid)
        after = state.roster.pods.get(pod.uid, pod)
        self._mark(names, before, after)
        self._count_within(state.settings.settle_s, state.roster.begun)
        state.roster.begun.clear()
        if had is not None and self._is_lost(before, pod, had):
            self._lost(before, had)
        return touched

    def gone(self, uid: str) -> None:
        """Forget a pod that is gone."""
        state = self._state
        self.differences.forget(uid)
        had = state.ledger.bound.get(uid)
        state.ledger.forget(uid)
        reconciliation.drop_orphan(state, uid)
        before = state.roster.pods.get(uid)
        names = state.roster.drop(uid)
        self._mark(names, before, None)
        if had is not None:
            self._lost(before, had)
        else:
            planning.try_full_nodes(state)

    def claim_seen(self, claim: DeviceClaim) -> tuple[str, ...]:
        """Take in which devices a ResourceClaim holds. Return the nodes on which that changed."""
        before = self._state.ledger.device_claims.consumers_of(claim.uid)
        touched = self._state.ledger.see_claim(claim)
        self.differences.claims_changed({*before, *claim.consumers})
        return touched

    def group_seen(self, key: PodGroupKey, group: PodGroup | None) -> None:
        """Take in a PodGroup's new state, now or later; None if it is gone."""
        synced = self._state.synced  # before, pods are not grouped, so a change costs nothing
        pod_count, waiting = self._state.roster.naming(key), self._groups.pop(key[0], {})
        later = synced and bool(pod_count) and self._state.now < self._rate.due(key[0])
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
        """Have the names counted that are due, and take in a change of a PodGroup: one, since it may take
        long."""
        state = self._state
        due = (name for name, changes in state.uncounted.items() if changes.count_at <= state.now)
        state.to_group |= dict.fromkeys(due)
        namespace = min(self._groups, key=self._rate.due, default="")
        if namespace and self._rate.due(namespace) <= self._state.now:
            key, group = next(iter(self._groups[namespace].items()))
            self.group_seen(key, group)

    def next_deadline(self) -> float | None:
        """Return when `tick` is due, in seconds of the inputs' clock; None if it is not."""
        counts = (changes.count_at for changes in self._state.uncounted.values())
        return min((*counts, *map(self._rate.due, self._groups)), default=None)

    def job_seen(self, uid: str, succeeded: int) -> None:
        """Take in how many pods of a Job have succeeded."""
        names = self._state.roster.see_succeeded(uid, succeeded)
        if len(names) <= MANY or not self._state.synced:
            self._mark(names, None, None)
            return
        self._count_within(_COUNT_JOB_EVERY_S * len(names), names)

    def policies_changed(self, policies: Policies) -> None:
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
        now = self._state.now
        for name in sorted(names):
            groups = {group.gang.key: group for group in self._state.roster.groups(name)}
            self._state.members_counted += self._state.roster.size(name)
            self._state.roster.touched.add(name[:3])
            changes = self._state.uncounted.pop(name, Uncounted(now, now, now))
            old_gangs = self.gangs_named(name)
            gave = _givers(old_gangs, groups)
            ended = [gang for gang in old_gangs if gang.key not in groups]
            for gang in ended:
                _gang_gone(self._state, gang)
            for key, group in groups.items():
                before = [*ended, *(giver for giver in gave if giver.key != key)]
                if key in self._state.gangs:
                    _gang_joined(self._state, self._state.gangs[key], group, before)
                    _members_changed(self._state, self._state.gangs[key], group, changes)
                else:
                    gang = Gang(key, name, group, was_complete=not group.was_split_by_crash)
                    gang.arrived = (changes.first, changes.last)
                    _gang_appeared(self._state, gang, before)
            self._names[name] = set(groups)
            self._counted[name] = now
            if not groups:
                del self._names[name], self._counted[name]
        for key in sorted(set(self.gangs_of(self._state.orphans).values())):
            _take_over_bindings(self._state, self._state.gangs[key])

    def catch_up(self) -> None:
        """Group the pods of some of the names that are to be grouped again."""
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

        Several gangs may have one name. Their members are gone through once, not for each UID.
        """
        key_by_uid: dict[str, str] = {}
        of_name: dict[NameKey, dict[str, str]] = {}
        for uid in uids:
            name = self._name_of(uid)
            keys = self._names.get(name, set())
            if len(keys) == 1:
                key_by_uid[uid] = next(iter(keys))
            elif keys and name not in of_name:
                gangs = self.gangs_named(name)
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

    def count(self, key: str) -> None:
        """Count a gang now if its pods have changed."""
        gang = self._state.gangs.get(key)
        if gang is not None and gang.name in self._state.uncounted:
            self.regroup({gang.name})

    def gangs_named(self, name: NameKey) -> list[Gang]:
        """Return the gangs of a name."""
        return [self._state.gangs[key] for key in sorted(self._names.get(name, ()))]

    def _mark(self, names: set[NameKey], before: Pod | None, after: Pod | None) -> None:
        """Take in that a pod of these names changed. Their gangs are counted now or later."""
        uncounted, now = self._state.uncounted, self._state.now
        if self._state.synced:
            for name in names:
                first = uncounted[name].first if name in uncounted else now
                uncounted[name] = Uncounted(first, now, self._count_at(name, before, after, first))
            names = {name for name in names if uncounted[name].count_at <= now}
        self.regroup(names)

    def _count_within(self, seconds: float, names: Iterable[NameKey]) -> None:
        """Have the gangs of these names counted after this time, or earlier."""
        now = self._state.now
        for name in names:
            self._state.uncounted.setdefault(name, Uncounted(now, now, now + seconds))

    def _is_lost(self, before: Pod | None, pod: Pod, had: Usage) -> bool:
        """Return whether a bound pod fails now, or is deleted while its node is gone or not ready.

        The kubelet of such a node does not end the pod. On other nodes a deleted pod has its place until it
        ends, and its user must have no turn for a second place meanwhile.
        """
        if pod.finished or before is None or not before.present:
            return pod.finished and not pod.succeeded
        node = self._state.ledger.nodes.get(had.node)
        return pod.terminating and (node is None or not node.ready)

    def _lost(self, pod: Pod | None, had: Usage) -> None:
        """Keep what a pod had that failed or is gone, if a running gang needs it."""
        if pod is None or pod.claim is None or pod.claim.lone:
            return
        name = name_key(pod)
        if name in self._state.uncounted and self._state.roster.size(name) < MANY:
            self.regroup({name})
        gangs = self.gangs_named(name)
        short = [gang for gang in gangs if gang.was_complete and self._is_short(gang)]
        gang = next((gang for gang in short if pod.owner in gang.group.owners), next(iter(short), None))
        if gang is not None and self._state.synced:
            reconciliation.member_lost(self._state, gang, pod, had)
        for gang in gangs:
            reconciliation.review_losses(self._state, gang)

    def _is_short(self, gang: Gang) -> bool:
        """Return whether fewer members than the gang needs are bound, and some are.

        Of a large gang only the numbers are looked at, so that its end does not take long.
        """
        size = self._state.roster.size(gang.name)
        if size < MANY:
            return bool(gang.group.bound) and not gang.group.enough_bound
        return 0 < size - len(gang.group.unbound) < gang.group.least

    def _count_at(self, name: NameKey, before: Pod | None, after: Pod | None, first: float) -> float:
        """Return when to count the gangs of a name after a change of one pod. `first`: when its pods first
        changed since the last count.

        A gang that holds a plan, or has enough bound members for the first time, is counted at once. Pods of
        a gang that follow one another are counted together. So a name has a small share of the service's
        time, whatever changes and however often.
        """
        roster, now = self._state.roster, self._state.now
        size, gangs = roster.size(name), self.gangs_named(name)
        owners = {pod.owner for pod in (before, after) if pod is not None}
        concerned = [gang for gang in gangs if owners & gang.group.owners]
        for gang in concerned:
            whose = gang.group.owners if len(gangs) > 1 else (None,)
            completes = not gang.was_complete and roster.bound(name, whose) >= gang.group.least
            if completes or gang.phase in (Phase.PLANNED, Phase.RESERVING):
                return now
        count_at = self._counted.get(name, -math.inf) + COUNT_EVERY_S * size if size >= MANY else now
        waits = after is not None and after.present and not after.node
        if not size or not all(roster.size(name, owner) for owner in owners):
            return max(count_at, now)  # an owner's last pod: the gang has another identity now
        free = not any(pod is not None and pod.node for pod in (before, after))
        quiet = [self._quiet_at(gang, waits, free, first) for gang in concerned or gangs]
        return max(count_at, min(quiet, default=now))

    def _quiet_at(self, gang: Gang, waits: bool, free: bool, first: float) -> float:
        """Return when no more pods of the gang are expected to change just now; now if none are.

        A pod changed that `waits` now or does not. `free`: it was not bound before either.
        """
        state, group, follow = self._state, gang.group, False
        size, settled = state.roster.size(gang.name), state.settings.settled((first, state.now))
        match gang.phase:
            case Phase.INVALID:
                follow = free
            case Phase.COLLECTING if group.waits_for is not None:
                follow = size < group.needed
                if size >= MANY:
                    settled = max(settled, first + _COUNT_RARELY_EVERY_S * size)
            case Phase.PERMITTED:
                follow = not waits and state.roster.waits(gang.name)
            case Phase.RUNNING if not waits:
                follow = True
            case Phase.COLLECTING | Phase.RUNNING | Phase.UNPLACEABLE | Phase.WITHDRAWN:
                follow = group.elastic and size != group.size
            case _:
                pass
        return settled if follow else state.now
