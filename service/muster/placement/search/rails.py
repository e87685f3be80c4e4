"""Put the GPUs of a gang on several nodes on the fewest network rails, without loss at any level above.

The rails of a plan are a union over its nodes, not a sum. So the search is asked again for sets of rails, the
smallest first. GPUs on other rails are avoided: a node that gives some costs a little more than a node whose
GPUs hang alike (`Shape.avoided`). If the best plan takes none of them, it lies on the set. Otherwise no plan
that keeps the levels above does. For a gang of one role in one part, one table serves all sets of a size.

Sums show for most sets that no plan lies on them (`_Room`). They mostly leave nothing to search: if a node
gives all its GPUs, for example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, compress, islice
from math import gcd
from operator import itemgetter

import numpy as np

from muster.domain.decision import Step
from muster.domain.topology import mask_of
from muster.placement.cluster.columns import Bools, Columns, Ints, gpu_counts
from muster.placement.cluster.fabric import Shape
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.instance import Counts, Instance
from muster.placement.gang.on_node import best_fit
from muster.placement.gpus.gpusets import TABLED_GPUS
from muster.placement.limits import Budget
from muster.placement.model.objective import BEST_FIT, DAMAGE, RAILS, SOCKETS, Idle
from muster.placement.search.capacities import DomainCapacities
from muster.placement.search.one_role import (
    DomainRules,
    best_plan,
    bound_by_domain,
    gpu_sets,
    wide_tell_apart,
)
from muster.placement.search.plan import Found, Gap, Regions, Value
from muster.placement.search.regions import regions, renumbered

METHOD = "rail-sets"
RAILS_SHARE = 0.125
"""The largest share of the solver's time for this level."""
SEARCH_TIME, NODE_TIME = 1e-3, 2e-6
"""The deterministic time of one more search or table, and of each node in it for each role."""
MAX_SET_CELLS = 1 << 21
"""The most entries in tables of GPU sets: each set of rails needs 3^n for each shape of nodes with n GPUs."""
MAX_RAIL_SETS = 512
"""The most sets of one size that are looked at. Of eight rails there are at most 70."""
MAX_RAILS = 64
"""The most rails in a cluster. With more, their sets are not looked at."""
BELOW = (DAMAGE.name, BEST_FIT.name)
"""The names of the levels below the rails."""

Rails = frozenset[int]
Search = Callable[[Instance], Found]


def rails_on(view: Columns, existing: ExistingMembers, masks: Mapping[int, int]) -> Rails:
    """Return the rails of a gang's GPUs; none if all lie on one node. `masks` are the new GPUs by row."""
    if len(existing.with_gpus.union(row for row, mask in masks.items() if mask)) < 2:
        return frozenset()
    return _rails_of(view, masks) | _rails_of(view, existing.masks)


def _rails_of(view: Columns, masks: Mapping[int, int]) -> Rails:
    by_shape = dict[int, int]()
    for row, mask in masks.items():
        shape = view.shape.item(row)
        by_shape[shape] = by_shape.get(shape, 0) | mask
    lines = [(view.shapes[shape].topology.rail_by_gpu, mask) for shape, mask in by_shape.items()]
    return frozenset(rail for line, mask in lines for gpu, rail in enumerate(line) if mask >> gpu & 1)


def on_fewest_rails(
    instance: Instance, scopes: tuple[str, ...], need: Counts, search: Search, budget: Budget
) -> Found:
    """Return the best plan, on the fewest rails that keep all levels above the rails.

    The level does not exist for gangs that share GPUs, nor if no rail in the cluster is known.
    """
    plan, view = search(instance), instance.columns
    if instance.sliced or all(max(s.topology.rail_by_gpu, default=-1) < 0 for s in view.shapes):
        return plan
    rails = rails_on(view, instance.existing, _masks(plan))
    if not plan.shares or not rails:
        return plan
    began, final = budget.now(), plan
    if plan.gap is None or plan.gap.level in BELOW:
        with budget.share(RAILS_SHARE):
            final = _Sets(instance, scopes, need, search, budget, plan, rails).fewest()
    budget.decided(METHOD, began)
    at = next((i for i, step in enumerate(plan.steps, 1) if step.level == SOCKETS.name), len(plan.steps))
    return replace(final, steps=(*plan.steps[:at], Step(RAILS.name, METHOD), *plan.steps[at:]))


def _masks(plan: Found) -> dict[int, int]:
    return {share.row: share.gpus.mask for share in plan.shares}


@dataclass
class _Sets:
    """Ask the search for sets of rails. `plan` is the best plan without this level, and lies on `rails`."""

    instance: Instance
    scopes: tuple[str, ...]
    need: Counts
    search: Search
    budget: Budget
    plan: Found
    rails: Rails
    cut_short: bool = False
    """Whether a set is left undecided."""

    def fewest(self) -> Found:
        """Return the best plan on the fewest rails."""
        view, existing = self.instance.columns, self.instance.existing
        nodes = sorted({row for row, mask in _masks(self.plan).items() if mask} | existing.with_gpus)
        total = int(self.instance.gpus(np.array(self.need, np.int64)))
        if not total or len(self.rails) <= _fewest_on_one(view, -(-total // len(nodes))):
            return self.plan
        if len({rail for shape in view.shapes for rail in shape.topology.rail_by_gpu}) > MAX_RAILS:
            return replace(self.plan, gap=Gap(RAILS.name))
        room = _Room.of(self.instance, self.need, nodes, total)
        needed = room.needed
        fixed = _rails_of(view, existing.masks).union(compress(room.rails, np.all(needed, axis=1).tolist()))
        sizes = range(max(1, len(fixed), needed.sum(axis=0).min()), len(self.rails))
        if len(sizes) > 1:  # a plan on fewer rails lies on some set of the largest size
            on_fewer = next(self._on_sets(room, fixed, sizes[-1]), None)
            sizes = sizes if on_fewer or self.cut_short else sizes[:0]
        return self._on_least(room, fixed, sizes)

    def _on_least(self, room: _Room, fixed: Rails, sizes: Sequence[int]) -> Found:
        """Return the best plan on a set of the first of these sizes that has one, else the plan so far."""
        for size in sizes:
            plans = list[tuple[Value, Found]]()
            for plan in self._on_sets(room, fixed, size):
                plans.append((self._value(plan)[1], plan))
                if plans[-1][0] == self.value[1] and self.plan.gap is None:
                    return replace(plan, gap=None)
            if plans:
                doubt = next((plan.gap for _, plan in plans if plan.gap), None)
                _, plan = min(plans, key=itemgetter(0))
                return replace(plan, gap=Gap(DAMAGE.name) if self.cut_short else doubt)
            if self.cut_short:
                return replace(self.plan, gap=Gap(RAILS.name, (len(self.rails) - size) / max(1, size)))
        return self.plan

    def _on_sets(self, room: _Room, fixed: Rails, size: int) -> Iterator[Found]:
        """Yield best plans on sets of this many rails that keep the levels above, the best one among them."""
        others = [rail for rail in room.rails if rail not in fixed]
        every = combinations(others, size - len(fixed))
        sets = [fixed.union(more) for more in islice(every, MAX_RAIL_SETS)]
        self.cut_short |= next(every, None) is not None
        holds = room.holds(np.array([[rail in rails for rail in room.rails] for rails in sets]))
        possible = np.flatnonzero(holds.any(axis=1))
        sets, holds = [sets[at] for at in possible.tolist()], holds[possible]
        view = self.instance.columns
        shapes = [view.shapes[shape].topology for shape in np.unique(view.shape[room.rows]).tolist()]
        cells = sum(3 ** min(TABLED_GPUS, shape.gpu_count) for shape in shapes)
        self.cut_short |= len(sets) * cells > MAX_SET_CELLS or (bool(sets) and self.budget.spent)
        if self.cut_short or not sets:
            return
        by_table = self._by_table(room, sets, holds)
        for rails, plan in self._by_searches(room, sets, holds) if by_table is None else by_table:
            on_rails = _rails_of(view, _masks(plan)) <= rails
            if on_rails and self._value(plan)[0] == self.value[0]:
                yield plan

    def _by_table(self, room: _Room, sets: Sequence[Rails], holds: Bools) -> list[tuple[Rails, Found]] | None:
        """Return the best plan on one of these sets, by the tables of one role; None if they do not apply.

        Each set has domains of its own, so one table serves all.
        """
        instance, (role, *more) = self.instance, np.flatnonzero(self.need).tolist()
        bound = bound_by_domain(instance, role, self.need[role])
        region = regions(instance, self.scopes, self.need)[room.rows]
        part = region * (int(room.home.max()) + 1) + room.home
        if more or instance.costs or room.parts > 1 or isinstance(bound, str):
            return None
        if (region < 0).all() or wide_tell_apart(instance, Regions(room.rows, region, region, ()), part):
            return None
        nodes, view = len(instance.columns.names), instance.columns
        of_set, node = np.nonzero(holds[:, room.home] & (region >= 0))
        self.budget.spend(SEARCH_TIME + NODE_TIME * len(node))
        rows, domain = room.rows[node], of_set * (int(part.max()) + 1) + part[node]
        cap = np.minimum(instance.room[role][rows], self.need[role])
        most = None if bound.most is None else bound.most[rows]
        domains = DomainCapacities.of(
            of_set * nodes + rows, cap, domain, self.need[role], step=bound.step, most=most
        )
        choices = domains.counted()
        if domains.limit > 1 or choices is None or not choices.fits_tables:
            return None
        of_set, choices = choices.rows // nodes, replace(choices, rows=choices.rows % nodes)
        shapes = self._avoiding(sets)
        shape = of_set * len(view.shapes) + view.shape[choices.rows]
        gpus = gpu_sets(instance, role, choices, (shapes, shape))
        plan = best_plan(instance, choices, gpus) if gpus else None
        if plan is None:
            return None
        at = int(of_set[plan.members > 0][0])
        shapes = shapes[at * len(view.shapes) :][: len(view.shapes)]
        shares = plan.shares(replace(instance, columns=replace(view, shapes=shapes)), role)
        return [(sets[at], Found(shares))]

    def _by_searches(self, room: _Room, sets: Sequence[Rails], holds: Bools) -> Iterator[tuple[Rails, Found]]:
        """Yield best plans on these sets. A plan lies in one home, so one search serves a set for each."""
        for rank in range(1, int(holds.sum(axis=0).max()) + 1):
            tried = holds & (np.cumsum(holds, axis=0) == rank)
            of_home = np.where(tried.any(axis=0), tried.argmax(axis=0), len(sets))
            self.cut_short |= self.budget.spent
            if self.cut_short:
                return
            of_row = np.full(len(self.instance.columns.names), len(sets))
            of_row[room.rows] = of_home[room.home]
            plan = self._on([*sets, frozenset()], of_row)
            self.cut_short |= plan.gap is not None and plan.gap.level not in BELOW
            at = next((of_row[row] for row, mask in _masks(plan).items() if mask), len(sets))
            if at < len(sets) and not self.cut_short:
                yield sets[at], plan

    def _on(self, sets: Sequence[Rails], of_row: Ints) -> Found:
        """Return the best plan if each node is on its set of rails. The last set has no rails."""
        instance, view = self.instance, self.instance.columns
        inside = of_row < len(sets) - 1
        if self._few_nodes:
            instance = instance.on(inside)
        time = SEARCH_TIME + NODE_TIME * int(inside.sum()) * len(instance.roles)
        if self.budget.deterministic_time <= 2 * time:  # too little is left to decide the levels
            self.cut_short = True
            return Found(())
        self.budget.spend(time)
        used = np.unique(of_row)
        codes = np.searchsorted(used, of_row) * len(view.shapes) + view.shape
        shapes = self._avoiding([sets[at] for at in used.tolist()])
        avoiding = replace(view, shapes=shapes, shape=codes.astype(view.shape.dtype))
        return self.search(replace(instance, columns=avoiding))

    def _avoiding(self, sets: Sequence[Rails]) -> tuple[Shape, ...]:
        """Return the shapes of the cluster for each set, with GPUs on other rails avoided."""
        return tuple(
            replace(shape, avoided=_avoided(shape, rails), step=self._step)
            for rails in sets
            for shape in self.instance.columns.shapes
        )

    @property
    def _step(self) -> int:
        """More than nodes that give avoided GPUs: as much is a step of the socket distance where some are."""
        return len(self.plan.shares) + 1

    @property
    def _few_nodes(self) -> bool:
        """Whether a search may be about some nodes alone, because no other nodes count."""
        return self.instance.idle is Idle.NONE and not self.instance.existing and not self.instance.costs

    @cached_property
    def value(self) -> tuple[Value, Value]:
        """The values of `plan` above the rails, and below them."""
        return self._value(self.plan, 1)

    def _value(self, plan: Found, step: int = 0) -> tuple[Value, Value]:
        """Return the same of another plan, whose socket distances count in steps.

        A search about all nodes loses nothing at the levels above, so their values are left out there.
        """
        instance, topology = self.instance, self.instance.columns.topology
        rows = np.array([share.row for share in plan.shares])
        counts = np.array([share.counts for share in plan.shares], np.int64)
        sets = [share.gpus for share in plan.shares]
        above: Value = ()
        if self._few_nodes:
            parts = [len(np.unique(topology.index_or_own(scope)[rows])) for scope in instance.levels]
            domains = set[str]().union(*(topology.touched(*pair) for pair in _masks(plan).items()))
            links = (-min(gpus.weakest for gpus in sets), -sum(gpus.ring for gpus in sets))
            sockets = sum(gpus.sockets for gpus in sets) // (step or self._step)
            above = (*parts, len(rows), len(domains), *links, sockets)
        damage = sum(gpus.damage for gpus in sets)
        if instance.prices is not None:
            ways, way = np.unique(counts, axis=0, return_inverse=True)
            priced = instance.prices.of_whole(rows, instance.gpus(ways), instance.cpu(ways))
            damage = int(priced[np.arange(len(rows)), way].sum())
        return above, (damage, int(best_fit(instance, rows, counts[:, None]).sum()))


def _avoided(shape: Shape, rails: Rails) -> int:
    return mask_of([gpu for gpu, rail in enumerate(shape.topology.rail_by_gpu) if rail not in rails])


def _fewest_on_one(view: Columns, gpus: int) -> int:
    """Return on how many rails this many GPUs of one node lie at least."""
    if any(not shape.topology.rail_by_gpu for shape in view.shapes if shape.topology.gpu_count):
        return 0
    return -(-gpus // max(max(Counter(s.topology.rail_by_gpu).values(), default=1) for s in view.shapes))


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """The GPUs that nodes could give to the gang, and sums that say which rails could hold it.

    A plan that keeps the levels above takes `total` GPUs in one home, on at most `nodes` nodes in at most
    `parts` parts. A node gives a multiple of `unit` GPUs, a part a multiple of `step`. [node]: the row, the
    home, the part, and at most how many GPUs members there take. Nodes are sorted by home, then by part.

    `on_rail` [rail, node] is how many GPUs are free on each of `rails`, and `free` [node] how many in all.
    """

    total: int
    nodes: int
    parts: int
    unit: int
    step: int
    rows: Ints
    home: Ints
    part: Ints
    most: Ints
    rails: Sequence[int]
    on_rail: Ints
    free: Ints

    @classmethod
    def of(cls, instance: Instance, need: Counts, nodes: Sequence[int], total: int) -> _Room:
        """Return the GPUs of the homes that could hold the gang. The best plan so far has GPUs on `nodes`."""
        view = instance.columns
        roles = [r for r, count in enumerate(need) if count and instance.roles[r].gpus]
        gpus = np.array([instance.roles[r].gpus for r in roles], np.int64)
        unit = gcd(*(int(size) * instance.common_unit(r) for size, r in zip(gpus, roles, strict=True)))
        most = np.minimum(gpus @ instance.room[roles], view.free_count)
        home = part = np.zeros(len(most), np.int64)
        parts, step = 1, unit
        for scope in instance.levels:
            part = view.topology.index_or_own(scope)
            parts = len(np.unique(part[nodes]))
            if parts == 1:
                home = part
        bound = bound_by_domain(instance, roles[0], need[roles[0]]) if len(roles) == 1 else ""
        if parts > 1 and isinstance(bound, DomainRules):
            step = bound.step * int(gpus[0])
        rows = np.flatnonzero(most)
        if home.any():
            rows = rows[_hold(most[None] // unit, home, len(nodes), total // unit)[0][home[rows]]]
        if parts > 1:
            rows = rows[np.argsort(home[rows] * (int(part.max()) + 1) + part[rows], kind="stable")]
        lines = _free_by_rail(view, rows, _rails_of(view, instance.existing.masks))
        home, part, most = renumbered(home[rows]), part[rows], most[rows]
        return cls(total, len(nodes), parts, unit, step, rows, home, part, most, *lines)

    def holds(self, sets: Bools) -> Bools:
        """Return [set, home] whether sums say that the gang could lie there. `sets` is [set, rail] bool."""
        return self._holding(self.free - (~sets).astype(np.int64) @ self.on_rail)

    @property
    def needed(self) -> Bools:
        """[rail, home] Whether the gang could not lie there without the rail."""
        return ~self._holding(self.free - self.on_rail)

    def _holding(self, gpus: Ints) -> Bools:
        """Return [set, home] whether nodes that give at most `gpus` [set, node] could hold the gang.

        If several parts count, nodes have a price in GPUs. So that many parts gain at most what their GPUs
        exceed the prices of their nodes. With the prices of all nodes of a plan, they must reach the total.
        """
        gpus, total = np.minimum(gpus, self.most), self.total // self.unit
        if self.unit > 1:  # for 1 it would take as long as all the rest
            gpus //= self.unit
        if self.parts == 1:
            return _hold(gpus, self.home, self.nodes, total)
        holds = np.ones((len(gpus), int(self.home.max()) + 1), bool)
        first = np.flatnonzero(np.diff(self.part, prepend=-1) | np.diff(self.home, prepend=-1))
        for price in (0, *range(total // self.nodes, 0, -1)):
            doubtful = np.flatnonzero(holds.any(axis=1))
            if not len(doubtful):
                break
            exceeding = np.maximum(gpus[doubtful] - price, 0) if price else gpus
            gains = np.add.reduceat(exceeding, first, axis=1)
            if not price:
                gains = gains * self.unit // self.step * self.step // self.unit
            holds[doubtful] &= _hold(gains, self.home[first], self.parts, total - price * self.nodes)
        return holds


def _free_by_rail(view: Columns, rows: Ints, fixed: Rails) -> tuple[list[int], Ints, Ints]:
    """Return the rails of free GPUs and the `fixed` ones, [rail, node] how many are free, [node] in all."""
    lines = [shape.topology.rail_by_gpu for shape in view.shapes]
    rails = sorted(fixed.union(*lines))
    masks = np.array(
        [
            [mask_of([gpu for gpu, of_gpu in enumerate(line) if of_gpu == rail]) for line in lines]
            for rail in rails
        ]
    )
    free = view.free_gpus[rows]
    on_rail = gpu_counts(free & (masks if len(lines) == 1 else masks[:, view.shape[rows]]))
    there = on_rail.any(axis=1) | np.array([rail in fixed for rail in rails])
    return [*compress(rails, there)], on_rail[there], gpu_counts(free)


def _hold(amounts: Ints, group: Ints, count: int, total: int) -> Bools:
    """Return [line, group] whether the `count` largest of `amounts` [line, item] there sum up to the total.

    `group` is [item]. The sum is over all amounts from 1 up: how many of those are at least as large.
    """
    amounts = np.minimum(amounts, total)
    lines, groups, width = len(amounts), int(group.max()) + 1, int(amounts.max()) + 1
    codes = (np.arange(lines)[:, None] * groups + group) * width + amounts
    items = np.bincount(codes.ravel(), minlength=lines * groups * width).reshape(lines, groups, width)
    at_least = np.cumsum(items[:, :, :0:-1], axis=2)
    return np.asarray(np.minimum(at_least, count).sum(axis=2) >= total)
