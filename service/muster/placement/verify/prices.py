"""Level 4a counted again where the cluster lists typical requests: what a plan takes from them, priced."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from muster.domain.decision import MemberPlacement, Placed
from muster.domain.request import Request
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.typical import TypicalRequest
from muster.placement.verify.spots import PLANNED_GPUS, Groups

_GPU, _STEP, _MOST_STEPS = 1000, 10, 1 << 40


class _Left(NamedTuple):
    """What is left of a node: cpu, the GPUs that are wholly free, and the units of each GPU."""

    cpu_milli: int
    whole: Collection[int]
    units: Sequence[int]


def priced_damage(snapshot: Snapshot, request: Request, placed: Placed, groups: Groups) -> list[str]:
    """Return what is wrong with the claimed damage. A sum halfway between two steps may go to either."""
    prices = _prices(snapshot)
    cpu = {role.name: role.resources.cpu_milli for role in request.roles}
    low = high = 0
    for name, members in groups.items():
        state = snapshot.nodes[name]
        before, after = _now(state), _after(state, members, sum(cpu.get(m.role, 0) for m in members))
        taken = sum(
            price * (_usable(kind, state, before) - _usable(kind, state, after))
            for kind, price in zip(snapshot.typical, prices, strict=True)
        )
        steps, doubt = max(-_MOST_STEPS, min(_MOST_STEPS, taken / _STEP)), 1e-6 + 1e-12 * abs(taken)
        low += _STEP * math.ceil(steps - 0.5 - doubt)
        high += _STEP * math.floor(steps + 0.5 + doubt)
    claimed = placed.objective.damage
    return [] if low <= claimed <= high else [f"the damage is {low} to {high}, not {claimed}"]


def _prices(snapshot: Snapshot) -> list[float]:
    """Return what a thousandth of a GPU is worth to each typical request.

    It is worth more if the request comes often, and if few GPUs can serve it.
    """
    states = snapshot.nodes.values()
    left = [(state, _now(state)) for state in states]
    free = sum(sum(_thousandths(state, now)) for state, now in left)
    sizes = [units for state in states for units in state.node.gpu_memory[:PLANNED_GPUS] if units]
    shares = sum(kind.share for kind in snapshot.typical)
    found = []
    for kind in snapshot.typical:
        supply = max(_GPU, sum(_usable(kind, state, now) for state, now in left))
        part = min(1.0, kind.units * len(sizes) / sum(sizes)) if kind.units and sizes else 1.0
        found.append(kind.share / shares / (kind.gpus * part) * (free / supply) ** 2)
    return found


def _usable(kind: TypicalRequest, state: NodeState, left: _Left) -> float:
    """Return the GPU-thousandths that requests of the kind can use of the node."""
    node = state.node
    serves = node.gpu_memory if kind.units else node.gpu_resources
    chosen = all(node.labels.get(key) in values for key, values in kind.labels)
    if not (serves and chosen and node.ready) or node.unschedulable:
        return 0.0
    free = [
        thousandths
        for gpu, thousandths in enumerate(_thousandths(state, left))
        if (gpu < len(left.units) and left.units[gpu] >= kind.units if kind.units else gpu in left.whole)
    ]
    fitting, fed = len(free) // kind.gpus, left.cpu_milli / max(1, kind.cpu_milli)
    return sum(free) * min(1.0, fed / fitting) if fitting and fed >= 1 else 0.0


def _now(state: NodeState) -> _Left:
    """Return what is left before the plan. Of GPUs that pods hold without known indices, the last count as
    taken."""
    gpus = range(min(PLANNED_GPUS, state.node.topology.gpu_count))
    free = [gpu for gpu in gpus if state.free_gpus >> gpu & 1]
    return _Left(state.free.cpu_milli, free[: state.free_gpu_count], state.free_memory[:PLANNED_GPUS])


def _after(state: NodeState, members: Sequence[MemberPlacement], cpu_milli: int) -> _Left:
    """Return what is left once these have theirs. Which whole GPUs they take does not count: the last."""
    before = _now(state)
    units = [*before.units]
    shared = {gpu: member.units for member in members if member.units for gpu in member.gpus}
    count = sum(len(member.gpus) for member in members if not member.units)
    gone = [*before.whole][len(before.whole) - count :] if count else []
    for gpu in (*gone, *shared):
        if gpu < len(units):  # a GPU that the node lacks is a sentence of `members`
            units[gpu] -= shared.get(gpu, units[gpu])
    whole = [gpu for gpu in before.whole if gpu not in gone and gpu not in shared]
    return _Left(before.cpu_milli - cpu_milli, whole, units)


def _thousandths(state: NodeState, left: _Left) -> list[int]:
    """Return what is free of each GPU."""
    every = (state.node.gpu_memory or (0,) * state.node.topology.gpu_count)[:PLANNED_GPUS]
    return [
        _GPU if gpu in left.whole else _GPU * left.units[gpu] // size if left.units and size else 0
        for gpu, size in enumerate(every)
    ]
