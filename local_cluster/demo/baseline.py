"""Place one pod at a time onto the first node with room, on its lowest free GPUs: the baseline.

A scheduler without gangs and topology does this if nothing tells nodes apart. It is shown next to our plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.decision import MemberPlacement, Objective
from muster.domain.node import Resources, Usage
from muster.domain.request import Request, Role
from muster.domain.snapshot import NodeState, Snapshot
from muster.domain.topology import bits, mask_of
from muster.placement.cluster.candidates import refusal
from muster.placement.cluster.columns import columns_of
from muster.placement.evaluate import EvaluatedPlan, objective_of
from muster.placement.naming import sort_by_rank


@dataclass(frozen=True, slots=True)
class FirstFit:
    """The members that found a node, and the value of their places. `complete` is whether all of the gang
    did.
    """

    members: tuple[MemberPlacement, ...]
    objective: Objective
    complete: bool


def first_fit(snapshot: Snapshot, request: Request) -> FirstFit:
    """Place the members in turn. Scopes are ignored, and a member that fits nowhere is left out."""
    view = columns_of(snapshot)
    states = dict(zip(view.names, view.states, strict=True))
    members: list[MemberPlacement] = []
    for role in request.roles:
        for member in sort_by_rank(role):
            for name, state in states.items():
                gpus, units = _lowest(state, role), role.slice.units if role.slice else 0
                room = _has_room(role.resources, state.free) and refusal(state.node, role) is None
                if room and gpus is not None:
                    usage = Usage(member.uid, name, role.resources, gpus=mask_of(gpus), units=units)
                    states[name] = state.with_usage(usage)
                    members.append(MemberPlacement(member.uid, member.name, role.name, name, gpus, units))
                    break
    value = objective_of(EvaluatedPlan(request, members, view))
    return FirstFit(tuple(members), value, len(members) == request.size)


def _has_room(demand: Resources, free: Resources) -> bool:
    """Return whether a member has room. As in kube-scheduler, what is not asked for is not checked."""
    after = free - demand
    amounts = [after.pods, *(after.other_amount(name) for name, _ in demand.others)]
    amounts += [after.cpu_milli] if demand.cpu_milli else []
    amounts += [after.memory_bytes] if demand.memory_bytes else []
    return min(amounts) >= 0


def _lowest(state: NodeState, role: Role) -> tuple[int, ...] | None:
    """Return the first GPUs with room for one member; None if there are too few."""
    if role.slice:
        gpus = [gpu for gpu, units in enumerate(state.free_memory) if units >= role.slice.units]
        return tuple(gpus[: role.slice.gpus]) if len(gpus) >= role.slice.gpus else None
    return tuple(bits(state.free_gpus))[: role.gpus] if state.free_gpu_count >= role.gpus else None
