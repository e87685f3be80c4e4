"""Count the damage again, the GPUs made unusable, the best fit, and the preferences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.node import Resources
from muster.domain.request import Request, Role, TypicalRequest
from muster.domain.snapshot import NodeState, Snapshot
from muster.placement.verify.parts import NVLINK, Groups, Labels, NodeKind, Spots

_TYPICAL_GPUS = (1, 2, 4, 8)
"""The numbers of whole GPUs that typical requests ask for. All have equal weight."""

_TYPICAL_PARTS = (1, 2, 4)
"""The typical slices, as divisors of a GPU's memory. All have equal weight."""


def is_priced(request: Request) -> bool:
    """Return whether typical requests price the gang's damage (`prices`), if the cluster lists any."""
    slices = [role.slice for role in request.roles if role.slice and role.members]
    is_single_pod = request.size == 1 and not request.running
    return not slices or (is_single_pod and slices[0].gpus == 1)


def check_damage(plan: Placed, kinds: Mapping[NodeKind, int], groups: Groups, new_spots: Spots) -> list[str]:
    """Return a sentence if the claimed damage is wrong: F after the plan minus F before, over its nodes."""
    total = 0
    for kind, nodes in kinds.items():
        free, free_after = kind.free_gpus, kind.free_gpus & ~kind.new
        for pool in _pools(kind):
            total += nodes * _fragmentation((free_after & pool).bit_count() - kind.unindexed_gpus)
            total -= nodes * _fragmentation((free & pool).bit_count() - kind.unindexed_gpus)
    for name, (_, state, gpus, _) in new_spots.items():
        if state.node.gpu_memory:
            free_after = state.free_gpus & ~gpus
            total += _fragmentation_of_shared(state, free_after, groups[name]) - _fragmentation_of_shared(
                state, state.free_gpus, []
            )
    claimed = plan.objective.damage
    return [f"the damage is {total}, not {claimed}"] if total != claimed else []


def _fragmentation_of_shared(state: NodeState, free: int, members: Iterable[MemberPlacement]) -> int:
    """Return F of the partly used GPUs of a node that also runs these members.

    `free` masks the wholly free GPUs. F is the amount that typical requests cannot use, in GPU-thousandths.
    """
    node, total = state.node, 0
    for gpu, (gpu_units, units_left) in enumerate(zip(node.gpu_memory, state.free_memory, strict=True)):
        if free >> gpu & 1 or node.spreads_slices or not gpu_units:
            continue
        units_after = units_left - sum(member.units or units_left for member in members if gpu in member.gpus)
        useless = sum(units_after * parts < gpu_units for parts in _TYPICAL_PARTS)
        total += 1000 * units_after * useless // (len(_TYPICAL_PARTS) * gpu_units)
        total += 1000 * units_after // gpu_units if node.gpu_resources else 0
    return total


def _pools(kind: NodeKind) -> tuple[int, ...]:
    """Return masks of GPUs: a typical request must find all its GPUs in one pool.

    A pool is an island if the node has NVLink, else the node.
    """
    if kind.slices_only:
        return ()
    islands = kind.topology.islands
    return (
        (-1,)
        if kind.unindexed_gpus or kind.in_wide_domain or len(islands) == kind.topology.gpu_count
        else islands
    )


@cache
def _fragmentation(free: int) -> int:
    """Return F of one pool with this many free GPUs."""
    return sum(max(0, free) * 1000 // len(_TYPICAL_GPUS) for gpus in _TYPICAL_GPUS if gpus > free)


_GPU, _STEP, _MAX_STEPS = 1000, 10, 1 << 40


class _FreeAmounts(NamedTuple):
    """The free amounts of a node: cpu, the wholly free GPUs, and the units of each GPU."""

    cpu_milli: int
    free_gpus: Collection[int]
    units: Sequence[int]


def check_priced_damage(snapshot: Snapshot, request: Request, plan: Placed, groups: Groups) -> list[str]:
    """Return the errors in the claimed damage. A sum halfway between two steps may go to either."""
    prices = _prices(snapshot)
    cpu = {role.name: role.resources.cpu_milli for role in request.roles}
    low = high = 0
    for name, members in groups.items():
        state = snapshot.nodes[name]
        free = _free_before(state)
        free_after = _free_after(state, members, sum(cpu.get(m.role, 0) for m in members))
        loss = sum(
            price * (_usable_by(kind, state, free) - _usable_by(kind, state, free_after))
            for kind, price in zip(snapshot.typical, prices, strict=True)
        )
        steps, doubt = max(-_MAX_STEPS, min(_MAX_STEPS, loss / _STEP)), 1e-6 + 1e-12 * abs(loss)
        low += _STEP * math.ceil(steps - 0.5 - doubt)
        high += _STEP * math.floor(steps + 0.5 + doubt)
    claimed = plan.objective.damage
    return [] if low <= claimed <= high else [f"the damage is {low} to {high}, not {claimed}"]


def _prices(snapshot: Snapshot) -> list[float]:
    """Return the price of a GPU-thousandth for each typical request.

    The price is higher if the request comes often, and if few GPUs can serve it.
    """
    states = snapshot.nodes.values()
    free_by_node = [(state, _free_before(state)) for state in states]
    free = sum(sum(_free_thousandths(state, now)) for state, now in free_by_node)
    sizes = [units for state in states for units in state.node.gpu_memory if units]
    shares = sum(kind.share for kind in snapshot.typical)
    prices = []
    for kind in snapshot.typical:
        supply = max(_GPU, sum(_usable_by(kind, state, now) for state, now in free_by_node))
        part = min(1.0, kind.units * len(sizes) / sum(sizes)) if kind.units and sizes else 1.0
        prices.append(kind.share / shares / (kind.gpus * part) * (free / supply) ** 2)
    return prices


def _usable_by(kind: TypicalRequest, state: NodeState, room: _FreeAmounts) -> float:
    """Return the GPU-thousandths that requests of the kind can use of the node."""
    node = state.node
    serves = node.gpu_memory if kind.units else node.gpu_resources
    selected = all(node.labels.get(key) in values for key, values in kind.labels)
    if not (serves and selected and node.ready) or node.unschedulable:
        return 0.0
    free = [
        thousandths
        for gpu, thousandths in enumerate(_free_thousandths(state, room))
        if (gpu < len(room.units) and room.units[gpu] >= kind.units if kind.units else gpu in room.free_gpus)
    ]
    fitting, fed = len(free) // kind.gpus, room.cpu_milli / max(1, kind.cpu_milli)
    return sum(free) * min(1.0, fed / fitting) if fitting and fed >= 1 else 0.0


def _free_before(state: NodeState) -> _FreeAmounts:
    """Return the free amounts before the plan. If pods hold GPUs of unknown index, the last GPUs count as
    taken.
    """
    gpus = range(state.node.topology.gpu_count)
    free = [gpu for gpu in gpus if state.free_gpus >> gpu & 1]
    return _FreeAmounts(state.free.cpu_milli, free[: state.free_gpu_count], state.free_memory)


def _free_after(state: NodeState, members: Sequence[MemberPlacement], cpu_milli: int) -> _FreeAmounts:
    """Return the free amounts once the node runs these members. Only the number of whole GPUs counts, so the
    last free GPUs count as taken.
    """
    free = _free_before(state)
    units = [*free.units]
    shared = {gpu: member.units for member in members if member.units for gpu in member.gpus}
    count = sum(len(member.gpus) for member in members if not member.units)
    taken_gpus = [*free.free_gpus][len(free.free_gpus) - count :] if count else []
    for gpu in (*taken_gpus, *shared):
        if gpu < len(units):  # `check_capacities` reports a GPU that the node lacks
            units[gpu] -= shared.get(gpu, units[gpu])
    whole_gpus = [gpu for gpu in free.free_gpus if gpu not in taken_gpus and gpu not in shared]
    return _FreeAmounts(free.cpu_milli - cpu_milli, whole_gpus, units)


def _free_thousandths(state: NodeState, room: _FreeAmounts) -> list[int]:
    """Return the free thousandths of each GPU."""
    memory_by_gpu = state.node.gpu_memory or (0,) * state.node.topology.gpu_count
    return [
        _GPU if gpu in room.free_gpus else _GPU * room.units[gpu] // size if room.units and size else 0
        for gpu, size in enumerate(memory_by_gpu)
    ]


_SLACK, _MIB = 125, 2**20


def check_unusable(request: Request, plan: Placed, groups: Groups, new_spots: Spots, old: Spots) -> list[str]:
    """Return the errors in the claimed number of GPUs that members without GPUs make unusable."""
    claimed, total = plan.objective.unusable_gpus, 0
    asks = {role.name: role for role in request.roles}
    idle = {name for name, role in asks.items() if not (role.gpus or role.slice)}
    if not idle or not any(member.role in idle for member in plan.members):
        return [] if claimed is None else [f"all members have GPUs, so {claimed} can't be made unusable"]
    with_gpus = {spot.state.node.name for spot in old.values() if spot.gpus or not spot.indices_known}
    for name, members in groups.items():
        roles = [asks[m.role] for m in members if m.role in asks]
        with_gpu_roles = [role for role in roles if role.gpus or role.slice]
        if len(with_gpu_roles) < len(roles):
            state = new_spots[name].state
            total += _unusable_now(state, roles, with_gpu_roles)
            total += _unusable_later(
                state, roles, with_gpu_roles, has_gang_gpus=bool(with_gpu_roles) or name in with_gpus
            )
    return [f"members without GPUs make {total} GPUs unusable, not {claimed}"] if total != claimed else []


def _unusable_now(state: NodeState, roles: Sequence[Role], takers: Sequence[Role]) -> int:
    """Return how many of the free GPUs lose more than the slack of their share."""
    free = min(state.free_gpus.bit_count(), state.free_gpu_count) - sum(role.gpus for role in takers)
    usable, usable_after = (
        min(
            _GPU * free,
            *(
                share
                for share, _ in _shares_covered(
                    state, [a - b for a, b in zip(amounts, _total_cpu_and_memory(counted_roles), strict=True)]
                )
            ),
        )
        for amounts, counted_roles in (
            (_cpu_and_memory(state.free), takers),
            (_cpu_and_memory(state.free), roles),
        )
    )
    return -((usable_after - usable + _SLACK) // _GPU)


def _unusable_later(
    state: NodeState, roles: Sequence[Role], takers: Sequence[Role], *, has_gang_gpus: bool
) -> int:
    """Return how many GPUs' shares the members without GPUs take beyond the shares of the gang's own GPUs."""
    gpus = sum(role.gpus for role in takers)
    excess = max(
        max(0, share_all - _GPU * gpus) - max(0, share_takers - _GPU * gpus)
        for (_, share_all), (_, share_takers) in zip(
            _shares_covered(state, _total_cpu_and_memory(roles)),
            _shares_covered(state, _total_cpu_and_memory(takers)),
            strict=True,
        )
    )
    rounded = -((_SLACK - excess) // _GPU) if has_gang_gpus else max(1, -(-excess // _GPU))
    return min(rounded, state.node.topology.gpu_count - gpus)


def _shares_covered(state: NodeState, amounts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield for cpu and memory how many GPUs' shares the amount is, in thousandths: as a free amount, and as
    a taken amount.

    If the node does not state the resource, a free amount is enough for all GPUs, and a taken amount is 0.
    """
    gpus = state.node.topology.gpu_count * _GPU
    for amount, total, unit in zip(amounts, _cpu_and_memory(state.node.allocatable), (1, _MIB), strict=True):
        allocatable_units = total // unit
        share = max(0, amount // unit) * gpus // allocatable_units if allocatable_units else 0
        yield (share if allocatable_units else gpus), share


def _total_cpu_and_memory(roles: Iterable[Role]) -> tuple[int, int]:
    amounts = [_cpu_and_memory(role.resources) for role in roles]
    return sum(cpu for cpu, _ in amounts), sum(memory for _, memory in amounts)


def _cpu_and_memory(resources: Resources) -> tuple[int, int]:
    return resources.cpu_milli, resources.memory_bytes


_EIGHTHS = 8
_MIN_SCALE, _MAX_SCALE = 16, 64
"""The size of the largest domain of a scope, as it counts."""


def check_best_fit(snapshot: Snapshot, request: Request, plan: Placed, groups: Groups) -> list[str]:
    """Return the errors in the claimed best fit."""
    asks = {role.name: role for role in request.roles}
    in_memory = any(m.role in asks and asks[m.role].slice for members in groups.values() for m in members)
    total, opened = 0, list[NodeState]()
    for name, members in groups.items():
        state, roles = snapshot.nodes[name], [asks[m.role] for m in members if m.role in asks]
        total += _gpus_left(state, roles, in_memory)
        cpu_left = state.free.cpu_milli - sum(role.resources.cpu_milli for role in roles)
        total += _eighths(cpu_left, state.node.allocatable.cpu_milli)
        if _is_wholly_free(state) and any(role.gpus or role.slice for role in roles):
            opened.append(state)
    scopes = [*(level.scope for level in snapshot.levels), NVLINK[0]]
    total += sum(_cost_to_open(snapshot, scope, opened) for scope in scopes if opened)
    claimed = plan.objective.best_fit
    return [f"the best fit is {total}, not {claimed}"] if total != claimed else []


def _gpus_left(state: NodeState, roles: Sequence[Role], in_memory: bool) -> int:
    """Return the share of the GPUs that members of these roles leave free; of their memory if members share
    GPUs."""
    whole_gpus = sum(role.gpus for role in roles)
    memory, count = sum(state.node.gpu_memory), state.node.topology.gpu_count
    if not (in_memory and memory):
        return _eighths(_count_free_gpus(state) - whole_gpus, count)
    units = sum(role.slice.gpus * role.slice.units for role in roles if role.slice)
    return _eighths(sum(state.free_memory) - units - memory // count * whole_gpus, memory)


def _eighths(amount_left: int, full_amount: int) -> int:
    """Return what is left in eighths of the full amount, rounded down."""
    return _EIGHTHS * amount_left // full_amount if amount_left > 0 and full_amount > 0 else 0


def _cost_to_open(snapshot: Snapshot, scope: str, opened: Sequence[NodeState]) -> int:
    """Return the cost to open these nodes, by their domains of one scope."""
    with_gpus = [state for state in snapshot.nodes.values() if state.node.topology.gpu_count]
    part = Labels(snapshot).parts(scope, [state.node for state in with_gpus])
    nodes = Counter(part[state.node.name] for state in with_gpus)
    free = Counter(part[state.node.name] for state in with_gpus if _is_wholly_free(state))
    domains = filter(None, (part[state.node.name] for state in opened))
    largest = max((count for domain, count in nodes.items() if domain), default=1)
    scale_size = min(_MAX_SCALE, max(_MIN_SCALE, largest))
    return sum(-(-scale_size * free[domain] // largest) for domain in domains)


def _is_wholly_free(state: NodeState) -> bool:
    """Return whether a gang of whole nodes could have the node."""
    node = state.node
    return node.ready and not node.unschedulable and 0 < node.topology.gpu_count == _count_free_gpus(state)


def _count_free_gpus(state: NodeState) -> int:
    """Return how many wholly free GPUs the plan may take."""
    return min(state.free_gpus.bit_count(), state.free_gpu_count)


def check_preferences(request: Request, plan: Placed) -> list[str]:
    """Return the errors in the claimed value of the preferences."""
    scores = {role.name: role.scores for role in request.roles if role.members}
    real_penalty = None
    if any(scores.values()):
        reached = (scores.get(member.role, {}).get(member.node, 0) for member in plan.members)
        real_penalty = sum(100 - min(100, max(0, score)) for score in reached)
    claimed = plan.objective.preference_penalty
    return [] if real_penalty == claimed else [f"the preferences are missed by {real_penalty}, not {claimed}"]
