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
from muster.gangs import answers, calls, deadlines, decisions, events, requests
from muster.gangs.gang import Gang, GangView, view
from muster.gangs.halves import givers, was_split
from muster.gangs.instructions import Instruction
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives
from muster.gangs.nodes import Nodes
from muster.gangs.quiet import Change
from muster.gangs.roster import NameKey
from muster.gangs.settings import Settings
from muster.gangs.status import Statuses

_DEFAULTS = Settings()
_STOOD_STILL_S = 2.0
"""A Tick that comes so much too late: the process stood still, and has not seen yet what happened."""


class Coordinator:
    """The life of all gangs of a cluster.

    `lives` is for tests and this package: adapters use the methods.
    """

    def __init__(self, settings: Settings = _DEFAULTS) -> None:
        self.lives = Lives(settings)
        self._in_flight: tuple[Usage, ...] = ()
        self._silent: dict[str, float] = {}
        self._names: dict[NameKey, set[str]] = {}
        self._unlooked: set[NameKey] = set()
        self._nodes = Nodes(self.lives, self._gang_of)
        self._statuses = Statuses(settings, self.lives.roster, self._gangs_named)

    # --- events -------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[Instruction]:
        """Take an event in; what is to be done now."""
        self.lives.now = event.now
        match event:
            case events.Decided():
                decisions.decided(self.lives, event)
            case events.SolveFailed():
                decisions.solve_failed(self.lives, event)
            case events.Synced(now):
                self.lives.synced = True
                self._activate(now)
            case events.SessionOpened(now, epoch, in_flight, answers_in_tree):
                self.lives.epoch = None
                self.lives.in_tree.begin(answers_in_tree)
                self._session_over(now)
                self.lives.epoch, self._in_flight = epoch, in_flight
                self._activate(now)
            case events.SessionClosed(now, epoch) if epoch == self.lives.epoch:
                self.lives.epoch = None
                self._session_over(now)
            case events.WatchSilent(now, resource):
                self._silent.setdefault(resource, now)
                self.lives.silent = True
                self.lives.alarms.stand_still()
            case events.WatchHeard(now, resource) if resource in self._silent:
                self._heard(resource, now)
            case events.Tick(now):
                self._tick(now)
            case _:
                self._cluster_changed(event)
        return self._told(event.now)

    def _told(self, now: float) -> list[Instruction]:
        """What is to be done now."""
        for write in self._statuses.heard(now, self.lives.active):
            self.lives.voice.instruct(write)
        return self.lives.take_instructions()

    def _cluster_changed(self, event: events.Event) -> None:
        match event:
            case events.PodSeen(now, pod):
                self._pod_seen(pod, now)
            case events.PodGone(now, uid):
                self._pod_gone(uid, now)
            case events.NodeSeen() | events.NodeGone():
                self._nodes.changed(event)
            case events.PodGroupSeen(now, group):
                self._look(self.lives.roster.see_pod_group(group.key, group), now)
                self._statuses.shows(group, now)
            case events.PodGroupGone(now, key):
                self._look(self.lives.roster.see_pod_group(key, None), now)
            case events.NamespaceSeen(_, name, labels):
                self.lives.ledger.neighbours.see_namespace(name, labels)
            case events.NamespaceGone(_, name):
                self.lives.ledger.neighbours.see_namespace(name, None)
            case events.VolumeClaimSeen(_, namespace, name, attaches_once):
                self.lives.ledger.neighbours.see_claim(namespace, name, attaches_once)
            case events.PoliciesSeen(now, policies):
                self._policies_seen(policies, now)

    def next_deadline(self) -> float | None:
        """When the next Tick is due, on the events' clock; None when nothing waits for time alone."""
        if self.lives.silent:
            return None
        lives = self.lives
        found = (
            lives.alarms.next(),
            lives.backlog.update_at,
            lives.turns.ends_at if lives.backlog.waiting else None,
            lives.earmarks.next_at(),
            lives.now if lives.to_wake else None,
            self._statuses.next_deadline(),
            *lives.orphans.values(),
        )
        return min((when for when in found if when is not None), default=None)

    def keys(self) -> list[str]:
        """The keys of all gangs, in order."""
        return sorted(self.lives.gangs)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """How many gangs there are by phase, and by the queue of their PodGroup where they have one."""
        phases, queues = Counter[str](), Counter[str]()
        for gang in self.lives.gangs.values():
            phases[gang.phase.value] += 1
            if gang.group.pod_group is not None and gang.group.pod_group.queue:
                queues[gang.group.pod_group.queue] += 1
        return phases, queues

    def summary(self, keys: Iterable[str] | None = None) -> tuple[GangView, ...]:
        """The gangs of these keys, without those that are gone; all gangs, by key, where none are named. To
        look changes nothing: no alarm is set."""
        views = []
        for key in self.keys() if keys is None else keys:
            gang = self.lives.gangs.get(key)
            if gang is None:
                continue
            group = self.lives.counted(gang) or gang.group
            views.append(view(gang, requests.priority(group), requests.created(group)))
        return tuple(views)

    @property
    def orphans(self) -> frozenset[str]:
        """UIDs of pods whose Bindings are under way without a gang that is known."""
        return frozenset(self.lives.orphans)

    def evicts(self, uid: str) -> bool:
        """Whether the pod is still to be evicted: a gang that was given up may be made whole after all, in a
        session of another service or in one that begins anew."""
        given_up = (gang for gang in self.lives.gangs.values() if gang.phase is Phase.GIVEN_UP)
        return self.lives.active and any(uid in gang.evicting for gang in given_up)

    # --- the shim's calls ---------------------------------------------------------------------------

    def filter(self, ref: calls.PlanRef) -> calls.FilterAnswer:
        """Where each member may go, or why none.

        Raises:
            StaleError: epoch or generation is not current (so for all calls).
        """
        return answers.filter_(self.lives, ref)

    def score(self, ref: calls.PlanRef) -> calls.ScoreAnswer:
        """Scores of the nodes that `filter` gives."""
        return answers.score(self.lives, ref)

    def reserve(
        self, now: float, ref: calls.PlanRef, member: int, node: str
    ) -> tuple[calls.ReserveAnswer, list[Instruction]]:
        """Claim the plan for a member on a node."""
        self.lives.now = now
        answer = answers.reserve(self.lives, now, ref, member, node)
        return answer, self._told(now)

    def permit(
        self, now: float, ref: calls.PlanRef, wall_ns: int
    ) -> tuple[calls.PermitAnswer, list[Instruction]]:
        """Let the gang go, with what each Binding carries. `wall_ns`: nanoseconds since the epoch."""
        self.lives.now = now
        answer = answers.permit(self.lives, now, ref, wall_ns)
        return answer, self._told(now)

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
        self.lives.now = now
        answers.unreserve(self.lives, now, ref, calls.GivenBack(member, node, fate, plugin, message, uid))
        return self._told(now)

    def report_in_tree(self, now: float, report: calls.InTreeReport) -> list[Instruction]:
        """Take in what in-tree plugins answer for a gang's pods.

        Raises:
            StaleError: the report's epoch or question is not the current one.
        """
        self.lives.now = now
        answers.in_tree(self.lives, report)
        return self._told(now)

    # --- pods and nodes -----------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod, now: float) -> None:
        lives = self.lives
        touched = lives.ledger.see(pod)
        before = lives.roster.pods.get(pod.uid)
        names = lives.roster.see(pod)
        if pod.uid in lives.orphans and (pod.node or not pod.present):
            self.lives.drop_orphan(pod.uid)
        if not self._quiet(names, before, lives.roster.pods.get(pod.uid, pod), now):
            self._look(names, now)
        for name in lives.roster.take_begun():
            for gang in self._gangs_of(name):
                gang.stale = True
                lives.count_soon(gang, now)
        if touched:
            self._nodes.taken_on(touched, now)

    def _pod_gone(self, uid: str, now: float) -> None:
        lives = self.lives
        lives.ledger.forget(uid)
        self.lives.drop_orphan(uid)
        before = lives.roster.pods.get(uid)
        names = lives.roster.drop(uid)
        if not self._quiet(names, before, None, now):
            self._look(names, now)

    def _policies_seen(self, policies: Policies, now: float) -> None:
        """Plans stay as they are; what waits is planned by what holds now."""
        self.lives.roster.policies = policies
        self.lives.ledger.set_policies(policies)
        self._look(self.lives.roster.names, now)
        self.lives.freed(anywhere=True)

    def _quiet(self, names: set[NameKey], before: Pod | None, pod: Pod | None, now: float) -> bool:
        """Whether this change of one pod leaves its gang where it is, so that it need not be counted now."""
        roster = self.lives.roster
        owner = next((known.owner for known in (before, pod) if known is not None), "")
        gang = self._gang_touched(names, owner, stays=pod is not None and pod.present)
        if gang is None or not self.lives.synced:
            return False
        if len(gang.group.owners) > 1 and not roster.size(gang.name, owner):
            return False  # the last one of an owner: the gang has another identity now
        if gang.group.doubtful and gang.phase is Phase.PLANNING:
            return False  # it may be two
        change = Change(before, pod, self._there(gang))
        if change.is_one_of_many(gang):
            self.lives.in_motion(gang, change, now)
            return True
        if pod is not None and pod.node and pod.uid in gang.awaited and len(gang.awaited) > 1:
            self.lives.one_bound(gang, pod.uid, now)
            return True
        quiet = change.leaves_in_place(gang)
        gang.stale |= quiet
        if quiet and not (pod is not None and pod.present) and len(self._names[gang.name]) > 1:
            self.lives.count_soon(gang, now)  # other owners may be dealt to it now
        return quiet

    def _gang_touched(self, names: set[NameKey], owner: str, stays: bool) -> Gang | None:
        """The one gang that a pod of this owner bears on; None where it may bear on several at once."""
        runs = [self.lives.gangs[key] for name in names for key in self._names.get(name, ())]
        if len(runs) > 1:
            if any(gang.group.doubtful for gang in runs):
                return None  # where one goes, or comes to a run that may be two, others are dealt anew
            runs = [gang for gang in runs if owner in gang.group.owners]
            if not stays and any(gang.phase is not Phase.RUNNING for gang in runs):
                return None
        return runs[0] if len(names) == 1 and len(runs) == 1 else None

    def _there(self, gang: Gang) -> int:
        """How many present pods bear its name, and its owners where others bear it too."""
        size = self.lives.roster.size
        if len(self._names[gang.name]) == 1:
            return size(gang.name)
        return sum(size(gang.name, owner) for owner in gang.group.owners)

    def _look(self, names: set[NameKey], now: float) -> None:
        """Group the pods of these names again; before all is known, only note that it must be done."""
        if not self.lives.synced:
            self._unlooked |= names
            return
        for name in sorted(names):
            groups = {group.gang.key: group for group in self.lives.roster.groups(name)}
            known = self._gangs_of(name)
            gave = givers(known, groups)
            ended = [gang for gang in known if gang.key not in groups]
            for gang in ended:
                self.lives.finish(gang)
            for key, group in groups.items():
                before = [*ended, *(giver for giver in gave if giver.key != key)]
                if key in self.lives.gangs:
                    self.lives.joined(self.lives.gangs[key], group, before)
                    self.lives.members_changed(self.lives.gangs[key], group, now)
                else:
                    self.lives.begins(Gang(key, name, group, whole=not was_split(group)), now, before)
            self._names[name] = set(groups)
            if not groups:
                del self._names[name]
        for key in sorted({self._gang_of(uid) for uid in self.lives.orphans} & self.lives.gangs.keys()):
            self.lives.take_over(self.lives.gangs[key], now)

    def _gangs_of(self, name: NameKey) -> list[Gang]:
        return [self.lives.gangs[key] for key in sorted(self._names.get(name, ()))]

    def _gangs_named(self, name: NameKey) -> list[Gang]:
        gangs = self._gangs_of(name)
        for gang in gangs:
            self.lives.fresh(gang)
        return gangs

    def _gang_of(self, uid: str) -> str:
        pod = self.lives.roster.pods.get(uid)
        if pod is None or pod.claim is None:
            return ""
        name = (pod.namespace, pod.claim.dialect, pod.claim.name, uid if pod.claim.lone else "")
        keys = self._names.get(name, set())
        if len(keys) == 1:
            return next(iter(keys))
        for key in keys:
            if any(member.uid == uid for member in self.lives.gangs[key].group.unbound):
                return key
        return ""

    # --- sessions and time --------------------------------------------------------------------------

    def _session_over(self, now: float) -> None:
        """Drop the plans of the epoch that ended; what was permitted stays until it is seen or late."""
        for gang in list(self.lives.gangs.values()):
            if gang.phase in (Phase.PLANNED, Phase.RESERVING):
                self.lives.withdraw(gang, Trigger.SESSION_OVER, "the scheduler's session ended", now)

    def _activate(self, now: float) -> None:
        """Begin to plan, once the cluster is known and a shim listens."""
        lives = self.lives
        if lives.synced:
            names, self._unlooked = self._unlooked, set()
            self._look(names, now)
        if not lives.active:
            return
        for node in lives.ledger.nodes.values():
            self._nodes.say_problems(node)
        under_way = self._take_in_flight(now)
        for key in sorted(lives.gangs):
            gang = lives.gangs[key]
            if gang.phase is Phase.PERMITTED:
                for uid in gang.awaited.keys() - under_way:
                    gang.awaited[uid] = now + lives.settings.session_s
                lives.alarms.set(gang, min(gang.awaited.values(), default=now))
            lives.new_session(gang, now)

    def _take_in_flight(self, now: float) -> frozenset[str]:
        """Count the GPUs of the shim's Bindings under way as taken; the UIDs of all that it reported."""
        lives = self.lives
        in_flight, self._in_flight = self._in_flight, ()
        for usage in in_flight:
            uid = usage.pod_uid
            pod = lives.roster.pods.get(uid)
            if uid in lives.ledger.bound or (pod is not None and not pod.present):
                continue
            lives.ledger.hold((usage,))
            gang = lives.gangs.get(self._gang_of(uid))
            until = now + lives.settings.bind_for(gang.group.present if gang else 1)
            if gang is not None and gang.phase is not Phase.GIVEN_UP:
                lives.in_flight(gang, uid, until)
            else:
                lives.orphans[uid] = until
        under_way = frozenset(usage.pod_uid for usage in in_flight)
        for key in {self._gang_of(uid) for uid in under_way} & lives.gangs.keys():
            lives.all_in_flight(lives.gangs[key])
        return under_way

    def _heard(self, resource: str, now: float) -> None:
        """A watch goes on. What was seen late for lack of it has as much time again."""
        since = min(self._silent.values())
        del self._silent[resource]
        if not self._silent:
            self.lives.silent = False
            self.lives.move_on(now - since)
        else:
            self._silent = dict.fromkeys(self._silent, since)

    def _tick(self, now: float) -> None:
        lives = self.lives
        if lives.silent:
            return
        due = min((lives.alarms.next() or now, *lives.orphans.values()))
        if now - due > _STOOD_STILL_S:
            lives.move_on(now - due + _STOOD_STILL_S)
            return
        if lives.backlog.update_at is not None and lives.backlog.update_at <= now:
            lives.backlog.update()
        if (look_at := lives.earmarks.next_at()) is not None and look_at <= now:
            lives.earmark_due(now)
        for uid in [uid for uid, until in lives.orphans.items() if until <= now]:
            self.lives.drop_orphan(uid)
        for gang, alarm in list(lives.alarms.due(now)):
            phase = gang.phase
            if gang.stale and gang.key in lives.gangs:
                self._look({gang.name}, now)
            if gang.key in lives.gangs:
                deadlines.due(lives, gang, alarm, now, same=gang.phase is phase)
