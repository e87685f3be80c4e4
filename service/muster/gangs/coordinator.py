"""The one object that adapters talk to: events and the shim's calls in, instructions and answers out.

It is synchronous and not thread-safe: one task owns it. Every Solve that it asks for must be answered, by
`Decided` or `SolveFailed`: there is one at a time.
"""

from __future__ import annotations

from muster.domain.decision import Placed, Unplaceable
from muster.domain.node import Node, Usage
from muster.domain.pod import Pod
from muster.domain.policies import Policies
from muster.domain.reasons import NotDecided
from muster.domain.sentences import sentence
from muster.gangs import answers, calls, events, requests
from muster.gangs.gang import Gang, GangView, Solving, usages, view
from muster.gangs.instructions import EmitEvent, EventReason, Instruction
from muster.gangs.ledger import fits
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives
from muster.gangs.roster import NameKey
from muster.gangs.settings import Settings

_DEFAULTS = Settings()


class Coordinator:
    """The life of all gangs of a cluster.

    `lives` is for tests and this package: adapters use the methods.
    """

    def __init__(self, settings: Settings = _DEFAULTS) -> None:
        self.lives = Lives(settings)
        self._in_flight: tuple[Usage, ...] = ()
        self._orphans: dict[str, float] = {}
        self._names: dict[NameKey, set[str]] = {}
        self._unlooked: set[NameKey] = set()
        self._problems: dict[str, tuple[str, ...]] = {}

    # --- events -------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[Instruction]:
        """Take an event in; what is to be done now."""
        match event:
            case events.PodSeen(now, pod):
                self._pod_seen(pod, now)
            case events.PodGone(now, uid):
                self._pod_gone(uid, now)
            case events.NodeSeen() | events.NodeGone():
                self._node_event(event)
            case events.PodGroupSeen(now, group):
                self._look(self.lives.roster.see_pod_group(group.key, group), now)
            case events.PodGroupGone(now, key):
                self._look(self.lives.roster.see_pod_group(key, None), now)
            case events.PoliciesSeen(now, policies):
                self._policies_seen(policies, now)
            case events.Decided():
                self._decided(event)
            case events.SolveFailed():
                self._solve_failed(event)
            case events.Synced(now):
                self.lives.synced = True
                self._activate(now)
            case events.SessionOpened(now, epoch, in_flight):
                self.lives.epoch = None
                self._session_over(now)
                self.lives.epoch, self._in_flight = epoch, in_flight
                self._activate(now)
            case events.SessionClosed(now, epoch) if epoch == self.lives.epoch:
                self.lives.epoch = None
                self._session_over(now)
            case events.Tick(now):
                self._tick(now)
        return self.lives.take_instructions()

    def next_deadline(self) -> float | None:
        """When the next Tick is due, on the events' clock; None when nothing waits for time alone."""
        first = self.lives.next_deadline()
        return min((when for when in (first, *self._orphans.values()) if when is not None), default=None)

    def summary(self) -> tuple[GangView, ...]:
        """All gangs, by key."""
        views = []
        for key in sorted(self.lives.gangs):
            gang = self.lives.gangs[key]
            group = self.lives.fresh(gang)
            views.append(view(gang, requests.priority(group), requests.created(group)))
        return tuple(views)

    @property
    def orphans(self) -> frozenset[str]:
        """UIDs of pods whose Bindings are under way without a gang that is known."""
        return frozenset(self._orphans)

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
        answer = answers.reserve(self.lives, now, ref, member, node)
        return answer, self.lives.take_instructions()

    def permit(
        self, now: float, ref: calls.PlanRef, wall_ns: int
    ) -> tuple[calls.PermitAnswer, list[Instruction]]:
        """Let the gang go, with what each Binding carries. `wall_ns`: nanoseconds since the epoch."""
        answer = answers.permit(self.lives, now, ref, wall_ns)
        return answer, self.lives.take_instructions()

    def unreserve(
        self,
        now: float,
        ref: calls.PlanRef,
        member: int,
        node: str,
        fate: calls.BindingFate,
        plugin: str = "",
        message: str = "",
    ) -> list[Instruction]:
        """A member does not go where it was planned."""
        answers.unreserve(self.lives, now, ref, calls.GivenBack(member, node, fate, plugin, message))
        return self.lives.take_instructions()

    # --- pods and nodes -----------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod, now: float) -> None:
        lives = self.lives
        had = lives.ledger.usage(pod.uid)
        touched = lives.ledger.bind(pod.uid, pod.usage)
        names = lives.roster.see(pod)
        if pod.uid in self._orphans and (pod.node or not pod.present):
            self._drop_orphan(pod.uid)
        if not self._quiet(names, pod.uid, lives.roster.pods.get(pod.uid, pod)):
            self._look(names, now)
        if touched:
            self._recheck(touched, now)
        if touched and had is not None:
            lives.freed()

    def _pod_gone(self, uid: str, now: float) -> None:
        lives = self.lives
        freed = lives.ledger.bind(uid, None)
        self._drop_orphan(uid)
        names = lives.roster.drop(uid)
        if not self._quiet(names, uid, None):
            self._look(names, now)
        if freed:
            lives.freed()

    def _policies_seen(self, policies: Policies, now: float) -> None:
        """Plans stay as they are; what waits is planned by what holds now."""
        self.lives.roster.policies = policies
        self.lives.ledger.set_levels(policies.levels)
        self._look(self.lives.roster.names, now)
        self.lives.freed()

    def _quiet(self, names: set[NameKey], uid: str, pod: Pod | None) -> bool:
        """Whether this change of one pod (None: it went) leaves its gang where it is, so that the group need
        not be counted now: one of thousands comes, is bound or goes."""
        keys = {key for name in names for key in self._names.get(name, ())}
        if len(names) != 1 or len(keys) != 1 or not self.lives.synced:
            return False
        gang = self.lives.gangs[next(iter(keys))]
        there = self.lives.roster.size(gang.name)
        match gang.phase:
            case Phase.COLLECTING:
                quiet = 0 < there < gang.group.needed and (pod is None or _comes_alike(pod, gang))
            case Phase.RUNNING:
                quiet = there > 0 and not gang.group.unbound and (pod is None or bool(pod.node))
            case Phase.PERMITTED:
                quiet = pod is not None and bool(pod.node) and uid in gang.awaited and len(gang.awaited) > 1
                if quiet:
                    del gang.awaited[uid]
            case _:
                quiet = False
        gang.stale |= quiet
        return quiet

    def _drop_orphan(self, uid: str) -> None:
        if self._orphans.pop(uid, None) is not None and self.lives.ledger.release((uid,)):
            self.lives.freed()

    def _look(self, names: set[NameKey], now: float) -> None:
        """Group the pods of these names again; before all is known, only note that it must be done."""
        if not self.lives.synced:
            self._unlooked |= names
            return
        for name in sorted(names):
            groups = {group.gang.key: group for group in self.lives.roster.groups(name)}
            for key in sorted(self._names.get(name, set()) - groups.keys()):
                self._orphan(self.lives.finish(self.lives.gangs[key]))
            for key, group in groups.items():
                gang = self.lives.gangs.get(key)
                if gang is not None:
                    self.lives.members_changed(gang, group, now)
                else:
                    self.lives.gangs[key] = Gang(key, name, group)
                    self.lives.settle(self.lives.gangs[key], now)
            self._names[name] = set(groups)
            if not groups:
                del self._names[name]

    def _orphan(self, awaited: dict[str, float]) -> None:
        """Bindings under way outlive their gang: until seen, gone or late they keep what they hold."""
        for uid, until in awaited.items():
            pod = self.lives.roster.pods.get(uid)
            if pod is not None and pod.present and not pod.node:
                self._orphans[uid] = until
            elif self.lives.ledger.release((uid,)):
                self.lives.freed()

    def _node_event(self, event: events.NodeSeen | events.NodeGone) -> None:
        lives = self.lives
        if isinstance(event, events.NodeSeen):
            name, changed, what = event.node.name, lives.ledger.set_node(event.node), "changed"
        else:
            name, changed, what = event.name, lives.ledger.drop_node(event.name), "is gone"
            self._problems.pop(name, None)
        if not changed:
            return
        if isinstance(event, events.NodeSeen):
            self._say_problems(event.node)
        for gang in self._planned_on(name):
            lives.withdraw(gang, Trigger.NODE_CHANGED, f"node {name} {what}", event.now)
        for gang in lives.gangs.values():
            gang.exclusions = {key: out for key, out in gang.exclusions.items() if key[1] != name}
            gang.refusals = {key: times for key, times in gang.refusals.items() if key[1] != name}
        lives.freed()

    def _say_problems(self, node: Node) -> None:
        """Say on the node what of it can't be read, once for each change of that."""
        if self.lives.active and self._problems.get(node.name, ()) != node.problems:
            self._problems[node.name] = node.problems
            if node.problems:
                message = f"used without what can't be read: {'; '.join(node.problems)}"
                self.lives.instruct(
                    EmitEvent("default", ((node.name, node.name),), EventReason.INVALID, message, "Node")
                )

    def _recheck(self, nodes: tuple[str, ...], now: float) -> None:
        """Void plans on nodes where others took what they hold, until what is left fits."""
        for name in nodes:
            for gang in self._planned_on(name):
                if gang.holds and not self.lives.bears(gang):
                    why = f"others took what it was to have on node {name}"
                    self.lives.withdraw(gang, Trigger.NODE_CHANGED, why, now)

    def _planned_on(self, node: str) -> list[Gang]:
        """The gangs with a plan on the node that is not permitted yet."""
        keys = {
            self._gang_of(uid) for uid in self.lives.ledger.on_node(node) if uid in self.lives.ledger.held
        }
        gangs = (self.lives.gangs[key] for key in sorted(keys) if key)
        return [gang for gang in gangs if gang.phase in (Phase.PLANNED, Phase.RESERVING)]

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

    # --- the planner --------------------------------------------------------------------------------

    def _asked(self, gang: str, generation: int) -> tuple[Gang, Solving] | None:
        """The gang that waits for this answer, with what was asked; None when the answer is void."""
        solving, lives = self.lives.solving, self.lives
        if solving is None or (solving.gang, solving.generation) != (gang, generation):
            return None
        lives.solving = None
        record = lives.gangs.get(gang)
        if record is None or record.generation != generation or record.phase is not Phase.PLANNING:
            return None
        return record, solving

    def _decided(self, event: events.Decided) -> None:
        found = self._asked(event.gang, event.generation)
        if found is None:
            return
        gang, solving = found
        lives, decision = self.lives, event.decision
        if isinstance(decision, Unplaceable):
            overtaken = lives.frees != solving.frees
            if overtaken and not gang.overtaken:
                lives.again(gang, Trigger.OUTDATED)
                return
            if any(isinstance(cause, NotDecided) for cause in decision.causes):
                lives.not_decided(gang, sentence(decision), event.now)
                return
            lives.nothing_fits(gang, sentence(decision))
            if overtaken:
                # Where something comes free all the time, others get their turn at the planner first.
                lives.arm(gang, event.now + lives.settings.recheck_s)
        elif {place.uid for place in decision.members} - {pod.uid for pod in gang.group.unbound}:
            lives.nothing_fits(gang, "the planner placed pods that it was not asked for, which is a defect")
        elif not lives.active or self._outdated(gang, solving, decision):
            if gang.overtaken:
                lives.pause(gang, event.now)
            else:
                lives.again(gang, Trigger.OUTDATED)
        else:
            lives.plan_made(gang, solving, decision, event)

    def _outdated(self, gang: Gang, solving: Solving, decision: Placed) -> bool:
        """Whether the cluster has changed since in what the plan stands on."""
        nodes, seen = self.lives.ledger.nodes, solving.snapshot.nodes
        if any(nodes.get(place.node) != seen[place.node].node for place in decision.members):
            return True
        pods = {pod.uid: pod for pod in gang.group.unbound}
        return not fits(self.lives.ledger.snapshot(), usages(decision, pods))

    def _solve_failed(self, event: events.SolveFailed) -> None:
        found = self._asked(event.gang, event.generation)
        if found is not None:
            text = f"the planner failed, which is a defect: {event.error}"
            self.lives.not_decided(found[0], text, event.now)

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
            self._say_problems(node)
        under_way = self._take_in_flight(now)
        for key in sorted(lives.gangs):
            gang = lives.gangs[key]
            if gang.phase is Phase.PERMITTED:
                for uid in gang.awaited.keys() - under_way:
                    gang.awaited[uid] = now + lives.settings.session_s
                lives.arm(gang, min(gang.awaited.values(), default=now))
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
            key = self._gang_of(uid)
            if key:
                lives.in_flight(lives.gangs[key], uid, now)
            else:
                self._orphans[uid] = now + lives.settings.bind_s
        return frozenset(usage.pod_uid for usage in in_flight)

    def _tick(self, now: float) -> None:
        lives = self.lives
        for uid in [uid for uid, until in self._orphans.items() if until <= now]:
            self._drop_orphan(uid)
        for gang in list(lives.due(now)):
            if gang.stale:
                self._look({gang.name}, now)
            if gang.key in lives.gangs:
                self._due(gang, now)

    def _due(self, gang: Gang, now: float) -> None:
        lives = self.lives
        match gang.phase:
            case Phase.COLLECTING:
                lives.emit(gang, EventReason.WAITING, gang.reason)
            case Phase.PLANNED | Phase.RESERVING:
                why = f"its pods were not ready to bind within {lives.settings.plan_s:g} s"
                lives.withdraw(gang, Trigger.TOO_LATE, why, now, pause=True)
            case Phase.PERMITTED:
                lives.bindings(gang, now, late=True)
            case Phase.WITHDRAWN:
                lives.settle(gang, now)
            case Phase.UNPLACEABLE:
                gang.exclusions = {key: out for key, out in gang.exclusions.items() if out.until > now}
                lives.again(gang, Trigger.FREED)
            case _:
                pass


def _comes_alike(pod: Pod, gang: Gang) -> bool:
    """Whether the pod says of its gang what one of the others says, and is no more than one more of them."""
    owners = gang.group.gang.owners
    return (
        not pod.node
        and not pod.causes
        and pod.claim in gang.group.claims
        and (pod.owner in owners or not (pod.owner or owners))
    )
