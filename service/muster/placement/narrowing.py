"""What the levels decided so far leave of the fine problem: fewer patterns and regions. All of it exact."""

from __future__ import annotations

from dataclasses import replace

from muster.placement.bounds import Price, capacity, floor, group, region_of, worth
from muster.placement.model.problem import NodeClass, Pattern, Problem, Use, weakest_ranks


def link_floors(problem: Problem, by_price: tuple[Price, ...]) -> dict[str, int]:
    """Proven bounds of the levels nvlink_domains and weakest_link, without a solver."""
    floors = {"nvlink_domains": 0, "weakest_link": 0}
    patterns = [pattern for cls in problem.classes for pattern in cls.patterns]
    if patterns and all(cls.domain < 0 for cls in problem.classes):
        # The nodes are as few as can be, so each of them is touched; those with GPUs, in one domain at least.
        floors["nvlink_domains"] = max(
            dict(problem.at_most)["nodes"] * min(p.domains for p in patterns),
            _nodes_with_gpus(problem, by_price) * min((p.domains for p in patterns if p.gpus), default=0),
        )
    ranks = weakest_ranks(problem)
    for rank in range(max(ranks.values()) + 1):
        if _feasible(problem, [_left(cls, ranks, rank) for cls in problem.classes], by_price):
            floors["weakest_link"] = rank
            break
    return floors


def _nodes_with_gpus(problem: Problem, by_price: tuple[Price, ...]) -> int:
    """The fewest nodes that can hold the members with GPUs: prices that value no others bound them."""
    without = {
        role
        for cls in problem.classes
        for pattern in cls.patterns
        if not pattern.gpus
        for role, count in enumerate(pattern.counts)
        if count
    }
    of_gpus = [price for price in by_price if not any(price[role] for role in without)]
    return (floor(problem, "nodes", of_gpus) or 0) if of_gpus else 0


def narrowed(problem: Problem, use: Use, by_price: tuple[Price, ...]) -> tuple[Problem, Use]:
    """The problem and its solution with the weakest link decided.

    Of each mix on each class one GPU set is left: that of the largest ring among those fast enough. Regions
    that hold the gang no more are dropped.
    """
    ranks, decided = weakest_ranks(problem), dict(problem.at_most)["weakest_link"]
    left = [_left(cls, ranks, decided) for cls in problem.classes]
    kept = _feasible(problem, left, by_price)
    used = {c for c, _ in use}
    classes: list[NodeClass] = []
    new_use: Use = {}
    for c, cls in enumerate(left):
        if not cls.patterns or (id(cls) not in kept and c not in used):
            continue
        for (at, p), nodes in use.items():
            if at == c:
                counts = problem.classes[c].patterns[p].counts
                index = next(i for i, pattern in enumerate(cls.patterns) if pattern.counts == counts)
                key = (len(classes), index)
                new_use[key] = new_use.get(key, 0) + nodes
        classes.append(cls)
    # All patterns left are fast enough, and their ranks are counted anew.
    at_most = tuple((name, value) for name, value in problem.at_most if name != "weakest_link")
    return replace(problem, classes=tuple(classes), at_most=at_most), new_use


def _left(cls: NodeClass, ranks: dict[int, int], rank: int) -> NodeClass:
    """The class with, of each mix, the last pattern of that rank or a better one (see gpusets.best_sets)."""
    best: dict[tuple[int, ...], Pattern] = {}
    for pattern in cls.patterns:
        if ranks[pattern.weakest] <= rank:
            best[pattern.counts] = pattern
    return replace(cls, patterns=tuple(best.values()))


def _feasible(problem: Problem, classes: list[NodeClass], by_price: tuple[Price, ...]) -> set[int]:
    """The classes (by id) of regions whose fullest nodes can still hold the gang."""
    nodes = dict(problem.at_most)["nodes"]
    kept: set[int] = set()
    for region in group(classes, region_of(problem)).values():
        filled = [cls for cls in region if cls.patterns]
        if all(_holds(filled, price, worth(price, problem.need), nodes) for price in by_price):
            kept.update(id(cls) for cls in filled)
    return kept


def _holds(classes: list[NodeClass], price: Price, need: int, nodes: int) -> bool:
    values = sorted((value for cls in classes for value in [capacity(price, cls)] * cls.size), reverse=True)
    return sum(values[:nodes]) >= need
