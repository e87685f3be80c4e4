"""Add to the model what follows from rules part by part. The solver would take long to find it, and it loses
no plan.

If rules force members into a part, the part uses at least a number of nodes. It also pays for these members:
a table has the least cost of a number of members on a number of nodes, whichever nodes of the part these are.
"""

from __future__ import annotations

import numpy as np

from muster.placement.model.objective import NODES, Level
from muster.placement.model.problem import Ints, Problem
from muster.placement.model.shares import PartShare, shares
from muster.placement.model.variables import LinearExpr, Variables

MAX_CHOICES = 16
"""The most numbers of members in one part for which each number is a choice of the model."""

MAX_MEMBERS = 256
"""The most members, and the most nodes, of a part for which tables are made."""

MAX_CLASSES = 128
"""The most classes of nodes for which tables are made."""

NEVER = np.int64(1) << 50


def add(variables: Variables, level: Level | None) -> None:
    """Add to the model the fewest nodes of each part, and the least cost of each part at the level to
    minimise.
    """
    problem = variables.problem
    if not problem.rules or (problem.patterns.nodes[problem.patterns.valid] == 0).any():
        return
    # With several roles, or with very different nodes, tables of members are too weak to help.
    alike = sum(map(bool, problem.need)) == 1 and problem.classes <= MAX_CLASSES
    for i, share in enumerate(shares(problem)):
        fewest = share.fewest_nodes(problem)
        for part, nodes in fewest.items():
            here = [
                v
                for g, group in enumerate(variables.groups)
                if share.part[group.classes[0]] == part
                for v in variables.of_group[g]
            ]
            taken = LinearExpr.sum([variables.takes[v] for v in here])
            variables.model.add(taken >= nodes).with_name(f"by_part/{i}/{part}/nodes")
            if alike and level is not None and problem.exact and NODES.name in problem.at_most:
                others = sum(fewest.values()) - nodes
                spare = problem.at_most[NODES.name] - others
                _add_cost(variables, level, share, (part, here), spare, f"by_part/{i}/{part}")


def _add_cost(
    variables: Variables, level: Level, share: PartShare, where: tuple[int, list[int]], nodes: int, name: str
) -> None:
    """Make the part pay for the members that it takes, on at most this many nodes."""
    problem, (part, here) = variables.problem, where
    low, high = int(share.low[part]), int(share.high[part])
    if not 0 <= high - low < MAX_CHOICES or high > MAX_MEMBERS or not 0 < nodes <= MAX_MEMBERS:
        return
    counts = np.asarray(problem.patterns.counts[:, :, list(share.roles)].sum(axis=2), np.int64)
    cost = level.cost(problem.patterns)
    least = _least(problem, counts, cost, share.part == part, (nodes, high))
    chosen, model = [], variables.model
    for members in range(low, high + 1):
        if least[members] < NEVER // 2:
            chosen.append((members, int(least[members]), model.new_bool_var(f"{name}/{members}")))
    model.add_exactly_one([here_so_many for *_, here_so_many in chosen])
    total = LinearExpr.weighted_sum([each for *_, each in chosen], [members for members, *_ in chosen])
    model.add(variables.total(counts, here) == total).with_name(f"{name}/members")
    paid = LinearExpr.weighted_sum([each for *_, each in chosen], [price for _, price, _ in chosen])
    model.add(variables.total(cost, here) >= paid).with_name(f"{name}/cost")


def _least(problem: Problem, counts: Ints, cost: Ints, inside: Ints, most: tuple[int, int]) -> Ints:
    """Return [members] the least cost on up to `nodes` nodes, each as good as the best node of the part."""
    nodes, members = most
    kind = problem.kind[inside][:, None]
    pattern = np.arange(problem.open.shape[1])
    still_open = problem.open[inside]
    each = np.full(int(counts.max(initial=0)) + 1, NEVER)
    np.minimum.at(each, counts[kind, pattern][still_open], cost[kind, pattern][still_open])
    table = np.full(members + 1, NEVER)
    table[0] = 0
    best = table.copy()
    for _ in range(nodes):
        grown = np.full_like(table, NEVER)
        for count in np.flatnonzero(each < NEVER).tolist():
            if count <= members:
                reached = table[: members + 1 - count] + each[count]
                np.minimum(grown[count:], reached, out=grown[count:])
        table = np.minimum(grown, NEVER)
        best = np.minimum(best, table)
    return best
