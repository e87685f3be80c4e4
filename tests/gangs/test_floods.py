"""What costs nothing: pods that come and go by the thousand, changes that can't help, numbers that move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.causes.ill_formed import BadValue
from muster.domain.node import Resources
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.request import NodeRules
from muster.gangs.capacity.queueing_hints import HintTable, QueueingHint
from muster.gangs.lifecycle.deferral import MANY, REGROUP_EVERY_S
from muster.gangs.membership.group import Group, NameKey
from muster.gangs.messages import inputs
from muster.gangs.messages.settings import GangSettings
from tests.gangs.world import World, foreign, node, pod, with_topology


def let_through(world: World) -> list[int]:
    """How many members each verdict lets through."""
    return [len(verdict.members) for verdict in world.verdicts]


def stream(world: World, pods: list[Pod], every_s: float = 0.01) -> None:
    """Pods that come one after another, with the Ticks that are due."""
    for arrival in pods:
        world.see(arrival)
        world.wait(every_s)


def counting(world: World, monkeypatch: pytest.MonkeyPatch) -> list[NameKey]:
    """Every time that the pods of a name are grouped from now on."""
    counted: list[NameKey] = []
    groups = world.coordinator.state.roster.groups

    def count(key: NameKey) -> list[Group]:
        counted.append(key)
        return groups(key)

    monkeypatch.setattr(world.coordinator.state.roster, "groups", count)
    return counted


# --- pods that come and go ------------------------------------------------------------------------------


def test_an_ill_formed_gang_that_arrives_pod_by_pod_is_refused_a_few_times() -> None:
    world = World(GangSettings()).start(node("a"))
    stream(world, [with_topology(f"p{i}", of=None) for i in range(200)])
    world.wait(3)
    assert world.phase() == "invalid"
    assert len(world.verdicts) <= 4
    assert len(world.verdict().members) == 200
    assert len({verdict.generation for verdict in world.verdicts}) == 1  # each pod fails once


def test_of_a_refused_gang_only_new_members_are_told() -> None:
    world = World().start(node("a", gpus=1))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    assert world.phase() == "unplaceable"
    first = world.verdict()
    world.see(with_topology("p2", of=2))
    again = world.verdict()
    assert (again.generation, again.reason) == (first.generation, first.reason)
    assert [name for name, _ in again.members] == ["p0", "p1", "p2"]
    pushed = len(world.verdicts)
    world.gone("p2")
    assert len(world.verdicts) == pushed
    assert world.reasons() == ["Unplaceable"]


@pytest.mark.parametrize("of", [4, None], ids=["elastic", "without a count"])
def test_thousands_that_come_and_go_are_counted_a_few_times(
    of: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(GangSettings(), auto=False).start(node("a"))
    counted = counting(world, monkeypatch)
    pods = [with_topology(f"p{i}", of=of) for i in range(1000)]
    for member in pods:
        world.see(member)
    world.wait(5)
    assert len(counted) < 10
    if of:
        assert world.solves[-1].request.size == 1000
    del counted[:]
    for member in pods[1:]:
        world.gone(member.uid)
    world.wait(5)
    assert len(counted) < 10
    assert world.phase() == ("collecting" if of else "invalid")


def test_an_ill_formed_gang_that_arrives_slowly_is_counted_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(GangSettings()).start(node("a"))
    counted = counting(world, monkeypatch)
    stream(world, [with_topology(f"p{i}", of=None) for i in range(200)], every_s=0.1)
    assert len(counted) < 10


def test_pods_of_thousands_of_owners_are_counted_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each member is a Job of its own."""
    world = World(GangSettings(), auto=False).start(node("a"))
    counted = counting(world, monkeypatch)
    for number in range(200):
        world.see(pod(f"p{number}", of=200, owner=f"o{number}"))
    world.wait(REGROUP_EVERY_S * 200)
    assert len(counted) <= 5
    assert [solve.request.size for solve in world.solves] == [200]


def test_an_owner_that_comes_early_and_goes_again_is_not_counted_as_there() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(pod("p0", of=3, owner="o0"), pod("p1", of=3, owner="o1"))
    world.gone("p0")
    world.see(pod("p2", of=3, owner="o2"))
    assert (world.verdicts, world.phase()) == ([], "collecting")
    world.see(pod("p3", of=3, owner="o1"))
    assert {uid for _, uid in world.verdict().members} == {"p1", "p2", "p3"}


def test_a_second_run_of_thousands_is_counted_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first is there, as its pods come and as they are bound."""
    world = World(GangSettings()).start(*(node(f"n{number}", 8) for number in range(32)))
    ran = [pod(f"p{number}", of=100, owner="first", created=1.0) for number in range(100)]
    world.see(*(replace(member, node="n0", started=5.0) for member in ran))
    counted = counting(world, monkeypatch)
    world.see(*(pod(f"q{number}", of=100, owner="second", created=9.0) for number in range(100)))
    world.wait(1)
    assert len(world.verdict().members) == 100
    world.run()
    assert [view.phase for view in world.coordinator.summary()] == ["running", "running"]
    assert len(counted) <= 12


@pytest.mark.parametrize("phase", ["planned", "running"])
def test_waiting_pods_that_change_beside_a_first_run_are_counted_a_few_times(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(GangSettings(plan_s=600)).start(node("a", 8))
    first = [pod(f"p{number}", of=2, owner="first", created=1.0) for number in range(2)]
    world.see(*(replace(member, node="a", started=5.0) if phase == "running" else member for member in first))
    world.wait(1)
    stream(world, [pod(f"q{number}", of=200, owner="second", created=9.0) for number in range(200)])
    world.wait(5)
    counted = counting(world, monkeypatch)
    changed = pod("q7", of=200, owner="second", created=9.0)
    stream(world, [replace(changed, priority=number % 2) for number in range(100)])
    assert len(counted) <= 12
    assert phase in [view.phase for view in world.coordinator.summary()]


@pytest.mark.parametrize("phase", ["planned", "running"])
def test_a_first_run_of_thousands_that_goes_beside_a_second_is_counted_a_few_times(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(GangSettings()).start(*(node(f"n{number}", 8) for number in range(32)))
    ran = [pod(f"p{number}", of=100, owner="first", created=1.0) for number in range(100)]
    world.see(*(replace(member, node="n0", started=5.0) for member in ran))
    world.see(*(pod(f"q{number}", of=100, owner="second", created=9.0) for number in range(100)))
    world.wait(1)
    if phase == "running":
        world.run()
    counted = counting(world, monkeypatch)
    for member in ran:
        world.see(replace(world.pods[member.uid], terminating=True))
        world.wait(0.01)
    for member in ran:
        world.gone(member.uid)
        world.wait(0.01)
    assert len(counted) <= 8
    (second,) = world.coordinator.summary()
    assert (second.key, second.phase, second.present) == ("ns/ack/g/second", phase, 100)


# --- a gang whose number is open ------------------------------------------------------------------------


def test_an_elastic_gang_is_planned_when_its_pods_have_come() -> None:
    world = World(GangSettings(), auto=False).start(node("a"))
    stream(world, [with_topology(f"p{i}", of=2) for i in range(10)], every_s=0.1)
    assert world.solves == []
    world.wait(0.5)
    (solve,) = world.solves
    assert (solve.request.size, solve.request.min_member) == (10, 2)


def test_pods_that_never_end_to_come_are_not_waited_for() -> None:
    world = World(GangSettings(), auto=False).start(node("a"))
    stream(world, [with_topology(f"p{i}", of=2) for i in range(40)], every_s=0.1)
    assert len(world.solves) == 1
    assert 29 <= world.solves[0].request.size <= 31


def test_a_gang_that_is_complete_at_last_waits_for_more_from_then_on() -> None:
    world = World(GangSettings(), auto=False).start(node("a"))
    stream(world, [with_topology(f"p{i}", of=4) for i in range(4)], every_s=1.5)
    assert [solve.request.size for solve in world.solves] == [4]  # 0.5 s after the last one
    world = World(GangSettings(), auto=False).start(node("a"))
    stream(world, [with_topology(f"p{i}", of=4) for i in range(3)], every_s=1.5)
    stream(world, [with_topology(f"p{i}", of=4) for i in range(3, 9)], every_s=0.1)
    world.wait(0.5)
    assert [solve.request.size for solve in world.solves] == [9]


def test_a_gang_of_a_fixed_number_is_planned_at_once() -> None:
    world = World(GangSettings(), auto=False).start(node("a"))
    world.see(pod("p0"), pod("p1"))
    assert len(world.solves) == 1


def test_members_that_come_while_the_planner_works_are_part_of_its_next_answer() -> None:
    world = World(GangSettings(), auto=False).start(node("a", gpus=1))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    world.wait(1)
    world.see(with_topology("p2", of=2))
    world.solve()
    assert world.verdicts == []
    world.wait(1)
    assert world.solves[0].request.size == 3


def test_members_that_join_a_running_gang_are_planned_together() -> None:
    world = World(GangSettings()).start(node("a"))
    world.see(*(with_topology(f"p{i}", of=2) for i in range(2)))
    world.wait(1)
    world.run()
    stream(world, [with_topology("p2", of=2), with_topology("p3", of=2)])
    world.coordinator.summary()  # looking at it changes nothing
    world.wait(1)
    assert [name for name, _ in world.verdict().members] == ["p2", "p3"]


# --- numbers --------------------------------------------------------------------------------------------


def test_numbers_are_told_again_at_a_slow_rate() -> None:
    world = World().start(node("a", gpus=8))
    world.see(foreign("f0", "a", 7), pod("p0", gpus=4), pod("p1", gpus=4))
    first = world.verdict()
    requests_before = world.asked
    for count in range(6):
        world.see(foreign("f0", "a", 7 - count))
        world.wait(1)
    assert (len(world.verdicts), world.asked) == (1, requests_before)
    world.wait(60)
    assert "6 nvidia.com/gpu are free" in world.verdict().reason
    assert world.verdict().generation > first.generation
    assert (len(world.verdicts), world.asked) == (2, requests_before + 1)
    world.wait(500)
    assert world.asked == requests_before + 1


def test_new_numbers_are_not_published_before_numbers_s() -> None:
    """A change that may help is looked at at once; its answer is published when `numbers_s` is over."""
    racks = {name: {"topology.kubernetes.io/rack": f"rack-{name}"} for name in "ab"}
    world = World().start(*(node(name, gpus=8, labels=labels) for name, labels in racks.items()))
    scope = replace(with_topology("x").claim.topology_request, required_scope="rack")  # type: ignore[union-attr]
    world.see(foreign("fa", "a", 4), foreign("fb", "b", 4))
    world.see(*(with_topology(f"p{i}", scope, of=2, gpus=3) for i in range(2)))
    first = world.verdict()
    world.wait(30)
    world.see(foreign("fb", "b", 3))
    assert world.coordinator.summary()[0].reason != first.reason
    assert world.verdict() == first
    world.wait(30)
    assert world.verdict().reason == world.coordinator.summary()[0].reason != first.reason


def test_another_kind_of_reason_is_told_at_once() -> None:
    world = World().start(node("a", gpus=8))
    world.see(foreign("f0", "a", 7), pod("p0", gpus=4), pod("p1", gpus=4))
    world.send(inputs.NodeGone(world.now, "a"))
    world.send(inputs.NodeSeen(world.now, node("b", gpus=2)))
    assert len(world.verdicts) == 2


def test_a_slip_that_is_mended_into_another_is_told_at_once() -> None:
    world = World().start(node("a"))
    for value in ("two", "three"):
        cause = BadValue("pod/ns/p0", "gpu-topology-replica", value, "a number")
        world.see(pod("p0", causes=(cause,)))
        assert value in world.verdict().reason


# --- what comes free ------------------------------------------------------------------------------------


def test_what_can_not_help_asks_nothing() -> None:
    world = World().start(node("a", gpus=8), node("b", gpus=2), node("c", gpus=0))
    world.see(foreign("fa", "a", 7), foreign("fb", "b", 2), foreign("fc", "c", 0))
    world.see(pod("big", gang="", gpus=8))
    world.auto = False
    world.gone("fb")  # too small a node
    world.gone("fc")  # one without GPUs
    world.see(replace(foreign("fa", "a", 5)))  # not enough
    assert world.solves == []
    world.gone("fa")
    assert len(world.solves) == 1


def test_enough_that_lies_in_pieces_asks_nothing() -> None:
    world = World().start(*(node(f"n{i}", gpus=4) for i in range(4)))
    world.see(*(foreign(f"f{i}", f"n{i}", 2) for i in range(4)))
    world.see(pod("p0", gpus=3), pod("p1", gpus=3))
    world.auto = False
    world.gone("f0")
    assert world.solves == []  # one member fits now, of two
    world.gone("f1")
    assert len(world.solves) == 1


def test_where_members_run_a_new_label_asks_again_however_full_the_node_is() -> None:
    rack = {"topology.kubernetes.io/rack": "r1"}
    world = World().start(node("a", gpus=1), node("b", gpus=1, labels=rack))
    topology_request = replace(with_topology("x").claim.topology_request, required_scope="rack")  # type: ignore[union-attr]
    world.see(
        replace(with_topology("p0", topology_request, of=2), node="a", allocation=1),
        with_topology("p1", topology_request, of=2),
    )
    assert world.phase() == "unplaceable"
    world.send(inputs.NodeSeen(world.now, node("a", gpus=1, labels=rack)))
    assert world.planned()


def test_needs_pass_over_a_gang_only_where_it_can_not_fit() -> None:
    world = World(GangSettings(), auto=False).start(node("a", gpus=4), node("b", gpus=4))
    ledger = world.coordinator.state.ledger
    world.see(*(with_topology(f"p{i}", of=2, gpus=size) for i, size in enumerate((4, 4, 4, 1))))
    world.wait(1)
    hint = QueueingHint.of(world.solves[-1].request)
    assert hint.quotas == (("nvidia.com/gpu", 1, 2), ("nvidia.com/gpu", 4, 1))
    table = HintTable()
    table.add(hint)
    assert [table.may_fit(ledger, gained) for gained in ({"a"}, set(), {"gone"})] == [{hint}, set(), set()]
    assert ("nvidia.com/gpu", 4, Resources(1_000, 1 << 30, 1), NodeRules()) in hint.requests


# --- size -----------------------------------------------------------------------------------------------


def test_times_grow_with_the_gang() -> None:
    settings = GangSettings()
    assert (settings.plan_for(8), settings.bind_for(8), settings.partial_for(8)) == (60, 20, 30)
    assert (settings.plan_for(10_000), settings.bind_for(10_000), settings.partial_for(10_000)) == (
        200,
        200,
        210,
    )


def test_pods_of_thousands_of_roles_are_counted_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod asks for something else than those before, so none of them can be left uncounted for good."""
    world = World(settings=GangSettings()).start(node("a"))
    counted = counting(world, monkeypatch)
    stream(world, [with_topology(f"p{i}", TopologyRequest(role=f"r{i}"), of=1000) for i in range(999)])
    assert world.phase() == "collecting"
    assert len(counted) < 2 * MANY
    stream(world, [with_topology("p999", TopologyRequest(role="r999"), of=1000)])
    world.wait(2)
    assert world.phase() == "unplaceable"


@pytest.mark.parametrize("at", ["collecting", "unplaceable"])
def test_a_member_of_thousands_that_changes_again_and_again_is_counted_a_few_times(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(settings=GangSettings()).start(node("a"))
    size = 1000 if at == "unplaceable" else 1001
    stream(world, [with_topology(f"p{i}", of=size) for i in range(1000)])
    world.wait(5)
    assert world.phase() == at
    counted = counting(world, monkeypatch)
    stream(world, [with_topology("p0", TopologyRequest(role=f"r{i % 7}"), of=size) for i in range(200)])
    assert len(counted) <= 10
    world.wait(5)
    assert world.phase() == at
    members = world.coordinator.state.gangs["ns/annotations/g"].group.unbound
    assert {pod.claim.topology_request.role for pod in members if pod.claim} == {"", "r3"}


def test_a_pod_group_that_changes_again_and_again_is_taken_in_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each change concerns all pods that name it. Others' do not wait, and the last change counts."""
    world = World(settings=GangSettings()).start(node("a"))
    group = PodGroup("ns", "kai", "g", uid="g", min_member=1001)
    namesake = replace(group, namespace="other", uid="o", min_member=2)
    for pod_group in (group, namesake):
        world.send(inputs.PodGroupSeen(world.now, pod_group))
    claim = GangClaim("kai", "g", by_object=True)
    stream(world, [pod(f"p{i}", claim=claim) for i in range(1000)])
    stream(world, [pod("o", claim=claim, namespace="other")])
    counted = counting(world, monkeypatch)
    for number in range(200):
        world.wait(0.01)
        world.send(inputs.PodGroupSeen(world.now, replace(group, min_member=1001 + number % 2)))
    assert len(counted) < 20
    world.send(inputs.PodGroupSeen(world.now, replace(namesake, min_member=1)))
    world.wait(1)
    assert world.coordinator.state.gangs["other/kai/g"].phase == "planned"
    world.send(inputs.PodGroupSeen(world.now, replace(group, min_member=1003)))
    world.send(inputs.PodGroupGone(world.now, group.key))
    world.send(inputs.PodGroupSeen(world.now, replace(group, min_member=1000)))
    world.wait(10)
    assert world.coordinator.state.gangs["ns/kai/g"].group.needed == 1000


def test_no_pod_group_waits_while_the_service_starts() -> None:
    """Else a gang of many PodGroups' namespace would be planned after those of less importance."""
    world, count = World(settings=GangSettings()), 4000
    for number in range(count):
        claim = GangClaim("kai", f"g{number}", by_object=True)
        world.send(inputs.PodSeen(world.now, pod(f"p{number}", claim=claim)))
    for number in range(count):
        group = PodGroup("ns", "kai", f"g{number}", uid=f"g{number}", min_member=1)
        world.send(inputs.PodGroupSeen(world.now, group))
    world.start()
    gangs = world.coordinator.state.gangs.values()
    assert len(gangs) == count
    assert all(gang.group.needed == 1 for gang in gangs)


def test_a_job_whose_pods_name_thousands_of_gangs_has_them_counted_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pod that succeeds may be one that any of these gangs needs no more."""
    world = World(settings=GangSettings()).start(node("a"))
    stream(world, [with_topology(f"p{i}", gang=f"g{i}", of=2, owner="job") for i in range(200)])
    world.wait(10)
    counted = counting(world, monkeypatch)
    for number in range(100):
        world.send(inputs.JobSeen(world.now, "job", number + 1))
        world.wait(0.01)
    assert len(counted) <= 3 * 200
    world.wait(10)
    assert world.phase("g7") != "collecting"
