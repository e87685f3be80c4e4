"""Everything at once, in any order: a model of cluster, shim and API server around the real planner.

`World` asks the invariants after every event and call; here the cluster's own truth is asked as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.domain import allocation
from muster.domain.node import Usage
from muster.domain.pod import Pod
from muster.gangs import events
from muster.gangs.calls import BindingFate, PermitAnswer, PlanRef, StaleError
from muster.gangs.instructions import Outcome, PushVerdict
from muster.gangs.life import Phase
from tests.gangs.world import World, bound, foreign, node, pod, wishing

NODES = ("a", "b", "c")
GANGS = {"g": (2, 2), "h": (3, 2), "k": (2, 4), "e": (2, 1), "": (1, 3)}
"""Name → (members, GPUs of each). Of e, which is elastic, at least so many."""
MOST = {"e": 4}


@dataclass(frozen=True)
class Flying:
    """A Binding that the shim has sent, and the gang and index that it is of."""

    verdict: PushVerdict
    member: int
    on: str
    annotations: dict[str, str]

    @property
    def uid(self) -> str:
        return self.verdict.members[self.member][1]


class Cluster(RuleBasedStateMachine):
    """Rules are what can happen; the world's clock moves only in `wait`."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(auto=False)
        self.nodes = {name: node(name) for name in NODES[:2]}
        self.flying: list[Flying] = []
        self.serial = 0
        self.seen_verdicts = 0
        self.generations: dict[str, int] = {}

    @initialize()
    def start(self) -> None:
        self.world.start(*self.nodes.values())

    # --- the cluster --------------------------------------------------------------------------------

    @rule(gang=st.sampled_from(sorted(GANGS)), priority=st.integers(0, 1))
    def create_one(self, gang: str, priority: int) -> None:
        self.create(gang, priority)

    def create(self, gang: str, priority: int) -> None:
        members, gpus = GANGS[gang]
        there = sum(1 for p in self.world.pods.values() if p.claim and p.claim.name == gang)
        if there <= MOST.get(gang, members):
            self.serial += 1
            uid = f"{gang or 'lone'}-{self.serial}"
            made = pod(uid, gang, members, gpus, created=float(self.serial), priority=priority)
            if gang in MOST:
                made = replace(made, claim=wishing(uid, of=members, gang=gang).claim)
            self.world.see(made)

    @rule(gang=st.sampled_from(sorted(GANGS)))
    def create_all(self, gang: str) -> None:
        """A whole gang, pod by pod."""
        for _ in range(GANGS[gang][0]):
            self.create(gang, 0)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), slowly=st.booleans())
    def delete(self, data: st.DataObject, slowly: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world.pods)))
        if slowly:
            self.world.see(replace(self.world.pods[uid], terminating=True))
        else:
            self.world.gone(uid)

    @rule(name=st.sampled_from(NODES), cordoned=st.booleans())
    def node_seen(self, name: str, cordoned: bool) -> None:
        self.nodes[name] = node(name, unschedulable=cordoned)
        self.world.send(events.NodeSeen(self.world.now, self.nodes[name]))

    @rule(name=st.sampled_from(NODES))
    def node_gone(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self.world.send(events.NodeGone(self.world.now, name))

    @rule(name=st.sampled_from(NODES), gpus=st.integers(1, 2))
    def others_bind(self, name: str, gpus: int) -> None:
        """Another scheduler knows nothing of plans; what is on its way to a node it does see (nominated)."""
        lives = self.world.coordinator.lives
        sure = (
            set(lives.ledger.bound) | {flying.uid for flying in self.flying} | self.world.coordinator.orphans
        )
        for gang in lives.gangs.values():
            sure |= set(gang.awaited)
        taken = [usage for uid, usage in lives.ledger.on_node(name).items() if uid in sure]
        used = sum(usage.gpus.bit_count() + usage.unindexed_gpus for usage in taken)
        if name in self.nodes and used + gpus <= 4:
            self.serial += 1
            self.world.see(foreign(f"f-{self.serial}", name, gpus))

    # --- the planner and time -----------------------------------------------------------------------

    @precondition(lambda self: self.world.solves)
    @rule()
    def solve(self) -> None:
        self.world.solve()

    @precondition(lambda self: self.world.solves)
    @rule()
    def planner_fails(self) -> None:
        asked = self.world.solves.pop(0)
        self.world.send(events.SolveFailed(self.world.now, asked.gang, asked.generation, "defect"))

    @rule(seconds=st.sampled_from((0.5, 3.0, 10.0, 65.0, 400.0)), landed=st.booleans())
    def wait(self, seconds: float, landed: bool) -> None:
        """The shim's Bindings end long before the service gives them up."""
        while self.flying and seconds > 1:
            self._land(self.flying[0]) if landed else self.flying.pop(0)
        self.world.wait(seconds)

    @rule(steps=st.integers(1, 6))
    def as_it_should(self, steps: int) -> None:
        """What happens where nothing goes wrong, so that the rest happens in every phase."""
        for _ in range(steps):
            planned = [verdict for verdict in self._current() if self._phase(verdict) != Phase.PERMITTED]
            if self.world.solves:
                self.world.solve()
            elif planned:
                self._on(planned[0])
            elif self.flying:
                self._land(self.flying[0])

    def _on(self, verdict: PushVerdict) -> None:
        if self._phase(verdict) == Phase.PLANNED:
            self._reserve(verdict, 0, elsewhere=False)
        else:
            self._permit(verdict)

    def _phase(self, verdict: PushVerdict) -> Phase:
        return self.world.coordinator.lives.gangs[verdict.gang].phase

    # --- the shim -----------------------------------------------------------------------------------

    def _current(self) -> list[PushVerdict]:
        last = {v.gang: v for v in self.world.verdicts}
        lives = self.world.coordinator.lives
        return [
            v
            for v in last.values()
            if v.outcome is Outcome.PLANNED and v.gang in lives.gangs and lives.gangs[v.gang].holds
        ]

    @precondition(lambda self: self._current())
    @rule(data=st.data(), elsewhere=st.booleans())
    def reserve(self, data: st.DataObject, elsewhere: bool) -> None:
        verdict = data.draw(st.sampled_from(self._current()))
        self._reserve(verdict, data.draw(st.integers(0, len(verdict.members) - 1)), elsewhere)

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

    @precondition(lambda self: self._current())
    @rule(data=st.data())
    def permit(self, data: st.DataObject) -> None:
        self._permit(data.draw(st.sampled_from(self._current())))

    def _has_sent(self, verdict: PushVerdict) -> bool:
        """Past its commit barrier the shim reports a member only with its own Binding's fate."""
        return any(flying.verdict.generation == verdict.generation for flying in self.flying)

    def _permit(self, verdict: PushVerdict) -> None:
        ref = self._ref(verdict)
        try:
            answer, out = self.world.coordinator.permit(self.world.now, ref, 1)
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

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        self._land(data.draw(st.sampled_from(self.flying)))

    def _land(self, flying: Flying) -> None:
        """As the API server does it: only a pod that is there, unbound and not terminating is bound."""
        self.flying.remove(flying)
        pending = self.world.pods.get(flying.uid)
        if pending is not None and not pending.node and not pending.terminating:
            self.world.see(bound(pending, flying.on, flying.annotations))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), fate=st.sampled_from(BindingFate), landed=st.booleans())
    def binding_fails(self, data: st.DataObject, fate: BindingFate, landed: bool) -> None:
        flying = data.draw(st.sampled_from(self.flying))
        if fate is BindingFate.UNKNOWN and landed:
            self._give_back(flying.verdict, flying.member, flying.on, fate, "")
            self._land(flying)
        else:
            self.flying.remove(flying)
            self._give_back(flying.verdict, flying.member, flying.on, fate, "")

    @precondition(lambda self: self._current())
    @rule(data=st.data(), plugin=st.sampled_from(("", "VolumeBinding")))
    def give_back(self, data: st.DataObject, plugin: str) -> None:
        verdict = data.draw(st.sampled_from(self._current()))
        member = data.draw(st.integers(0, len(verdict.members) - 1))
        if not self._has_sent(verdict):
            self._give_back(
                verdict, member, data.draw(st.sampled_from(NODES)), BindingFate.NEVER_SENT, plugin
            )

    def _give_back(self, verdict: PushVerdict, member: int, on: str, fate: BindingFate, plugin: str) -> None:
        ref = self._ref(verdict)
        try:
            out = self.world.coordinator.unreserve(self.world.now, ref, member, on, fate, plugin, "no")
        except StaleError:
            return
        self.world.take(out)

    def _ref(self, verdict: PushVerdict) -> PlanRef:
        return PlanRef(self.world.epoch, verdict.gang, verdict.generation)

    # --- restarts -----------------------------------------------------------------------------------

    @rule(gang=st.sampled_from(sorted(GANGS)), steps=st.integers(0, 6), service=st.booleans())
    def restart_on_the_way(self, gang: str, steps: int, service: bool) -> None:
        self.create_all(gang)
        self.as_it_should(steps)
        self.restart(service)

    @rule(
        gang=st.sampled_from(sorted(GANGS)),
        steps=st.integers(1, 4),
        plugin=st.sampled_from(("", "NodePorts")),
    )
    def give_back_on_the_way(self, gang: str, steps: int, plugin: str) -> None:
        self.create_all(gang)
        self.as_it_should(steps)
        for verdict in self._current():
            held = self.world.coordinator.lives.ledger.held.get(verdict.members[0][1])
            if held and not self._has_sent(verdict):
                self._give_back(verdict, 0, held.node, BindingFate.NEVER_SENT, plugin)

    @rule(service=st.booleans())
    def restart(self, service: bool) -> None:
        """The shim connects again, to the same service or to a new one that knows only what it sees."""
        if service:
            self.generations_never_fall()
            self.world.restart()
            self.world.solves.clear()
            for pod_ in self.world.pods.values():
                self.world.send(events.PodSeen(self.world.now, pod_))
            self.generations.clear()
            self.world.start(*self.nodes.values(), in_flight=tuple(self._in_flight()))
        else:
            self.world.connect(tuple(self._in_flight()))

    @rule()
    def disconnect(self) -> None:
        self.world.send(events.SessionClosed(self.world.now, self.world.epoch))

    def _in_flight(self) -> Iterator[Usage]:
        for flying in self.flying:
            pending = self.world.pods.get(flying.uid)
            if pending is not None and not pending.node:
                mask = allocation.read(flying.annotations, pending.gpus) or 0
                yield Usage(flying.uid, flying.on, pending.resources, gpus=mask)

    # --- what must hold -----------------------------------------------------------------------------

    @invariant()
    def no_gpu_is_bound_twice(self) -> None:
        taken: dict[str, int] = {}
        for each in self.world.pods.values():
            if each.node and each.allocation:
                assert not taken.get(each.node, 0) & each.allocation, f"{each.uid} on {each.node}"
                taken[each.node] = taken.get(each.node, 0) | each.allocation

    @invariant()
    def generations_never_fall(self) -> None:
        for verdict in self.world.verdicts[self.seen_verdicts :]:
            assert verdict.generation >= self.generations.get(verdict.gang, 0)
            self.generations[verdict.gang] = verdict.generation
        self.seen_verdicts = len(self.world.verdicts)

    def teardown(self) -> None:
        """Left alone, nothing stays reserved and no gang stays on its way."""
        while self.flying:
            self._land(self.flying[0])
        for _ in range(8):
            while self.world.solves:
                self.world.solve()
            self.world.wait(100)
        phases = {view.phase for view in self.world.coordinator.summary()}
        assert not phases & {Phase.PERMITTED, Phase.RESERVING}


Cluster.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCluster = Cluster.TestCase


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(["g-0", "g-1", "g-2", "h-0", "h-1", "h-2"]),
    steps=st.lists(st.sampled_from(("reserve", "tick", "solve", "reconnect")), max_size=12),
    data=st.data(),
)
def test_of_two_gangs_of_which_one_fits_one_runs_whole(
    order: list[str], steps: list[str], data: st.DataObject
) -> None:
    """scheduler-plugins#114: interleaved, each must not hold half. 3 × 2 GPUs twice, on 4 + 2 + 2."""
    world = World(auto=False).start(node("a"), node("b", 2), node("c", 2))
    pods = {uid: pod(uid, uid[0], 3, 2) for uid in order}
    for uid in order:
        world.see(pods[uid])
        for step in steps[: data.draw(st.integers(0, 3))]:
            if step == "solve" and world.solves:
                world.solve()
            elif step == "reconnect":
                world.connect()
            elif step == "tick":
                world.wait(1.0)
    for _ in range(6):
        while world.solves:
            world.solve()
        for view in world.coordinator.summary():
            if view.phase is Phase.PLANNED:
                world.run(view.name)
        world.wait(5)
    views = {view.name: view for view in world.coordinator.summary()}
    assert sorted(view.bound for view in views.values()) == [0, 3]
    assert sorted(str(view.phase) for view in views.values()) == ["running", "unplaceable"]
    assert _gpus(world.pods.values()) == 6


def _gpus(pods: Iterable[Pod]) -> int:
    return sum((each.allocation or 0).bit_count() for each in pods)
