"""A model of cluster, shim and API server around the real coordinator and planner: anything may happen in it.

A `Chooser` says what does happen, so that hypothesis and a seeded long run share the actions (`simulate`).
`World` asks the invariants after every event and call; here the cluster's own truth is asked as well: what is
bound where, which gangs are whole, and what a planner that starts from nothing says in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from muster.domain import allocation
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs import events
from muster.gangs.calls import BindingFate, PermitAnswer, PlanRef, StaleError
from muster.gangs.instructions import Outcome, PushVerdict
from muster.gangs.life import Phase
from muster.gangs.settings import Settings
from tests.gangs.stage import GANGS, MOST, NODES, Broken, Chooser, Cut, First, Flying, fits_now
from tests.gangs.world import bound, foreign, node, pod, wishing


class Cluster:
    """The truth, and what has been done about it. The clock moves only in `wait`."""

    def __init__(self) -> None:
        self.world = Cut(Settings(), auto=False)
        self.nodes = {name: node(name) for name in NODES[:2]}
        self.flying: list[Flying] = []
        self.serial = 0
        self.restarts = 0
        self.seen = 0
        self.last: dict[str, PushVerdict] = {}
        self.evicted = 0
        self.landed: Counter[tuple[str, int]] = Counter()
        self.whole: set[str] = set()
        """UIDs of members of which a whole plan was bound, or as many as their gang needs."""
        self.world.start(*self.nodes.values())

    # --- users and other schedulers -----------------------------------------------------------------

    def create_one(self, choose: Chooser) -> None:
        self._create(choose.of(sorted(GANGS)), choose.of((0, 1)))

    def create_all(self, choose: Chooser) -> None:
        """A whole gang, pod by pod."""
        gang = choose.of(sorted(GANGS))
        for _ in range(GANGS[gang][0]):
            self._create(gang, 0)

    def _create(self, gang: str, priority: int) -> None:
        members, gpus = GANGS[gang]
        there = [p for p in self.world.pods.values() if p.claim and p.claim.name == gang and not p.finished]
        if len(there) > MOST.get(gang, members):
            return
        self.serial += 1
        uid = f"{gang or 'lone'}-{self.serial}"
        made = pod(uid, gang, members, gpus, created=self._clock(), priority=priority)
        if gang in MOST:
            made = replace(made, claim=wishing(uid, of=members, gang=gang).claim)
        if gang == "o":
            made = replace(made, owner="workers" if any(p.owner == "master" for p in there) else "master")
        self.world.see(made)

    def _clock(self) -> float:
        """Later with each pod."""
        return self.world.now + self.serial * 1e-6

    def delete(self, choose: Chooser) -> None:
        if self.world.pods:
            uid = choose.of(sorted(self.world.pods))
            if choose.of((True, False)):
                self.world.see(replace(self.world.pods[uid], terminating=True))
            else:
                self.world.gone(uid)

    def finish(self, choose: Chooser) -> None:
        """A bound pod ends, well or not."""
        running = sorted(p.uid for p in self.world.pods.values() if p.node and not p.finished)
        if running:
            uid = choose.of(running)
            self.world.see(replace(self.world.pods[uid], finished=True, succeeded=choose.of((True, False))))

    def rename(self, choose: Chooser) -> None:
        """A pod's gang label is edited."""
        pods = sorted(p.uid for p in self.world.pods.values() if not p.node and p.claim and not p.claim.lone)
        if pods:
            gang = choose.of(("g", "h"))
            claim = pod("x", gang, GANGS[gang][0]).claim
            self.world.see(replace(self.world.pods[choose.of(pods)], claim=claim))

    def node_seen(self, choose: Chooser) -> None:
        name = choose.of(NODES)
        self.nodes[name] = node(name, unschedulable=choose.of((False, False, True)))
        self.world.send(events.NodeSeen(self.world.now, self.nodes[name]))

    def node_gone(self, choose: Chooser) -> None:
        name = choose.of(NODES)
        if self.nodes.pop(name, None) is not None:
            self.world.send(events.NodeGone(self.world.now, name))

    def others_bind(self, choose: Chooser) -> None:
        """Another scheduler knows nothing of plans; what is on its way to a node it does see (nominated)."""
        name, gpus = choose.of(NODES), choose.of((1, 2))
        if self.world.missed is not None:
            return  # the API server is away for all
        lives = self.world.coordinator.lives
        sure = {*lives.ledger.bound, *(f.uid for f in self.flying), *self.world.coordinator.orphans}
        sure |= {p.uid for p in self.world.pods.values() if p.node}
        for gang in lives.gangs.values():
            sure |= set(gang.awaited)
        on_node = {**lives.ledger.on_node(name)}
        on_node |= {p.uid: u for p in self.world.pods.values() if (u := p.usage) and u.node == name}
        taken = [usage for uid, usage in on_node.items() if uid in sure]
        used = sum(usage.gpus.bit_count() + usage.unindexed_gpus for usage in taken)
        if name in self.nodes and used + gpus <= 4:
            self.serial += 1
            self.world.see(foreign(f"f-{self.serial}", name, gpus))

    def evict(self, choose: Chooser) -> None:
        """The API server evicts what it was asked to; a controller may make new pods."""
        for eviction in self.world.evictions[self.evicted :]:
            for _, uid in eviction.pods:
                there = self.world.pods.get(uid)
                if there is not None and not there.terminating:
                    self.world.see(replace(there, terminating=True))
        self.evicted = len(self.world.evictions)

    def kubelet(self, choose: Chooser) -> None:
        """Bound pods start, terminating ones end."""
        for each in list(self.world.pods.values()):
            if each.terminating:
                self.world.gone(each.uid)
            elif each.node and not each.started:
                self.world.see(replace(each, started=self._clock(), running=True))

    # --- the planner, time, the API server ----------------------------------------------------------

    def solve(self, choose: Chooser) -> None:
        if self.world.solves:
            self.world.solve()

    def planner_fails(self, choose: Chooser) -> None:
        if self.world.solves:
            asked = self.world.solves.pop(0)
            self.world.send(events.SolveFailed(self.world.now, asked.gang, asked.generation, "defect"))

    def wait(self, choose: Chooser) -> None:
        self._wait(choose.of((0.1, 0.5, 3.0, 10.0, 31.0, 65.0, 400.0)), landed=choose.of((True, False)))

    def _wait(self, seconds: float, landed: bool) -> None:
        """The shim's Bindings end long before the service gives them up."""
        while self.flying and seconds > 1:
            self._land(self.flying[0]) if landed else self.flying.pop(0)
        self.world.wait(seconds)

    def cut(self, choose: Chooser) -> None:
        if self.world.missed is None:
            self.world.missed = []
            self.world.send(events.WatchSilent(self.world.now, "pods"))

    def goes_on(self, choose: Chooser) -> None:
        if self.world.missed is not None:
            self.world.goes_on()
            self.world.send(events.WatchHeard(self.world.now, "pods"))

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
        return self.world.coordinator.lives.gangs[verdict.gang].phase

    def _current(self) -> list[PushVerdict]:
        self._no_dead_plan_is_told()
        lives = self.world.coordinator.lives
        return [
            said
            for said in self.last.values()
            if said.outcome is Outcome.PLANNED and said.gang in lives.gangs and lives.gangs[said.gang].holds
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
            nodes = self.world.coordinator.filter(ref).candidates[member]
            answer, out = self.world.coordinator.reserve(
                self.world.now, ref, member, nodes[-1 if elsewhere else 0]
            )
        except StaleError:
            return
        self.world.take(out)
        if not answer.claimed and not self._has_sent(verdict):
            self._give_back(verdict, member, nodes[-1], BindingFate.NEVER_SENT, "")

    def permit(self, choose: Chooser) -> None:
        if current := self._current():
            self._permit(choose.of(current))

    def _has_sent(self, verdict: PushVerdict) -> bool:
        """Past its commit barrier the shim reports a member only with its own Binding's fate."""
        return any(flying.verdict.generation == verdict.generation for flying in self.flying)

    def _permit(self, verdict: PushVerdict) -> None:
        try:
            answer, out = self.world.coordinator.permit(self.world.now, self._ref(verdict), 1)
        except StaleError:
            return
        self.world.take(out)
        if answer.allowed and not self._has_sent(verdict):
            self._send(verdict, answer)

    def _send(self, verdict: PushVerdict, answer: PermitAnswer) -> None:
        held = self.world.coordinator.lives.ledger.held
        for member, (_, uid) in enumerate(verdict.members):
            if uid in held:  # asked twice: what was sent before has landed
                self.flying.append(Flying(verdict, member, held[uid].node, answer.annotations[member]))

    def land(self, choose: Chooser) -> None:
        if self.flying:
            self._land(choose.of(self.flying))

    def _land(self, flying: Flying) -> None:
        """As the API server does it: only a pod that is there, unbound, unchanged and not terminating."""
        self.flying.remove(flying)
        pending = self.world.pods.get(flying.uid)
        if pending is not None and not pending.node and not pending.terminating:
            self.world.see(bound(pending, flying.on, flying.annotations))
            gang, generation = flying.verdict.gang, flying.verdict.generation
            self.landed[gang, generation] += 1
            if self.landed[gang, generation] == len(flying.verdict.members):
                beside = self._members().get(gang.split("/")[2], [])
                self.whole |= {*(uid for _, uid in flying.verdict.members), *(each.uid for each in beside)}

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
        try:
            out = self.world.coordinator.unreserve(
                self.world.now, self._ref(verdict), member, on, fate, plugin, "no"
            )
        except StaleError:
            return
        self.world.take(out)

    # --- restarts -----------------------------------------------------------------------------------

    def restart_service(self, choose: Chooser) -> None:
        """A new service knows only what it sees."""
        self.restarts += 1
        self.world.missed = None
        self.world.restart()
        self.world.solves.clear()
        for each in self.world.pods.values():
            self.world.send(events.PodSeen(self.world.now, each))
        self.last.clear()
        self.world.start(*self.nodes.values(), in_flight=tuple(self._in_flight()))

    def restart_shim(self, choose: Chooser) -> None:
        """It connects again, or another one does."""
        self.world.connect(tuple(self._in_flight()))

    def disconnect(self, choose: Chooser) -> None:
        self.world.send(events.SessionClosed(self.world.now, self.world.epoch))

    def _in_flight(self) -> Iterator[Usage]:
        for flying in self.flying:
            pending = self.world.pods.get(flying.uid)
            if pending is not None and not pending.node:
                mask = allocation.read(flying.annotations, pending) or 0
                yield Usage(flying.uid, flying.on, pending.resources, gpus=mask)

    # --- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        """After every action."""
        self._no_gpu_is_bound_twice()
        self._no_dead_plan_is_told()
        for name, there in self._members().items():
            if len(there) >= GANGS[name][0]:
                self.whole |= {each.uid for each in there}

    def _no_gpu_is_bound_twice(self) -> None:
        taken: dict[str, int] = {}
        for each in self.world.pods.values():
            if each.node and each.allocation and not each.finished:
                if taken.get(each.node, 0) & each.allocation:
                    raise Broken(f"{each.uid} has GPUs of others on {each.node}")
                taken[each.node] = taken.get(each.node, 0) | each.allocation

    def _no_dead_plan_is_told(self) -> None:
        """A verdict is newer than the one before, which is stale from then on; and it plans only pods that
        wait."""
        for said in self.world.verdicts[self.seen :]:
            before = self.last.get(said.gang)
            if before is not None and said.generation < before.generation:
                raise Broken(f"{said.gang}: generation {said.generation} after {before.generation}")
            if before is not None and before.generation < said.generation:
                self._is_stale(before)
            self.last[said.gang] = said
        self.seen = len(self.world.verdicts)

    def _is_stale(self, verdict: PushVerdict) -> None:
        try:
            self.world.coordinator.filter(self._ref(verdict))
        except StaleError:
            return
        raise Broken(f"{verdict.gang}: generation {verdict.generation} is answered after a later one")

    def _members(self) -> dict[str, list[Pod]]:
        """Live bound members by the gang's name, of named gangs."""
        found: dict[str, list[Pod]] = {name: [] for name in GANGS if name}
        for each in self.world.pods.values():
            if each.claim and each.claim.name in found and each.node and each.present:
                found[each.claim.name].append(each)
        return found

    def come_to_rest(self) -> None:
        """All goes well from now on. In the end nothing is reserved and no gang on its way, none is half, and
        those that wait do not fit."""
        self.goes_on(First())
        if self.world.coordinator.lives.epoch is None:
            self.restart_shim(First())
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
        if self.world.held():
            raise Broken(f"held for ever: {sorted(self.world.held())}")
        resting = {Phase.COLLECTING, Phase.INVALID, Phase.UNPLACEABLE, Phase.RUNNING}
        for view in views:
            if view.phase not in resting:
                raise Broken(f"{view.key} is {view.phase} for ever")
            if view.phase is Phase.UNPLACEABLE and fits_now(self.world, self.nodes.values(), view.key):
                raise Broken(f"{view.key} waits though it fits")
            if view.phase is Phase.COLLECTING and view.present >= view.needed:
                raise Broken(f"{view.key} waits for nobody")
            group = self.world.coordinator.lives.gangs[view.key].group
            half = 0 < view.bound < view.needed and not any(each.uid in self.whole for each in group.bound)
            if half and not self.restarts:
                raise Broken(f"{view.key} is half for ever: {view.bound} of {view.needed}")
