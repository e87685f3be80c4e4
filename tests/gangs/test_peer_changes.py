"""A gang that was refused under constraints is asked about again when a pod or a node changes that they speak
of, though no node with room for it gained anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.domain.causes.too_little import MemberTooLarge
from muster.domain.constraints import AntiAffinity
from muster.domain.decision import Unplaceable
from muster.domain.peers import PeerRules, SpreadTerm
from muster.domain.pod import Pod
from muster.domain.request import SelectorTerm
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Solve
from tests.gangs.test_constraints import DB, WEB, ZONE, app, other, term
from tests.gangs.world import World, node, pod

FULL = 4
"""GPUs of a node: those of `a` are taken, so it can take no member whatever ends there."""


def no(solve: Solve) -> Unplaceable:
    """The planner's answer that nothing fits."""
    return Unplaceable(solve.request.gang, (MemberTooLarge("", "gpus", 1, "b", 0),))


def refused(rules: PeerRules, *other_pods: Pod) -> World:
    """A gang of one, labelled app=web, that the planner refuses; node a is full."""
    world = World(auto=False).start(node("a", FULL, {ZONE: "z"}), node("b", FULL, {ZONE: "z"}))
    for existing_pod in (other("filler", "a", {"app": "filler"}), *other_pods):
        world.see(
            replace(existing_pod, gpus=FULL, gpu_resource="nvidia.com/gpu")
            if existing_pod.uid == "filler"
            else existing_pod
        )
    world.see(replace(pod("p", gang="", gpus=1), labels=(("app", "web"),), peers=rules))
    solve = world.solves[0]
    world.solve(no(solve))
    assert world.phase("p") == "unplaceable"
    assert not world.solves
    return world


def seen(changed_pod: Pod) -> Callable[[World], None]:
    return lambda world: world.see(changed_pod)


def gone(uid: str) -> Callable[[World], None]:
    return lambda world: world.gone(uid)


def labelled(name: str, labels: dict[str, str]) -> Callable[[World], None]:
    return lambda world: world.send(inputs.NodeSeen(world.now, node(name, FULL, labels)))


def namespace(name: str, *labels: tuple[str, str]) -> Callable[[World], None]:
    return lambda world: world.send(inputs.NamespaceSeen(world.now, name, labels))


NO_TEAM = SelectorTerm("team", "DoesNotExist")
APART = PeerRules(anti_affinity=(term("db", ZONE),))
NEAR = PeerRules(affinity=(term("db", ZONE),))
SPREAD = PeerRules(spread=(SpreadTerm(ZONE, app("web")),))
DATABASE = other("x", "a", DB)
REPELS = other("x", "a", DB, anti_affinity=(term("web", ZONE),))

AGAIN: dict[str, tuple[PeerRules, list[Pod], Callable[[World], None], bool]] = {
    "what it keeps away from ends on a full node": (APART, [DATABASE], gone("x"), True),
    "what it keeps away from finishes": (APART, [DATABASE], seen(replace(DATABASE, finished=True)), True),
    "what it keeps away from is labelled anew": (
        APART,
        [DATABASE],
        seen(other("x", "a", {"app": "y"})),
        True,
    ),
    "what repels it ends": (PeerRules(), [REPELS], gone("x"), True),
    "what it must be near to comes": (NEAR, [], seen(DATABASE), True),
    "another pod comes": (NEAR, [], seen(other("x", "a", {"app": "y"})), False),
    "a pod comes that spread counts": (SPREAD, [], seen(other("x", "a", WEB)), True),
    "a pod that spread counts begins to end": (
        SPREAD,
        [other("x", "a", WEB)],
        seen(replace(other("x", "a", WEB), terminating=True)),
        True,
    ),
    "a full node changes its labels": (NEAR, [], labelled("a", {ZONE: "y"}), True),
    "the gang's namespace is labelled": (
        PeerRules(),
        [other("x", "a", DB, "m", anti_affinity=(term("web", ZONE, by=(NO_TEAM,)),))],
        namespace("ns", ("team", "t")),
        True,
    ),
    "a namespace is labelled that has no pods": (NEAR, [], namespace("new", ("team", "t")), False),
    "a gang without constraints, and a full node changes": (PeerRules(), [], gone("nobody"), False),
    "a gang without constraints, and a pod comes": (PeerRules(), [], seen(DATABASE), False),
}


@pytest.mark.parametrize(("rules", "other_pods", "change", "again"), AGAIN.values(), ids=AGAIN)
def test_who_is_asked_about_again(
    rules: PeerRules, other_pods: list[Pod], change: Callable[[World], None], again: bool
) -> None:
    world = refused(rules, *other_pods)
    change(world)
    assert bool(world.solves) is again


def test_a_claim_that_can_be_used_on_many_nodes_after_all() -> None:
    shared = PeerRules(volume_claims=("data",))
    world = World(auto=False).start(node("a", FULL), node("b", FULL))
    world.send(inputs.VolumeClaimSeen(world.now, "ns", "data", True))
    world.see(other("x", "a", DB, volume_claims=("data",)))
    world.see(replace(pod("p", gang="", gpus=1), peers=shared))
    (solve,) = world.solves
    assert [set(constraint.existing) for constraint in solve.request.constraints] == [{"a"}]
    world.solve(no(solve))
    assert not world.solves
    world.send(inputs.VolumeClaimSeen(world.now, "ns", "data", False))
    (solve,) = world.solves
    assert solve.request.constraints == ()


def test_a_change_while_the_planner_thinks_makes_its_no_old() -> None:
    world = refused(APART, DATABASE, other("y", "a", DB))
    world.gone("y")
    solve = world.solves[0]
    world.gone("x")
    world.solve(no(solve))
    (solve,) = world.solves
    assert solve.request.constraints == ()


def test_a_planned_pod_repels_until_its_plan_is_withdrawn() -> None:
    """A pod of a live plan counts as one that runs."""
    world = World().start(node("a", FULL, {ZONE: "z"}))
    world.see(replace(pod("p", gang="", gpus=1), labels=(("app", "db"),)))
    assert world.planned("p")
    world.auto = False
    world.see(replace(pod("q", gang="", gpus=1), peers=APART))
    (solve,) = world.solves
    assert [set(constraint.existing) for constraint in solve.request.constraints] == [{"a"}]
    world.solve(no(solve))
    world.gone("p")
    (solve,) = world.solves
    assert solve.request.constraints == ()


def test_a_label_of_a_waiting_member_voids_its_plan() -> None:
    apart = PeerRules(anti_affinity=((term("db", ZONE)),))
    world = World().start(node("a", FULL, {ZONE: "z"}))
    world.see(replace(pod("p", gang="", gpus=1), peers=apart))
    before = world.verdict("p").generation
    world.see(replace(pod("p", gang="", gpus=1), peers=apart, labels=(("app", "db"),)))
    assert world.planned("p")
    assert world.verdict("p").generation > before
    request = world.coordinator.state.gangs[world.verdict("p").gang].plan
    assert request is not None
    (constraint,) = request.request.constraints
    assert isinstance(constraint, AntiAffinity)
    assert constraint.other_roles == {""}
