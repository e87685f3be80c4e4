"""The best domain for a gang that has waited long: where the fewest GPUs must still come free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from muster.domain.levels import Hierarchy, domains_of
from muster.domain.node import Node, Resources, Usage
from muster.domain.request import Request, Role, Scope
from muster.domain.snapshot import NodeState, Snapshot
from muster.gangs.capacity.ledger import holds_gpus
from muster.placement.cluster.candidates import refusal
from muster.placement.limits import member_room

_STEPS = 10_000
"""Pairs of role and node that one call examines, at most. A gang that needs more gets no domain."""
_NOTHING = Resources(pods=0)
_NONE: Mapping[str, Resources] = MappingProxyType({})


def best_domain(
    request: Request,
    snapshot: Snapshot,
    staying: Mapping[str, Resources] = _NONE,
    own: Iterable[Usage] = (),
    share: float = 1.0,
    avoid: Iterable[str] = (),
) -> Mapping[str, int]:
    """Return node → GPUs that the gang would take of it, for the nodes to reserve; {} if none can help.

    A domain is one part of the required scope. The best one lacks the fewest GPUs that must still come free.
    Pods that hold GPUs count as pods that end, with all that they take; pods without GPUs and members of the
    gang itself count as staying. Members are placed the largest first onto the nodes with the most free GPUs.
    That is an estimate; the planner decides once enough has come free.

    `staying`: node → what pods without GPUs take. `own`: what bound members of the gang take. `avoid`: nodes
    to leave out. The domain has at most this `share` of the cluster's GPUs, or one node.
    """
    avoid = frozenset(avoid)
    parts: dict[str, list[NodeState]] = {}
    gpus = 0
    part_of = _parts(snapshot, request.required_scope)
    for name, state in snapshot.nodes.items():
        gpus += state.node.topology.gpu_count
        part = part_of[name]
        if part and name not in avoid:
            parts.setdefault(part, []).append(state)
    if request.required_scope is not None and request.running:
        running = {part_of[member.node] for member in request.running}
        parts = {part: states for part, states in parts.items() if part in running}
    mine: dict[str, list[Usage]] = {}
    for usage in own:
        mine.setdefault(usage.node, []).append(usage)
    filling = _Filling(request, staying, mine, _STEPS)
    best: tuple[int, list[str]] | None = None
    wants: Mapping[str, int] = {}
    for states in parts.values():
        taken = filling.fill(states)
        by_name = {state.node.name: state for state in states} if taken else {}
        covered = sum(by_name[name].node.topology.gpu_count for name in taken)
        if not taken or (len(taken) > 1 and covered > share * gpus):
            continue
        missing = sum(max(0, count - by_name[name].free_gpu_count) for name, count in taken.items())
        if best is None or (missing, sorted(taken)) < best:
            best, wants = (missing, sorted(taken)), taken
    return wants


def _parts(snapshot: Snapshot, scope: str | None) -> Mapping[str, str]:
    """Node → its part of the scope, "" for none; all nodes are one part of no scope."""
    if scope is None:
        return dict.fromkeys(snapshot.nodes, "all")
    if scope in (Scope.NODE, Scope.GPU):
        return {name: name for name in snapshot.nodes}
    hierarchy = Hierarchy.of(scope, snapshot.levels, snapshot.naming)
    parts = domains_of((state.node for state in snapshot.nodes.values()), hierarchy)
    if scope == Scope.NVLINK_DOMAIN:
        return {name: part or name for name, part in parts.items()}
    return parts


@dataclass(slots=True)
class _Filling:
    """Places members on nodes as if all pods that may end had ended.

    `staying`: node → what pods without GPUs take. `own`: node → what bound members take. `steps`: the work
    that is left to do at most.
    """

    request: Request
    staying: Mapping[str, Resources]
    own: Mapping[str, list[Usage]]
    steps: int

    def fill(self, states: Iterable[NodeState]) -> dict[str, int]:
        """Return node → GPUs taken; {} if too few members fit or the steps are used up."""
        open_nodes = sorted(states, key=lambda state: (-state.free_gpu_count, state.node.name))
        left_over: dict[str, tuple[int, Resources]] = {}
        taken: dict[str, int] = {}
        for role, count in _needed(self.request):
            left = count if role.gpus else 0
            for state in open_nodes if left else ():
                self.steps -= 1
                if self.steps < 0:
                    return {}
                name = state.node.name
                if role.gpu_resource not in state.node.gpu_resources:
                    continue
                if name not in left_over:
                    left_over[name] = self._could_be_free(state.node)
                gpus, free = left_over[name]
                each = _fewest(state.node, role, gpus)
                here = max(0, min(left, gpus // each if each else 0, member_room(role.resources, free)))
                if here:
                    left_over[name] = (gpus - here * each, free - role.resources.times(here))
                    taken[name] = taken.get(name, 0) + here * each
                    left -= here
                if not left:
                    break
            if left:
                return {}
        return taken

    def _could_be_free(self, node: Node) -> tuple[int, Resources]:
        """Return the healthy GPUs and other resources that the node has once all pods that may end have
        ended."""
        gpus, unindexed = ((1 << node.topology.gpu_count) - 1) & ~node.unhealthy, 0
        free = node.allocatable - self.staying.get(node.name, _NOTHING)
        for usage in self.own.get(node.name, ()):
            if holds_gpus(usage):
                gpus &= ~usage.gpus
                unindexed += usage.unindexed_gpus
                free -= usage.resources
        return gpus.bit_count() - unindexed, free


def _fewest(node: Node, role: Role, gpus: int) -> int:
    """Return the fewest GPUs with which the node admits a member of the role, 0 if there are none.

    A member that takes all GPUs of its node has `gpus` there.
    """
    if not node.partitions:  # then it admits any number, or none
        return 0 if refusal(node, role) is not None else gpus if _takes_all(role) else role.gpus
    counts = (gpus,) if _takes_all(role) else [count or 1 for count in role.gpu_counts or (role.gpus,)]
    admitted = (count for count in counts if refusal(node, replace(role, gpus=count)) is None)
    return min(admitted, default=0)


def _takes_all(role: Role) -> bool:
    """Return whether each member takes all GPUs of a node (allocationMode All). Selectors do not matter."""
    return bool(role.gpu_counts) and not any(role.gpu_counts)


def _needed(request: Request) -> Iterator[tuple[Role, int]]:
    """Yield how many members of each role must fit, the role with the most GPUs first.

    Small members are chosen before large ones.
    """
    needed, left = [], request.min_member
    for role in sorted(request.roles, key=lambda role: role.gpus):
        needed.append((role, min(left, len(role.members))))
        left -= needed[-1][1]
    yield from needed[::-1]
