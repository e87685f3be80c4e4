"""Make the problem with all patterns for gangs that share GPUs or have a policy.

For these the GPUs of each node are chosen for each packing, which is expensive. So packings are left out
first that no plan with this number of nodes can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from muster.placement.cluster.columns import Bools, Ints, gpu_counts
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.on_node import best_fit, costs_on, gpus_on
from muster.placement.gang.packings import Packings, packings_on
from muster.placement.gpus.choices import CHOICE_VALUES, choices, choosing_time
from muster.placement.gpus.costs import Cost, On
from muster.placement.gpus.gpusets import SET_VALUES
from muster.placement.gpus.slices import Asks, NodeGpus
from muster.placement.limits import Budget, takes_gpus
from muster.placement.model.bound import EPSILON, Floats
from muster.placement.model.objective import Idle
from muster.placement.model.problem import Problem
from muster.placement.model.solve import counted_scope
from muster.placement.search.classes import FIELDS, Table, nodes_of, with_tables
from muster.placement.search.methods import Counted
from muster.placement.search.runs import place_in_run

SHARE = 0.25
"""The largest share of the solver's time for choosing GPUs."""

MAX_PACKINGS = 512
"""The most packings of one node that are considered. Three roles of slices have thousands; then a sample is
taken.
"""

MAX_PRICES = 12
"""The most prices by which packings are sieved."""


def chosen(
    instance: Instance, counted: Counted, placed: Mapping[int, Counts], budget: Budget
) -> tuple[Problem, bool]:
    """Return the problem with all patterns of plans with the counted number of nodes, and whether they are
    complete.

    Rows with members in `placed` are always considered. Other rows are, as long as there is time. Rows come
    first if a plan in their part may open few GPUs.
    """
    problem, nodes = counted.problem, counted.value[-1]
    rows, cell = nodes_of(problem)
    index, packings = packings_on(instance, rows, problem.need)
    scope, limit = counted_scope(problem)
    part = problem.parts[scope][cell] if scope is not None and limit == 1 else np.zeros(len(rows), np.int64)
    part = part - int(part.min(initial=0))
    sieve = _sieve(instance, counted, (index, packings), part)
    complete = all(packings[m].complete for m in np.unique(index))
    tables: list[Table | None] = [None] * len(rows)
    used = np.isin(rows, list(placed))
    near = np.isin(part, part[used])
    order = np.lexsort((rows, part, -_promise(instance, rows, part, nodes), ~near, ~used))
    with budget.share(1 - SHARE):
        for i in order.tolist():
            if not used[i] and budget.spent:
                complete = False
                break
            kept = sieve.kept(i, packings[index[i]])
            if len(kept) > MAX_PACKINGS:
                kept, complete = _some(kept, placed.get(int(rows[i]))), False
            if len(kept):
                tables[i], all_of_them = _table(instance, int(rows[i]), kept)
                complete &= all_of_them
                budget.spend(choosing_time(instance.asks, kept))
    further = tuple(cost.value for cost in instance.costs if cost is not Cost.NVLINK_DOMAINS)
    return with_tables(instance, problem, tables, further), complete


def _some(packings: Ints, placed: Counts | None) -> Ints:
    """Return an evenly spaced sample of the packings, with the placed one."""
    kept = np.zeros(len(packings), bool)
    kept[np.linspace(0, len(packings) - 1, MAX_PACKINGS).astype(np.int64)] = True
    if placed is not None:
        kept |= (packings == np.array(placed)).all(axis=1)
    return np.asarray(packings[kept])


@dataclass(frozen=True, slots=True, eq=False)
class _Sieve:
    """The least value of the members on a node in any plan with the counted number of nodes in one part.

    `prices` is [role, price], and `least` [row, price]. It follows from the need, less the most that the
    other nodes of the part take.
    """

    prices: Floats
    least: Floats
    touching: Bools | None = None
    """[role] If members without GPUs touch no nodes: whether members have GPUs. Only these have prices."""

    def kept(self, row: int, packings: Packings) -> Ints:
        """Return the packings [packing, role] of the row that may be in such a plan."""
        every = packings.made()
        enough = (every @ self.prices >= self.least[row]).all(axis=1)
        if self.touching is not None:
            enough |= ~every[:, self.touching].any(axis=1)
        return np.asarray(every[enough])


def _sieve(instance: Instance, counted: Counted, mixed: tuple[Ints, list[Packings]], part: Ints) -> _Sieve:
    index, packings = mixed
    need = np.array(counted.problem.need)
    if instance.existing:  # nodes that the gang is on already are not counted
        return _Sieve(np.zeros((len(need), 1)), np.zeros((len(index), 1)))
    prices = _prices(instance, counted.problem.need, counted.duals)
    touching = None
    if instance.idle is Idle.BESIDE:
        touching = np.array([takes_gpus(role) for role in instance.roles])
        prices = prices * touching[:, None]
    worth = np.array([(packing.maximal @ prices).max(axis=0, initial=0.0) for packing in packings])[index]
    others = np.stack([_others(each, part, counted.value[-1]) for each in worth.T], axis=1)
    wanted = need @ prices
    return _Sieve(prices, wanted - others - EPSILON * (1 + wanted), touching)


def _prices(instance: Instance, need: Counts, duals: Sequence[Floats]) -> Floats:
    """Return prices of a member [role, price]: each role alone, by GPUs, by memory, and the duals of the
    bound.
    """
    active = [r for r, count in enumerate(need) if count]
    found = [np.eye(len(need))[r] for r in active]
    found += [
        np.array([ask.gpus for ask in instance.asks]),
        np.array([ask.units * ask.gpus for ask in instance.asks]),
    ]
    for dual in duals:
        price = np.zeros(len(need))
        price[active] = np.maximum(0.0, dual[: len(active)])
        found.append(price)
    return np.stack(found[:MAX_PRICES], axis=1).astype(float)


def _others(worth: Floats, part: Ints, nodes: int) -> Floats:
    """Return [row] the largest value of `nodes` − 1 other nodes of the same part."""
    order = np.lexsort((-worth, part))
    rank = np.empty(len(part), np.int64)
    rank[order] = place_in_run(part[order])
    inside = rank < nodes - 1
    top = np.bincount(part, np.where(inside, worth, 0.0))
    following = np.bincount(part, np.where(rank == nodes - 1, worth, 0.0))
    return np.asarray(top[part] + np.where(inside, following[part] - worth, 0.0))


def _promise(instance: Instance, rows: Ints, part: Ints, nodes: int) -> Floats:
    """Return [row] how much memory is left on used GPUs of the node and of the best other
    nodes of its part.
    """
    memory = instance.columns.gpu_memory[:, rows]
    free = instance.columns.free_gpus[rows] >> np.arange(len(memory))[:, None] & 1
    left = (memory * (1 - free)).sum(axis=0).astype(float)
    return np.asarray(left + _others(left, part, nodes))


def _table(instance: Instance, row: int, packings: Ints) -> tuple[Table, bool]:
    """Return the patterns of one node with the best fit of each, and whether these are complete."""
    table, complete = _patterns(
        tuple(map(tuple, packings.tolist())), instance.asks, gpus_on(instance, row), costs_on(instance, row)
    )
    packing = table[:, len(instance.roles) + FIELDS.index("packing")]
    at = np.array([row])
    left = best_fit(instance, at, packings)[0]
    if instance.prices is not None:
        damage = instance.prices.of_whole(at, instance.gpus(packings), instance.cpu(packings))[0]
        table = table.copy()
        table[:, len(instance.roles) + FIELDS.index("damage")] = damage[packing]
    unusable = None if instance.idle is Idle.NONE else instance.unusable(at, packings)[0]
    return Table(table, table.tobytes(), left, unusable), complete


@lru_cache(maxsize=1 << 14)
def _patterns(packings: tuple[Counts, ...], asks: Asks, node: NodeGpus, on: On) -> tuple[Ints, bool]:
    """Return the patterns of one node [pattern, counts by role, FIELDS and further costs], and whether they
    are complete.
    """
    sets = choices(asks, packings, node, on)
    domains = np.zeros_like(sets.packing)
    further = []
    for cost, values in zip(on.costs, sets.costs, strict=True):
        if cost is Cost.NVLINK_DOMAINS:
            domains = values
        else:
            further.append(values)
    begins = np.searchsorted(sets.packing, np.arange(len(packings)))
    size = gpu_counts(sets.masks)
    choice = np.arange(len(sets.packing)) - begins[sets.packing]
    counts = np.array(packings, np.int64).reshape(len(packings), len(asks))[sets.packing]
    of_set = {"domains": domains, **{name: getattr(sets, name) for name in CHOICE_VALUES}}
    values = (of_set[name] for name in SET_VALUES)
    fields = (*values, size, sets.packing, choice, *further)
    return np.concatenate([counts, np.stack(fields, axis=1)], axis=1), sets.complete
