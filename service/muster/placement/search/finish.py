"""The levels below the nodes, decided on the fine problem of one region whose parts and nodes are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from muster.placement.cluster.columns import Bools
from muster.placement.gang.site import Counts, Site
from muster.placement.gpus.costs import Cost
from muster.placement.limits import Budget
from muster.placement.model.objective import BEST_FIT, DAMAGE, NVLINK_DOMAINS, PREFERENCES, RING, Level
from muster.placement.model.problem import Problem, Use, carried, carried_back
from muster.placement.model.solve import Status, counted_scope, decide, feasible, nodes_bound
from muster.placement.search.chosen import chosen
from muster.placement.search.classes import fine, without_equals
from muster.placement.search.counting import Counted
from muster.placement.search.gap import Gap
from muster.placement.search.manyracks import in_many_racks
from muster.placement.search.onenode import Share, share_of

WEAKEST_LINK = "weakest_link"

LEVEL_SHARE = 1 / 8
"""Of the solver's time, at most, for each level below the nodes: a plan that is good is not held up for long
by the proof that it is best."""

Value = tuple[int, ...]
"""NVLink domains or what the gang prefers, minus the weakest link, minus the rings, damage, best fit: each to
be small."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The best plan of a region; no shares where it can't beat the best before, or nothing was found. `gap`
    of the first level not proven best."""

    value: Value
    shares: tuple[Share, ...]
    gap: Gap | None


def finish(site: Site, counted: Counted, budget: Budget, best: Value | None) -> Finished:
    """Decide the levels below the nodes, as long as the region may beat `best`."""
    with budget.phase("sets"):
        plans = counted.plans(site)
        tabled = in_many_racks(site, counted) if plans is None else plans.best(site)
    if tabled is not None:
        return Finished(*tabled, None)
    with budget.phase("sets"):
        if plans is not None:
            problem, use, complete = plans.problem, plans.first(counted.use), True
        else:
            problem, use, complete = _prepared(site, counted, budget)
    gap = None if complete else Gap(NVLINK_DOMAINS.name)
    value: list[int] = []
    preferences = [PREFERENCES[cost] for cost in site.costs or (Cost.NVLINK_DOMAINS,)]
    steps: list[Level | _Search] = [*preferences, _weakest, RING, DAMAGE, BEST_FIT]
    for step in steps:
        decided = (
            _decided(problem, step, use, budget) if isinstance(step, Level) else step(problem, use, budget)
        )
        if decided is None:
            level = step.name if isinstance(step, Level) else WEAKEST_LINK
            return Finished((), (), gap or Gap(level))
        problem, use = decided.problem, decided.use
        gap = gap or decided.gap
        value.append(decided.value)
        if best is not None and tuple(value) > best[: len(value)]:
            return Finished(tuple(value), (), gap)
    if use is None:
        return Finished((), (), gap or Gap(BEST_FIT.name))
    if plans is not None:
        return Finished(tuple(value), replace(plans, problem=problem).shares(site, use), gap)
    return Finished(tuple(value), _shares(site, problem, use), gap)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    problem: Problem
    use: Use | None
    value: int
    gap: Gap | None = None


_Search = Callable[[Problem, Use | None, Budget], _Step | None]


def _decided(problem: Problem, level: Level, use: Use | None, budget: Budget) -> _Step | None:
    with budget.share(LEVEL_SHARE):
        found = decide(problem, level, budget, use)
    if found.status is not Status.SOLVED:
        return None
    gap = None if found.gap is None else Gap(level.name, found.gap)
    return _Step(found.problem, found.use, found.value, gap)


def _prepared(site: Site, counted: Counted, budget: Budget) -> tuple[Problem, Use | None, bool]:
    """The fine problem without what can't be in a plan of so few nodes, and the coarse solution in its
    terms."""
    # Of racks counted as wholes, the solution does not say which nodes.
    placed = _trimmed(counted.problem, counted.use) if counted.racks is None else {}
    if site.costs:
        problem, complete = chosen(site, counted, placed, budget)
    else:
        problem, complete = fine(site, counted.problem)
    # Rules bind more than counts: on the nodes of the coarse solution, the solver finds who goes where.
    if site.plain:
        use = _as_use(problem, placed)
    else:
        used = {row for row, _, _ in counted.problem.taken(counted.use)} if counted.racks is None else set()
        use = _on_nodes(problem, sorted(used), budget)
    still_open, _ = nodes_bound(problem, counted.duals).within(problem, counted.value[-1])
    problem, use = _keeping(problem, still_open, use)
    scope, limit = counted_scope(problem)
    if scope is not None and limit is not None:
        kept = without_equals(problem, scope, max(1, limit))
        problem, use = _keeping(problem, problem.open & kept[:, None], use)
    counts = (problem.patterns.nodes[problem.kind] * problem.open).any(axis=1)
    most = np.where(counts, max(1, counted.value[-1]), problem.size)
    problem = replace(problem, size=np.minimum(problem.size, most))
    return problem, use, complete


def _keeping(problem: Problem, still_open: Bools, use: Use | None) -> tuple[Problem, Use | None]:
    """Narrowed, and what the solution uses in any case: equal racks may have been dropped for it."""
    narrowed, moved = problem.keeping_use(still_open, use or {})
    return narrowed, None if use is None else moved


def _trimmed(problem: Problem, use: Use) -> dict[int, Counts]:
    """Members by row of a coarse solution, what is too many taken off, from the least filled nodes first."""
    hosted: dict[int, list[int]] = {
        row: problem.patterns.counts[kind, p].tolist() for row, kind, p in problem.taken(use)
    }
    for role, need in enumerate(problem.need):
        excess = sum(counts[role] for counts in hosted.values()) - need
        for row in sorted(hosted, key=lambda row: (sum(hosted[row]), row)):
            less = min(excess, hosted[row][role])
            hosted[row][role] -= less
            excess -= less
    return {row: tuple(counts) for row, counts in hosted.items() if any(counts)}


def _on_nodes(problem: Problem, rows: list[int], budget: Budget) -> Use | None:
    """A solution on these nodes alone."""
    if not rows:
        return None
    used = np.isin(problem.rows, rows)
    size = np.array(
        [int(used[start : start + n].sum()) for start, n in zip(problem.start, problem.size, strict=True)]
    )
    inside = replace(problem, size=np.minimum(problem.size, size))
    inside, kept = inside.narrowed(inside.open & (size > 0)[:, None])
    solved = feasible(inside, budget)
    if solved.status is not Status.SOLVED:
        return None
    return carried_back(solved.use, kept)


def _as_use(problem: Problem, placed: Mapping[int, Counts]) -> Use | None:
    """Members by row as patterns of the fine problem: the first, best-linked GPU set of each mix."""
    use: Use = {}
    class_of = {int(row): c for c in range(problem.classes) for row in problem.nodes(c)}
    for row, counts in placed.items():
        c = class_of.get(row)
        if c is None:
            return None
        kind = problem.kind[c]
        same = (problem.patterns.counts[kind] == np.array(counts)).all(axis=1) & problem.patterns.valid[kind]
        found = np.flatnonzero(same)
        if not len(found):
            return None
        key = (c, int(found[0]))
        use[key] = use.get(key, 0) + 1
    return use


def _weakest(problem: Problem, use: Use | None, budget: Budget) -> _Step | None:
    """Walk the weakest links from the fastest down: the first that admits a plan is the level's value.

    Bandwidth is not monotone in members (islands 2 + 2: three GPUs are slower than two and four), so each
    threshold filters the patterns, and the bound or the solver says whether they still hold the gang.
    """
    patterns = problem.patterns
    links = np.where(problem.open, patterns.weakest[problem.kind], -1)
    used = min((int(links[c, p]) for c, p in use), default=-1) if use is not None else -1
    gap: Gap | None = None
    for threshold in sorted(set(links[problem.open].tolist()), reverse=True):
        fast = problem.open & (links >= threshold)
        if threshold <= used:
            return _Step(*_largest_rings(problem, fast, use), -threshold, gap)
        narrowed, kept = problem.narrowed(fast)
        if not narrowed.classes:
            continue
        if "nodes" in narrowed.at_most:
            with budget.phase("bound"):
                count = nodes_bound(narrowed)
            if count.lower > narrowed.at_most["nodes"] + 1e-6 * max(1, narrowed.at_most["nodes"]):
                continue
            still_open, _ = count.within(narrowed, narrowed.at_most["nodes"])
            narrowed, again = narrowed.narrowed(still_open)
            kept = kept[again]
        solved = feasible(narrowed, budget)
        if solved.status is Status.SOLVED:
            found = carried_back(solved.use, kept)
            return _Step(*_largest_rings(problem, fast, found), -threshold, gap)
        if solved.status is Status.UNKNOWN:
            gap = Gap(WEAKEST_LINK)
    return None


def _largest_rings(problem: Problem, fast: Bools, use: Use | None) -> tuple[Problem, Use | None]:
    """Of each mix on each class one GPU set is left: the last that is fast enough has the largest ring, and
    with it the least damage (see gpusets.best_sets)."""
    mix = problem.patterns.mix[problem.kind]
    width = fast.shape[1]
    later = np.zeros_like(fast)
    for p in range(width - 1):
        later[:, p] = fast[:, p + 1] & (mix[:, p + 1] == mix[:, p])
    still_open = fast & ~later
    moved: Use = {}
    for (c, p), nodes in (use or {}).items():
        last = max(q for q in range(width) if fast[c, q] and mix[c, q] == mix[c, p])
        moved[c, last] = moved.get((c, last), 0) + nodes
    narrowed, kept = problem.narrowed(still_open)
    return narrowed, None if use is None else carried(moved, kept)


def _shares(site: Site, problem: Problem, use: Use) -> tuple[Share, ...]:
    counts, choice = problem.patterns.counts, problem.patterns.choice
    return tuple(
        share_of(site, row, tuple(counts[kind, p].tolist()), int(choice[kind, p]))
        for row, kind, p in problem.taken(use)
    )
