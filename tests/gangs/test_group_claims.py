"""Members that share a claim of their PodGroup: its GPUs count once, and the members lie on one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.domain.node import DeviceClaim, Resources
from muster.domain.pod import GangClaim, Pod, TopologyRequest
from muster.domain.topology import mask_of
from muster.gangs.capacity.ledger import Ledger
from muster.gangs.capacity.requests import least_of, request
from muster.gangs.messages.inputs import DeviceClaimSeen, NodeSeen
from tests.gangs.test_device_claims import devices, served
from tests.gangs.test_requests import group_of
from tests.gangs.world import World, pod, with_topology

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
