"""What runs where, for the search for victims: `invariants.check` compares it with the cluster each time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.domain.clearing import Occupant
from muster.domain.preemption import DisruptionBudget, Preemption
from muster.domain.request import SelectorTerm
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.pending import occupants as module
from tests.gangs.world import World, foreign, node, pod, stand


def settled(world: World) -> dict[str, tuple[Occupant, ...]]:
    """The index, once all is read."""
    occupants = world.coordinator.state.occupants
    while not occupants.settle():
        pass
    return occupants.by_node


def units(world: World) -> list[str]:
    """The units, each with its priority and why it is protected."""
    settled(world)
    return [
        f"{unit.name} {unit.priority} {unit.protected}".rstrip()
        for unit in world.coordinator.state.occupants.units.values()
    ]


def test_gangs_and_other_pods_with_gpus_are_units_and_others_stay() -> None:
    world = World().start(node("a"))
    world.see(pod("p", gang="", node="a", allocation=0b11, priority=5))
    world.see(foreign("f", "a"), foreign("log", "a", gpus=0))
    assert [(occupant.name, bool(occupant.unit)) for occupant in settled(world)["a"]] == [
        ("ns/f", True),
        ("log", False),
        ("ns/p", True),
    ]
    assert units(world) == ["ns/p 5", "pod ns/f 0"]
    world.gone("p")
    assert units(world) == ["pod ns/f 0"]


def test_a_pod_that_is_being_deleted_ends_by_itself() -> None:
    world = World().start(node("a"))
    world.see(pod("p", gang="", node="a", allocation=0b11, priority=5))
    world.see(replace(world.pods["p"], terminating=True, ends=1030.0))
    ((occupant,),) = settled(world).values()
    assert (occupant.unit, occupant.ends) == ("p", 1030.0)
    assert units(world) == ["pod ns/p 5"]


def test_checkpoints_and_budgets_are_seen_without_a_change_of_the_pod() -> None:
    world = World().start(node("a"))
    world.see(pod("p", gang="", node="a", allocation=0b11, labels=(("app", "w"),)), foreign("f", "a"))
    settled(world)
    world.send(inputs.CheckpointsSeen(world.now, {"p": 990.0}))
    selector = (SelectorTerm("app", "In", ("w",)),)
    for number in range(2):
        budget = DisruptionBudget("ns", f"b{number}", selector, number)
        world.send(inputs.BudgetSeen(world.now, budget.key, budget))
        if not number:
            assert [(o.saved, o.budget) for o in settled(world)["a"]] == [(0.0, ""), (990.0, "ns/b0")]
    world.wait(module.BUDGETS_PAUSE_S)
    world.send(inputs.Tick(world.now))
    protected = "pod p is covered by PodDisruptionBudgets ns/b0 and ns/b1, so it can't be evicted"
    assert sorted(units(world)) == [f"ns/p 0 {protected}", "pod ns/f 0"]


def test_a_gang_is_no_unit_before_its_bindings_are_answered() -> None:
    world = stand("permitted")
    answer = world.permit()
    world.bind(answer, members=(0,))
    assert units(world) == []
    world.bind(answer, members=(1,))
    assert units(world) == ["ns/g 0"]


def test_a_partly_bound_gang_is_protected() -> None:
    world = stand("permitted")
    answer = world.permit()
    world.unreserve(1, BindingFate.REFUSED)
    world.bind(answer, members=[0])
    assert units(world) == ["ns/g 0 it is only partly bound"]


def test_a_running_pod_that_moved_is_in_the_unit_of_its_new_gang() -> None:
    """Its old gang is regrouped later, and is read before and after that."""
    world = World().start(node("a"))
    world.see(*(pod(uid, of=3, node="a", allocation=1 << n) for n, uid in enumerate(("p", "q", "r"))))
    state = world.coordinator.state
    gang = state.gangs["ns/ack/g"]
    old_group = state.regroup_if_stale(gang)
    world.see(replace(world.pods["p"], claim=pod("p", "h", of=1).claim))
    new_group = state.regroup_if_stale(gang)
    for group in (old_group, new_group):
        state.set_group(gang, group)
        names = [(occupant.name, occupant.unit) for occupant in settled(world)["a"]]
        assert names == [("ns/p", "ns/ack/h"), ("ns/q", "ns/ack/g"), ("ns/r", "ns/ack/g")]


def test_what_a_running_pod_states_later_counts() -> None:
    world = World().start(node("a"))
    member = pod("p", gang="", node="a", allocation=0b11)
    world.see(member)
    assert units(world) == ["ns/p 0"]
    world.see(replace(member, preemption=Preemption(protected="says never")))
    assert units(world) == ["ns/p 0 its pod p says never"]
    world.see(member)
    assert units(world) == ["ns/p 0"]


def test_each_step_reads_a_bounded_number_and_equal_nodes_stay_the_same_objects() -> None:
    count = 3 * module.SETTLED_AT_ONCE
    world = World().start()
    coordinator, occupants = world.coordinator, world.coordinator.state.occupants
    for number in range(count):
        coordinator.state.ledger.set_node(node(f"n{number:04}", 1))
    steps = 1
    while not occupants.settle():
        steps += 1
        assert len(occupants.by_node) <= steps * module.SETTLED_AT_ONCE
    assert steps >= 3
    before = dict(occupants.by_node)
    world.see(pod("p", gang="", node="n0007", allocation=1))
    after = settled(world)
    assert [name for name in after if after[name] is not before[name]] == ["n0007"]


def test_each_step_matches_a_bounded_number_of_pods_with_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang whose pods are too many to match is protected, and the next step reads the next gang."""
    monkeypatch.setattr(module, "WORK_AT_ONCE", 64)
    world = World().start(node("a"), node("b"))
    state = world.coordinator.state
    for number in range(8):
        world.see(pod(f"p{number}", gang="", node="a", allocation=1 << number))
    world.see(*(pod(f"q{number}", of=3, node="b", allocation=1 << number) for number in range(3)))
    gang = state.gangs["ns/ack/g"]
    state.set_group(gang, state.regroup_if_stale(gang))
    for number in range(24):
        budget = DisruptionBudget("ns", f"b{number}", (SelectorTerm("app", "Exists"),), 1)
        state.ledger.budgets.see(budget.key, budget)
    read_pods = list[int]()
    is_settled = False
    while not is_settled:
        work_before, pods_before = state.ledger.budgets.work, state.occupants._pods_read
        is_settled = state.occupants.settle()
        if state.occupants._changed_gangs:
            assert state.ledger.budgets.work <= work_before + 64
            read_pods.append(state.occupants._pods_read - pods_before)
    assert read_pods == [4, 1, 1, 1, 1, 1, 1]
    too_many = "it has too many pods to match with the PodDisruptionBudgets of namespace ns"
    assert sorted(units(world)) == [f"ns/g 0 {too_many}", *(f"ns/p{number} 0" for number in range(8))]


def test_changes_of_selectors_do_not_have_pods_matched_all_the_time() -> None:
    world = World().start(node("a"))
    world.see(pod("p", gang="", node="a", allocation=0b11, labels=(("app", "w"),)))
    budgets = world.coordinator.state.ledger.budgets
    times_matched = 0
    for number in range(40):
        budget = DisruptionBudget("ns", "b", (SelectorTerm("app", "In", ("w", f"v{number}")),), 1)
        world.now += 0.5
        work_before = budgets.work
        world.send(inputs.BudgetSeen(world.now, budget.key, budget))
        assert settled(world)["a"][0].budget == "ns/b"
        times_matched += budgets.work > work_before
    assert times_matched == 20 / module.BUDGETS_PAUSE_S
    world.send(inputs.BudgetSeen(world.now, "ns/b", None))
    assert settled(world)["a"][0].budget == "ns/b"
    world.wait(module.BUDGETS_PAUSE_S)
    world.send(inputs.Tick(world.now))
    assert settled(world)["a"][0].budget == ""


def test_changes_of_gangs_and_nodes_that_came_and_went_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GONE", 4)
    world = World().start(node("a"))
    state = world.coordinator.state
    world.see(pod("stays", gang="", node="a", allocation=0b1))
    for number in range(50):
        name = f"n{number}"
        world.send(inputs.NodeSeen(world.now, node(name)))
        world.see(pod(f"p{number}", gang="", node=name, allocation=0b1))
        world.gone(f"p{number}")
        world.send(inputs.NodeGone(world.now, name))
    assert len(state.ledger.changed_nodes) < 20
    assert len(state.occupants._changed_gangs) < 20
    assert units(world) == ["ns/stays 0"]


def test_namespaces_whose_budgets_come_and_go_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads them where no gang asks."""
    monkeypatch.setattr(module, "MAX_GONE", 4)
    coordinator = Coordinator()
    for number in range(50):
        budget = DisruptionBudget(f"ns{number}", "b", (), 1)
        coordinator.handle(inputs.BudgetSeen(1.0, budget.key, budget))
        coordinator.handle(inputs.BudgetSeen(1.0, budget.key, None))
    assert len(coordinator.state.ledger.budgets.changed_namespaces) <= 4
