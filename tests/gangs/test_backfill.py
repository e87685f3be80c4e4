"""A gang that waits for long: its best domain is reserved for it for a limited time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from muster.domain.causes.not_planned import MembersMissing, NotSupported
from muster.domain.causes.too_little import NotEnoughFree
from muster.domain.constraints import MaxPer
from muster.domain.decision import Decision, Unplaceable
from muster.domain.levels import Naming
from muster.domain.node import Node, Resources
from muster.domain.peers import HostPort, PeerRules, PeerTerm, SpreadTerm
from muster.domain.pod import Pod, TopologyRequest
from muster.domain.policies import Policies
from muster.domain.reasons import Cause
from muster.domain.request import NodeRules, Segment, SelectorTerm
from muster.gangs.messages.inputs import PoliciesSeen, SolveFailed
from muster.gangs.messages.settings import GangSettings
from tests.gangs.test_in_tree import but, claiming
from tests.gangs.world import World, foreign, node, pod, with_topology

HAS_APP = SelectorTerm("app", "In", ("h",))


def waiting() -> World:
    """Gang g of 2 × 4 GPUs waits for ten minutes on two nodes, which other pods use in part."""
    world = World().start(node("a"), node("b"), node("c"))
    world.see(foreign("fa", "a", 1), foreign("fb", "b", 2), foreign("fc", "c", 3))
    world.see(pod("p0", gpus=4), pod("p1", gpus=4))
    world.wait(600)
    return world


def test_the_best_domain_is_reserved_for_the_oldest_waiting_gang_and_its_reason_says_so() -> None:
    world = waiting()
    assert world.verdict().reason.endswith("What comes free on a, b is reserved for it for a while")
    world.see(pod("q", gang="", gpus=2), pod("r", gang="", gpus=1))
    assert world.phase("q") == "unplaceable"
    assert world.home(0, "r") == "c"
    world.gone("fb")
    assert world.phase("q") == "unplaceable"  # a passing gang took it before
    world.gone("fa")
    assert world.planned()
    world.run()
    assert world.phase() == "running"
    assert world.coordinator.state.backfill.current is None


def test_others_have_the_reserved_domain_when_the_reservation_ends() -> None:
    world = waiting()
    world.see(pod("q", gang="", gpus=2))
    world.wait(599)
    assert world.phase("q") == "unplaceable"
    world.wait(1)
    assert world.planned("q")
    assert "is reserved for it" not in world.verdict().reason
    world.wait(599)
    assert world.coordinator.state.backfill.current is None


def test_it_ends_with_its_gang_and_goes_to_the_next() -> None:
    world = waiting()
    world.see(*(pod(f"h{i}", "h", gpus=4) for i in range(2)))
    world.wait(599)
    assert "is reserved for it" not in world.verdict("h").reason
    world.gone("p0", "p1")
    world.wait(1)
    assert "is reserved for it" in world.verdict("h").reason


def test_a_partially_bound_gang_may_use_nodes_reserved_for_another() -> None:
    world = waiting()
    reservation = world.coordinator.state.backfill.current
    assert reservation is not None
    gang = next(iter(world.coordinator.state.gangs.values()))
    foreign_reservation = replace(reservation, gang="another")
    world.coordinator.state.backfill.current = foreign_reservation
    assert world.coordinator.state.snapshot_for(gang).nodes["a"].free_gpu_count == 0
    gang.was_complete, gang.group = False, replace(gang.group, bound=(pod("x", node="c"),))
    assert world.coordinator.state.snapshot_for(gang).nodes["a"].free_gpu_count == 3


def racks(**nodes: int) -> list[Node]:
    """Nodes of four GPUs by name, in the rack of the name's first letter."""
    return [node(name, 4, {"topology.kubernetes.io/rack": name[0]}) for name in nodes]


@pytest.mark.parametrize(
    ("sizes", "least", "scope", "used", "nodes"),
    [
        ((4, 4), 2, None, {"a1": 4, "a2": 1, "b1": 2, "b2": 2}, {"b1", "b2"}),
        ((4, 4), 2, "rack", {"a1": 4, "a2": 0, "b1": 1, "b2": 2}, {"b1", "b2"}),
        ((2, 2), 2, "node", {"a1": 3, "a2": 4, "b1": 1, "b2": 2}, {"b1"}),
        ((4, 1, 1), 2, None, {"a1": 4, "a2": 4, "b1": 3, "b2": 4}, {"b1", "b2"}),
        ((4, 4, 4), 3, "rack", {"a1": 0, "a2": 0, "b1": 0, "b2": 0}, set()),
        ((8,), 1, None, {"a1": 0, "a2": 0, "b1": 0, "b2": 0}, set()),
    ],
    ids=["the most free", "one rack", "one node", "the first that must", "no rack is", "no node is"],
)
def test_of_places_that_are_as_good_the_one_is_reserved_where_least_must_come_free(
    sizes: tuple[int, ...], least: int, scope: str | None, used: dict[str, int], nodes: set[str]
) -> None:
    world = World().start(*racks(**used))
    world.see(*(foreign(f"f{name}", name, gpus) for name, gpus in used.items() if gpus))
    topology_request = TopologyRequest(required_scope=scope)
    world.see(
        *(with_topology(f"p{i}", topology_request, of=least, gpus=size) for i, size in enumerate(sizes))
    )
    world.wait(600)
    assert reserved_nodes(world) == nodes


@pytest.mark.parametrize("unique", [False, True])
def test_racks_of_one_name_in_two_zones_are_two_domains(unique: bool) -> None:
    nodes = [
        node(zone, 4, {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/rack": "r1"})
        for zone in "ab"
    ]
    world = World(GangSettings(settle_s=0, backfill_share=1.0)).start(*nodes)
    world.send(PoliciesSeen(world.now, Policies(naming=Naming(("rack",) if unique else ()))))
    world.see(foreign("f", "a", 4), foreign("g", "b", 1))
    world.see(
        *(with_topology(f"p{i}", TopologyRequest(required_scope="rack"), of=2, gpus=4) for i in range(2))
    )
    world.wait(600)
    assert reserved_nodes(world) == ({"a", "b"} if unique else set())


def test_a_gang_whose_waiting_pods_have_just_gone_gets_none() -> None:
    """They are not regrouped yet when the reservation before ends."""
    world = World(GangSettings()).start(node("a", gpus=4))
    world.see(pod("p0", gang="", gpus=4))
    world.run("p0")
    world.see(pod("old", gang="", gpus=4))
    world.see(*(with_topology(f"e{i}", of=1, node="a" if i == 0 else "") for i in range(2)))
    world.wait(700)
    state = world.coordinator.state
    assert state.backfill.current is not None
    assert state.gangs[state.backfill.current.gang].name[2] == "old"
    world.gone("e1")
    world.gone("old")
    assert state.backfill.current is None


@pytest.mark.parametrize(
    ("cause", "reserved"),
    [
        (NotSupported("scope", "nvlink-domain", "x/numa"), False),
        (NotEnoughFree("", "gpus", 4, 8, 1, 2), True),
        (MembersMissing(1, 2, "a"), True),
    ],
)
def test_a_gang_that_no_pod_that_ends_can_help_gets_none(cause: Cause, reserved: bool) -> None:
    world = World(auto=False).start(node("a"))
    world.see(foreign("f", "a", gpus=4), pod("p0", gpus=2), pod("p1", gpus=2))
    for _ in range(80):
        while world.solves:
            solve = world.solves[0]
            world.solve(None if solve.reserves else Unplaceable(solve.request.gang, (cause,)))
        world.wait(10)
    assert (owner(world) == "g") is reserved


# --- what it does not do ------------------------------------------------------------------------------------


def reserved_nodes(world: World) -> set[str]:
    """The nodes that are reserved."""
    reservation = world.coordinator.state.backfill.current
    return set(reservation.wants) if reservation is not None else set()


def owner(world: World) -> str:
    """The name of the gang that has the reservation, "" for none."""
    reservation = world.coordinator.state.backfill.current
    return world.coordinator.state.gangs[reservation.gang].name[2] if reservation is not None else ""


@pytest.mark.parametrize(("priority", "planned"), [(-1, False), (0, False), (1, True)])
def test_it_hides_nothing_from_a_higher_priority(priority: int, planned: bool) -> None:
    world = waiting()
    world.see(foreign("f", "c", 1))  # node c is full
    world.see(pod("u", gang="", gpus=1, priority=priority))
    assert world.planned("u") is planned


def test_it_hides_nothing_from_the_replacement_of_a_running_gangs_member() -> None:
    world = World().start(node("a", 8), node("b", 8))
    world.see(*(pod(f"r{i}", "run", of=2, owner="job") for i in range(2)))
    world.run("run")
    home = world.pods["r0"].node
    world.see(pod("big", gang="", gpus=8), foreign("f", "b" if home == "a" else "a", 8))
    world.wait(600)
    assert (owner(world), reserved_nodes(world)) == ("big", {home})
    world.gone("r1")
    world.see(pod("r9", "run", of=2, owner="job"))
    assert world.planned("run")


def test_further_members_of_a_running_gang_wait_behind_it() -> None:
    world = World().start(node("a", 8), node("b", 8), node("c", 8))
    world.see(foreign("fa", "a", 6), foreign("fb", "b", 6), foreign("fc", "c", 7))
    world.see(with_topology("e0", of=1, gang="e"))
    world.run("e")
    world.see(pod("b0", gang="b", gpus=8), pod("b1", gang="b", gpus=8))
    world.wait(600)
    assert owner(world) == "b"
    nodes = {name for name in "abc" if name not in reserved_nodes(world)}
    assert world.pods["e0"].node in nodes or nodes == {"c"}
    world.see(with_topology("e1", of=1, gang="e", gpus=2))
    assert world.phase("e") == "unplaceable"


def daemon(uid: str, on: str, cpu_milli: int) -> Pod:
    """A running pod without GPUs."""
    resources = Resources(cpu_milli, 1 << 30, 1)
    return replace(foreign(uid, on, 0), resources=resources, gpu_resource="", container_gpus=())


@pytest.mark.parametrize(
    ("cpu_milli", "gpus", "nodes"),
    [(32_000, 0, {"a", "b"}), (32_001, 0, {"b", "c"}), (63_000, 1, {"a", "b"})],
    ids=["enough is left", "too little is left", "its pod has a GPU and ends"],
)
def test_what_pods_without_gpus_take_does_not_come_free(cpu_milli: int, gpus: int, nodes: set[str]) -> None:
    world = World().start(node("a", 8), node("b", 8), node("c", 8))
    resources = Resources(cpu_milli, 1 << 30, 1)
    hog = replace(foreign("x", "a", 1), resources=resources) if gpus else daemon("x", "a", cpu_milli)
    world.see(hog, foreign("f", "b", 2), foreign("g", "c", 3))
    world.see(*(pod(f"p{i}", gpus=8, resources=Resources(32_000, 1 << 30, 1)) for i in range(2)))
    world.wait(600)
    assert reserved_nodes(world) == nodes


def test_members_of_the_gang_that_run_stay_where_they_are() -> None:
    world = World().start(node("a", 8), node("b", 8))
    world.see(with_topology("e0", of=1, gang="e", gpus=1))
    world.run("e")
    home = world.pods["e0"].node
    free_node = "b" if home == "a" else "a"
    world.see(foreign("f", free_node, 2), with_topology("e1", of=1, gang="e", gpus=8))
    world.wait(600)
    assert reserved_nodes(world) == {free_node}


@pytest.mark.parametrize("scope", [None, "rack"])
def test_a_domain_that_failed_for_a_term_is_not_the_next_choice(scope: str | None) -> None:
    """Each rack is a node: a lacks one GPU, b two and c three. No pods end."""
    world = World().start(*racks(a=0, b=0, c=0))
    world.see(foreign("fa", "a", 1), foreign("fb", "b", 2), foreign("fc", "c", 3))
    world.see(with_topology("p", TopologyRequest(required_scope=scope), gpus=4))
    reserved = []
    for _ in range(4):
        world.wait(600)
        reserved.append(reserved_nodes(world))
        world.wait(600)
    assert reserved == [{"a"}, {"b"}, {"c"}, set()]
    assert reserved_nodes(world) == {"a"}


def test_nodes_that_came_free_in_a_term_are_reserved_again() -> None:
    world = waiting()
    assert reserved_nodes(world) == {"a", "b"}
    world.gone("fa")
    world.wait(600)
    assert reserved_nodes(world) == set()
    world.wait(600)
    assert reserved_nodes(world) == {"a", "c"}


@pytest.mark.parametrize(
    ("share", "members", "nodes"),
    [(0.75, 3, {"a", "b", "c"}), (0.74, 3, set()), (0.1, 1, {"a"}), (1.0, 4, {"a", "b", "c", "d"})],
)
def test_it_covers_a_share_of_the_cluster_or_one_node(share: float, members: int, nodes: set[str]) -> None:
    world = World(GangSettings(settle_s=0, backfill_share=share)).start(*(node(name) for name in "abcd"))
    world.see(*(foreign(f"f{name}", name, 1) for name in "abcd"))
    world.see(*(pod(f"p{i}", of=members, gpus=4) for i in range(members)))
    world.wait(600)
    assert reserved_nodes(world) == nodes


def test_the_namespaces_take_turns_and_a_higher_priority_comes_first() -> None:
    world = World().start(*(node(name, 8) for name in "abcdef"))
    world.see(*(foreign(f"f{name}", name, 1) for name in "abcdef"))
    for number in range(4):
        world.see(pod(f"many{number}", gang="", gpus=8, namespace="many"))
    world.see(pod("one", gang="", gpus=8, namespace="one"))
    turns = []
    world.wait(600)
    for number in range(5):
        turns.append(owner(world))
        if number == 1:
            world.see(pod("urgent", gang="", gpus=8, namespace="many", priority=1))
            world.wait(599)
            assert owner(world) == turns[-1]
            world.wait(1)
        else:
            world.wait(600)
    assert turns == ["many0", "one", "urgent", "many1", "urgent"]


class Asked(World):
    """A world that notes when the planner is asked where a reservation would lie."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked_at: list[float] = []

    def solve(self, decision: Decision | None = None, at: int = 0) -> None:
        if self.solves[at].reserves:
            self.asked_at.append(self.now)
        super().solve(decision, at)


def test_a_look_asks_about_one_gang_and_dismisses_a_few() -> None:
    """Of 100 gangs none can be helped: nodes have a label that the gangs do not want."""
    world = Asked()
    world.start(node("a", 8), node("b", 8))
    world.see(foreign("f", "a", 1), foreign("g", "b", 1))
    rules = NodeRules((SelectorTerm("no", "In", ("such",)),))
    world.see(*(pod(f"x{i}", gang="", gpus=8, rules=rules) for i in range(100)))
    world.see(*(pod(f"y{i}", gang="", gpus=9) for i in range(100)))
    world.see(pod("last", gang="", gpus=8))
    world.wait(599)
    assert world.asked_at == []
    world.wait(200)
    assert len(world.asked_at) == len(set(world.asked_at)) == 101
    assert owner(world) == "last"


# --- what the planner says ----------------------------------------------------------------------------------


def apart(key: str) -> PeerRules:
    """Members keep apart from each other."""
    return PeerRules(anti_affinity=(PeerTerm(key, (SelectorTerm("app", "In", ("h",)),), ("ns",)),))


NEVER: dict[str, tuple[int, dict[str, Any]]] = {
    "three apart in two zones": (3, {"peers": apart("zone")}),
    "next to a pod that is not there": (
        3,
        {"peers": PeerRules(affinity=(PeerTerm("zone", (SelectorTerm("app", "In", ("no",)),), ("ns",)),))},
    ),
    "five zones": (4, {"peers": PeerRules(spread=(SpreadTerm("zone", (HAS_APP,), min_domains=5),))}),
    "one host port, more members than nodes": (
        10,
        {"gpus": 4, "peers": PeerRules(host_ports=(HostPort(1, "TCP"),))},
    ),
    "two in one GPU": (2, {"gpus": 1, "topology_request": TopologyRequest(required_scope="gpu")}),
    "a role in one node": (2, {"topology_request": TopologyRequest(role="w", role_scope="node")}),
    "segments in one node": (4, {"topology_request": TopologyRequest(segments=(Segment(2, "node"),))}),
    "three, one in a zone": (3, {"topology_request": TopologyRequest(per_scope=(MaxPer("zone", 1),))}),
    "a selector of no node": (2, {"rules": NodeRules((SelectorTerm("no", "In", ("such",)),))}),
    "16 GPUs a member": (2, {"gpus": 16}),
    "what no node offers": (2, {"resources": Resources(1_000, 1 << 30, 1, (("rdma/x", 1),))}),
}


def two_zones(gpus: int = 8, nodes: int = 8) -> World:
    """Nodes in two zones."""
    zones = ("west", "east")
    labels = [{"zone": zone, "topology.kubernetes.io/zone": zone} for zone in zones]
    return World().start(*(node(f"n{i}", gpus, labels[i % 2]) for i in range(nodes)))


@pytest.mark.parametrize(("members", "more"), NEVER.values(), ids=NEVER)
def test_a_gang_that_fits_on_no_cluster_of_these_nodes_hides_nothing(
    members: int, more: dict[str, Any]
) -> None:
    world = two_zones()
    topology_request: dict[str, Any] = {"gpus": 8, "labels": (("app", "h"),)} | more
    world.see(*(with_topology(f"h{i}", of=members, gang="h", **topology_request) for i in range(members)))
    assert world.phase("h") == "unplaceable"
    world.wait(1300)
    assert owner(world) == ""


@dataclass
class Stream:
    """A pod of a whole node comes each minute, and runs for some. `waited`: how long each has waited."""

    world: World
    runs: int
    now: int = 0
    born: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    waited: list[int] = field(default_factory=list)

    def minute(self) -> None:
        self.born[f"v{self.now}"] = self.now
        self.world.see(pod(f"v{self.now}", gang="", gpus=8))
        self.world.wait(60)
        for uid in [uid for uid in self.born if self.world.phase(uid) == "planned"]:
            self.world.run(uid)
            self.started[uid] = self.now
            self.waited.append(self.now - self.born.pop(uid))
        for uid in [uid for uid, since in self.started.items() if self.now - since >= self.runs]:
            self.world.gone(uid)
            del self.started[uid]
        self.now += 1


def test_others_wait_no_longer_beside_gangs_that_can_never_fit() -> None:
    waited = {}
    for hostile in (0, 3):
        world = two_zones()
        for number in range(hostile):
            pods = (pod(f"{number}-{i}", f"h{number}", 6, 8, peers=apart("zone")) for i in range(6))
            world.see(*(replace(it, labels=(("app", "h"),)) for it in pods))
        stream = Stream(world, runs=5)
        for _ in range(60):
            stream.minute()
        assert {world.phase(f"h{number}") for number in range(hostile)} <= {"unplaceable"}
        waited[hostile] = stream.waited
    assert waited[0] == waited[3]


def test_a_large_gang_starts_while_small_ones_come_all_the_time() -> None:
    """They would take each node that comes free: no two are free at the same time."""
    world = two_zones(nodes=4)
    stream = Stream(world, runs=7)
    for _ in range(10):
        stream.minute()
    world.see(*(pod(f"h{i}", "h", gpus=8, created=float("inf")) for i in range(2)))
    minutes = 0
    while not world.planned("h") and minutes < 40:
        stream.minute()
        minutes += 1
    assert 10 <= minutes <= 20


def test_it_lies_where_in_tree_plugins_admit_the_gang() -> None:
    """Its volume is on node n0, which is full. The other nodes are free, and of no use to it."""
    world = World(answers_in_tree=True).start(*(node(f"n{i}", 8) for i in range(4)))
    world.see(foreign("f", "n0", 8), foreign("g", "n1", 1), foreign("h", "n2", 1))
    world.see(claiming("x", gang="", gpus=8))
    world.report(but("n0", of=[f"n{i}" for i in range(4)]))
    world.wait(600)
    assert (owner(world), reserved_nodes(world)) == ("x", {"n0"})
    world.see(pod("q", gang="", gpus=8))
    assert world.planned("q")


def test_it_hides_what_the_gang_wants_and_no_more() -> None:
    """The gang has room for its GPUs and lacks CPUs, which a pod with a GPU has."""
    world = World().start(node("a", 8))
    world.see(replace(foreign("x", "a", 1), resources=Resources(40_000, 1 << 30, 1)))
    world.see(pod("g", gang="", gpus=2, resources=Resources(32_000, 1 << 30, 1)))
    world.wait(600)
    assert owner(world) == "g"
    world.see(pod("q", gang="", gpus=6, resources=Resources(0, 1 << 30, 1)))
    assert world.phase("q") == "unplaceable"
    world.see(pod("r", gang="", gpus=5, resources=Resources(0, 1 << 30, 1)))
    assert world.planned("r")
    world.see(pod("s", gang="", gpus=0, resources=Resources(24_000, 1 << 30, 1)))
    assert world.phase("s") == "unplaceable"
    world.gone("x")
    assert world.planned("g")


@pytest.mark.parametrize("goes", [True, False], ids=["the gang goes meanwhile", "the planner fails"])
def test_without_an_answer_there_is_no_reservation_and_the_next_gang_has_its_turn(goes: bool) -> None:
    world = waiting()
    world.gone("p0", "p1")
    world.see(foreign("f", "c", 1), pod("one", gang="", gpus=4), pod("two", gang="", gpus=4))
    world.auto = False
    world.wait(601)
    (solve,) = world.solves
    assert solve.reserves
    if goes:
        world.gone("one")
        world.solve()
    else:
        world.solves.clear()
        world.send(SolveFailed(world.now, solve.gang, solve.generation, "defect"))
    assert owner(world) == ""
    world.auto = True
    world.wait(1)
    assert owner(world) == "two"
