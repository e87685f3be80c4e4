"""Gangs that a PodGroup of Kubernetes' own API describes: late, made anew, its number, its priority."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.gangs import native
from muster.domain.pod import KUBERNETES, Batch, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.gangs.messages import inputs
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase
from tests.gangs.world import World, node, pod

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


@pytest.mark.parametrize(("min_count", "phase"), [(1, Phase.PLANNED), (3, Phase.COLLECTING)])
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
