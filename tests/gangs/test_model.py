"""Everything at once, in any order: hypothesis and a seeded generator drive the model.

`python -m tests.gangs.simulate` is the long run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster.adapters.kube.intake import Intake
from muster.domain.peers import PeerRules, PeerTerm
from muster.domain.pod import Batch, GangClaim, Pod
from muster.domain.podgroup import PodGroup
from muster.domain.quorums import Quorum
from muster.domain.request import SelectorTerm
from muster.gangs.record.phases import Phase
from tests.gangs.model import Cluster
from tests.gangs.native_watch import LEAVES, NATIVE, ROOT, group_object
from tests.gangs.simulate import ACTIONS, sequence
from tests.gangs.stage import Broken, First
from tests.gangs.world import World, foreign, node, pod

T = TypeVar("T")
BY_NAME = {action.__name__: action for action in ACTIONS}


class Drawn:
    """Choices of hypothesis, which it can make smaller."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def of(self, values: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(values))


class Machine(RuleBasedStateMachine):
    """One rule: something of what can happen happens."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()

    @rule(name=st.sampled_from(sorted(BY_NAME)), data=st.data())
    def happens(self, name: str, data: st.DataObject) -> None:
        BY_NAME[name](self.cluster, Drawn(data))

    @invariant()
    def holds(self) -> None:
        self.cluster.check()

    def teardown(self) -> None:
        self.cluster.come_to_rest()


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase


@pytest.mark.parametrize(
    "numbers", [range(50), pytest.param(range(50, 300), marks=pytest.mark.slow)], ids=str
)
def test_seeded_sequences_break_nothing(numbers: range) -> None:
    broken = [problem for number in numbers if (problem := sequence(20, number, 25)[1])]
    assert broken == []


def test_the_model_sees_a_gpu_that_is_bound_twice() -> None:
    cluster = Cluster()
    for uid in ("x", "y"):
        cluster.world.pods[uid] = pod(uid, gang="", node="a", allocation=1)
    with pytest.raises(Broken, match="y has GPUs of others on a"):
        cluster.check()


def test_the_model_sees_a_gang_that_waits_though_it_fits() -> None:
    cluster = Cluster()
    cluster.world.see(foreign("f", "a", 4), foreign("f2", "b", 4), pod("p0", gang=""))
    cluster.world.solve()
    for uid in ("f", "f2"):
        del cluster.world.pods[uid]  # the service does not see it
    with pytest.raises(Broken, match="p0 fits now, and nobody asks about it"):
        cluster.check()


def test_the_model_sees_at_once_that_a_wake_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.world.see(foreign("f", "a", 4), foreign("f2", "b", 4), pod("p0", gang=""))
    cluster.world.solve()
    cluster.check()
    monkeypatch.setattr("muster.gangs.capacity.queueing_hints.HintTable.may_fit", lambda *_: set())
    cluster.world.gone("f")
    with pytest.raises(Broken, match="p0 fits now, and nobody asks about it"):
        cluster.check()


def test_the_model_sees_that_a_change_of_other_pods_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.gangs.pending.watchers.Watchers.hints_touched_by", lambda *_: set())
    cluster = Cluster()
    web = PeerTerm("kubernetes.io/hostname", (SelectorTerm("app", "In", ("web",)),), ("ns",))
    cluster.world.see(pod("p0", gang="", peers=PeerRules(affinity=(web,))))
    cluster.world.solve()
    cluster.check()
    cluster.world.see(replace(foreign("f", "a"), labels=(("app", "web"),)))
    with pytest.raises(Broken, match="p0 fits now, and nobody asks about it"):
        cluster.check()


def test_the_model_sees_that_a_complete_gang_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.gangs.lifecycle.arrivals.PodHandler._regroup_after", lambda *_: None)
    cluster = Cluster()
    cluster.world.see(pod("p0", "g"), pod("p1", "g"))
    with pytest.raises(Broken, match="g is complete, and not known"):
        cluster.check()


def test_the_model_sees_that_the_planner_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "muster.gangs.pending.scheduling_queue.SchedulingQueue.pop_next", lambda *_, **__: None
    )
    cluster = Cluster()
    cluster.world.see(pod("p0", gang=""))
    with pytest.raises(Broken, match="the foreground planner is asked about nothing"):
        cluster.check()


def test_the_model_sees_a_partially_bound_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.gangs.record.gang.Gang.is_partially_bound", False)  # else the invariants do
    cluster = Cluster()
    cluster.world.see(pod("p0", "g"), pod("p1", "g"))
    cluster.world.auto = True
    cluster.world.solve()
    cluster.world.reserve()
    cluster.world.bind(cluster.world.permit(), [0])
    cluster.world.gone("p1")
    with pytest.raises(Broken, match="g is partially bound for ever: 1 of 2"):
        cluster.come_to_rest()


@pytest.mark.parametrize(("says", "complete"), [(2, True), (3, False)])
def test_the_model_asks_the_pod_group_whether_its_gang_was_complete(says: int, complete: bool) -> None:
    cluster = Cluster()
    cluster.pod_group = PodGroup("ns", "kai", "p", "u", min_member=says)
    claim = GangClaim("kai", "p", by_object=True)
    for uid in ("p0", "p1"):
        cluster.world.pods[uid] = pod(uid, claim=claim, node="a", batch=Batch(says, 0, 0.0))
    cluster.check()
    assert cluster.was_complete == ({"p0", "p1"} if complete else set())


@pytest.mark.parametrize(("succeeded", "counted"), [(True, 1), (False, 0)])
def test_a_job_of_the_model_counts_each_succeeded_pod_once(succeeded: bool, counted: int) -> None:
    """Its pod is deleted when the Job has counted it; a pod that has failed does not succeed later."""
    cluster = Cluster()
    cluster.world.see(pod("p0", owner="run-1", node="a", finished=True, succeeded=succeeded))
    cluster.lose_after_success(First())
    assert cluster.world.coordinator.state.roster._succeeded.get("run-1", 0) == counted
    cluster.jobs_say()
    assert cluster.world.coordinator.state.roster._succeeded.get("run-1", 0) == counted


def test_the_model_sees_a_pod_that_starts_alone_though_its_pod_group_makes_a_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(Intake, "_join_gang", nothing)
    cluster = Cluster()
    native = cluster.world.native
    native.make(group_object("old", {"basic": {}}, ""))
    for _ in range(3):
        cluster._create(NATIVE, 0, PeerRules())
    native.make(group_object("new", {"gang": {"minCount": 3}}, ""))
    with pytest.raises(Broken, match="starts alone"):
        list(iter(cluster._next_step, False))


def test_the_model_sees_a_tree_that_starts_with_too_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.dialects.gangs.forest.Quorum", lambda _, parts: Quorum(1, parts))
    cluster = Cluster()
    native = cluster.world.native
    native.make(group_object("root", {"gang": {"minGroupCount": 2}}, "", ROOT))
    for name in LEAVES[:2]:
        native.make(group_object(name, {"gang": {"minCount": 2}}, "", name, ROOT))
    for _ in range(2):
        cluster._create(LEAVES[0], 0, PeerRules())
    with pytest.raises(Broken, match="PodGroup t1 starts, of"):
        cluster.come_to_rest()


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(["g-0", "g-1", "g-2", "h-0", "h-1", "h-2"]),
    steps=st.lists(st.sampled_from(("reserve", "tick", "solve", "reconnect")), max_size=12),
    data=st.data(),
)
def test_one_of_two_gangs_runs_complete_if_one_fits(
    order: list[str], steps: list[str], data: st.DataObject
) -> None:
    """scheduler-plugins#114: interleaved, neither may hold a part. 3 × 2 GPUs twice, on 4 + 2 + 2."""
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
    return sum((member.allocation or 0).bit_count() for member in pods)
