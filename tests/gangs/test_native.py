"""Gangs that a PodGroup of Kubernetes' own API describes: late, made anew, its number, its priority."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.gangs import native
from muster.domain.causes.not_planned import GroupsMissing
from muster.domain.pod import COMPOSITE, KUBERNETES, Batch, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.quorums import Leaf, Quorum
from muster.gangs.messages import inputs
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase, Planned
from tests.gangs.world import World, foreign, node, pod

GROUP = PodGroup(
    "ns", KUBERNETES, "x", uid="g", min_member=2, size=2, count_field="spec.schedulingPolicy.gang.minCount",
    api_version="scheduling.k8s.io/v1beta1",
)  # fmt: skip
CLAIM = GangClaim(KUBERNETES, "x", by_object=True)


def member(uid: str, **more: Any) -> Pod:
    return pod(uid, claim=CLAIM, **more)


def gang(world: World) -> Gang:
    (only,) = world.coordinator.state.gangs.values()
    return only


def see(world: World, group: PodGroup) -> None:
    world.send(inputs.PodGroupSeen(world.now, group))


def test_pods_wait_for_a_group_that_comes_late() -> None:
    world = World().start(node("a"))
    world.see(member("p0"), member("p1"))
    assert gang(world).reason == "PodGroup ns/x does not exist yet; its pods wait for it"
    see(world, GROUP)
    assert gang(world).phase is Phase.PLANNED


def test_a_waiting_gang_names_the_field_that_states_its_number() -> None:
    world = World().start(node("a"))
    see(world, GROUP)
    world.see(member("p0"))
    named = "(spec.schedulingPolicy.gang.minCount of PodGroup ns/x)"
    assert gang(world).reason == f"Waiting for 1 more member: 1 of 2 are here {named}"


def test_a_gang_of_min_count_pods_waits_for_no_more() -> None:
    world = World(GangSettings(settle_s=60)).start(node("a"))
    see(world, GROUP)
    world.see(member("p0"), member("p1"))
    assert gang(world).phase is Phase.PLANNED


@pytest.mark.parametrize(
    ("min_count", "phase"), [(1, Phase.PLANNED), (3, Phase.COLLECTING), (2**31 - 1, Phase.COLLECTING)]
)
def test_a_changed_number_counts_while_the_gang_waits(min_count: int, phase: Phase) -> None:
    world = World().start(node("a"))
    see(world, replace(GROUP, min_member=4, size=4))
    world.see(member("p0"), member("p1"))
    assert gang(world).phase is Phase.COLLECTING
    see(world, replace(GROUP, min_member=min_count, size=min_count))
    assert gang(world).phase is phase


def test_a_group_made_anew_holds_by_its_new_rules() -> None:
    world = World().start(node("a", 1, labels={"topology.kubernetes.io/rack": "r"}), node("b", 1))
    see(world, GROUP)
    world.see(member("p0"), member("p1"))
    first = gang(world)
    assert first.phase is Phase.PLANNED
    world.send(inputs.PodGroupGone(world.now, GROUP.key))
    assert gang(world).phase is Phase.COLLECTING
    in_one_node = TopologyRequest(required_scope="node")
    see(world, replace(GROUP, uid="new", topology_request=in_one_node))
    assert gang(world).phase is Phase.UNPLACEABLE
    assert gang(world).key == first.key


def test_pods_of_several_owners_are_one_gang() -> None:
    world = World().start(node("a"))
    see(world, GROUP)
    world.see(member("p0", owner="master", created=1.0), member("p1", owner="worker", created=900.0))
    assert gang(world).phase is Phase.PLANNED


def test_pods_that_use_a_group_again_begin_anew() -> None:
    """The succeeded pods of an earlier Job are no members of a later Job that names the same PodGroup."""
    world = World().start(node("a"))
    see(world, GROUP)
    early = [
        member(uid, owner="early", created=1.0, started=2.0, finished=True, succeeded=True) for uid in "ab"
    ]
    world.see(*early)
    world.see(member("p2", owner="late", created=900.0))
    assert gang(world).phase is Phase.COLLECTING
    world.see(member("p3", owner="late", created=901.0))
    assert gang(world).phase is Phase.PLANNED


def test_a_split_is_seen_while_the_groups_can_not_be_read() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"))
    unread = native.refused_unread(GROUP.key)
    see(world, unread)
    batch = Batch(needed=4, newest=1, left_out=0)
    world.see(*(member(f"b{number}", node="a", created=1.0, batch=batch) for number in range(2)))
    world.see(*(member(f"p{number}", created=1.0) for number in range(2)))
    group = gang(world).group
    assert (group.was_fully_bound, group.was_split_by_crash) == (False, True)


def test_a_running_gang_outlives_a_restart_that_finds_its_group_gone() -> None:
    """No finalizer kept the PodGroup. What it said is forgotten: a replacement waits, and no member goes."""
    world = World(GangSettings(settle_s=0, partial_s=1)).start(node("a"))
    see(world, GROUP)
    world.see(member("p0"), member("p1"))
    world.run("x")
    world.restart()
    for running in world.pods.values():
        world.send(inputs.PodSeen(world.now, running))
    world.start(node("a"))
    world.gone("p1")
    world.see(member("p2", created=900.0))
    world.wait(60)
    assert gang(world).reason == "PodGroup ns/x does not exist yet; its pods wait for it"
    assert world.evictions == []
    see(world, GROUP)
    assert gang(world).phase is Phase.PLANNED
    assert world.evictions == []


def test_groups_without_pods_make_no_gang_and_ask_no_planner() -> None:
    """Who may write PodGroups and no pods costs others nothing."""
    world = World(GangSettings()).start(node("a"))
    for number in range(1000):
        see(world, replace(GROUP, name=f"x{number}", uid=f"g{number}"))
        see(world, replace(GROUP, name=f"x{number}", uid=f"g{number}", min_member=3))
    assert (world.coordinator.state.gangs, world.asked, world.events) == ({}, 0, [])
    assert world.coordinator.next_deadline() is None


def test_another_priority_of_the_group_is_refused_until_both_agree() -> None:
    world = World().start(node("a"))
    see(world, replace(GROUP, priority=1000))
    world.see(member("p0"), member("p1"))
    assert gang(world).phase is Phase.INVALID
    assert gang(world).reason == (
        '2 pods (pod/ns/p0 is the first): spec.priority is "0", expected 1000, as PodGroup ns/x has it: '
        "set one priorityClassName in both"
    )
    see(world, replace(GROUP, priority=0))
    assert gang(world).phase is Phase.PLANNED


def test_a_higher_number_evicts_no_running_member() -> None:
    world = World(GangSettings(settle_s=0, partial_s=1)).start(node("a"))
    see(world, GROUP)
    world.see(member("p0"), member("p1"))
    world.run("x")
    see(world, replace(GROUP, min_member=4, size=4))
    world.wait(60)
    assert (world.phase("x"), world.evictions) == ("running", [])


def test_a_plan_of_a_further_member_is_withdrawn_when_members_that_run_are_lost() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", 3))
    see(world, GROUP)
    world.see(member("p0"), member("p1"))
    world.run("x")
    world.see(member("p2"), member("p3"))
    assert [uid for _, uid in world.verdict("x").members] == ["p2"]
    for uid in ("p0", "p1"):
        world.see(replace(world.pods[uid], finished=True))
    why = "plan withdrawn: the planned members are not enough by what the gang needs now"
    assert why in [event.message for event in world.events]
    assert [uid for _, uid in world.verdict("x").members] == ["p2", "p3"]


# --- trees -----------------------------------------------------------------------------------------

BOTH = PodGroup(
    "ns", COMPOSITE, "x", uid="t", min_member=4, size=4, role_min={"a": 2, "b": 2},
    role_topology_requests={"a": TopologyRequest("a"), "b": TopologyRequest("b")},
    api_version="scheduling.k8s.io/v1alpha3",
)  # fmt: skip
"""A CompositePodGroup of two PodGroups, which start together."""
ANY = replace(
    BOTH, min_member=2, role_min={}, quorum=Quorum(1, (Leaf(frozenset("a"), 2), Leaf(frozenset("b"), 2)))
)
"""The same, but one PodGroup is enough."""


def part(uid: str, role: str, **more: Any) -> Pod:
    request = TopologyRequest(role)
    return pod(uid, claim=GangClaim(COMPOSITE, "x", by_object=True, topology_request=request), **more)


def parts(role: str, **more: Any) -> list[Pod]:
    return [part(f"{role}{number}", role, **more) for number in range(2)]


def test_the_groups_of_a_tree_start_together() -> None:
    world = World().start(node("a"))
    see(world, BOTH)
    world.see(*parts("a"))
    assert gang(world).phase is Phase.COLLECTING
    world.wait(60)  # a changed number is told rarely
    named = "(spec.schedulingPolicy of PodGroup ns/b)"
    assert gang(world).reason == f"Waiting for 2 more members of role b: 0 of 2 are here {named}"
    world.see(*parts("b"))
    assert gang(world).phase is Phase.PLANNED
    assert len(world.verdict("x").members) == 4


def test_one_group_of_a_tree_may_be_enough() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", 2))
    see(world, ANY)
    world.see(*parts("a"), *parts("b"))
    assert gang(world).phase is Phase.PLANNED
    phase = gang(world).in_phase
    assert isinstance(phase, Planned)
    assert {uid[0] for uid in phase.plan.pods} in ({"a"}, {"b"})


def test_a_tree_waits_for_a_parent_and_for_groups() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a"))
    world.see(*parts("a"))
    assert gang(world).reason.startswith("CompositePodGroup ns/x does not exist yet; the pods below it wait")
    see(world, replace(ANY, missing=GroupsMissing("CompositePodGroup ns/x", 1, 2)))
    assert gang(world).phase is Phase.COLLECTING
    stated_by = "(spec.schedulingPolicy.gang.minGroupCount of CompositePodGroup ns/x)"
    assert gang(world).reason == f"Waiting for 1 more group: 1 of 2 are here {stated_by}"
    see(world, ANY)
    assert gang(world).phase is Phase.PLANNED


@pytest.mark.parametrize("owners", [("first", "second"), ("", "")])
def test_a_group_that_has_ended_counts_when_the_pods_of_another_come(owners: tuple[str, str]) -> None:
    """It is no earlier gang of the tree, as it would be of one PodGroup."""
    world = World().start(node("a"))
    see(world, BOTH)
    ended = {"created": 1.0, "started": 2.0, "finished": True, "succeeded": True}
    world.see(*parts("a", owner=owners[0], **ended))
    world.see(*parts("b", owner=owners[1], created=900.0))
    assert gang(world).phase is Phase.PLANNED


def test_a_plan_with_a_group_whose_parent_lacks_groups_now_is_withdrawn() -> None:
    world = World().start(node("a"))
    leaf_a, leaf_b = Leaf(frozenset("a"), 2), Leaf(frozenset("b"), 2)
    see(world, replace(ANY, quorum=Quorum(1, (Quorum(1, (leaf_a,)), leaf_b))))
    world.see(*parts("a"), *parts("b"))
    assert [uid for _, uid in world.verdict("x").members] == ["a0", "a1"]
    see(world, replace(ANY, quorum=Quorum(1, (Quorum(2, (leaf_a,)), leaf_b))))
    assert [uid for _, uid in world.verdict("x").members] == ["b0", "b1"]


def test_a_place_is_reserved_for_one_of_further_pods_of_a_running_tree() -> None:
    """The tree needs no more pods, and the least that can be reserved is the place of one."""
    world = World(GangSettings(settle_s=0)).start(node("a", 2), node("b", 1))
    see(world, ANY)
    world.see(foreign("f", "b"), *parts("a"))
    world.run("x")
    world.see(part("a2", "a"), part("a3", "a"))
    world.wait(600)
    reservation = world.coordinator.state.backfill.current
    assert reservation is not None
    assert (reservation.gang, gang(world).phase) == (gang(world).key, Phase.UNPLACEABLE)


def test_a_tree_that_needs_more_evicts_no_running_member() -> None:
    world = World(GangSettings(settle_s=0, partial_s=1)).start(node("a"))
    see(world, ANY)
    world.see(*parts("a"))
    world.run("x")
    see(world, BOTH)
    world.wait(60)
    assert (world.phase("x"), world.evictions) == ("running", [])
    see(world, replace(ANY, missing=GroupsMissing("CompositePodGroup ns/x", 1, 2)))
    world.wait(60)
    assert (world.phase("x"), world.evictions) == ("running", [])
