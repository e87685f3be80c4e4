"""PodGroup objects and policies: gangs that wait for them, and what they say of their gangs."""

from __future__ import annotations

from dataclasses import replace

from muster.domain.levels import Level
from muster.domain.pod import GangClaim, Pod, Wishes
from muster.domain.podgroup import PodGroup
from muster.domain.policies import Policies, Policy
from muster.domain.request import Request, SelectorTerm, Term
from muster.gangs import events
from muster.gangs.gang import Gang
from muster.gangs.life import Phase
from tests.gangs.world import World, node, pod

GROUP = PodGroup("ns", "kai", "train", uid="g", min_member=2, wishes=Wishes(required_scope="node"))


def named(uid: str, **wishes: object) -> Pod:
    claim = GangClaim("kai", "train", wishes=Wishes(**wishes), by_object=True)  # type: ignore[arg-type]
    return pod(uid, claim=claim)


def gang(world: World) -> Gang:
    (only,) = world.coordinator.lives.gangs.values()
    return only


def planned(world: World) -> Request:
    plan = gang(world).plan
    assert plan is not None
    return plan.request


def seen(world: World, group: PodGroup) -> None:
    world.send(events.PodGroupSeen(world.now, group))


def test_pods_wait_for_their_pod_group_and_say_so() -> None:
    world = World().start(node("a"))
    world.see(named("p0"), named("p1"))
    assert gang(world).phase is Phase.COLLECTING
    world.wait(10)
    assert [event.message for event in world.events] == [
        "PodGroup ns/train does not exist yet; its pods wait for it"
    ]
    seen(world, GROUP)
    assert gang(world).phase is Phase.PLANNED
    request = planned(world)
    assert (request.required_scope, request.min_member) == ("node", 2)


def test_a_pod_group_that_comes_first_waits_for_its_pods() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0"))
    assert gang(world).phase is Phase.COLLECTING
    world.see(named("p1"))
    assert gang(world).phase is Phase.PLANNED


def test_its_node_terms_bind_every_member() -> None:
    term = SelectorTerm("nvidia.com/nvswitch.present", "In", ("true",))
    world = World().start(node("a"), node("b", labels={"nvidia.com/nvswitch.present": "true"}))
    seen(world, replace(GROUP, required=(term,)))
    world.see(named("p0"), named("p1"))
    plan = gang(world).plan
    assert plan is not None
    assert plan.nodes == {"b"}


def test_a_changed_pod_group_voids_the_plan_and_a_gone_one_holds_the_gang() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0"), named("p1"))
    seen(world, replace(GROUP, min_member=3))
    assert gang(world).phase is Phase.COLLECTING
    world.send(events.PodGroupGone(world.now, GROUP.key))
    assert "does not exist yet" in gang(world).reason


def test_pods_that_contradict_their_pod_group_are_refused_and_both_are_named() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0", required_scope="rack"), named("p1", required_scope="rack"))
    assert gang(world).phase is Phase.INVALID
    assert "PodGroup ns/train" in gang(world).reason
    assert "its annotations" in gang(world).reason


def test_policies_come_as_terms_the_heaviest_first_and_a_name_that_is_none_is_refused() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0", policies=("near", "switched")), named("p1", policies=("near", "switched")))
    assert gang(world).phase is Phase.INVALID
    assert "near" in gang(world).reason
    near, switched = Term("nvlink", "pack"), Term("nvswitch", "prefer")
    levels = (Level("row", ("example.com/row",)),)
    policies = Policies(True, (Policy("near", 10, near), Policy("switched", 80, switched)), levels)
    world.send(events.PoliciesSeen(world.now, policies))
    assert gang(world).phase is Phase.PLANNED
    assert planned(world).terms == (switched, near)
    assert world.coordinator.lives.ledger.snapshot().levels == levels


def test_a_large_gang_of_a_pod_group_is_not_counted_again_for_each_pod() -> None:
    world = World().start(node("a"))
    seen(world, replace(GROUP, min_member=50))
    for number in range(3):
        world.see(named(f"p{number}"))
    before = gang(world).group
    world.see(named("p3"))
    assert gang(world).group is before
