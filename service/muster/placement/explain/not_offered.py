"""Find what nodes do not offer: a resource that none has, GPUs that nodes have and do not offer or share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from muster.domain.causes.out_of_place import IndicesUnknown
from muster.domain.causes.too_little import GpusNotOffered, ResourceNotOffered
from muster.domain.node import Node
from muster.domain.request import Role
from muster.domain.words import LISTED, nearest
from muster.placement.cluster.columns import Bools, Columns
from muster.placement.explain.conflict import Conflict
from muster.placement.explain.refused_roles import resource_missing

NEAR = 0.7
"""Least similarity of a resource that was probably meant: two of one vendor are alike by more than half."""


def not_offered(view: Columns, role: Role, resource: str) -> ResourceNotOffered:
    """Return the cause that no node offers this resource."""
    nodes = [state.node for state in view.states]
    if role.slice:
        known = frozenset[str]().union(*(node.memory_resources for node in nodes if node.gpu_memory))
    else:
        known = frozenset(name for node in nodes for name, _ in node.allocatable.others)
        known = known.union(*(node.gpu_resources for node in nodes))
    known = known.difference((role.gpu_resource, *(name for name, _ in role.resources.others)))
    return ResourceNotOffered(role.name, resource, len(nodes), nearest(resource, known, NEAR))


def gpus_not_offered(conflict: Conflict) -> Iterator[GpusNotOffered]:
    """Yield for each role with GPUs the nodes that would admit more of its members if they offered all of
    their GPUs."""
    view = conflict.assumptions.view
    missing = np.array([profile.missing_gpus for profile in view.profiles], np.int64)[view.profile]
    nodes_of_rows = [state.node for state in view.states]
    broken = np.array([_broken(node, conflict.assumptions.roles) for node in nodes_of_rows], np.int64)
    missing = missing + broken
    lost = {row: int(missing[row]) for row in np.flatnonzero(missing).tolist()}
    for role in conflict.members_of if lost else ():
        if not role.gpus:
            continue
        refused = _refused(conflict, role)
        nodes = [
            (view.names[row], count)
            for row, count in lost.items()
            if not refused[row]
            and (view.free_count[row] + count) // role.gpus > view.free_count[row] // role.gpus
        ]
        if nodes:
            names = tuple(name for name, _ in nodes)
            rows = [view.row[name] for name in names]
            offered = int((view.gpu_total[rows] - broken[rows]).sum())
            there = offered + sum(count for _, count in nodes)
            yield GpusNotOffered(role.name, role.gpu_resource, len(nodes), offered, there, names[:LISTED])


def _broken(node: Node, roles: Sequence[Role]) -> int:
    """Return how many GPUs of a node are broken. In the gang's view those that its claims leave out are
    unhealthy too."""
    if not node.unhealthy:
        return 0
    masks = {role.matching.get(node.name, -1) for role in roles if role.gpus or role.slice}
    return (node.unhealthy & ~node.tainted & masks.pop()).bit_count() if len(masks) == 1 else 0


def not_shared(conflict: Conflict) -> Iterator[IndicesUnknown]:
    """Yield for each role with slices on how many nodes no GPU is shared, since it is not known which of them
    other pods have."""
    view = conflict.assumptions.view
    for role in conflict.members_of:
        if role.slice:
            serves = np.array([any(state.node.gpu_memory) for state in view.states], np.bool_)
            nodes = int(np.count_nonzero(serves & (view.unindexed > 0) & ~_refused(conflict, role)))
            if nodes:
                yield IndicesUnknown("", nodes, role.name)


def _refused(conflict: Conflict, role: Role) -> Bools:
    """Return [row]: whether a node refuses the role for more than its resource."""
    refused = np.zeros(len(conflict.assumptions.view.names), np.bool_)
    for by, rows in conflict.assumptions.refused[role.name].items():
        if by != resource_missing(role):
            refused |= rows
    return refused
