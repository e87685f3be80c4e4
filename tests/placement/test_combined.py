"""Several levels as one number: plans keep their order, and the number is no larger than it needs to be."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from muster.placement.search.node_tables import NEVER, combined


@pytest.mark.parametrize("exactly", [False, True], ids=["one or two nodes", "two nodes"])
@pytest.mark.parametrize("seed", range(20))
def test_plans_are_in_the_order_of_their_levels(seed: int, exactly: bool) -> None:
    """Every plan of at most, or of exactly, two of four nodes, by the number and by the levels one after
    another.
    """
    rng = np.random.default_rng(seed)
    levels = [rng.integers(-5, 5, (4, 3)) * unit for unit in (3, 1, 250)]
    valid = rng.random((4, 3)) < 0.8
    one = combined(levels, valid, 2, exactly=exactly)
    assert one is not None
    for nodes in (2,) if exactly else (1, 2):
        plans = [
            (rows, choices)
            for rows in combinations(range(4), nodes)
            for choices in product(range(3), repeat=nodes)
            if valid[rows, choices].all()
        ]
        totals = {plan: int(one.cost[plan].sum()) for plan in plans}
        sums = {plan: tuple(int(level[plan].sum()) for level in levels) for plan in plans}
        assert sorted(plans, key=lambda plan: (totals[plan], plan)) == sorted(
            plans, key=lambda plan: (sums[plan], plan)
        )
        for plan in plans:
            parted = one.parted(np.array([totals[plan]]), np.array([nodes]))
            assert tuple(int(level[0]) for level in parted) == sums[plan]


def test_only_what_the_nodes_can_sum_up_to_counts() -> None:
    """One node differs, of a thousand: each level has two values, and thirty of them fit."""
    level, valid = np.zeros((1000, 2), np.int64), np.ones((1000, 2), bool)
    level[0, 1] = 1
    one = combined([level] * 30, valid, 1000)
    assert one is not None
    assert one.cost.max() < NEVER
    assert combined([level] * 62, valid, 1000) is None


def test_what_all_plans_have_takes_no_room() -> None:
    """All plans use a hundred nodes, and all but one choice are the same: each level has two values."""
    level, valid = np.full((100, 2), 60, np.int64), np.ones((100, 2), bool)
    valid[0], level[0, 0], level[0, 1] = [True, False], 0, 0
    level[99, 1] = 61
    levels = [level] * 6
    assert combined(levels, valid, 100) is None
    one = combined(levels, valid, 100, exactly=True)
    assert one is not None
    cheap, dear = one.cost[:, 0].sum(), one.cost[:, 0].sum() - one.cost[99, 0] + one.cost[99, 1]
    assert cheap < dear < NEVER
    assert [int(sums[0]) for sums in one.parted(np.array([dear]), np.array([100]))] == [99 * 60 + 1] * 6
