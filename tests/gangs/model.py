"""A model of cluster, shim and API server around the real coordinator and planner: anything may happen in it.

A `Chooser` says what does happen, so that hypothesis and a seeded long run share the actions (`simulate`).
`World` asks the invariants after every event and call; here the cluster's own truth is asked as well: what is
bound where, which gangs are complete, and what a planner that starts from nothing says in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from muster.domain import allocation
from muster.domain.causes.not_planned import TookTooLong
from muster.domain.clearing import NoClearing
from muster.domain.decision import Unplaceable
from muster.domain.node import Usage
from muster.domain.pod import COMPOSITE, Pod
from muster.domain.pod import NATIVE as KINDS
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import (
    BindingFate,
    Filter,
    InTreeAnswer,
    InTreeReport,
    Permit,
    PermitAnswer,
    PlanRef,
    Reserve,
    StaleError,
    Unreserve,
)
from muster.gangs.messages.instructions import AskInTree, Outcome, PushVerdict
from muster.gangs.record.gang import GangView
from muster.gangs.record.phases import Phase
from tests.gangs.native_watch import LEAVES, NATIVE, TREE, gang_around, may_start
from tests.gangs.stage import (
    GANGS,
    NODES,
    POD_GROUP,
    Broken,
    Chooser,
    First,
    Flying,
    names_native,
)
from tests.gangs.stuck_gangs import CATCHES_UP_S, fits_now, stuck_gangs
from tests.gangs.users import Users
from tests.gangs.world import bound

IN_TREE = (
    InTreeAnswer(),
    InTreeAnswer({"a": "VolumeBinding: no"}),
    InTreeAnswer({"b": "VolumeBinding: no"}, {"a": 1, "c": 1}),
    InTreeAnswer(scores={"a": 100, "c": 40}),
    InTreeAnswer({"b": "VolumeBinding: no"}, scores={"c": 7}),
    InTreeAnswer(dict.fromkeys(NODES, "VolumeBinding: no")),
    InTreeAnswer(missing_claims=("data",)),
    InTreeAnswer(everywhere="VolumeBinding: not bound"),
)
"""What in-tree plugins may answer."""


class Cluster(Users):
    """The truth, and what has been done about it. The clock moves only in `wait` and `pause`."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self.seen = 0
        self.last: dict[str, PushVerdict] = {}
        self.evicted = 0
        self.judged = 0
        self.landed: Counter[tuple[str, int]] = Counter()
        self.sent: set[PlanRef] = set()
        """Plans whose Bindings have been sent: the shim lets each member go once by each."""
        self.was_complete: set[str] = set()
        """UIDs of members that were bound at one time with as many as their gang needs."""
        self.perhaps_complete: set[str] = set()
        """Those, and members whose complete plan was bound one after another, or whose gang was completed by
        other incarnations of the name."""
        self._service_begins()

    def _service_begins(self, groups_first: bool = True) -> None:
        """It sees all that is there, PodGroups before pods or after them."""
        native = self.world.native
        native.begin()
        if groups_first:
            self._pod_groups_are_seen()
        self.world.send(inputs.PoliciesSeen(self.world.now, self.policies))
        self.jobs_say()
        for member_pod in self.world.pods.values():
            self.world.send(inputs.PodSeen(self.world.now, member_pod))
        if not groups_first:
            self._pod_groups_are_seen()
        native.reads.starts = False
        self.world.start(*self.nodes.values(), in_flight=tuple(self._in_flight()))

    def _pod_groups_are_seen(self) -> None:
        if self.pod_group is not None:
            self.world.send(inputs.PodGroupSeen(self.world.now, self.pod_group))
        self.world.native.see_groups()

    # --- the planner, time, the API server ----------------------------------------------------------

    def solve(self, choose: Chooser) -> None:
        if self.world.solves:
            self.world.solve(at=choose.of(range(len(self.world.solves))))

    def runs_out_of_time(self, choose: Chooser) -> None:
        """The foreground planner passes the gang on; the background planner is ended."""
        if self.world.solves:
            at = choose.of(range(len(self.world.solves)))
            gang = self.world.solves[at].request.gang
            self.world.solve(Unplaceable(gang, (TookTooLong(0.3),)), at)

    def planner_fails(self, choose: Chooser) -> None:
        if self.world.solves:
            solve = self.world.solves.pop(choose.of(range(len(self.world.solves))))
            self.world.send(inputs.SolveFailed(self.world.now, solve.gang, solve.generation, "defect"))

    def victims_found(self, choose: Chooser) -> None:
        """The search for victims ends with an answer, or without one."""
        if self.world.victim_questions:
            gang = self.world.victim_questions[0].request.gang
            if choose.of((True, False)):
                self.world.find_victims()
            else:
                self.world.answer_victims(choose.of((None, NoClearing(gang, proven=True))))

    def wait(self, choose: Chooser) -> None:
        self._wait(choose.of((0.1, 0.5, 3.0, 10.0, 31.0, 65.0, 400.0)), landed=choose.of((True, False)))

    def _wait(self, seconds: float, landed: bool) -> None:
        """The shim's Bindings end long before the service gives them up."""
        while self.flying and seconds > 1:
            self._land(self.flying[0]) if landed else self.flying.pop(0)
        if seconds > 1:
            self.world.native.reads.read_later()
        self.world.wait(seconds)

    def pause(self, choose: Chooser) -> None:
        """The service alone does: what happened meanwhile is seen after the Tick that was due."""
        if self.world.missed is not None:
            return
        self.world.missed = []
        while self.flying:
            self._land(self.flying[0]) if choose.of((True, False)) else self.flying.pop(0)
        self.world.now += choose.of((5.0, 60.0, 700.0))
        self.world.send(inputs.Tick(self.world.now))
        self.world.goes_on()

    def cut(self, choose: Chooser) -> None:
        if self.world.missed is None:
            self.world.missed = []
            self.world.send(inputs.WatchInterrupted(self.world.now, "pods"))

    def goes_on(self, choose: Chooser) -> None:
        if self.world.missed is not None:
            self.world.goes_on()
            self.world.send(inputs.WatchResumed(self.world.now, "pods"))
            due = self.world.coordinator.state.timers.next_at()
            if due is not None and due < self.world.now - CATCHES_UP_S:
                raise Broken("a timer is overdue after the watches are back: it will look like a standstill")

    # --- the shim -----------------------------------------------------------------------------------

    def as_it_should(self, choose: Chooser) -> None:
        """What happens where nothing goes wrong, so that the rest happens in every phase."""
        for _ in range(choose.of(range(1, 9))):
            self._next_step()

    def _next_step(self) -> bool:
        """Whether there was anything to do."""
        planned = [verdict for verdict in self._current() if self._phase(verdict) != Phase.PERMITTED]
        if self.world.solves:
            self.world.solve()
        elif self.world.victim_questions:
            self.world.answer_victims(None)
        elif planned and self._phase(planned[0]) == Phase.PLANNED:
            self._reserve(planned[0], 0, elsewhere=False)
        elif planned:
            self._permit(planned[0])
        elif self.flying:
            self._land(self.flying[0])
        else:
            return False
        return True

    def _phase(self, verdict: PushVerdict) -> Phase:
        return self.world.coordinator.state.gangs[verdict.gang].phase

    def _current(self) -> list[PushVerdict]:
        self._no_dead_plan_is_told()
        state = self.world.coordinator.state
        return [
            verdict
            for verdict in self.last.values()
            if verdict.outcome is Outcome.PLANNED
            and verdict.gang in state.gangs
            and state.gangs[verdict.gang].phase in (Phase.PLANNED, Phase.RESERVING, Phase.PERMITTED)
        ]

    def _ref(self, verdict: PushVerdict) -> PlanRef:
        return PlanRef(self.world.epoch, verdict.gang, verdict.generation)

    def reserve(self, choose: Chooser) -> None:
        if current := self._current():
            verdict = choose.of(current)
            self._reserve(verdict, choose.of(range(len(verdict.members))), elsewhere=choose.of((True, False)))

    def _reserve(self, verdict: PushVerdict, member: int, elsewhere: bool) -> None:
        ref = self._ref(verdict)
        try:
            nodes = self.world.ask(Filter(self.world.now, ref)).candidates[member]
            answer = self.world.ask(Reserve(self.world.now, ref, member, nodes[-1 if elsewhere else 0]))
        except StaleError:
            return
        if not answer.claimed and not self._has_sent(verdict):
            self._give_back(verdict, member, nodes[-1], BindingFate.NEVER_SENT, "")

    def permit(self, choose: Chooser) -> None:
        if current := self._current():
            self._permit(choose.of(current))

    def permit_too_late(self, choose: Chooser) -> None:
        """A new session opens before the answer is read: nothing is sent, and the call is stale now."""
        if current := [verdict for verdict in self._current() if not self._has_sent(verdict)]:
            verdict = choose.of(current)
            ref = self._ref(verdict)
            try:
                self.world.ask(Permit(self.world.now, ref, 1))
            except StaleError:
                return
            self.world.connect(tuple(self._in_flight()))
            try:
                self.world.ask(Permit(self.world.now, ref, 1))
            except StaleError:
                return
            raise Broken(f"{verdict.gang}: a Permit of the session before was answered")

    def _has_sent(self, verdict: PushVerdict) -> bool:
        """Past its commit barrier the shim reports a member only with its own Binding's fate."""
        return self._ref(verdict) in self.sent

    def _permit(self, verdict: PushVerdict) -> None:
        try:
            answer = self.world.ask(Permit(self.world.now, self._ref(verdict), 1))
        except StaleError:
            return
        if answer.allowed and not self._has_sent(verdict):
            self._starts_by_its_pod_group(verdict)
            self._send(verdict, answer)

    def _starts_by_its_pod_group(self, verdict: PushVerdict) -> None:
        """Pods start with as many as their PodGroup of Kubernetes says, or all groups of their tree. They
        start alone only if it is basic."""
        pods = [self.world.pods[uid] for _, uid in verdict.members if uid in self.world.pods]
        if len(pods) < len(verdict.members) and self.world.missed is not None:
            return  # the watch is cut, so the service can't know that members are gone
        natives = [member_pod for member_pod in pods if names_native(member_pod)]
        namespace, dialect, name, *_ = verdict.gang.split("/")
        if not natives:
            return
        if dialect not in KINDS:
            group = self.world.native.known_group(natives[0])
            if group is None or group.makes_gang:
                raise Broken(f"{verdict.gang} starts alone, and its PodGroup is {group}")
            return
        # the namespace may owe time for its changes, so the last change may wait
        group = self.world.coordinator.state.roster.pod_groups.get((namespace, dialect, name))
        if group is None:
            raise Broken(f"{verdict.gang} starts without its PodGroup")
        counts = Counter(_name(member_pod) for member_pod in natives)
        counts += self._counts(p for p in self.world.pods.values() if names_native(p) and p not in natives)
        if dialect == COMPOSITE:
            groups = self.world.native.groups_of(group)
            for started in {_name(member_pod) for member_pod in natives}:
                if name not in gang_around(groups, started)[-1:] or not may_start(groups, started, counts):
                    raise Broken(f"{verdict.gang}: PodGroup {started} starts, of {counts}")
            return
        members = counts[name] + sum(self.deleted[owner] for owner in {p.owner for p in natives})
        if members < (group.min_member or 1):
            raise Broken(f"{verdict.gang} starts with {members} of {group.min_member}")

    def _counts(self, pods: Iterable[Pod]) -> Counter[str]:
        """Return PodGroup → its pods that are bound or have succeeded."""
        return Counter(_name(p) for p in pods if (p.present and p.node) or p.succeeded)

    def _send(self, verdict: PushVerdict, answer: PermitAnswer) -> None:
        self.sent.add(self._ref(verdict))
        places = self.world.coordinator.state.ledger.reservations
        for member, (_, uid) in enumerate(verdict.members):
            self.flying.append(Flying(verdict, member, places[uid].node, answer.annotations[member]))

    def land(self, choose: Chooser) -> None:
        if self.flying:
            self._land(choose.of(self.flying))

    def _land(self, flying: Flying) -> None:
        """As the API server does it: only a pod that is there, unbound, unchanged and not terminating."""
        self.flying.remove(flying)
        pending = self.world.pods.get(flying.uid)
        if pending is not None and not pending.node and not pending.terminating:
            self.world.native.bindings[flying.uid] = flying.annotations
            self.world.see(bound(pending, flying.on, flying.annotations))
            gang, generation = flying.verdict.gang, flying.verdict.generation
            self.landed[gang, generation] += 1
            if self.landed[gang, generation] == len(flying.verdict.members):
                self.perhaps_complete |= {uid for _, uid in flying.verdict.members}
                names = LEAVES if _name(pending) in LEAVES else (_name(pending),)
                for name in names:
                    members = self._members().get((name, _run(pending)[1]), [])
                    self.perhaps_complete |= {member_pod.uid for member_pod in members}

    def in_tree_plugins_answer(self, choose: Chooser) -> None:
        """For any gang that was asked about, also once more: nodes refused, room, a claim that is missing."""
        if self.world.questions:
            question = choose.of(self.world.questions)
            self._answer(question, choose.of(IN_TREE), choose.of(IN_TREE))

    def _answer(self, question: AskInTree, first: InTreeAnswer, later_answer: InTreeAnswer) -> None:
        answers = (((0,), first), (tuple(range(1, len(question.pods))), later_answer))
        with suppress(StaleError):
            self.world.ask(
                InTreeReport(self.world.now, self.world.epoch, question.gang, question.question, answers)
            )

    def binding_fails(self, choose: Chooser) -> None:
        if not self.flying:
            return
        flying, fate = choose.of(self.flying), choose.of(tuple(BindingFate))
        if fate is BindingFate.UNKNOWN and choose.of((True, False)):
            self._give_back(flying.verdict, flying.member, flying.on, fate, "")
            self._land(flying)
        else:
            self.flying.remove(flying)
            self._give_back(flying.verdict, flying.member, flying.on, fate, "")

    def give_back(self, choose: Chooser) -> None:
        if current := self._current():
            verdict = choose.of(current)
            member, on = choose.of(range(len(verdict.members))), choose.of(NODES)
            if not self._has_sent(verdict):
                plugin = choose.of(("", "VolumeBinding"))
                self._give_back(verdict, member, on, BindingFate.NEVER_SENT, plugin)

    def _give_back(self, verdict: PushVerdict, member: int, on: str, fate: BindingFate, plugin: str) -> None:
        with suppress(StaleError):
            self.world.ask(Unreserve(self.world.now, self._ref(verdict), member, on, fate, plugin, "no"))

    # --- restarts -----------------------------------------------------------------------------------

    def restart_service(self, choose: Chooser) -> None:
        """A new service knows only what it sees."""
        self.restarts += 1
        self.landed.clear()  # the new service does not know what was bound before and is gone
        self.world.missed = None
        self.world.restart()
        self.world.solves.clear()
        self.world.questions.clear()
        self.last.clear()
        self._service_begins(groups_first=choose.of((True, False)))

    def restart_shim(self, choose: Chooser) -> None:
        """It connects again, or another one does."""
        self.world.connect(tuple(self._in_flight()))

    def disconnect(self, choose: Chooser) -> None:
        self.world.send(inputs.SessionClosed(self.world.now, self.world.epoch))

    def _in_flight(self) -> Iterator[Usage]:
        for flying in self.flying:
            pending = self.world.pods.get(flying.uid)
            if pending is not None and not pending.node:
                mask = allocation.read(flying.annotations, pending) or 0
                yield Usage(flying.uid, flying.on, pending.resources, gpus=mask)

    def evict(self, choose: Chooser) -> None:
        """The API server evicts what it was asked to; a controller may make new pods."""
        for eviction in self.world.evictions[self.evicted :]:
            for _, uid in eviction.pods:
                evicted = self.world.pods.get(uid)
                if evicted is not None and not evicted.terminating:
                    self.world.see(replace(evicted, terminating=True))
        self.evicted = len(self.world.evictions)

    # --- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        """After every action."""
        self._no_gpu_is_bound_twice()
        self._no_dead_plan_is_told()
        self._nobody_whole_is_evicted()
        self._what_fits_is_asked()
        for (name, _), members in self._members().items():
            if self._are_enough(name, members):
                self.was_complete |= {member_pod.uid for member_pod in members}
        for name in GANGS:
            anyhow = [p for run, pods in self._members().items() if run[0] == name for p in pods]
            if self._are_enough(name, anyhow):
                self.perhaps_complete |= {member_pod.uid for member_pod in anyhow}

    def _what_fits_is_asked(self) -> None:
        """The service can't know what it has not received yet."""
        if self.world.missed is None and (stuck := list(stuck_gangs(self.world, self.nodes.values()))):
            raise Broken("; ".join(stuck))

    def _are_enough(self, name: str, members: list[Pod]) -> bool:
        """Return whether these bound members are as many as their gang needs."""
        if name in LEAVES:
            counts = self._counts(p for p in self.world.pods.values() if names_native(p))
            return may_start(self.world.native.groups, name, counts)
        return len(members) >= self._needed(name, members)

    def _needed(self, name: str, members: list[Pod]) -> int:
        """Return how many must be bound: for a PodGroup's gang, as it states, or stated at Permit."""
        least = self._stated_minimum(name)
        if least is None:
            return GANGS[name][0]
        then = (
            member_pod.batch.needed for member_pod in members if member_pod.batch and member_pod.batch.needed
        )
        return min((least, *then))

    def _stated_minimum(self, name: str) -> int | None:
        """Return how many members the gang's PodGroup states; None if no PodGroup states it."""
        if name == POD_GROUP and self.pod_group is not None:
            return self.pod_group.min_member
        if name == NATIVE and (group := self.world.native.groups.get(name)) is not None:
            return int(group.spec["schedulingPolicy"].get("gang", {"minCount": 1})["minCount"])
        return None

    def _lacks_pod_group(self, name: str) -> bool:
        """Return whether the pods of this gang wait for a PodGroup."""
        return name in (POD_GROUP, NATIVE) and self._stated_minimum(name) is None

    def _nobody_whole_is_evicted(self) -> None:
        """Where a label is edited under way, which gang was complete is not asked here."""
        if self.renamed:
            return
        for eviction in self.world.evictions[self.judged :]:
            if complete := {uid for _, uid in eviction.pods} & self.was_complete:
                raise Broken(f"{sorted(complete)} were complete and are to be evicted: {eviction.why}")
        self.judged = len(self.world.evictions)

    def _nobody_waits_for_who_succeeded(self) -> None:
        """At rest, a gang of one run does not wait for members that have succeeded and are deleted."""
        for view in self.world.coordinator.summary():
            run, *more_runs = self.world.coordinator.state.gangs[view.key].group.owners
            if run not in self.deleted or more_runs or view.phase is not Phase.COLLECTING:
                continue
            if not self._lacks_pod_group(view.name) and view.present + self.succeeded(run) >= self._needed(
                view.name, []
            ):
                raise Broken(f"{view.key} waits for members that have succeeded")

    def _groups_are_known(self) -> None:
        """At rest the service goes by the groups that exist, and by others only while pods run."""
        known_groups, groups = self.world.native.known_groups, self.world.native.groups
        if wrong := [name for name, group in groups.items() if known_groups.get(name) != group]:
            raise Broken(f"{wrong} are not known as they are")
        runs = any(names_native(p) and p.node and p.present for p in self.world.pods.values())
        if not runs and known_groups.keys() != groups.keys():
            raise Broken(f"{sorted(known_groups.keys() - groups.keys())} are gone, and count")

    def _no_gpu_is_bound_twice(self) -> None:
        masks: dict[str, int] = {}
        for bound_pod in self.world.pods.values():
            if bound_pod.node and bound_pod.allocation and not bound_pod.finished:
                if masks.get(bound_pod.node, 0) & bound_pod.allocation:
                    raise Broken(f"{bound_pod.uid} has GPUs of others on {bound_pod.node}")
                masks[bound_pod.node] = masks.get(bound_pod.node, 0) | bound_pod.allocation

    def _no_dead_plan_is_told(self) -> None:
        """A verdict is newer than the one before, which is stale from then on; and it plans only pods that
        wait."""
        for verdict in self.world.verdicts[self.seen :]:
            before = self.last.get(verdict.gang)
            if before is not None and verdict.generation < before.generation:
                raise Broken(f"{verdict.gang}: generation {verdict.generation} after {before.generation}")
            if before is not None and before.generation < verdict.generation:
                self._is_stale(before)
            self.last[verdict.gang] = verdict
        self.seen = len(self.world.verdicts)

    def _is_stale(self, verdict: PushVerdict) -> None:
        try:
            self.world.ask(Filter(self.world.now, self._ref(verdict)))
        except StaleError:
            return
        raise Broken(f"{verdict.gang}: generation {verdict.generation} is answered after a later one")

    def _members(self) -> dict[tuple[str, str], list[Pod]]:
        """Live bound members by the gang's name and run, of named gangs."""
        members_of: dict[tuple[str, str], list[Pod]] = {}
        for member_pod in self.world.pods.values():
            if member_pod.claim and member_pod.claim.name in GANGS and member_pod.node and member_pod.present:
                members_of.setdefault(_run(member_pod), []).append(member_pod)
        return members_of

    def come_to_rest(self) -> None:
        """Let all go well. In the end nothing is reserved, no gang is on its way or partially bound, and
        waiting gangs do not fit."""
        self.goes_on(First())
        if self.world.coordinator.state.epoch is None:
            self.restart_shim(First())
        for question in tuple(self.world.questions):
            self._answer(question, InTreeAnswer(), InTreeAnswer())
        self.world.native.serve()
        self.world.native.reads.read_later()
        self.jobs_say()
        end = self.world.now + 2000
        for _ in range(2000):
            if not self._next_step():
                self.check()
                self.evict(First())
                self.kubelet(First())
                if self._next_step():
                    continue
                due = self.world.coordinator.next_deadline()
                if due is None or due > end:
                    break
                self.world.wait(max(0.0, due - self.world.now))
        views = self.world.coordinator.summary()
        self._nobody_waits_for_who_succeeded()
        self._groups_are_known()
        if self.world.held():
            raise Broken(f"held for ever: {sorted(self.world.held())}")
        resting = {Phase.COLLECTING, Phase.INVALID, Phase.UNPLACEABLE, Phase.RUNNING}
        for view in views:
            if view.phase not in resting:
                raise Broken(f"{view.key} is {view.phase} for ever")
            if view.phase is Phase.UNPLACEABLE and fits_now(self.world, self.nodes.values(), view.key):
                raise Broken(f"{view.key} waits though it fits")
            if view.phase is Phase.COLLECTING and self._is_complete(view):
                raise Broken(f"{view.key} waits for nobody")
            group = self.world.coordinator.state.gangs[view.key].group
            partially_bound = 0 < view.bound < view.needed and not any(
                bound_pod.uid in self.was_complete | self.perhaps_complete for bound_pod in group.bound
            )
            if partially_bound and not (self.restarts or self.renamed):
                raise Broken(f"{view.key} is partially bound for ever: {view.bound} of {view.needed}")

    def _is_complete(self, view: GangView) -> bool:
        """Return whether a gang has as many pods as it needs, or a tree for the start of any waiting pod.

        Bound pods whose PodGroup was made anew below a parent stay in their former gang.
        """
        if view.name not in TREE:
            return view.present >= view.needed and not self._lacks_pod_group(view.name)
        group = self.world.coordinator.state.gangs[view.key].group
        counts = Counter(_name(self.world.pods[uid]) for uid in group.uids)
        waiting = {_name(self.world.pods[pod.uid]) for pod in group.unbound}
        return any(may_start(self.world.native.groups, name, counts) for name in waiting)


def _name(member_pod: Pod) -> str:
    assert member_pod.claim is not None
    return member_pod.claim.name


def _run(member_pod: Pod) -> tuple[str, str]:
    """The gang's name, and the owner where the run has but one."""
    assert member_pod.claim is not None
    return member_pod.claim.name, member_pod.owner if member_pod.owner.startswith("run-") else ""
