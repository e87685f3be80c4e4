"""The one object that adapters talk to: events and the shim's calls in, instructions and answers out.

It is synchronous and not thread-safe: one task owns it. Every Solve that it asks for must be answered, by
`Decided` or `SolveFailed`: there is one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.domain.policies import Policies
from muster.gangs.capacity import requests
from muster.gangs.lifecycle import bindings, decisions, inflight, members, planning, plans, sessions
from muster.gangs.lifecycle import shim_calls as answers
from muster.gangs.lifecycle import timeouts as deadlines
from muster.gangs.lifecycle.coalescing import Change
from muster.gangs.lifecycle.node_changes import Nodes
from muster.gangs.lifecycle.state import State
from muster.gangs.membership.roster import NameKey
from muster.gangs.messages import calls, events
from muster.gangs.messages.instructions import Instruction
from muster.gangs.messages.settings import Settings
from muster.gangs.record.gang import Gang, GangView, view
from muster.gangs.record.partial import givers, was_split_by_crash
from muster.gangs.record.phases import Phase, Trigger
from muster.gangs.reporting.podgroup_status import PodGroupStatuses

_DEFAULTS = Settings()
_STOOD_STILL_S = 2.0
"""A Tick that comes so much too late: the process stood still, and has not seen yet what happened."""


class Coordinator:
    """The life of all gangs of a cluster.

    `lives` is for tests and this package: adapters use the methods.
    """

    def __init__(self, settings: Settings = _DEFAULTS) -> None:
        self.state = State(settings)
        self._in_flight: tuple[Usage, ...] = ()
        self._interrupted: dict[str, float] = {}
        self._names: dict[NameKey, set[str]] = {}
        self._not_grouped: set[NameKey] = set()
        self._nodes = Nodes(self.state, self._gang_of)
        self._statuses = PodGroupStatuses(settings, self.state.roster, self._gangs_named)

    # --- events -------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[Instruction]:
        """Take an event in; what is to be done now."""
        self.state.now = event.now
        match event:
            case events.Decided():
                decisions.decided(self.state, event)
            case events.SolveFailed():
                decisions.solve_failed(self.state, event)
            case events.Synced(now):
                self.state.synced = True
                self._activate(now)
            case events.SessionOpened(now, epoch, in_flight, answers_in_tree):
                self.state.epoch = None
                self.state.in_tree.begin(answers_in_tree)
                self._session_over(now)
                self.state.epoch, self._in_flight = epoch, in_flight
                self._activate(now)
            case events.SessionClosed(now, epoch) if epoch == self.state.epoch:
                self.state.epoch = None
                self._session_over(now)
            case events.WatchInterrupted(now, resource):
                self._interrupted.setdefault(resource, now)
                self.state.interrupted = True
                self.state.timers.pause()
            case events.WatchResumed(now, resource) if resource in self._interrupted:
                self._watch_resumed(resource, now)
            case events.Tick(now):
                self._tick(now)
            case _:
                self._cluster_changed(event)
        return self._instructions(event.now)

    def _instructions(self, now: float) -> list[Instruction]:
        """What is to be done now."""
        for write in self._statuses.due_writes(now, self.state.active):
            self.state.publisher.instruct(write)
        return planning.take_instructions(self.state)

    def _cluster_changed(self, event: events.Event) -> None:
        match event:
            case events.PodSeen(now, pod):
                self._pod_seen(pod, now)
            case events.PodGone(now, uid):
                self._pod_gone(uid, now)
            case events.NodeSeen() | events.NodeGone():
                self._nodes.changed(event)
            case events.PodGroupSeen(now, group):
                self._regroup(self.state.roster.see_pod_group(group.key, group), now)
                self._statuses.shows(group, now)
            case events.PodGroupGone(now, key):
                self._regroup(self.state.roster.see_pod_group(key, None), now)
            case events.NamespaceSeen(_, name, labels):
                self.state.ledger.existing_pods.see_namespace(name, labels)
            case events.NamespaceGone(_, name):
                self.state.ledger.existing_pods.see_namespace(name, None)
            case events.VolumeClaimSeen(_, namespace, name, attaches_once):
                self.state.ledger.existing_pods.see_claim(namespace, name, attaches_once)
            case events.PoliciesSeen(now, policies):
                self._policies_seen(policies, now)

    def next_deadline(self) -> float | None:
        """When the next Tick is due, on the events' clock; None when nothing waits for time alone."""
        if self.state.interrupted:
            return None
        state = self.state
        found = (
            state.timers.next(),
            state.queue.update_at,
            state.planner_share.ends_at if state.queue.waiting else None,
            state.backfill.next_at(),
            state.now if state.to_wake else None,
            self._statuses.next_deadline(),
            *state.orphans.values(),
        )
        return min((when for when in found if when is not None), default=None)

    def keys(self) -> list[str]:
        """The keys of all gangs, in order."""
        return sorted(self.state.gangs)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """How many gangs there are by phase, and by the queue of their PodGroup where they have one."""
        phases, queues = Counter[str](), Counter[str]()
        for gang in self.state.gangs.values():
            phases[gang.phase.value] += 1
            if gang.group.pod_group is not None and gang.group.pod_group.queue:
                queues[gang.group.pod_group.queue] += 1
        return phases, queues

    def summary(self, keys: Iterable[str] | None = None) -> tuple[GangView, ...]:
        """The gangs of these keys, without those that are gone; all gangs, by key, where none are named. To
        look changes nothing: no timer is set."""
        views = []
        for key in self.keys() if keys is None else keys:
            gang = self.state.gangs.get(key)
            if gang is None:
                continue
            group = self.state.counted(gang) or gang.group
            views.append(view(gang, requests.priority(group), requests.created(group)))
        return tuple(views)

    @property
    def orphans(self) -> frozenset[str]:
        """UIDs of pods whose Bindings are under way without a gang that is known."""
        return frozenset(self.state.orphans)

    def evicts(self, uid: str) -> bool:
        """Whether the pod is still to be evicted: a gang that was given up may be made whole after all, in a
        session of another service or in one that begins anew."""
        given_up = (gang for gang in self.state.gangs.values() if gang.phase is Phase.GIVEN_UP)
        return self.state.active and any(uid in gang.evicting for gang in given_up)

    # --- the shim's calls ---------------------------------------------------------------------------

    def filter(self, ref: calls.PlanRef) -> calls.FilterAnswer:
        """Where each member may go, or why none.

        Raises:
            StaleError: epoch or generation is not current (so for all calls).
        """
        return answers.filter_(self.state, ref)

    def score(self, ref: calls.PlanRef) -> calls.ScoreAnswer:
        """Scores of the nodes that `filter` gives."""
        return answers.score(self.state, ref)

    def reserve(
        self, now: float, ref: calls.PlanRef, member: int, node: str
    ) -> tuple[calls.ReserveAnswer, list[Instruction]]:
        """Claim the plan for a member on a node."""
        self.state.now = now
        answer = answers.reserve(self.state, now, ref, member, node)
        return answer, self._instructions(now)

    def permit(
        self, now: float, ref: calls.PlanRef, wall_ns: int
    ) -> tuple[calls.PermitAnswer, list[Instruction]]:
        """Let the gang go, with what each Binding carries. `wall_ns`: nanoseconds since the epoch."""
        self.state.now = now
        answer = answers.permit(self.state, now, ref, wall_ns)
        return answer, self._instructions(now)

    def unreserve(
        self,
        now: float,
        ref: calls.PlanRef,
        member: int,
        node: str,
        fate: calls.BindingFate,
        plugin: str = "",
        message: str = "",
        uid: str = "",
    ) -> list[Instruction]:
        """A member does not go where it was planned."""
        self.state.now = now
        answers.unreserve(self.state, now, ref, calls.GivenBack(member, node, fate, plugin, message, uid))
        return self._instructions(now)

    def report_in_tree(self, now: float, report: calls.InTreeReport) -> list[Instruction]:
        """Take in what in-tree plugins answer for a gang's pods.

        Raises:
            StaleError: the report's epoch or question is not the current one.
        """
        self.state.now = now
        answers.in_tree(self.state, report)
        return self._instructions(now)

    # --- pods and nodes -----------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod, now: float) -> None:
        state = self.state
        touched = state.ledger.see(pod)
        before = state.roster.pods.get(pod.uid)
        names = state.roster.see(pod)
        if pod.uid in state.orphans and (pod.node or not pod.present):
            inflight.drop_orphan(self.state, pod.uid)
        if not self._coalesced(names, before, state.roster.pods.get(pod.uid, pod), now):
            self._regroup(names, now)
        for name in state.roster.take_begun():
            for gang in self._gangs_of(name):
                gang.stale = True
                members.recount_soon(state, gang, now)
        if touched:
            self._nodes.taken_on(touched, now)

    def _pod_gone(self, uid: str, now: float) -> None:
        state = self.state
        state.ledger.forget(uid)
        inflight.drop_orphan(self.state, uid)
        before = state.roster.pods.get(uid)
        names = state.roster.drop(uid)
        if not self._coalesced(names, before, None, now):
            self._regroup(names, now)

    def _policies_seen(self, policies: Policies, now: float) -> None:
        """Plans stay as they are; what waits is planned by what holds now."""
        self.state.roster.policies = policies
        self.state.ledger.set_policies(policies)
        self._regroup(self.state.roster.names, now)
        planning.capacity_freed(self.state, anywhere=True)

    def _coalesced(self, names: set[NameKey], before: Pod | None, pod: Pod | None, now: float) -> bool:
        """Whether this change of one pod leaves its gang where it is, so that it need not be counted now."""
        roster = self.state.roster
        owner = next((known.owner for known in (before, pod) if known is not None), "")
        gang = self._gang_touched(names, owner, stays=pod is not None and pod.present)
        if gang is None or not self.state.synced:
            return False
        if len(gang.group.owners) > 1 and not roster.size(gang.name, owner):
            return False  # the last one of an owner: the gang has another identity now
        if gang.group.ambiguous and gang.phase is Phase.PLANNING:
            return False  # it may be two
        change = Change(before, pod, self._present(gang))
        if change.is_one_of_many(gang):
            members.members_moving(self.state, gang, change, now)
            return True
        if pod is not None and pod.node and pod.uid in gang.awaited and len(gang.awaited) > 1:
            bindings.member_bound(self.state, gang, pod.uid, now)
            return True
        unaffected = change.leaves_in_place(gang)
        gang.stale |= unaffected
        if unaffected and not (pod is not None and pod.present) and len(self._names[gang.name]) > 1:
            members.recount_soon(self.state, gang, now)  # other owners may be dealt to it now
        return unaffected

    def _gang_touched(self, names: set[NameKey], owner: str, stays: bool) -> Gang | None:
        """The one gang that a pod of this owner bears on; None where it may bear on several at once."""
        incarnations = [self.state.gangs[key] for name in names for key in self._names.get(name, ())]
        if len(incarnations) > 1:
            if any(gang.group.ambiguous for gang in incarnations):
                return None  # where one goes, or comes to a run that may be two, others are dealt anew
            incarnations = [gang for gang in incarnations if owner in gang.group.owners]
            if not stays and any(gang.phase is not Phase.RUNNING for gang in incarnations):
                return None
        return incarnations[0] if len(names) == 1 and len(incarnations) == 1 else None

    def _present(self, gang: Gang) -> int:
        """How many present pods bear its name, and its owners where others bear it too."""
        size = self.state.roster.size
        if len(self._names[gang.name]) == 1:
            return size(gang.name)
        return sum(size(gang.name, owner) for owner in gang.group.owners)

    def _regroup(self, names: set[NameKey], now: float) -> None:
        """Group the pods of these names again; before all is known, only note that it must be done."""
        if not self.state.synced:
            self._not_grouped |= names
            return
        for name in sorted(names):
            groups = {group.gang.key: group for group in self.state.roster.groups(name)}
            known = self._gangs_of(name)
            gave = givers(known, groups)
            ended = [gang for gang in known if gang.key not in groups]
            for gang in ended:
                members.gang_gone(self.state, gang)
            for key, group in groups.items():
                before = [*ended, *(giver for giver in gave if giver.key != key)]
                if key in self.state.gangs:
                    members.gang_joined(self.state, self.state.gangs[key], group, before)
                    members.members_changed(self.state, self.state.gangs[key], group, now)
                else:
                    members.gang_appeared(
                        self.state,
                        Gang(key, name, group, was_complete=not was_split_by_crash(group)),
                        now,
                        before,
                    )
            self._names[name] = set(groups)
            if not groups:
                del self._names[name]
        for key in sorted({self._gang_of(uid) for uid in self.state.orphans} & self.state.gangs.keys()):
            members.take_over_bindings(self.state, self.state.gangs[key], now)

    def _gangs_of(self, name: NameKey) -> list[Gang]:
        return [self.state.gangs[key] for key in sorted(self._names.get(name, ()))]

    def _gangs_named(self, name: NameKey) -> list[Gang]:
        gangs = self._gangs_of(name)
        for gang in gangs:
            self.state.fresh(gang)
        return gangs

    def _gang_of(self, uid: str) -> str:
        pod = self.state.roster.pods.get(uid)
        if pod is None or pod.claim is None:
            return ""
        name = (pod.namespace, pod.claim.dialect, pod.claim.name, uid if pod.claim.lone else "")
        keys = self._names.get(name, set())
        if len(keys) == 1:
            return next(iter(keys))
        for key in keys:
            if any(member.uid == uid for member in self.state.gangs[key].group.unbound):
                return key
        return ""

    # --- sessions and time --------------------------------------------------------------------------

    def _session_over(self, now: float) -> None:
        """Drop the plans of the epoch that ended; what was permitted stays until it is seen or late."""
        for gang in list(self.state.gangs.values()):
            if gang.phase in (Phase.PLANNED, Phase.RESERVING):
                plans.withdraw(self.state, gang, Trigger.SESSION_OVER, "the scheduler's session ended", now)

    def _activate(self, now: float) -> None:
        """Begin to plan, once the cluster is known and a shim listens."""
        state = self.state
        if state.synced:
            names, self._not_grouped = self._not_grouped, set()
            self._regroup(names, now)
        if not state.active:
            return
        for node in state.ledger.nodes.values():
            self._nodes.report_problems(node)
        under_way = self._take_in_flight(now)
        for key in sorted(state.gangs):
            gang = state.gangs[key]
            if gang.phase is Phase.PERMITTED:
                for uid in gang.awaited.keys() - under_way:
                    gang.awaited[uid] = now + state.settings.session_s
                state.timers.set(gang, min(gang.awaited.values(), default=now))
            sessions.new_session(state, gang, now)

    def _take_in_flight(self, now: float) -> frozenset[str]:
        """Count the GPUs of the shim's Bindings under way as taken; the UIDs of all that it reported."""
        state = self.state
        in_flight, self._in_flight = self._in_flight, ()
        for usage in in_flight:
            uid = usage.pod_uid
            pod = state.roster.pods.get(uid)
            if uid in state.ledger.bound or (pod is not None and not pod.present):
                continue
            state.ledger.hold((usage,))
            gang = state.gangs.get(self._gang_of(uid))
            until = now + state.settings.bind_for(gang.group.present if gang else 1)
            if gang is not None and gang.phase is not Phase.GIVEN_UP:
                inflight.add_binding_in_flight(state, gang, uid, until)
            else:
                state.orphans[uid] = until
        under_way = frozenset(usage.pod_uid for usage in in_flight)
        for key in {self._gang_of(uid) for uid in under_way} & state.gangs.keys():
            inflight.all_bindings_known(state, state.gangs[key])
        return under_way

    def _watch_resumed(self, resource: str, now: float) -> None:
        """A watch goes on. What was seen late for lack of it has as much time again."""
        since = min(self._interrupted.values())
        del self._interrupted[resource]
        if not self._interrupted:
            self.state.interrupted = False
            sessions.postpone(self.state, now - since)
        else:
            self._interrupted = dict.fromkeys(self._interrupted, since)

    def _tick(self, now: float) -> None:
        state = self.state
        if state.interrupted:
            return
        due = min((state.timers.next() or now, *state.orphans.values()))
        if now - due > _STOOD_STILL_S:
            sessions.postpone(state, now - due + _STOOD_STILL_S)
            return
        if state.queue.update_at is not None and state.queue.update_at <= now:
            state.queue.update()
        if (look_at := state.backfill.next_at()) is not None and look_at <= now:
            planning.review_backfill(state, now)
        for uid in [uid for uid, until in state.orphans.items() if until <= now]:
            inflight.drop_orphan(self.state, uid)
        for gang, timer in list(state.timers.due(now)):
            phase = gang.phase
            if gang.stale and gang.key in state.gangs:
                self._regroup({gang.name}, now)
            if gang.key in state.gangs:
                deadlines.due(state, gang, timer, now, same=gang.phase is phase)
