"""Count domains as wholes, for one role that rules bind domain by domain: segments in a domain, or limits for
each domain.

Then a domain is one choice: how many members it takes. Its sorted capacities give the fewest nodes for each
number. The problem of domains has no rules left, and its bound is tight while that of the nodes is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from muster.placement.cluster.columns import Bools, Ints
from muster.placement.gang.instance import Instance
from muster.placement.model.objective import NODES, WEAKEST_LINK, WIDE, quality_levels, value_of
from muster.placement.model.problem import FREE, Patterns, Problem, Use
from muster.placement.search import node_tables
from muster.placement.search.classes import fine
from muster.placement.search.domain_choice import DomainChoice
from muster.placement.search.node_tables import NEVER
from muster.placement.search.plan import Share, Value
from muster.placement.search.runs import place_in_run
from muster.placement.search.single_node import share_of

MAX_CHOICES = 1 << 20
"""The most choices over all domains for which tables are made."""

FULLEST = 4
"""How many domains a first solution may use, as a multiple of those that the gang takes."""


def domain_problem(problem: Problem, levels: Sequence[str], role: int, unit: int) -> Problem | None:
    """Return the coarse problem with one class for each part of the narrowest level; None if that does not
    apply.

    It does not apply if members are bound by more than the part as a whole. On each node the members come in
    multiples of `unit`.
    """
    part, need = problem.part(levels[-1]), problem.need[role]
    if not problem.rules or (part == FREE).any() or problem.at_most:
        return None
    parts, first, part = np.unique(part, return_index=True, return_inverse=True)
    by_part: dict[str, Ints] = {}
    for other in set(problem.parts) & {*levels, WIDE}:
        of_class = problem.part(other)
        by_part[other] = of_class[first]
        if (by_part[other][part] != of_class).any():
            return None  # the part lies in several parts of the other scope
    wide = by_part.pop(WIDE, np.zeros(0, np.int64))
    if (wide != FREE).any() and ((wide == FREE).any() or len(np.unique(wide)) < len(wide)):
        # NVLink domains that span parts, or exist in some parts only, must be counted by themselves
        return None
    step, most = unit, np.full(len(parts), need)
    for rule in problem.rules:
        by_class = rule.part[problem.cell]
        if not rule.in_numbers or not _same(part, by_class):
            return None
        step = lcm(step, rule.step)
        if len(rule.left):
            np.minimum.at(most, part, rule.left[by_class])
    if need % step or len(parts) * (need // step) > MAX_CHOICES:
        return None
    counts = np.where(problem.open, problem.patterns.counts[problem.kind, :, role], 0).max(axis=1)
    return _with_tables(problem, by_part, (role, step), part, counts, most)


def _with_tables(
    problem: Problem,
    parts: Mapping[str, Ints],
    role_step: tuple[int, int],
    part: Ints,
    counts: Ints,
    most: Ints,
) -> Problem:
    (role, step), need = role_step, problem.need[role_step[0]]
    kinds: dict[bytes, int] = {}
    tables: list[Ints] = []
    kind = np.zeros(len(most), np.int64)
    nodes = np.repeat(counts, problem.size)
    nodes = nodes[np.lexsort((-nodes, np.repeat(part, problem.size)))]
    ends = np.cumsum(np.bincount(part, problem.size, len(most)).astype(np.int64))
    for p, caps in enumerate(np.split(nodes, ends[:-1])):
        reached = np.cumsum(caps)
        wanted = np.arange(step, min(int(most[p]), need, int(reached[-1]) if len(reached) else 0) + 1, step)
        table = np.searchsorted(reached, wanted) + 1
        key = table.tobytes()
        if key not in kinds:
            kinds[key] = len(tables)
            tables.append(table)
        kind[p] = kinds[key]
    one = step * (np.arange(len(problem.need)) == role)
    lists = [np.outer(np.arange(1, len(table) + 1), one).ravel() for table in tables]
    patterns = Patterns.of_counts(lists, len(problem.need))
    for k, table in enumerate(tables):
        patterns.nodes[k, : len(table)] = table
    every = np.arange(len(most))
    size = np.ones(len(most), np.int64)
    return replace(
        problem, patterns=patterns, cell=every, kind=kind, size=size, start=every, rows=every,
        open=patterns.valid[kind], parts=parts, exact=True, rules=(), unit=None,
    )  # fmt: skip


def first_of_domains(domains: Problem, scope: str) -> Use | None:
    """Return a solution of the problem of domains with few nodes: the best one in the fullest domains.

    The result is None if other parts are counted too, or if there is no such solution.
    """
    limit = domains.at_most.get(scope)
    if limit is None or len(domains.at_most) > 1:
        return None
    role = next(role for role, need in enumerate(domains.need) if need)
    counts = np.where(domains.open, domains.patterns.counts[domains.kind, :, role], 0)
    step = int(np.gcd.reduce(counts, axis=None, initial=domains.need[role]))
    few = np.argsort(-counts.max(axis=1), kind="stable")[: FULLEST * limit]
    domain, pattern = np.nonzero(domains.open[few])
    cost = np.full((len(few), int(counts.max()) // step + 1), NEVER)
    kind = domains.kind[few[domain]]
    cost[domain, counts[few[domain], pattern] // step] = domains.patterns.nodes[kind, pattern]
    chosen = DomainChoice(cost, np.zeros(len(few), bool), limit, domains.need[role] // step).best()
    if chosen is None:
        return None
    taken = counts[few[domain], pattern] == step * chosen[domain]
    return {(int(few[r]), int(p)): 1 for r, p in zip(domain[taken], pattern[taken], strict=True)}


def _same(part: Ints, other: Ints) -> bool:
    """Return whether two partitions of the classes are equal."""
    pairs = np.unique(np.stack([part, other]), axis=1).shape[1]
    return bool((other >= 0).all()) and pairs == len(np.unique(part)) == len(np.unique(other))


SUMMED = tuple(level for level in quality_levels(()) if level is not WEAKEST_LINK)
"""The levels below the nodes that are sums, for a gang without costs of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class DomainPlans:
    """What the parts of the narrowest level may take, each choice a pattern of `problem`, and how to fill the
    nodes.

    `tables` are by threshold of the weakest link, the fastest first.
    """

    problem: Problem
    tables: tuple[node_tables.Table, ...]
    choices: tuple[Ints, ...]
    """By threshold of the weakest link, [row, members] int64: the choice of the GPU set."""
    grid: Ints
    """[part, node] The index into `rows`, -1 for none."""
    rows: Ints
    use: Use | None = None

    def with_use(self, problem: Problem, use: Use | None) -> DomainPlans:
        """Return the same with another level decided."""
        return replace(self, problem=problem, use=use)

    def first(self, use: Use) -> Use | None:
        """Return the solution of the coarse problem of domains, with any links."""
        depth = len(self.tables)
        found: Use = {}
        for (c, p), domains in use.items():
            offered = [p * depth + t for t in range(depth) if self.problem.open[c, p * depth + t]]
            if not offered:
                return None
            found[c, offered[-1]] = domains
        return found

    def best(self, instance: Instance) -> tuple[Value, tuple[Share, ...]] | None:
        """Return the best plan, which is proven, and its value.

        The result is None if other parts are counted too, or if the table would be too large.
        """
        scope = instance.levels[-1]
        if {*self.problem.at_most} - {NODES.name, scope}:
            return None
        slowest = self._cheapest(scope, len(self.tables) - 1)  # with any links
        for threshold in range(len(self.tables)):
            found = self._cheapest(scope, threshold)
            if slowest and found and found[0][0] == slowest[0][0]:
                return found[0], replace(self, use=found[1]).shares(instance)
        return None

    def _cheapest(self, scope: str, threshold: int) -> tuple[tuple[int, ...], Use] | None:
        """Return the best plan with links at least as fast as this threshold."""
        problem, patterns, kind = self.problem, self.problem.patterns, self.problem.kind
        counts = patterns.counts[kind].sum(axis=2)
        offered = problem.open & (np.arange(counts.shape[1]) % len(self.tables) == threshold)
        limit, need = problem.at_most.get(scope, problem.classes), sum(problem.need)
        levels = [level.cost(patterns)[kind] for level in (NODES, *SUMMED)]
        combined = node_tables.combined(levels, offered, limit)
        if combined is None or not offered.any():
            return None
        step = int(np.gcd.reduce(counts[offered], initial=need))
        domain, pattern = np.nonzero(offered)
        cost = np.full((problem.classes, int(counts.max()) // step + 1), NEVER)
        cost[domain, counts[domain, pattern] // step] = combined.cost[domain, pattern]
        choice = DomainChoice(cost, np.zeros(problem.classes, bool), limit, need // step)
        chosen = choice.best() if choice.steps <= MAX_CHOICES else None
        if chosen is None:
            return None
        taken = counts[domain, pattern] == step * chosen[domain]
        at = (domain[taken], pattern[taken])
        nodes, *reached = (int(level[at].sum()) for level in levels)
        if nodes > problem.at_most[NODES.name]:
            return None  # links this fast need more nodes
        worth = {level.field: level.sign * cost for level, cost in zip(SUMMED, reached, strict=True)}
        worth[WEAKEST_LINK.field] = int(patterns.weakest[kind][at].min())
        return value_of(quality_levels(()), worth), {(int(r), int(p)): 1 for r, p in zip(*at, strict=True)}

    def shares(self, instance: Instance) -> tuple[Share, ...]:
        """Return the solution node by node."""
        patterns, found = self.problem.patterns, list[Share]()
        for (c, p), _ in sorted((self.use or {}).items()):
            kind, part = self.problem.kind[c], int(self.problem.rows[self.problem.start[c]])
            t, members = int(patterns.choice[kind, p]), int(patterns.counts[kind, p].sum())
            taken = self.tables[t].taken(part, int(patterns.nodes[kind, p]), members)
            for i in np.flatnonzero(taken).tolist():
                at = int(self.grid[part, i])
                counts = tuple(int(taken[i]) if n else 0 for n in patterns.counts[kind, p])
                choice = int(self.choices[t][at, taken[i]])
                found.append(share_of(instance, int(self.rows[at]), counts, choice))
        return tuple(found)


def domain_plans(instance: Instance, problem: Problem, domains: Problem, scope: str) -> DomainPlans | None:
    """Return the problem of domains with all patterns; None if it would be too large.

    `domains` is what is left of the coarse problem, and `problem` has its nodes. A plan with this number of
    nodes takes the fewest nodes in each domain, so each choice is an entry of a table.
    """
    role = next(role for role, need in enumerate(problem.need) if need)
    fine_problem, _ = fine(instance, problem)
    rows, kind = fine_problem.rows, np.repeat(fine_problem.kind, fine_problem.size)
    domain_of = np.repeat(fine_problem.part(scope), fine_problem.size)
    left = domains.rows[domains.start]
    part = np.searchsorted(np.unique(problem.part(scope)), domain_of)
    order = np.lexsort((rows, part))
    rows, kind, part = rows[order], kind[order], part[order]
    at = place_in_run(part)
    counts = domains.patterns.counts[domains.kind, :, role]
    need = int(counts[domains.open].max())
    nodes = int(domains.patterns.nodes[domains.kind][domains.open].max())
    patterns = fine_problem.patterns
    members, valid = patterns.counts[kind, :, role], patterns.valid[kind]
    most = int(members.max()) + 1
    if node_tables.steps(len(left), int(at.max()) + 1, nodes, need, most) > node_tables.MAX_STEPS:
        return None
    grid = np.full((len(left), int(at.max()) + 1), -1, np.int64)
    grid[part, at] = np.arange(len(rows))
    found: list[tuple[int, node_tables.Table, Ints, list[Ints], Bools]] = []
    for threshold in sorted(set(patterns.weakest[kind][valid].tolist()), reverse=True):
        fast = valid & (patterns.weakest[kind] >= threshold)
        chosen = np.full((len(rows), most), -1, np.int64)
        for p in range(fast.shape[1]):  # later choices of a packing have larger rings
            chosen[fast[:, p], members[fast[:, p], p]] = p
        allowed = chosen >= 0
        picked = np.maximum(chosen, 0)
        levels = [np.take_along_axis(level.cost(patterns)[kind], picked, 1) for level in SUMMED]
        cost = node_tables.combined(levels, allowed, nodes)
        if cost is None:
            return None
        by_node = np.full((*grid.shape, most), node_tables.NEVER, np.int64)
        by_node[part, at] = cost.cost
        table = node_tables.table_of(by_node, need, nodes)
        fewest = domains.patterns.nodes[domains.kind]
        total = table.cost[np.arange(len(left))[:, None], np.minimum(fewest, nodes), np.minimum(counts, need)]
        ok = domains.open & (total < node_tables.NEVER)
        choice = np.take_along_axis(patterns.choice[kind], picked, 1)
        found.append((threshold, table, choice, cost.parted(np.where(ok, total, 0), fewest), ok))
    return DomainPlans(
        _of_plans(domains, role, instance.roles[role].gpus, found),
        tuple(f[1] for f in found),
        tuple(f[2] for f in found),
        grid,
        rows,
    )


def _of_plans(
    coarse: Problem, role: int, gpus: int, found: list[tuple[int, node_tables.Table, Ints, list[Ints], Bools]]
) -> Problem:
    """Return one class for each domain. Its patterns are by number of members, then by threshold, the fastest
    first.
    """
    classes, width = coarse.open.shape
    depth = len(found)
    shape = (classes, width * depth)

    def spread(of_threshold: list[Ints]) -> Ints:
        return np.stack(of_threshold, axis=2).reshape(shape)

    every = [np.asarray(coarse.patterns.counts[coarse.kind, :, role])] * depth
    valid = np.stack([ok for *_, ok in found], axis=2).reshape(shape)
    counts = np.zeros((*shape, len(coarse.need)), np.int64)
    counts[:, :, role] = spread(every)
    packing = np.broadcast_to(np.arange(width)[None, :, None], (classes, width, depth)).reshape(shape)
    choice = np.broadcast_to(np.arange(depth)[None, None, :], (classes, width, depth)).reshape(shape)
    weakest = [np.full((classes, width), threshold) for threshold, *_ in found]
    sums = {
        level.field: level.sign * spread([levels[i] for *_, levels, _ in found])
        for i, level in enumerate(SUMMED)
    }
    patterns = Patterns(
        counts, valid, nodes=spread([coarse.patterns.nodes[coarse.kind]] * depth),
        weakest=spread(weakest), gpus=counts[:, :, role] * gpus,
        packing=np.ascontiguousarray(packing), choice=np.ascontiguousarray(choice), costs=sums,
    )  # fmt: skip
    each = np.arange(classes)
    return replace(
        coarse,
        patterns=patterns,
        kind=each,
        open=valid,
        rows=each,
        start=each,
        size=np.ones(classes, np.int64),
    )
