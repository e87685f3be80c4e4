"""PodGroup objects and policies: gangs that wait for them, and what they state about their gangs."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from muster.domain.causes.too_little import MembersToCome
from muster.domain.constraints import Subgroup
from muster.domain.levels import FabricLevel
from muster.domain.pod import GROUP as RANKS
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import FollowerTemplate, PodGroup
from muster.domain.policies import Policies, Policy
from muster.domain.quorums import Leaf, Quorum
from muster.domain.request import PolicyTerm, Request, RolePreference, SelectorTerm, TypicalRequest
from muster.gangs.capacity import requests
from muster.gangs.membership.group import Group, complete_pod
from muster.gangs.messages import inputs
from muster.gangs.messages.calls import BindingFate
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang
from muster.gangs.record.phases import Phase
from tests.gangs.world import World, foreign, node, pod

RACK = "topology.kubernetes.io/rack"

GROUP = PodGroup(
    "ns", "kai", "train", uid="g", min_member=2, topology_request=TopologyRequest(required_scope="node")
)

TREE = replace(
    GROUP,
    role_topology_requests={
        "w": TopologyRequest(role="w", role_scope="rack"),
        "m": TopologyRequest(role="m"),
    },
)


def named(uid: str, **topology_request: object) -> Pod:
    claim = GangClaim("kai", "train", topology_request=TopologyRequest(**topology_request), by_object=True)  # type: ignore[arg-type]
    return pod(uid, claim=claim)


def gang(world: World) -> Gang:
    (only,) = world.coordinator.state.gangs.values()
    return only


def planned(world: World) -> Request:
    plan = gang(world).plan
    assert plan is not None
    return plan.request


def seen(world: World, group: PodGroup) -> None:
    world.send(inputs.PodGroupSeen(world.now, group))


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
    assert {member.node for member in plan.placed.members} == {"b"}


def test_a_changed_pod_group_voids_the_plan_and_a_gone_one_holds_the_gang() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0"), named("p1"))
    seen(world, replace(GROUP, min_member=3))
    assert gang(world).phase is Phase.COLLECTING
    world.send(inputs.PodGroupGone(world.now, GROUP.key))
    assert "does not exist yet" in gang(world).reason


def test_pods_that_contradict_their_pod_group_are_refused_and_both_are_named() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0", required_scope="rack"), named("p1", required_scope="rack"))
    assert gang(world).phase is Phase.INVALID
    assert "have gpu.topology/scope: rack, and PodGroup ns/train has scope: node" in gang(world).reason


POD_FIELDS = {
    "a scope where it says none": (
        PodGroup("ns", "kai", "train", min_member=2),
        {"required_scope": "rack"},
        "",
    ),
    "the same scope": (GROUP, {"required_scope": "node"}, ""),
    "another": (GROUP, {"required_scope": "rack"}, "PodGroup ns/train has scope: node"),
    "the same scope of the role": (TREE, {"role": "w", "role_scope": "rack"}, ""),
    "a wider one": (TREE, {"role": "w", "role_scope": "zone"}, "PodGroup ns/train has role-scope: rack"),
    "one of a role of which it says none": (TREE, {"role": "m", "role_scope": "zone"}, ""),
}


@pytest.mark.parametrize(("group", "topology_request", "against"), POD_FIELDS.values(), ids=POD_FIELDS)
def test_what_a_pod_says_adds_to_its_pod_group_and_contradicts_nothing_in_it(
    group: PodGroup, topology_request: dict[str, str], against: str
) -> None:
    pod = complete_pod(named("p0", **topology_request), {group.key: group})
    assert [str(cause).partition(", and ")[2] for cause in pod.causes] == ([against] if against else [])
    if not against:
        assert pod.claim is not None
        assert all(
            getattr(pod.claim.topology_request, key) == value for key, value in topology_request.items()
        )


def test_a_role_that_is_none_of_the_subgroups_is_refused_and_they_are_named() -> None:
    world = World().start(node("a"))
    roles = {
        "prefill": TopologyRequest(role="prefill"),
        "decode": TopologyRequest(role="decode", role_scope="node"),
    }
    seen(world, replace(GROUP, role_topology_requests=roles))
    world.see(named("p0", role="prefill"), named("p1", role="decoder"))
    assert gang(world).phase is Phase.INVALID
    assert "a subgroup of PodGroup ns/train: decode, prefill" in gang(world).reason
    world.see(named("p1", role="decode"))
    assert gang(world).phase is Phase.PLANNED
    assert {role.name: role.required_scope for role in planned(world).roles} == {
        "prefill": None,
        "decode": "node",
    }


SUBGROUPS = replace(
    GROUP,
    min_member=3,
    topology_request=TopologyRequest(),
    role_topology_requests={
        "prefill": TopologyRequest(role="prefill"),
        "decode": TopologyRequest(role="decode"),
    },
    role_min={"prefill": 2, "decode": 1},
)


def test_a_level_that_several_subgroups_share_names_all_roles_that_their_pods_are() -> None:
    """Pods of one subgroup that ask for different things are several roles."""
    shared = Subgroup("the level of subgroup up", "rack", frozenset({"prefill", "decode"}))
    world = World(GangSettings(settle_s=0), auto=False).start(
        node("a", 8, {"topology.kubernetes.io/rack": "r"})
    )
    seen(world, replace(SUBGROUPS, subgroups=(shared,)))
    world.see(named("p0", role="prefill"), named("d0", role="decode"))
    world.see(replace(named("p1", role="prefill"), gpus=2))
    (solve,) = world.solves
    (subgroup,) = solve.request.subgroups
    assert subgroup == replace(shared, roles=frozenset({"prefill-1", "prefill-2", "decode"}))
    world.solve()
    assert gang(world).phase is Phase.PLANNED
    seen(world, SUBGROUPS)
    assert world.solves[-1].request.subgroups == ()


def test_preferences_of_subgroups_name_all_roles_that_their_pods_are() -> None:
    up = RolePreference("subgroup up", ("zone",), frozenset({"prefill", "decode"}))
    world = World(GangSettings(settle_s=0), auto=False).start(node("a", 8))
    topology_request = {
        **SUBGROUPS.role_topology_requests,
        "prefill": TopologyRequest(role="prefill", role_preferred=("rack",)),
    }
    seen(world, replace(SUBGROUPS, role_topology_requests=topology_request, role_preferences=(up,)))
    world.see(named("p0", role="prefill"), named("d0", role="decode"))
    world.see(replace(named("p1", role="prefill"), gpus=2))
    (solve,) = world.solves
    prefill = frozenset({"prefill-1", "prefill-2"})
    assert solve.request.role_preferences == (
        replace(up, roles=prefill | {"decode"}),
        RolePreference("role prefill", ("rack",), prefill),
    )


def test_a_gang_with_subgroups_waits_for_the_least_of_each() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=8))
    seen(world, SUBGROUPS)
    world.see(*(named(f"p{number}", role="prefill") for number in range(4)))
    assert gang(world).phase is Phase.COLLECTING
    assert gang(world).reason == "Waiting for 1 more member of role decode: 0 of 1 are here"
    world.see(named("d0", role="decode"))
    assert gang(world).phase is Phase.PLANNED
    seen(world, replace(SUBGROUPS, min_member=4, role_min={"prefill": 2, "decode": 2}))
    assert gang(world).phase is Phase.COLLECTING


def test_as_many_as_fit_start_and_the_least_of_each() -> None:
    """Five pods, three must fit, and there is room for four."""
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=1))
    seen(world, SUBGROUPS)
    world.see(*(named(f"p{number}", role="prefill") for number in range(4)))
    world.see(named("d0", role="decode"))
    assert gang(world).phase is Phase.UNPLACEABLE
    world.send(inputs.NodeSeen(world.now, node("a", gpus=4)))
    assert sorted(name for name, _ in world.verdict("train").members) == ["d0", "p0", "p1", "p2"]
    world.run("train")
    assert gang(world).phase is Phase.UNPLACEABLE
    assert gang(world).was_complete


LATER = replace(SUBGROUPS, min_member=1, role_min={"prefill": 1, "decode": 0}, role_later={"decode": 3})
"""As a JobSet in order: decode comes when prefill has started."""


def waits_for(decode: int, gpus: int, least: int | None = None) -> World:
    """Return a world in which one pod is here, and this number of pods of role decode come later.

    `least` of them must start together; None means all.
    """
    sample = replace(named("sample", role="decode"), uid="")
    template = FollowerTemplate(sample, tuple(range(decode)))
    group = replace(
        LATER,
        role_later={"decode": least or decode},
        follower_templates=(template,),
        topology_request=TopologyRequest(required_scope="rack"),
    )
    world = World(GangSettings(settle_s=0))
    world.start(node("a", gpus=1, labels={RACK: "small"}), node("b", gpus=gpus, labels={RACK: "big"}))
    seen(world, group)
    world.see(named("p0", role="prefill"))
    return world


def test_the_first_member_goes_where_those_that_come_later_fit_too() -> None:
    world = waits_for(decode=3, gpus=4)
    plan = gang(world).plan
    assert plan is not None
    assert [(member.uid, member.node) for member in plan.placed.members] == [("p0", "b")]
    assert plan.placed.coming == 3
    assert [usage.node for usage in world.coordinator.state.ledger.reservations.values()] == ["b"]
    world.run("train")
    world.see(*(named(f"d{number}", role="decode") for number in range(3)))
    plan = gang(world).plan
    assert plan is not None
    assert {member.node for member in plan.placed.members} == {"b"}


def test_the_first_member_goes_nowhere_else_while_others_come_later() -> None:
    """Other candidates may leave no room for them."""
    world = waits_for(decode=3, gpus=4)
    assert world.filter("train").candidates == (("b",),)
    assert not isinstance(world.coordinator.alternatives(gang(world).key), str)


@pytest.mark.parametrize(("gpus", "expected"), [(3, {}), (4, {"b": 4})])
def test_a_backfill_reservation_has_room_for_those_that_come_later(
    gpus: int, expected: dict[str, int]
) -> None:
    crowded = waits_for(decode=3, gpus=3)
    crowded.see(foreign("f", "b", 1))
    crowded.send(inputs.NodeSeen(crowded.now, node("b", gpus=gpus, labels={RACK: "big"})))
    crowded.wait(600)
    reservation = crowded.coordinator.state.backfill.current
    assert (reservation.wants if reservation is not None else {}) == expected


def test_a_plan_of_roles_with_minimums_is_permitted_as_a_whole_while_others_come_later() -> None:
    sample = replace(named("sample", role="b"), uid="")
    group = replace(
        GROUP,
        min_member=3,
        topology_request=TopologyRequest(),
        role_topology_requests={name: TopologyRequest(role=name) for name in "abc"},
        role_min={"a": 2, "b": 0, "c": 1},
        role_later={"b": 2},
        follower_templates=(FollowerTemplate(sample, (0, 1)),),
    )
    world = World(GangSettings(settle_s=0)).start(node("n", gpus=1))
    seen(world, group)
    world.see(*(named(f"a{number}", role="a") for number in range(4)))
    world.see(*(named(f"c{number}", role="c") for number in range(3)))
    world.send(inputs.NodeSeen(world.now, node("n", gpus=8)))
    verdict = world.verdict("train")
    assert verdict.required == len(verdict.members) == 6


def test_a_mended_template_is_planned_anew() -> None:
    world = waits_for(decode=3, gpus=3)
    assert gang(world).phase is Phase.UNPLACEABLE
    group = gang(world).group.pod_group
    assert group is not None
    (template,) = group.follower_templates
    smaller = replace(template, pod=replace(template.pod, gpus=0))
    seen(world, replace(group, follower_templates=(smaller,)))
    assert gang(world).phase is Phase.PLANNED


REPLICAS_OF_TWO = replace(
    GROUP,
    min_member=2,
    topology_request=TopologyRequest(),
    role_topology_requests={"w": TopologyRequest(role="w")},
    role_min={"w": 2},
    role_unit={"w": 2},
)


def host(replica: int, number: int) -> Pod:
    return replace(named(f"r{replica}h{number}", role="w"), rank=replica * RANKS + number)


def test_replicas_of_two_start_whole() -> None:
    world = World(GangSettings(settle_s=0)).start(node("n", gpus=1))
    seen(world, REPLICAS_OF_TWO)
    world.see(*(host(replica, number) for replica in range(3) for number in range(2)))
    world.send(inputs.NodeSeen(world.now, node("n", gpus=5)))
    assert len(world.verdict("train").members) == 4


def test_hosts_of_replicas_that_served_come_back_one_by_one() -> None:
    world = World(GangSettings(settle_s=0)).start(node("n", gpus=4))
    seen(world, REPLICAS_OF_TWO)
    for replica in range(2):
        world.see(*(host(replica, number) for number in range(2)))
        world.run("train")
    for replica in range(2):
        world.gone(f"r{replica}h1")
    world.see(host(0, 1))
    assert [uid for _, uid in world.verdict("train").members] == ["r0h1"]


def test_the_first_member_waits_while_those_that_come_later_do_not_fit() -> None:
    world = waits_for(decode=3, gpus=3)
    assert gang(world).phase is Phase.UNPLACEABLE
    assert gang(world).refusal_causes[-1] == MembersToCome(3, ("decode",))
    world.send(inputs.NodeSeen(world.now, node("b", gpus=4, labels={RACK: "big"})))
    assert gang(world).phase is Phase.PLANNED


def test_room_for_as_many_later_members_as_must_start_is_enough() -> None:
    world = waits_for(decode=6, gpus=4, least=2)
    plan = gang(world).plan
    assert plan is not None
    assert [(member.uid, member.node) for member in plan.placed.members] == [("p0", "b")]
    assert plan.placed.coming == 3
    assert plan.request.min_member == 1
    short = waits_for(decode=6, gpus=2, least=2)
    assert gang(short).phase is Phase.UNPLACEABLE
    assert gang(short).refusal_causes[-1] == MembersToCome(2, ("decode",))


def started(gpus: int) -> World:
    """Return a world in which prefill runs, with this number of GPUs left for decode."""
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=gpus + 1))
    seen(world, LATER)
    world.see(named("p0", role="prefill"))
    world.run("train")
    assert gang(world).was_complete
    return world


def test_members_that_come_later_start_together() -> None:
    world = started(gpus=3)
    for number in range(2):
        world.see(named(f"d{number}", role="decode"))
        assert gang(world).phase is Phase.COLLECTING
    assert gang(world).reason == "Waiting for 1 more member of role decode: 2 of 3 are here"
    assert not gang(world).is_partially_bound
    world.see(named("d2", role="decode"))
    assert sorted(name for name, _ in world.verdict("train").members) == ["d0", "d1", "d2"]


def test_members_that_come_later_hold_nothing_while_not_all_fit() -> None:
    world = started(gpus=2)
    world.see(*(named(f"d{number}", role="decode") for number in range(3)))
    assert gang(world).phase is Phase.UNPLACEABLE
    assert not gang(world).is_partially_bound
    world.wait(3600)
    assert (len(gang(world).group.bound), world.evictions) == (1, [])
    world.send(inputs.NodeSeen(world.now, node("a", gpus=4)))
    world.run("train")
    assert len(gang(world).group.bound) == 4


def test_one_of_the_members_that_came_later_is_replaced_alone() -> None:
    world = started(gpus=3)
    world.see(*(named(f"d{number}", role="decode") for number in range(3)))
    world.run("train")
    world.gone(named("d1", role="decode").uid)
    world.see(named("d3", role="decode"))
    assert [name for name, _ in world.verdict("train").members] == ["d3"]


def test_all_of_them_start_at_once_where_they_fit() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=2))
    seen(world, SUBGROUPS)
    world.see(*(named(f"p{number}", role="prefill") for number in range(4)))
    world.see(named("d0", role="decode"))
    assert gang(world).phase is Phase.UNPLACEABLE
    world.send(inputs.NodeSeen(world.now, node("a", gpus=5)))
    assert planned(world).min_member == 3
    assert len(world.verdict("train").members) == 5
    world.run("train")
    world.see(named("d1", role="decode"), named("d2", role="decode"))
    assert gang(world).phase is Phase.UNPLACEABLE
    world.send(inputs.NodeSeen(world.now, node("a", gpus=6)))
    assert planned(world).min_member == 1  # each role has its least: of what comes later, as many as fit


REPLICAS = replace(
    GROUP,
    min_member=4,
    topology_request=TopologyRequest(),
    role_topology_requests={name: TopologyRequest(role=name) for name in "abc"},
    quorum=Quorum(2, tuple(Leaf(frozenset({name}), 2) for name in "abc")),
    size=6,
)
"""Three replicas of two pods. Two replicas are enough."""


def replica(name: str, gpus: int = 1, count: int = 2) -> list[Pod]:
    return [replace(named(f"{name}{i}", role=name), gpus=gpus) for i in range(count)]


def members(world: World) -> list[str]:
    return sorted(name for name, _ in world.verdict("train").members)


def test_as_many_subgroups_start_as_are_enough_and_the_others_when_they_fit() -> None:
    """The first replica needs more than there is free."""
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=5))
    seen(world, REPLICAS)
    world.see(*replica("a", gpus=4), *replica("b"), *replica("c"))
    assert members(world) == ["b0", "b1", "c0", "c1"]
    world.run("train")
    assert gang(world).was_complete
    assert gang(world).phase is Phase.UNPLACEABLE
    assert "subgroups" not in gang(world).reason
    world.send(inputs.NodeSeen(world.now, node("a", gpus=11)))
    assert gang(world).phase is Phase.UNPLACEABLE  # one of its two members would fit
    world.send(inputs.NodeSeen(world.now, node("a", gpus=12)))
    assert members(world) == ["a0", "a1"]


def test_a_plan_for_some_subgroups_is_permitted_as_a_whole() -> None:
    """Four members of three replicas are no start, though two replicas have four."""
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=1))
    seen(world, REPLICAS)
    world.see(*replica("a"), *replica("b"), *replica("c"))
    assert gang(world).phase is Phase.UNPLACEABLE
    world.send(inputs.NodeSeen(world.now, node("a", gpus=6)))
    assert len(members(world)) == world.verdict("train").required == 6


def test_a_gang_waits_for_the_pods_of_as_many_subgroups_as_are_enough() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=8))
    seen(world, REPLICAS)
    world.see(*replica("a"), *replica("b", count=1), *replica("c", count=1))
    assert gang(world).phase is Phase.COLLECTING
    assert gang(world).reason == "Waiting for 1 more member of role b: 1 of 2 are here"
    world.see(*replica("c"))
    assert members(world) == ["a0", "a1", "c0", "c1"]
    world.run("train")
    assert gang(world).reason == "Waiting for 1 more member of role b: 1 of 2 are here"


def test_a_subgroup_that_is_not_needed_waits_for_what_another_gang_needs() -> None:
    second_claim = GangClaim("kai", "other", topology_request=TopologyRequest(), by_object=True)
    world = World(GangSettings(settle_s=0), auto=False).start(node("a", gpus=6))
    seen(world, REPLICAS)
    seen(world, replace(GROUP, name="other", uid="o", topology_request=TopologyRequest()))
    world.see(
        *replica("a"), *replica("b"), *replica("c"), *(pod(f"q{i}", claim=second_claim) for i in range(2))
    )
    while world.solves:
        world.solve()
    assert len(members(world)) == 4
    assert len(world.verdict("other").members) == 2


def test_policies_come_as_terms_the_heaviest_first_and_a_name_that_is_none_is_refused() -> None:
    world = World().start(node("a"))
    seen(world, GROUP)
    world.see(named("p0", policies=("near", "switched")), named("p1", policies=("near", "switched")))
    assert gang(world).phase is Phase.INVALID
    assert "near" in gang(world).reason
    near, switched = PolicyTerm("nvlink", "pack"), PolicyTerm("nvswitch", "prefer")
    levels = (FabricLevel("row", ("example.com/row",)),)
    typical = (TypicalRequest(1, 8),)
    policies = Policies(True, (Policy("near", 10, near), Policy("switched", 80, switched)), levels, typical)
    world.send(inputs.PoliciesSeen(world.now, policies))
    assert gang(world).phase is Phase.PLANNED
    assert planned(world).terms == (switched, near)
    snapshot = world.coordinator.state.ledger.snapshot()
    assert (snapshot.levels, snapshot.typical) == (levels, typical)


def test_a_large_gang_of_a_pod_group_is_not_counted_again_for_each_pod() -> None:
    world = World().start(node("a"))
    seen(world, replace(GROUP, min_member=50))
    for number in range(3):
        world.see(named(f"p{number}"))
    before = gang(world).group
    world.see(named("p3"))
    assert gang(world).group is before


def test_a_gang_with_an_unbound_role_is_partially_bound_however_many_others_are_bound() -> None:
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=5))
    seen(world, SUBGROUPS)
    world.see(*(named(f"p{number}", role="prefill") for number in range(4)), named("d0", role="decode"))
    assert world.reserve(gang="train").claimed
    answer = world.permit("train")
    (decode,) = (i for i, (name, _) in enumerate(world.verdict("train").members) if name == "d0")
    world.unreserve(decode, BindingFate.REFUSED, gang="train")
    world.bind(answer, set(range(5)) - {decode}, gang="train")
    world.see(pod("q", gang=""))
    assert world.phase("q") == "unplaceable"  # its place is retained
    world.see(foreign("f", "a"))
    world.wait(31)
    (evict,) = world.evictions
    assert len(evict.pods) == 4
    assert evict.why == "only 0 of 1 members of role decode could be bound"


def test_a_gang_whose_pod_group_is_deleted_between_permit_and_binding_is_still_evicted_in_part() -> None:
    """How many members it needs is not known meanwhile: that is no proof that all were bound."""
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=2))
    seen(world, GROUP)
    world.see(named("p0"), named("p1"))
    assert world.reserve(gang="train").claimed
    answer = world.permit("train")
    world.send(inputs.PodGroupGone(world.now, GROUP.key))
    seen(world, GROUP)
    world.unreserve(1, BindingFate.REFUSED, gang="train")
    world.bind(answer, [0], gang="train")
    world.see(foreign("f", "a"))
    world.wait(31)
    (evict,) = world.evictions
    assert [name for name, _ in evict.pods] == ["p0"]


def test_the_names_of_roles_are_looked_up_once_and_not_for_each_subgroup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user may have 256 subgroups and thousands of pods that all differ, each of them a role."""
    calls = []

    def counted(pod: Pod) -> TopologyRequest:
        if sys._getframe(1).f_globals is vars(requests):
            calls.append(pod.uid)
        return pod.claim.topology_request if pod.claim is not None else TopologyRequest()

    names = [f"s{i}" for i in range(100)]
    quorum = Quorum(50, tuple(Leaf(frozenset({name}), 1) for name in names))
    role_topology_requests = {name: TopologyRequest(role=name) for name in names}
    world = World(GangSettings(settle_s=0)).start(node("a", gpus=50), node("b", gpus=50))
    seen(
        world,
        replace(
            REPLICAS, min_member=50, role_topology_requests=role_topology_requests, quorum=quorum, size=100
        ),
    )
    monkeypatch.setattr(Pod, "topology_request", property(counted))
    world.see(*(pod for name in names for pod in replica(name, count=1)))
    assert gang(world).phase in (Phase.PLANNED, Phase.UNPLACEABLE)
    assert 0 < len(calls) < 50 * len(names)


def test_a_pod_of_a_gang_that_lacks_members_has_no_role_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count the members of each role would take milliseconds for each pod of a gang of thousands."""
    world = World(GangSettings(settle_s=0)).start(node("a"))
    seen(world, replace(GROUP, min_member=9, role_min={"w": 8, "m": 1}))
    world.see(*(named(f"w{number}", role="w") for number in range(3)))
    monkeypatch.setattr(Group, "roles_short", lambda self, members: pytest.fail("counts roles"))
    world.see(named("w3", role="w"))
    assert gang(world).phase is Phase.COLLECTING
