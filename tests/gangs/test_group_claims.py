"""Members that share a claim of their PodGroup: its GPUs count once, and the members lie on one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.dialects.gangs.forest import Forest
from muster.domain.node import DeviceClaim, Resources
from muster.domain.pod import COMPOSITE, KUBERNETES, GangClaim, Pod, TopologyRequest
from muster.domain.podgroup import PodGroup
from muster.domain.topology import mask_of
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import least_of, request
from muster.gangs.messages.inputs import DeviceClaimSeen, NodeSeen, PodGroupSeen
from tests.gangs.test_device_claims import devices, served
from tests.gangs.test_requests import group_of
from tests.gangs.world import World, pod, with_topology

API = "scheduling.k8s.io/v1alpha3"
ROOM_FOR_TWO = Resources(2_000, 1 << 36, 100)


def members(size: int, claim: str = "shared", first: int = 0, of: int = 0) -> list[Pod]:
    """Members of one gang that share a claim of two GPUs. The last one is its holder."""
    return [
        pod(f"p{first + rank}", of=of or size, gpus=2 if rank == size - 1 else 0, group_claims=(claim,))
        for rank in range(size)
    ]


def test_all_lie_on_one_node_and_the_holder_is_first_in_the_verdict() -> None:
    world = World().start(served("n"), served("m"))
    world.see(*members(3))
    assert world.planned()
    plan = world.filter()
    assert plan.candidates in ((("n",),) * 3, (("m",),) * 3)
    assert [len(names) for names in plan.devices] == [2, 0, 0]
    assert world.verdict().members[0] == ("p2", "p2")


def test_no_node_has_room_for_all() -> None:
    world = World().start(
        replace(served("n"), allocatable=ROOM_FOR_TWO), replace(served("m"), allocatable=ROOM_FOR_TWO)
    )
    world.see(*members(3))
    assert world.phase() == "unplaceable"
    assert "By ResourceClaim shared, its members must lie in one node" in world.verdict().reason
    world.send(NodeSeen(world.now, replace(served("n"), allocatable=Resources(4_000, 1 << 36, 100))))
    assert world.planned()


def test_members_with_two_claims_may_lie_on_two_nodes() -> None:
    world = World().start(*(replace(served(name), allocatable=ROOM_FOR_TWO) for name in ("n", "m")))
    world.see(*members(2, "a", of=4), *members(2, "b", first=2, of=4))
    assert world.planned()
    node_of = {name: world.home(rank) for rank, (name, _) in enumerate(world.verdict().members)}
    assert node_of["p0"] == node_of["p1"] != node_of["p2"] == node_of["p3"]


def test_the_fewest_members_have_the_holder() -> None:
    pods = [
        with_topology(f"p{rank}", of=2, gpus=2 if rank == 2 else 0, rank=rank, group_claims=("shared",))
        for rank in range(3)
    ]
    least = least_of(request(group_of(*pods), Ledger()))
    assert [member.name for role in least.roles for member in role.members] == ["p2", "p0"]


def of_tree(uid: str, leaf: str, **more: Any) -> Pod:
    claim = GangClaim(COMPOSITE, "g", topology_request=TopologyRequest(role=leaf), by_object=True)
    return pod(uid, claim=claim, **more)


def of_podgroup(uid: str, **more: Any) -> Pod:
    return pod(uid, claim=GangClaim(KUBERNETES, "g", by_object=True), **more)


def world_with_one_free_gpu() -> World:
    world = World().start(served("n"))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("other", devices(0, 1, 2), ("foreign",))))
    return world


def see_podgroup(world: World, *pods: Pod, least: int = 1) -> None:
    group = PodGroup("ns", KUBERNETES, "g", uid="g", min_member=least, size=least, api_version=API)
    world.see(*pods)
    world.send(PodGroupSeen(world.now, group))
    world.wait(0)


def see_tree(world: World, least: int, *pods: Pod) -> None:
    """See a tree of the PodGroups x and y, with these pods. `least` of the two PodGroups must start."""
    root = PodGroup("ns", COMPOSITE, "g", uid="g", min_member=least, api_version=API, workload="w")
    leaf = PodGroup(
        "ns", KUBERNETES, "x", uid="x", min_member=1, size=1, api_version=API, workload="w", parent="g"
    )
    gang = Forest([root, leaf, replace(leaf, name="y", uid="y")]).gang(root.key)
    assert gang is not None
    world.see(*pods)
    world.send(PodGroupSeen(world.now, gang))
    world.wait(0)


SHARED: dict[str, Any] = {"group_claims": ("shared",)}


@pytest.mark.parametrize("least", [1, 2])
def test_no_pod_that_shares_a_claim_starts_without_the_holder(least: int) -> None:
    world = world_with_one_free_gpu()
    pods = (of_podgroup(name, gpus=0, **SHARED) for name in ("a", "b"))
    see_podgroup(world, of_podgroup("holder", gpus=2, **SHARED), *pods, least=least)
    assert world.phase() == "unplaceable"
    assert "needs 2 nvidia.com/gpu, and 1 nvidia.com/gpu is free" in world.verdict().reason


def test_a_pod_without_the_claim_needs_no_holder() -> None:
    world = world_with_one_free_gpu()
    sharing = (of_podgroup("holder", gpus=2, **SHARED), of_podgroup("a", gpus=0, **SHARED))
    see_podgroup(world, *sharing, of_podgroup("alone", gpus=0))
    assert world.planned()
    assert world.verdict().members == (("alone", "alone"),)


def test_a_podgroup_without_subgroups_is_not_said_to_have_some() -> None:
    world = world_with_one_free_gpu()
    sharing = (of_podgroup("holder", gpus=2, **SHARED), of_podgroup("a", gpus=0, **SHARED))
    see_podgroup(world, *sharing, of_podgroup("alone", gpus=3))
    shortage = "Role role-2 needs 2 nvidia.com/gpu, and 1 nvidia.com/gpu is free"
    assert world.verdict().reason.startswith(
        f"{shortage}; no other members can start either: this is about role-2."
    )


def test_a_holder_starts_before_pods_for_which_no_room_is_left() -> None:
    world = World().start(replace(served("n"), allocatable=ROOM_FOR_TWO))
    pods = (of_podgroup(name, gpus=0, **SHARED) for name in ("a", "b"))
    see_podgroup(world, *pods, of_podgroup("holder", gpus=2, **SHARED))
    assert world.planned()
    assert world.verdict().members == (("holder", "holder"), ("a", "a"))


@pytest.mark.parametrize(("least", "started"), [(1, (("y0", "y0"),)), (2, ())])
def test_a_podgroup_of_a_tree_starts_with_its_holder_or_not(
    least: int, started: tuple[tuple[str, str], ...]
) -> None:
    world = world_with_one_free_gpu()
    sharing = (of_tree("holder", "x", gpus=2, **SHARED), of_tree("a", "x", gpus=0, **SHARED))
    see_tree(world, least, *sharing, of_tree("y0", "y", gpus=0))
    assert (world.verdict().members if world.planned() else ()) == started


def running() -> World:
    """A gang that runs, with the claim of its holder, and a second node."""
    world = World().start(served("n"), served("m"))
    world.see(*members(2))
    numbers = [int(name[-1]) for name in world.filter().devices[0]]
    assert world.reserve().claimed
    answer = world.permit()
    pool = world.home(0)
    claimed = tuple(replace(device, pool=pool) for device in devices(*numbers))
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", claimed, ("p1",))))
    world.bind(answer)
    assert world.phase() == "running"
    state = world.coordinator.state.ledger.snapshot().nodes[pool]
    assert (state.free_gpus, state.free_gpu_count) == (0b1111 & ~mask_of(numbers), 2)
    return world


def test_a_replacement_comes_to_the_node_of_the_others_and_gets_no_gpus() -> None:
    world = running()
    home = world.pods["p0"].node
    world.gone("p0")
    world.see(pod("p2", gpus=0, group_claims=("shared",)))
    assert world.planned()
    assert world.filter().candidates == ((home,),)
    assert not any(world.filter().devices)


def test_another_holder_keeps_the_gpus() -> None:
    world = running()
    home = world.pods["p0"].node
    claim = world.coordinator.state.ledger.device_claims
    held = claim.devices_of("p1")
    world.gone("p1")
    free_gpus = world.coordinator.state.ledger.snapshot().nodes[home].free_gpus
    world.send(DeviceClaimSeen(world.now, DeviceClaim("c", tuple(sorted(held, key=str)), ("p0",))))
    world.see(replace(world.pods["p0"], gpus=2, gpu_resource="nvidia.com/gpu"))
    assert world.coordinator.state.ledger.snapshot().nodes[home].free_gpus == free_gpus
    assert free_gpus.bit_count() == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"group_claims": ("other", "shared")},
            'resourceClaims is "other, shared", expected shared, as other',
        ),
        (
            {"claim": GangClaim("ack", "g", 2, 2, TopologyRequest(role="w"))},
            'role is "w", expected none, as other members that name ResourceClaim shared',
        ),
    ],
)
def test_members_that_share_a_claim_share_all_and_have_one_role(changes: dict[str, Any], says: str) -> None:
    world = World().start(served())
    first, holder = members(2)
    world.see(first, replace(holder, **changes))
    assert world.phase() == "invalid"
    assert says in world.verdict().reason
