"""A node that changes all the time does not keep a gang from a start: its kubelet may write what it likes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.domain.node import Node, Taint
from muster.domain.pod import TopologyRequest
from muster.domain.request import NodeRules, SelectorTerm, Toleration
from muster.gangs.lifecycle.node_changes import WAKES
from muster.gangs.messages import inputs
from tests.gangs.test_constraints import WEB, member, other, term
from tests.gangs.world import World, foreign, node, pod, with_topology

HARMLESS: dict[str, Callable[[Node, int], Node]] = {
    "a label that no pod names": lambda before, tick: labelled(before, "feature.example.com/tick", str(tick)),
    "more of a resource": lambda before, tick: others(before, ("example.com/x", tick + 1)),
    "a little less memory": lambda before, tick: memory(before, before.allocatable.memory_bytes - tick),
    "a preference to keep away": lambda before, tick: tainted(
        before, Taint("t", str(tick), "PreferNoSchedule")
    ),
    "a taint that the pods tolerate": lambda before, tick: tainted(
        before, Taint("ours", str(tick), "NoSchedule")
    ),
    "another machine": lambda before, tick: replace(before, machine=str(tick)),
    "other problems": lambda before, tick: replace(before, problems=(str(tick),)),
}
HARMFUL: dict[str, Callable[[Node, int], Node]] = {
    "a label that pods select by": lambda before, tick: labelled(before, "pool", "x" * (1 + tick % 2)),
    "its rack": lambda before, tick: labelled(before, "topology.kubernetes.io/rack", str(tick)),
    "a taint": lambda before, tick: tainted(before, *[Taint("theirs", "", "NoSchedule")] * (1 - tick % 2)),
    "its readiness": lambda before, tick: replace(before, ready=bool(tick % 2)),
    "a GPU's health": lambda before, tick: replace(before, unhealthy=0b11 * (1 - tick % 2)),
    "too little memory": lambda before, tick: memory(before, (1 << 36) * (tick % 2)),
}


def labelled(before: Node, key: str, value: str) -> Node:
    return replace(before, labels={**before.labels, key: value})


def tainted(before: Node, *taints: Taint) -> Node:
    return replace(before, taints=taints)


def others(before: Node, *amounts: tuple[str, int]) -> Node:
    return replace(before, allocatable=replace(before.allocatable, others=amounts))


def memory(before: Node, bytes_: int) -> Node:
    return replace(before, allocatable=replace(before.allocatable, memory_bytes=bytes_))


RULES = NodeRules(
    any_of=((SelectorTerm("pool", "In", ("x", "xx")),), (SelectorTerm("pool", "DoesNotExist"),)),
    tolerations=(Toleration("ours", "Exists"),),
)


def standing() -> World:
    """A gang with a plan on node a, which holds it alone. Nodes b and c hold it together."""
    world = World().start(node("a", 8), node("b", 4), node("c", 4))
    world.see(pod("p0", gpus=4, rules=RULES), pod("p1", gpus=4, rules=RULES))
    assert {world.home(0), world.home(1)} == {"a"}
    return world


def change(world: World, make: Callable[[Node, int], Node], tick: int) -> None:
    before = world.coordinator.state.ledger.nodes["a"]
    world.send(inputs.NodeSeen(world.now, make(before, tick)))


@pytest.mark.parametrize("case", HARMLESS)
def test_a_plan_holds_under_changes_that_do_not_matter_to_it(case: str) -> None:
    world = standing()
    for tick in range(10):
        change(world, HARMLESS[case], tick)
    assert world.phase() == "planned"
    assert {world.home(0), world.home(1)} == {"a"}
    world.run()
    assert world.phase() == "running"


@pytest.mark.parametrize("case", HARMFUL)
def test_a_gang_goes_elsewhere_from_a_node_that_voids_its_plans(case: str) -> None:
    world = standing()
    voided = 0
    for tick in range(20):
        if world.phase() != "planned":
            world.wait(60)
        elif "a" in {world.home(0), world.home(1)}:
            voided += 1
        change(world, HARMFUL[case], tick)
    assert world.phase() == "planned"
    assert {world.home(0), world.home(1)} == {"b", "c"}
    assert voided <= 3


def test_a_node_that_alone_holds_a_gang_is_tried_again() -> None:
    world = World().start(node("a", 8))
    world.see(pod("p0", gpus=4), pod("p1", gpus=4))
    ticks = itertools.count()
    for _ in range(3):
        change(world, HARMFUL["its rack"], next(ticks))
    assert world.phase() == "unplaceable"
    assert "Left out for a while: a (NodeChanged: it changed 2 times under a plan)" in world.verdict().reason
    world.wait(600)
    assert world.phase() == "planned"
    world.run()
    assert world.phase() == "running"


@pytest.mark.parametrize("case", HARMLESS)
def test_an_answer_counts_though_its_node_changed_harmlessly_meanwhile(case: str) -> None:
    world = World(auto=False).start(node("a", 8))
    world.see(pod("p0", gpus=4, rules=RULES), pod("p1", gpus=4, rules=RULES))
    change(world, HARMLESS[case], 1)
    world.solve()
    assert world.phase() == "planned"


def test_a_node_that_overtakes_each_answer_is_left_out() -> None:
    world = World(auto=False).start(node("a", 8), node("b", 4), node("c", 4))
    world.see(pod("p0", gpus=4), pod("p1", gpus=4))
    for tick in range(6):
        if world.phase() == "planned":
            break
        world.wait(60)
        change(world, HARMFUL["its rack"], tick)
        world.solve()
    assert {world.home(0), world.home(1)} == {"b", "c"}


@pytest.mark.parametrize("key", ["feature.example.com/tick", "topology.kubernetes.io/rack"])
def test_a_full_node_that_changes_its_labels_has_other_gangs_planned_once(key: str) -> None:
    world = World().start(node("a"), node("b"))
    world.see(foreign("f", "a", 4), foreign("g", "b", 4), pod("p0"), pod("p1"))
    assert world.phase() == "unplaceable"
    asked_before = world.asked
    for tick in range(10):
        change(world, lambda before, tick: labelled(before, key, str(tick)), tick)
        world.wait(1)
    assert world.asked - asked_before == (key == "topology.kubernetes.io/rack")


ADMITS_NONE: dict[str, Callable[[Node], Node]] = {
    "a taint": lambda before: tainted(before, Taint("theirs", "", "NoSchedule")),
    "no label that the pods select by": lambda before: labelled(before, "pool", "other"),
    "not ready": lambda before: replace(before, ready=False),
    "cordoned": lambda before: replace(before, unschedulable=True),
}


@pytest.mark.parametrize("why", ADMITS_NONE)
@pytest.mark.parametrize("case", [*HARMLESS, "a pod that ends"])
def test_a_node_that_admits_no_member_has_no_gang_planned_again(why: str, case: str) -> None:
    world = World().start(node("a", 8, labels={"pool": "other"}), ADMITS_NONE[why](node("b", 8)))
    world.see(*(pod(f"p{number}", gpus=4, rules=RULES) for number in range(2)))
    assert world.phase() == "unplaceable"
    asked_before = world.asked
    for tick in range(10):
        if case in HARMLESS:
            before = world.coordinator.state.ledger.nodes["b"]
            after = ADMITS_NONE[why](HARMLESS[case](before, tick))
            world.send(inputs.NodeSeen(world.now, after))
        else:
            world.see(foreign("f", "b", 1))
            world.gone("f")
        world.wait(1)
    assert world.asked == asked_before
    world.send(inputs.NodeSeen(world.now, node("b", 8)))
    assert world.phase() == "planned"


def test_a_node_that_changes_all_the_time_has_gangs_planned_again_at_its_rate() -> None:
    """Each of the nodes admits the members. Together they are in no rack that holds both."""
    rack = "topology.kubernetes.io/rack"
    world = World().start(*(node(name, 8, labels={rack: name}) for name in "abc"))
    world.see(
        *(
            with_topology(f"p{number}", TopologyRequest(required_scope=rack), of=2, gpus=8)
            for number in range(2)
        )
    )
    assert world.phase() == "unplaceable"
    asked_before = world.asked
    for tick in range(1200):
        change(world, lambda before, tick: memory(before, (1 << 36) + tick), tick)
        world.wait(0.5)
    assert WAKES < world.asked - asked_before <= 11 * (WAKES + 2)
    change(world, lambda before, tick: labelled(before, rack, "b"), 0)
    for _ in range(60):  # what helps comes late, and is not lost
        if world.phase() != "planned":
            world.wait(1)
    assert world.phase() == "planned"


def test_labels_that_change_all_the_time_have_gangs_with_constraints_planned_again_at_the_nodes_rate() -> (
    None
):
    world = World().start(node("a"), node("b", 0))
    world.see(other("x", "a", WEB), member("p", WEB, anti_affinity=(term("web"),)))
    assert world.phase() == "unplaceable"
    asked_before = world.asked
    for tick in range(1200):
        change(world, HARMLESS["a label that no pod names"], tick)
        world.wait(0.5)
    assert world.asked - asked_before <= 11 * (WAKES + 2)


def test_a_full_node_that_moves_has_the_gang_of_its_members_planned_again() -> None:
    """Its other members must lie in the same row as those that run."""
    row = "example.com/row"
    nodes = [node(name, 2, labels={row: at}) for name, at in (("a", "1"), ("b", "1"), ("c", "2"))]
    world = World().start(*nodes)
    topology_request = TopologyRequest(required_scope=row)
    world.see(foreign("f", "b", 2), *(with_topology(f"p{n}", topology_request, of=2) for n in range(2)))
    world.run()
    assert {world.coordinator.state.ledger.bound[f"p{n}"].node for n in range(2)} == {"a"}
    world.see(with_topology("p2", topology_request, of=2))
    assert world.phase() == "unplaceable"
    change(world, lambda before, tick: labelled(before, row, "2"), 0)
    assert world.phase() == "planned"


SCOPED: dict[str, TopologyRequest] = {
    "a scope": TopologyRequest(required_scope="example.com/row"),
    "a preferred scope": TopologyRequest(preferred_scopes=("example.com/row",)),
}


@pytest.mark.parametrize("case", SCOPED)
def test_the_label_of_a_scope_matters(case: str) -> None:
    world = World().start(node("a", labels={"example.com/row": "1"}), node("b", 0))
    world.see(with_topology("p0", SCOPED[case]))
    (gang,) = world.coordinator.state.gangs.values()
    first = gang.plan
    assert first is not None
    change(world, lambda before, tick: labelled(before, "example.com/row", "2"), 0)
    assert gang.plan is not first
