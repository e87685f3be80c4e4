"""Level 2 counted again where policies or slices add to it: what each of them counts on the plan's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import NodeState
from muster.domain.topology import GpuTopology
from muster.placement.verify.fabric import Fabric
from muster.placement.verify.spots import Groups, Spot, Spots

NVSWITCH = "nvidia.com/nvswitch.present"


def costs(
    fabric: Fabric, request: Request, placed: Placed, groups: Groups, touched: Spots, old: Spots
) -> list[str]:
    """Return what is wrong with the claimed costs. NVLink domains are among the parts crossed."""
    asked = [(term.topology, term.strategy == "spread") for term in request.terms]
    found: dict[str, int] = {}
    for topology, spread in asked:
        name = {"nvlink": "nvlink_domains", "numa": "numa_nodes", "nvswitch": "nvswitch"}[topology]
        if spread:
            name = f"{topology}_spread"
        if name != "nvlink_domains":
            found[name] = sum(
                _of_term(fabric, topology, spread, spot, _running(old, spot)) for spot in touched.values()
            )
    if any(role.slice and role.members for role in request.roles):
        shares = [_sharing(spot, groups[name], _running(old, spot)) for name, spot in touched.items()]
        found["sharing"] = sum(opened for opened, _ in shares)
        found["shared_gpus"] = sum(shared for _, shared in shares)
    counted, claimed = tuple(found.items()), placed.objective.costs
    return [] if counted == claimed else [f"the costs are {counted}, not {claimed}"]


def _running(old: Spots, spot: Spot) -> list[Spot]:
    return [each for each in old.values() if each.state.node.name == spot.state.node.name]


def _of_term(fabric: Fabric, topology: str, spread: bool, spot: Spot, old: Sequence[Spot]) -> int:
    """Count what a policy counts on one node. What running members touch costs nothing."""
    if topology == "nvswitch":
        has = spot.state.node.labels.get(NVSWITCH) == "true"
        return int(spot.gpus > 0 and has == spread and not any(each.gpus or not each.known for each in old))
    if topology == "nvlink":
        new = fabric.touched(spot, "nvlink-domain")
        return -len(new.difference(*(fabric.touched(each, "nvlink-domain") for each in old)))
    there = _mask(old)
    numa = [part for part in _numa_nodes(spot.state) if part & spot.gpus and not part & there]
    return -len(numa) if spread else len(numa)


def _mask(spots: Iterable[Spot]) -> int:
    mask = 0
    for spot in spots:
        mask |= spot.gpus
    return mask


def _numa_nodes(state: NodeState) -> list[int]:
    """Each GPU is of the first NUMA node in which it has no link SYS; if GPUs are not known, all are one."""
    topology = state.node.topology
    if state.unindexed_gpus:
        return [(1 << topology.gpu_count) - 1]
    found: list[int] = []
    for gpu in range(topology.gpu_count):
        apart = _apart(topology, gpu)
        home = next((mask for mask in found if not mask & apart), None)
        if home is None:
            found.append(1 << gpu)
        else:
            found[found.index(home)] = home | 1 << gpu
    return found


def _apart(topology: GpuTopology, gpu: int) -> int:
    links = enumerate(topology.links[gpu])
    return sum(1 << other for other, link in links if link is not None and link.kind == "SYS")


def _sharing(spot: Spot, members: Sequence[MemberPlacement], old: Sequence[Spot]) -> tuple[int, int]:
    """Count the GPUs that slices open, and those that they touch; where the node spreads, more is better."""
    shared = 0
    for gpu in {gpu for member in members if member.units for gpu in member.gpus}:
        shared |= 1 << gpu
    sign = -1 if spot.state.node.spread else 1
    return (
        sign * (shared & spot.state.free_gpus).bit_count(),
        sign * (shared & ~_mask(old)).bit_count(),
    )
