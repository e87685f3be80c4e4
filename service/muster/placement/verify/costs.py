"""Count the touched parts again, and the costs that policies and slices add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.links import homes_of_gpus
from muster.placement.verify.parts import Fabric, Groups, Spot, Spots

NVSWITCH = "nvidia.com/nvswitch.present"


def check_costs(
    fabric: Fabric, request: Request, plan: Placed, groups: Groups, new_spots: Spots, old: Spots
) -> list[str]:
    """Return the errors in the claimed costs. `check_crossings` counts NVLink domains, so they are no cost
    here."""
    policies = [(term.topology, term.strategy == "spread") for term in request.terms]
    totals: dict[str, int] = {}
    for topology, is_spread_wanted in policies:
        name = {"nvlink": "nvlink_domains", "numa": "numa_nodes", "nvswitch": "nvswitch"}[topology]
        if is_spread_wanted:
            name = f"{topology}_spread"
        if name != "nvlink_domains":
            totals[name] = sum(
                _term_cost(fabric, topology, is_spread_wanted, spot, _old_on_node(old, spot))
                for spot in new_spots.values()
            )
    if any(role.slice and role.members for role in request.roles):
        shares = [
            _sharing_costs(spot, groups[name], _old_on_node(old, spot)) for name, spot in new_spots.items()
        ]
        totals["sharing"] = sum(opened for opened, _ in shares)
        totals["shared_gpus"] = sum(shared for _, shared in shares)
    real_costs, claimed = tuple(totals.items()), plan.objective.costs
    return [] if real_costs == claimed else [f"the costs are {real_costs}, not {claimed}"]


def _old_on_node(old: Spots, spot: Spot) -> list[Spot]:
    return [other_spot for other_spot in old.values() if other_spot.state.node.name == spot.state.node.name]


def _term_cost(fabric: Fabric, topology: str, is_spread_wanted: bool, spot: Spot, old: Sequence[Spot]) -> int:
    """Return a policy's cost on one node. Parts that running members touch cost nothing."""
    if topology == "nvswitch":
        has = spot.state.node.labels.get(NVSWITCH) == "true"
        return int(
            spot.gpus > 0
            and has == is_spread_wanted
            and not any(stay.gpus or not stay.indices_known for stay in old)
        )
    if topology == "nvlink":
        new = fabric.touched_parts(spot, "nvlink-domain")
        return -len(new.difference(*(fabric.touched_parts(stay, "nvlink-domain") for stay in old)))
    old_gpus = _gpus_of(old)
    numa = [part for part in _numa_nodes(spot.state) if part & spot.gpus and not part & old_gpus]
    return -len(numa) if is_spread_wanted else len(numa)


def _gpus_of(spots: Iterable[Spot]) -> int:
    mask = 0
    for spot in spots:
        mask |= spot.gpus
    return mask


def _numa_nodes(state: NodeState) -> Iterable[int]:
    """Return the NUMA nodes as masks of GPUs; a single mask if it is unknown which GPUs are taken."""
    topology = state.node.topology
    if state.unindexed_gpus:
        return [(1 << topology.gpu_count) - 1]
    masks: dict[int, int] = {}
    for gpu, (numa_node, *_) in enumerate(homes_of_gpus(topology)):
        masks[numa_node] = masks.get(numa_node, 0) | 1 << gpu
    return masks.values()


def _sharing_costs(spot: Spot, members: Sequence[MemberPlacement], old: Sequence[Spot]) -> tuple[int, int]:
    """Return how many GPUs the slices open, and how many they touch; negative on a node that spreads slices,
    because there more is better.
    """
    shared = 0
    for gpu in {gpu for member in members if member.units for gpu in member.gpus}:
        shared |= 1 << gpu
    sign = -1 if spot.state.node.spreads_slices else 1
    return (sign * (shared & spot.state.free_gpus).bit_count(), sign * (shared & ~_gpus_of(old)).bit_count())


def check_crossings(
    fabric: Fabric, snapshot: Snapshot, request: Request, plan: Placed, everyone: Spots, *, few: bool
) -> list[str]:
    """Return a sentence if the claimed numbers of touched parts are wrong.

    A level counts if any node of the cluster has its label. In clusters of `few` nodes all labels are read.
    In larger ones, a level whose label no touched node has is taken as claimed: each touched node is a part,
    so the level ranks no plans. Members without GPUs touch no part if other members have GPUs.
    """
    claimed = plan.objective.crossings
    node_states = snapshot.nodes.values() if few else [spot.state for spot in everyone.values()]
    claims = () if few else [scope for scope, _ in claimed]
    scopes = [
        level.scope
        for level in snapshot.levels
        if level.scope in claims
        or any(state.node.labels.get(key) for key in level.labels for state in node_states)
    ]
    scopes.append("node")
    if any(role.gpus or role.slice for role in request.roles if role.members):
        scopes.append("nvlink-domain")
    touching = {
        name: spot for name, spot in everyone.items() if spot.gpus or not spot.indices_known
    } or everyone
    real_counts = tuple((scope, fabric.count_touched(touching, scope)) for scope in scopes)
    if real_counts == claimed:
        return []
    numbers = [", ".join(f"{scope} {n}" for scope, n in crossings) for crossings in (real_counts, claimed)]
    return [f"the parts touched are {numbers[0]}, not {numbers[1]}"]
