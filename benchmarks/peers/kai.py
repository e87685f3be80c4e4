"""KAI-Scheduler's topology plugin: the fullest domain that fits first, subgroups never reconsidered.

Sources, github.com/kai-scheduler/KAI-Scheduler (NVIDIA/KAI-Scheduler before): docs/topology/README.md
@d6c52d12 ("Scheduling Strategy"), docs/topology/multilevel.md @90dbacb6, and
pkg/scheduler/plugins/topology/{job_filtering,node_scoring}.go @25c78e76 and @521a99aa,
pkg/scheduler/actions/common/allocate.go @196039ec, pkg/scheduler/plugins/nodeplacement/pack.go @34e11ef3.
Segments: docs/developer/designs/segmented-subgroups/README.md @0c1f1608 (NVIDIA), one subgroup a segment.

1. A domain can take a group if it has room for as many pods as the group has, each counted as the largest
   (by each resource apart); where only some of them ask for GPUs, if the sums fit.
2. Domains that can are tried narrowest level first, from the preferred to the required one; in a level those
   come first that the group would fill most.
3. With a preferred level nodes are scored in tenths by the rank of their domain there, the emptiest highest;
   then nodes with the fewest free GPUs come first (bin packing). Pods are placed one after another.
4. Subgroups are placed one after another inside the domain; a domain in which one finds no place is given up,
   an earlier subgroup's choice inside it never.

Releasing resources, fractions of GPUs and queues are left out. Equal scores go by the node's name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from benchmarks.peers.fabric import CPU, GPUS, PODS, Assignment, Fabric, Ints, asks
from muster.domain.request import Member, Request, Role, Scope, Segment

NOTHING_FREE = 1000.0
"""requiredResourceNotInDomainRatio of job_filtering.go: the ratio where a resource is used up."""
STEPS = 10
"""Scores of nodes are whole steps of this many (node_scoring.go: rounded down)."""


Kind = tuple[str, int, int | None]


@dataclass(frozen=True)
class Group:
    """A subgroup: pods of one role, or further subgroups. `required` and `preferred` are levels."""

    tasks: tuple[tuple[Role, Member], ...]
    children: tuple[Group, ...] = ()
    required: int | None = None
    preferred: int | None = None

    @cached_property
    def kind(self) -> Kind:
        """Groups of one kind find a place alike."""
        return (self.tasks[0][0].name, len(self.tasks), self.required)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles of the tasks, each once."""
        return tuple({role.name: role for role, _ in self.tasks}.values())

    @cached_property
    def needed(self) -> Ints:
        """What all its pods ask for together."""
        counts = Counter(role.name for role, _ in self.tasks)
        amounts: Ints = np.sum([counts[role.name] * asks(role) for role in self.roles], axis=0)
        return amounts

    @cached_property
    def largest(self) -> Ints | None:
        """Return a pod with the largest request of each resource; None if only some pods request GPUs."""
        if len({role.gpus > 0 for role in self.roles}) > 1:
            return None
        largest: Ints = np.max([asks(role) for role in self.roles], axis=0)
        return largest


@dataclass(frozen=True, slots=True)
class Domain:
    """A part of a level; the whole cluster at level -1."""

    level: int
    part: int


@dataclass(slots=True)
class State:
    """What is free, and what was placed, with everything undone that turns out to be in vain.

    `failed`: kinds of groups that found no place in a domain, as long as nothing changes there. It spares us
    trying them again and changes no answer.
    """

    fabric: Fabric
    free: Ints
    placed: list[tuple[Role, Member, int]] = field(default_factory=list)
    failed: dict[Domain, set[Kind]] = field(default_factory=dict)

    def take(self, role: Role, member: Member, node: int) -> None:
        """Put a member of the role on a node."""
        self.free[node] -= asks(role)
        self.placed.append((role, member, node))
        self._changed(node)

    def undo(self, until: int) -> None:
        """Take back the latest members, until `until` are left."""
        while len(self.placed) > until:
            role, _, node = self.placed.pop()
            self.free[node] += asks(role)
            self._changed(node)

    def _changed(self, node: int) -> None:
        for level, starts in enumerate(self.fabric.starts if self.failed else ()):
            self.failed.pop(Domain(level, int(np.searchsorted(starts, node, "right")) - 1), None)


def kai(fabric: Fabric, request: Request, preferred: str | None = Scope.RACK) -> Assignment | None:
    """Where KAI puts the pods. `preferred` is what a user would write where the gang requires nothing."""
    scopes = [request.required_scope, next(iter(request.preferred_scopes), preferred)]
    scopes += [scope for role in request.roles for scope in (role.required_scope, *_segment_scopes(role))]
    if any(scope is not None and fabric.level(scope) is None for scope in scopes):
        return None
    state = State(fabric, fabric.free.copy())
    root = _root(fabric, request, preferred)
    if not _place(state, root, Domain(-1, 0), None):
        return None
    return {member.uid: fabric.names[node] for _, member, node in state.placed}


def _segment_scopes(role: Role) -> list[str]:
    return [segment.scope for segment in role.segments]


def _root(fabric: Fabric, request: Request, preferred: str | None) -> Group:
    scope = next(iter(request.preferred_scopes), None if request.required_scope else preferred)
    children = tuple(
        _subgroup(fabric, role, role.members, role.required_scope, role.segments) for role in request.roles
    )
    return Group(
        tuple(task for child in children for task in child.tasks),
        children,
        fabric.level(request.required_scope) if request.required_scope else None,
        fabric.level(scope) if scope else None,
    )


def _subgroup(
    fabric: Fabric,
    role: Role,
    members: tuple[Member, ...],
    scope: str | None,
    segments: tuple[Segment, ...],
) -> Group:
    children: tuple[Group, ...] = ()
    if segments:
        size = segments[0].size
        children = tuple(
            _subgroup(fabric, role, members[i : i + size], segments[0].scope, segments[1:])
            for i in range(0, len(members), size)
        )
    level = fabric.level(scope) if scope else None
    return Group(tuple((role, member) for member in members), children, level)


def _place(state: State, group: Group, within: Domain, scores: Ints | None) -> bool:
    before = len(state.placed)
    domains, own_scores = _domains(state, group, within)
    scores = own_scores if own_scores is not None else scores
    for domain in domains:
        if group.kind in state.failed.get(domain, ()):
            continue
        if group.children:
            if all(_place(state, child, domain, scores) for child in group.children):
                return True
        elif _place_tasks(state, group, domain, scores):
            return True
        state.undo(before)
        if len(group.roles) == 1 and domain.level >= 0:
            state.failed.setdefault(domain, set()).add(group.kind)
    return False


def _place_tasks(state: State, group: Group, domain: Domain, scores: Ints | None) -> bool:
    """One pod after another on the best node. Pods are equal, and a node that got one is the fullest of its
    score, so it stays the best until nothing more fits."""
    role = group.tasks[0][0]
    members = [member for _, member in group.tasks]
    span = state.fabric.nodes(domain.level, domain.part)
    room = state.fabric.room(state.free, role, span)
    nodes = np.array(span)
    packed = state.free[nodes, GPUS if role.gpus else CPU]
    ranks = np.zeros_like(nodes) if scores is None else -scores[nodes]
    for i in np.lexsort((nodes, packed, ranks)):
        for member in members[: room[i]]:
            state.take(role, member, int(nodes[i]))
        members = members[room[i] :]
        if not members:
            return True
    return False


def _domains(state: State, group: Group, within: Domain) -> tuple[list[Domain], Ints | None]:
    """The domains to try, in order, and the scores of nodes where a level is preferred."""
    if group.required is None and group.preferred is None:
        return [within], None
    fabric = state.fabric
    narrowest = group.preferred if group.preferred is not None else group.required
    widest = group.required if group.required is not None else -1
    assert narrowest is not None
    ranked = _ranked(state, group, within, narrowest)
    domains: list[Domain] = []
    for level in range(narrowest, max(widest, within.level) - 1, -1):
        fitting = _fitting(state, group, within, level)
        domains += (Domain(level, int(part)) for part in ranked[level] if part in fitting)
    if group.preferred is None or not domains:
        return domains, None
    return domains, steps(fabric, group.preferred, ranked[group.preferred])


def _fitting(state: State, group: Group, within: Domain, level: int) -> set[int]:
    """The parts of a level that can take the group, as far as this plugin counts."""
    first, end = state.fabric.span(level, within.level, within.part)
    if group.largest is None:
        fits = _ratios(state.fabric.summed(level, state.free, first, end), group.needed) <= 1.0
    else:
        kinds = np.flatnonzero(group.largest)
        span = state.fabric.nodes(within.level, within.part)
        room = np.zeros(len(state.free), dtype=np.int64)
        room[span.start : span.stop] = np.maximum(
            (state.free[span.start : span.stop, kinds] // group.largest[kinds]).min(axis=1), 0
        )
        for role in group.roles:
            room[~state.fabric.admitting(role)] = 0
        fits = state.fabric.summed(level, room, first, end) >= len(group.tasks)
    return set((np.flatnonzero(fits) + first).tolist())


def _ratios(free: Ints, amounts: Ints) -> npt.NDArray[np.float64]:
    """For each row of `free` how much of its scarcest resource would be taken; pods are not counted."""
    shares = np.where(free > 0, amounts / np.maximum(free, 1), np.where(amounts > 0, NOTHING_FREE, 0.0))
    shares[:, PODS] = 0
    ratios: npt.NDArray[np.float64] = shares.max(axis=1)
    return ratios


def _ranked(state: State, group: Group, within: Domain, narrowest: int) -> dict[int, Ints]:
    """By level, from `within` down: its parts, inside each parent those first that would be fullest."""
    fabric = state.fabric
    ranked = {within.level: np.array([within.part])}
    rank, above = np.zeros(1, dtype=np.int64), within.part
    for level in range(within.level + 1, narrowest + 1):
        first, end = fabric.span(level, within.level, within.part)
        parts = np.arange(first, end)
        ratios = _ratios(fabric.summed(level, state.free, first, end), group.needed)
        of_parent = rank[fabric.parents[level - 1][first:end] - above] if level else np.zeros_like(parts)
        order = np.lexsort((parts, -ratios, of_parent))
        ranked[level] = parts[order]
        rank, above = np.empty_like(order), first
        rank[order] = np.arange(len(order))
    return ranked


def steps(fabric: Fabric, level: int, ranked: Ints) -> Ints:
    """The nodes' scores by the rank of their domain, the last (emptiest) one the highest."""
    step_of_node = np.zeros(len(fabric.names), dtype=np.int64)
    for i, part in enumerate(ranked):
        nodes = fabric.nodes(level, int(part))
        step_of_node[nodes.start : nodes.stop] = STEPS * (i + 1) // len(ranked)
    return step_of_node
