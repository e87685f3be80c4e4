"""The best plan for exact counts of members within the parts of some scopes.

On one node it is read off; over several, zones, racks and nodes are counted on the coarse problem, then the
levels below are decided on the fine one. Greedy plans and bounds come first: where they meet, no solver runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.placement.bounds import Price, floor, prices
from muster.placement.classes import Parts, coarse, fine, patterns
from muster.placement.fabric import natural, parts_of
from muster.placement.gpusets import GpuSet, best_sets
from muster.placement.greedy import greedy
from muster.placement.limits import Budget
from muster.placement.model.objective import BEST_USE, COARSE, LINKS
from muster.placement.model.problem import NodeClass, Pattern, Problem, Use
from muster.placement.model.solve import Status, minimise, most_members
from muster.placement.narrowing import link_floors, narrowed
from muster.placement.site import Counts, Site, hosts


@dataclass(frozen=True, slots=True)
class Share:
    """What one node takes: members by role, and the GPUs for all of them."""

    node: str
    counts: Counts
    gpus: GpuSet


@dataclass(frozen=True, slots=True)
class Found:
    """Shares of the nodes; `gap` of the first level not proven best, None where all are.

    No shares: nothing fits, proven unless there is a gap.
    """

    shares: tuple[Share, ...]
    gap: float | None = None


def search(site: Site, scopes: tuple[str, ...], need: Counts, budget: Budget) -> Found:
    """The best plan with all members in one part of every scope of `scopes`."""
    parts = parts_of(scopes, site.places.values())
    share = _on_one_node(site, parts, need)
    if share is not None:
        return Found((share,))
    parts = {part: nodes for part, nodes in parts.items() if len(nodes) > 1}
    by_price = prices(site)
    problem, complete = coarse(site, parts, need, by_price)
    if not problem.classes:
        return Found((), None if complete else 1.0)
    use = greedy(problem, tuple(1000 * role.gpus + 1 for role in site.roles))
    gap: float | None = None
    for level in COARSE:
        bound = floor(problem, level.name, by_price)
        if bound is None:
            return Found((), None if complete else 1.0)
        outcome = minimise(problem, (level,), budget, use, {level.name: bound})
        if outcome.status is not Status.SOLVED:
            proven = outcome.status is Status.INFEASIBLE and complete
            return Found((), None if proven else 1.0)
        use, gap = outcome.use, outcome.gap if gap is None else gap
        problem = problem.keeping(**{level.name: level.value(problem, use)})
    shares, fine_gap = _fine(site, problem, _trimmed(problem, use or {}), by_price, budget)
    if gap is None:
        gap = fine_gap
    return Found(shares, gap if complete or gap is not None else 1.0)


def most(site: Site, scopes: tuple[str, ...], need: Counts, budget: Budget) -> tuple[Counts, str, bool]:
    """The most members that one part of the scopes holds, earlier roles first: (members, part, proven).

    `part` is the name of the part that holds them, "" for the whole cluster.
    """
    parts = parts_of(scopes, site.places.values())
    nothing = (0,) * len(need)
    if sum(n > 0 for n in need) == 1:
        role = next(r for r, n in enumerate(need) if n)
        best, name = nothing, ""
        for part, nodes in sorted(parts.items(), key=lambda item: tuple(map(natural, item[0]))):
            problem, _ = coarse(site, {part: nodes}, need, ())
            total = sum(max(p.counts[role] for p in cls.patterns) * cls.size for cls in problem.classes)
            if min(total, need[role]) > best[role]:
                best, name = (
                    (*nothing[:role], min(total, need[role]), *nothing[role + 1 :]),
                    " in ".join(part[::-1]),
                )
        return best, name, True
    problem, complete = coarse(site, parts, need, ())
    if not problem.classes:
        return nothing, "", complete
    counts, part_index, proven = most_members(
        Problem(need, problem.classes, exact=False, partial=True), budget
    )
    names = sorted(parts)
    return counts or nothing, " in ".join(names[part_index][::-1]), proven and complete


def _on_one_node(site: Site, parts: Parts, need: Counts) -> Share | None:
    """The best node that takes the whole gang: nothing crosses fewer parts."""
    best: tuple[tuple[object, ...], str, int, Pattern] | None = None
    for nodes in parts.values():
        for name, mask in nodes.items():
            place = site.places[name]
            if not hosts(site, place, mask, need):
                continue
            pattern = patterns(site, place, mask, need)[0]
            domains = int(pattern.gpus > 0) if place.wide else pattern.domains
            links = (domains, -pattern.weakest, -pattern.ring)
            key = (*links, pattern.damage, pattern.left_over, natural(name), mask)
            if best is None or key < best[0]:
                best = (key, name, mask, pattern)
    if best is None:
        return None
    _, name, mask, pattern = best
    place = site.places[name]
    return Share(
        name, need, best_sets(place.shape, place.state.free_gpus, pattern.gpus, mask)[pattern.choice]
    )


def _trimmed(problem: Problem, use: Use) -> dict[str, Counts]:
    """Members by node of a coarse solution, what is too many taken off, from the least filled nodes first."""
    hosted: dict[str, list[int]] = {}
    taken: dict[int, int] = {}
    for (c, p), count in sorted(use.items()):
        cls = problem.classes[c]
        start = taken.get(c, 0)
        taken[c] = start + count
        for name in cls.nodes[start : start + count]:
            hosted[name] = list(cls.patterns[p].counts)
    for role, need in enumerate(problem.need):
        excess = sum(counts[role] for counts in hosted.values()) - need
        for name in sorted(hosted, key=lambda name: (sum(hosted[name]), natural(name))):
            less = min(excess, hosted[name][role])
            hosted[name][role] -= less
            excess -= less
    return {name: tuple(counts) for name, counts in hosted.items() if any(counts)}


def _fine(
    site: Site,
    coarse_problem: Problem,
    incumbent: Mapping[str, Counts],
    by_price: tuple[Price, ...],
    budget: Budget,
) -> tuple[tuple[Share, ...], float | None]:
    """Decide the levels below the nodes, from the incumbent."""
    problem, complete = fine(site, coarse_problem, by_price, incumbent)
    first = minimise(problem, LINKS, budget, _as_use(problem, incumbent), link_floors(problem, by_price))
    kept = problem.keeping(**{level.name: level.value(problem, first.use) for level in LINKS})
    problem, use = narrowed(kept, first.use, by_price)
    outcome = minimise(problem, BEST_USE, budget, use)
    gap = first.gap if first.gap is not None else outcome.gap
    if gap is None and not complete:
        gap = 1.0
    shares: list[Share] = []
    left = {c: list(cls.nodes) for c, cls in enumerate(problem.classes)}
    for (c, p), count in sorted(outcome.use.items()):
        pattern = problem.classes[c].patterns[p]
        for name in left[c][:count]:
            place = site.places[name]
            chosen = best_sets(place.shape, place.state.free_gpus, pattern.gpus, place.all_gpus)[
                pattern.choice
            ]
            shares.append(Share(name, pattern.counts, chosen))
        del left[c][:count]
    return tuple(shares), gap


def _as_use(problem: Problem, incumbent: Mapping[str, Counts]) -> Use:
    """The incumbent as patterns of the fine problem: the first, best-linked GPU set of each mix."""

    def pattern_of(cls: NodeClass, counts: Counts) -> int:
        return next(p for p, pattern in enumerate(cls.patterns) if pattern.counts == counts)

    use: Use = {}
    for c, cls in enumerate(problem.classes):
        for name in cls.nodes:
            if name in incumbent:
                key = (c, pattern_of(cls, incumbent[name]))
                use[key] = use.get(key, 0) + 1
    return use
