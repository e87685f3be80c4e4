"""In-tree plugins are asked about all nodes before a gang is planned. Late refusals lead to other nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from muster.domain.constraints import AntiAffinity
from muster.domain.peers import PeerRules
from muster.domain.pod import Pod, TopologyRequest
from muster.domain.request import Member, Request
from muster.gangs.messages.calls import BindingFate, InTreeAnswer, InTreeReport, StaleError
from muster.gangs.pending.in_tree import InTree
from tests.gangs.world import World, node, pod, with_topology

PLUGIN = "VolumeBinding"
WHY = "node(s) didn't match PersistentVolume's node affinity"
BY = f"{PLUGIN}: {WHY}"
NAMES = tuple(f"n{i:02}" for i in range(40))


def but(*open_nodes: str, of: Iterable[str] = NAMES, **more: object) -> InTreeAnswer:
    """All nodes are refused but these."""
    return replace(InTreeAnswer({name: BY for name in of if name not in open_nodes}), **more)  # type: ignore[arg-type]


def claiming(uid: str, *claims: str, **more: object) -> Pod:
    """A pod with volumes."""
    return pod(uid, peers=PeerRules(volume_claims=claims or (uid,)), **more)  # type: ignore[arg-type]


def cluster(nodes: Iterable[str] = NAMES, gpus: int = 8) -> World:
    return World(answers_in_tree=True).start(*(node(name, gpus) for name in nodes))


def test_a_pod_goes_to_the_one_node_that_has_its_volume_at_once() -> None:
    world = cluster()
    world.see(claiming("x", gang="", gpus=8))
    assert not world.solves
    assert world.questions[0].pods == (("x", "x"),)
    world.report(but("n37"))
    assert world.planned("x")
    assert world.home(0, "x") == "n37"
    assert world.asked == 1
    world.run("x")
    assert world.phase("x") == "running"


def test_pods_without_volumes_are_planned_without_a_question() -> None:
    world = cluster()
    world.see(pod("x", gang=""))
    assert world.planned("x")
    assert not world.questions


def test_without_an_answer_it_is_planned_all_the_same() -> None:
    world = cluster()
    world.see(claiming("x", gang=""))
    assert not world.verdicts
    world.wait(world.settings.answers_s)
    assert world.planned("x")
    assert len(world.questions) == 1


def test_a_shim_that_does_not_know_the_question_is_not_asked() -> None:
    world = World().start(*(node(name, 8) for name in NAMES))
    world.see(claiming("x", gang=""))
    assert world.planned("x")
    assert not world.questions


def test_others_are_planned_while_one_waits_for_its_answer() -> None:
    world = cluster()
    world.see(claiming("x", gang="", priority=9), pod("y", gang=""))
    assert world.planned("y")
    assert not world.solves


def test_no_gang_waits_for_a_question_that_is_lost_with_its_session() -> None:
    world = cluster()
    world.see(claiming("x", gang=""))
    world.connect()
    assert len(world.questions) == 2
    old = InTreeReport(world.now, world.epoch, world.questions[0].gang, world.questions[0].question, ())
    with pytest.raises(StaleError):
        world.ask(old)
    world.report(but("n01"))
    assert world.home(0, "x") == "n01"


def test_a_refusal_names_the_plugin_its_reason_and_how_many_nodes() -> None:
    world = cluster()
    world.see(claiming("x", gang=""))
    world.report(but())
    assert world.phase("x") == "unplaceable"
    assert f"40 nodes do not admit the gang: {BY}" in world.verdict("x").reason


def test_a_new_answer_wakes_what_was_refused() -> None:
    world = cluster()
    world.see(claiming("x", gang=""))
    world.report(but())
    world.report(but("n05"))
    assert world.planned("x")
    assert world.home(0, "x") == "n05"
    asked_before = world.asked
    world.report(but("n05"))
    assert world.asked == asked_before


def test_a_new_answer_while_the_planner_is_asked_is_not_lost() -> None:
    world = cluster()
    world.auto = False
    world.see(claiming("x", gang=""))
    world.report(but())
    world.report(but("n05"))
    world.auto = True
    world.solve()
    assert world.planned("x")
    assert world.home(0, "x") == "n05"


def test_a_new_answer_is_not_lost_either_while_the_planner_is_asked_for_the_second_time() -> None:
    world = cluster()
    world.auto = False
    world.see(claiming("x", gang=""))
    world.report(but())
    world.report(but(of=(*NAMES, "gone")))
    world.solve()
    world.report(but("n05"))
    world.solve()
    assert world.phase("x") == "unplaceable"
    world.auto = True
    world.wait(world.settings.recheck_s)
    assert world.planned("x")
    assert world.home(0, "x") == "n05"


def test_a_plan_on_a_node_that_is_refused_meanwhile_is_made_anew() -> None:
    world = cluster()
    world.auto = False
    world.see(claiming("x", gang=""))
    world.report(but("n05"))
    world.report(but("n06"))
    world.auto = True
    world.solve()
    assert world.planned("x")
    assert world.home(0, "x") == "n06"
    assert world.outcomes() == ["planned"]


def test_a_missing_claim_is_a_cause_of_its_own_and_no_node_is_blamed() -> None:
    world = cluster()
    world.see(claiming("x", "data", gang=""))
    world.report(InTreeAnswer(missing_claims=("data",)))
    assert world.verdict("x").reason == "PersistentVolumeClaim data does not exist"
    assert not world.asked
    assert world.reasons() == ["Unplaceable"]
    world.report(but("n09"))
    assert world.planned("x")
    assert world.home(0, "x") == "n09"


def test_of_many_missing_claims_all_are_counted_and_a_few_are_named() -> None:
    world = cluster()
    world.see(claiming("x", "c0", gang=""))
    claim_names = tuple(f"c{number:02}" for number in range(64))
    world.report(InTreeAnswer(missing_claims=claim_names, more_missing_claims=36))
    reason = "PersistentVolumeClaims c00, c01, c02, c03 and 96 more do not exist"
    assert world.verdict("x").reason == reason


def test_what_is_refused_whatever_the_node_is_told_as_that() -> None:
    world = cluster()
    world.see(claiming("x", gang=""))
    world.report(InTreeAnswer(everywhere="VolumeBinding: pod has unbound immediate PersistentVolumeClaims"))
    reason = "No node admits the gang: VolumeBinding: pod has unbound immediate PersistentVolumeClaims"
    assert world.verdict("x").reason == reason
    assert not world.asked


@pytest.mark.parametrize(
    "answer", [InTreeAnswer(missing_claims=("data",)), InTreeAnswer(everywhere="VolumeBinding: not bound")]
)
def test_no_domain_is_reserved_for_a_gang_that_no_free_gpu_would_help(answer: InTreeAnswer) -> None:
    world = cluster(["n1"])
    world.see(claiming("x", gang="", gpus=8))
    world.report(answer)
    world.wait(world.settings.backfill_after_s + 1)
    assert world.phase("x") == "unplaceable"
    assert world.coordinator.state.backfill.current is None


def test_members_without_their_claims_do_not_stop_those_that_are_enough() -> None:
    world = cluster()
    world.see(*(with_topology(f"m{i}", of=2, peers=PeerRules(volume_claims=(f"c{i}",))) for i in range(3)))
    world.report(but("n03"))  # of the two that were there first
    world.report(but("n03"), InTreeAnswer(missing_claims=("c2",)), of=((0, 1), (2,)))
    assert [name for name, _ in world.verdict().members] == ["m0", "m1"]


def test_members_with_different_volumes_go_where_each_one_lies() -> None:
    world = cluster()
    world.see(claiming("a"), claiming("b"))
    world.report(but("n30"), but("n07"), of=((0,), (1,)))
    homes = {name: world.home(i) for i, (name, _) in enumerate(world.verdict().members)}
    assert homes == {"a": "n30", "b": "n07"}


def test_a_long_report_counts_once_all_of_it_is_there() -> None:
    world = cluster()
    world.see(claiming("a"), claiming("b"))
    world.report(but("n30"), of=((0,),), more=True)
    assert not world.verdicts
    with pytest.raises(StaleError):
        world.report(but("n01"), of=((1,),), part=2)
    world.report(but("n31"), of=((0,),), more=True)  # from its beginning, after a failure
    world.report(but("n07"), of=((1,),), part=1)
    homes = {name: world.home(i) for i, (name, _) in enumerate(world.verdict().members)}
    assert homes == {"a": "n31", "b": "n07"}


def test_nothing_of_an_old_report_is_left_for_a_new_question() -> None:
    world = cluster()
    world.see(claiming("a", gang=""))
    world.report(but("n30"), more=True)
    world.connect()
    with pytest.raises(StaleError):
        world.report(but("n30"), part=1)
    world.report(but("n31"))
    assert world.home(0, "a") == "n31"


class _Counted(dict[str, str]):
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return super().__eq__(other)

    __hash__ = None


def test_an_answer_of_many_pods_is_compared_once() -> None:
    world = cluster()
    world.see(*(with_topology(f"m{i}", of=64, peers=PeerRules(volume_claims=(f"c{i}",))) for i in range(64)))
    world.wait(1)
    world.report(but("n03"))
    refused = _Counted(but("n03").refused)
    _Counted.compared = 0
    world.report(InTreeAnswer(refused), of=(tuple(range(64)),))
    assert _Counted.compared <= 2


def test_many_gangs_without_their_claims_are_refused_a_few_at_a_time() -> None:
    world = cluster()
    for i in range(100):
        world.see(claiming(f"x{i}", gang=""))
        world.report(InTreeAnswer(missing_claims=(f"x{i}",)))
    before = len(world.verdicts)
    world.connect()
    world.wait(5)
    assert {world.phase(f"x{i}") for i in range(100)} == {"unplaceable"}
    assert len(world.verdicts) > before


# --- the request ---------------------------------------------------------------------------------------


def test_room_reaches_the_planner() -> None:
    world = cluster()
    world.auto = False
    world.see(claiming("a"), claiming("b"))
    world.report(but("n01", "n02", room={"n01": 1, "n02": 1}))
    assert [dict(role.room) for role in world.solves[0].request.roles] == [{"n01": 1, "n02": 1}]


def test_parts_of_a_role_have_names_of_their_own_and_constraints_follow_them() -> None:
    world = cluster()
    world.auto = False
    topology_request = TopologyRequest(role="worker")
    pods = [
        with_topology(uid, topology_request, of=3, peers=PeerRules(volume_claims=(uid,)))
        for uid in ("a", "b", "c")
    ]
    world.see(*pods)
    world.report(but("n01"), but("n02"), of=((0, 2), (1,)))
    solve = world.solves[0]
    assert {role.name: [m.name for m in role.members] for role in solve.request.roles} == {
        "worker-1": ["a", "c"],
        "worker-2": ["b"],
    }
    assert {role for role, nodes in solve.excluded.items() if nodes} == {"worker-1", "worker-2"}
    whole = replace(
        solve.request,
        roles=(replace(solve.request.roles[0], name="worker", members=_members(solve.request)),),
        constraints=(AntiAffinity("x", "rack", frozenset({"worker"}), frozenset({"worker"})),),
    )
    parts = world.coordinator.state.in_tree.answers(solve.gang).refine(whole)
    two_parts = frozenset({"worker-1", "worker-2"})
    assert parts.constraints == (AntiAffinity("x", "rack", two_parts, two_parts),)


def _members(request: Request) -> tuple[Member, ...]:
    return tuple(sorted((m for role in request.roles for m in role.members), key=lambda m: m.name))


def test_nothing_is_remembered_of_gangs_that_are_gone() -> None:
    world = cluster()
    for i in range(20):
        world.see(claiming(f"x{i}", gang=""))
        world.report(but("n00"))
        if world.planned(f"x{i}"):
            world.run(f"x{i}")
        world.gone(f"x{i}")
    in_tree: InTree = world.coordinator.state.in_tree
    assert not (in_tree._records)
    assert not (in_tree._refused_gangs)


# --- late refusals -----------------------------------------------------------------------------------


def refuse(world: World, gang: str = "x", plugin: str = PLUGIN, why: str = WHY) -> None:
    world.now += 0.05
    world.unreserve(0, BindingFate.NEVER_SENT, plugin, why, gang=gang)


def test_after_a_late_refusal_all_nodes_are_asked_about_whatever_the_pod_asks_for() -> None:
    world = cluster()
    world.see(pod("x", gang=""))
    assert world.planned("x")
    assert not world.questions
    refuse(world)
    assert not world.planned("x")
    assert world.questions[0].pods == (("x", "x"),)
    world.report(but("n22"))
    assert world.home(0, "x") == "n22"
    assert world.asked == 2


def test_a_plugin_that_the_planner_models_is_not_asked_about() -> None:
    world = cluster()
    world.see(pod("x", gang=""))
    refuse(world, plugin="NodeResourcesFit", why="Insufficient cpu")
    assert world.planned("x")
    assert not world.questions


@pytest.mark.parametrize("nodes", [10, 60, 400])
def test_each_node_is_tried_before_any_is_tried_again(nodes: int) -> None:
    names = [f"n{i:03}" for i in range(nodes)]
    world = World().start(*(node(name, 8) for name in names))
    world.see(pod("x", gang="", gpus=8))
    tried: list[str] = []
    while len(tried) < nodes:
        world.wait(60) if not world.planned("x") else None
        tried.append(world.home(0, "x"))
        refuse(world)
    assert len(set(tried)) == nodes
    assert world.now - 1000 < 60 * nodes
    world.wait(31)
    clause = f"{nodes} nodes ({PLUGIN}: {WHY})"
    assert any(clause in verdict.reason for verdict in world.verdicts)


def test_a_pod_that_every_node_refuses_is_not_planned_without_end() -> None:
    """The reproduction: 200 nodes, 900 s; each refusal took a plan at once."""
    world = World().start(*(node(f"n{i:03}", 8) for i in range(200)))
    world.see(pod("x", gang="", gpus=8))
    plans, in_a_row = 0, 0
    while world.now < 1900:
        if world.planned("x"):
            plans, in_a_row = plans + 1, in_a_row + 1
            assert in_a_row < 20
            refuse(world, why='persistentvolumeclaim "data" not found')
        else:
            world.wait(0.25)
            in_a_row = 0
    assert plans < 300


@pytest.mark.parametrize("volumes", [("r0", "r1"), ("r1", "r1")])
def test_a_role_with_a_scope_of_its_own_stays_in_one_part_of_it(volumes: tuple[str, str]) -> None:
    racks = ("r0", "r1")
    names = [f"{rack}-{i}" for rack in racks for i in range(2)]
    label = "topology.kubernetes.io/rack"
    world = World(answers_in_tree=True).start(*(node(name, 8, {label: name[:2]}) for name in names))
    worker = TopologyRequest(role="worker", role_scope="rack")
    world.see(with_topology("m", TopologyRequest(role="master"), of=3))
    for uid in ("w0", "w1"):
        world.see(with_topology(uid, worker, of=3, peers=PeerRules(volume_claims=(uid,))))
    answers = (but(*(name for name in names if name[:2] == rack), of=names) for rack in volumes)
    world.report(*answers, of=((0,), (1,)))
    for _ in range(9):
        if not world.planned():
            break
        homes = {uid: world.home(at) for at, (_, uid) in enumerate(world.verdict().members)}
        assert homes["w0"][:2] == homes["w1"][:2]
        wrong = [at for at, uid in enumerate(("w0", "w1")) if homes[uid][:2] != volumes[at]]
        if not wrong:
            break
        uids = [uid for _, uid in world.verdict().members]
        world.unreserve(uids.index(f"w{wrong[0]}"), BindingFate.NEVER_SENT, PLUGIN, WHY)
    assert world.planned() == (volumes[0] == volumes[1])


def test_an_answer_that_comes_after_a_plan_without_it_was_refused_still_counts() -> None:
    """Plugins may always take longer than `answers_s`: nodes would be tried one by one for ever."""
    world = cluster()
    world.see(claiming("x", gang="", gpus=8))
    world.wait(world.coordinator.state.settings.answers_s + 0.1)
    assert world.planned("x")  # without answers
    world.unreserve(0, BindingFate.NEVER_SENT, PLUGIN, WHY, "x")
    world.report(but("n37"), question=world.questions[0])
    world.unreserve(0, BindingFate.NEVER_SENT, PLUGIN, WHY, "x")
    world.wait(world.coordinator.state.settings.answers_s + 0.1)
    assert world.planned("x")
    assert world.home(0, "x") == "n37"
