"""Say what keeps a gang's room, once it is proven that no victims help.

The gang is tried on three clusters. Each lacks more pods than the one before: those that may go, whatever
disruption budgets allow; protected units of a lower priority; all units. On the first cluster that holds the
gang, its plan says which pods are in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from muster.domain.clearing import Blocker, BlockerKind, NoClearing
from muster.placement.clearing.estimates import Estimates
from muster.placement.clearing.relaxation import Relaxation
from muster.placement.cluster.columns import Bools, gpu_counts
from muster.placement.gang.instance import Instance
from muster.placement.search.plan import NodePlan, SearchResult

MOST_BLOCKERS = 10
"""How many blockers are named. The others are counted."""

ALL_GPUS = -1
"""The bit mask of a pod whose GPUs have unknown indices: each GPU may be its own."""

SearchWithout = Callable[[Collection[int]], tuple[Instance, SearchResult]]
"""Search a plan on the cluster without these pods."""


def no_clearing(
    relaxation: Relaxation, may_go: Bools, priority: int, search_without: SearchWithout
) -> NoClearing:
    """Return that no victims help, with the blockers.

    `may_go` are all pods that may be victims of a gang with this priority.
    """
    pods, gang = relaxation.pods, relaxation.request.gang
    is_lower = pods.priority[pods.unit] < priority
    for going in (may_go, is_lower & ~pods.is_going, ~pods.is_going):
        instance, answer = _search_where_least_is_lost(relaxation, going, search_without)
        if answer.nodes:
            break
    else:
        return NoClearing(gang, proven=True, even_empty=answer.gap is None)
    if going is may_go:
        in_the_way = _in_the_way(relaxation, going, may_go, instance, answer.nodes)
        blockers = list(_budgets(relaxation, in_the_way))
    else:
        in_the_way = _in_the_way(relaxation, going, going & ~may_go, instance, answer.nodes)
        blockers = list(_units(relaxation, in_the_way, priority))
    blockers.sort(key=lambda blocker: (blocker.kind, -blocker.gpus, blocker.name))
    return NoClearing(gang, True, False, tuple(blockers[:MOST_BLOCKERS]), len(blockers))


def _search_where_least_is_lost(
    relaxation: Relaxation, going: Bools, search_without: SearchWithout
) -> tuple[Instance, SearchResult]:
    """Search a plan on the cluster without these pods, first in the region where the least would be lost."""
    row, region = relaxation.pods.row, relaxation.region
    bounds = Estimates(relaxation, going).bounds(relaxation.possible_regions(relaxation.room(going)))
    if len(bounds) > 1:
        in_region = (row >= 0) & (region[row] == bounds[0][1])
        instance, answer = search_without(np.flatnonzero(going & in_region).tolist())
        if answer.nodes:
            return instance, answer
    return search_without(np.flatnonzero(going).tolist())


def _in_the_way(
    relaxation: Relaxation, going: Bools, candidates: Bools, instance: Instance, nodes: tuple[NodePlan, ...]
) -> Bools:
    """Return which candidates cannot stay next to the plan, which was made without the pods `going`."""
    pods, freed = relaxation.pods, relaxation.freed_amounts
    on_nodes = pods.row >= 0
    unused = relaxation.free.copy()
    np.add.at(unused.T, pods.row[going & on_nodes], freed[:, going & on_nodes].T)
    planned_gpus = {node.row: node.gpus.mask | node.shared for node in nodes}
    for node in nodes:
        members = np.array(list(instance.by_role(node.counts).values()), np.int64)
        unused[:, node.row] -= relaxation.asks.T @ members
    in_the_way = np.zeros(len(pods.row), np.bool_)
    for pod in np.flatnonzero(candidates & np.isin(pods.row, list(planned_gpus))).tolist():
        row = int(pods.row[pod])
        held_gpus = ALL_GPUS if pods.unindexed[pod] else int(pods.gpus[pod])
        if held_gpus & planned_gpus[row] or (freed[:, pod] > unused[:, row]).any():
            in_the_way[pod] = True
        else:
            unused[:, row] -= freed[:, pod]
    return in_the_way


def _units(relaxation: Relaxation, in_the_way: Bools, priority: int) -> Iterator[Blocker]:
    """Yield the units of these pods. They may not be victims."""
    pods = relaxation.pods
    near = pods.counts_for_rules(relaxation.request.constraints, relaxation.cluster.columns)
    for u in np.unique(pods.unit[in_the_way]).tolist():
        unit, of_unit = pods.units[u], in_the_way & (pods.unit == u)
        clause = pods.protected[u] or (
            "the gang's affinity or spread counts pods on its nodes" if near[u] else ""
        )
        lingering = np.flatnonzero(of_unit & ~pods.is_movable)
        if not clause and len(lingering):
            clause = f"its pod {pods.occupants[lingering[0]].name} was deleted, but does not end"
        kind = BlockerKind.PRIORITY if unit.priority >= priority else BlockerKind.PROTECTED
        reason = clause if kind is BlockerKind.PROTECTED else ""
        yield Blocker(kind, unit.name, *_size(relaxation, of_unit), unit.priority, reason)


def _budgets(relaxation: Relaxation, in_the_way: Bools) -> Iterator[Blocker]:
    """Yield the budgets that do not allow the end of all units of these pods."""
    pods, allowed = relaxation.pods, relaxation.occupancy.budgets
    ending = pods.is_movable & np.isin(pods.unit, pods.unit[in_the_way])
    for b, name in enumerate(pods.budgets):
        covered = ending & (pods.budget == b)
        pod_count, gpus = _size(relaxation, covered)
        if pod_count > allowed.get(name, 0):
            yield Blocker(BlockerKind.BUDGET, name, pod_count, gpus, allowed=max(0, allowed.get(name, 0)))


def _size(relaxation: Relaxation, of: Bools) -> tuple[int, int]:
    """Return the number of these pods, and of the GPUs that they hold."""
    pods = relaxation.pods
    gpus = gpu_counts(pods.gpus[of]) + pods.unindexed[of]
    return int(of.sum()), int(gpus.sum())
