"""Tables over members: as by trying everything, and one number keeps the order of the levels."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from muster.placement.search.tables import NEVER, Table, combine_levels


@pytest.mark.parametrize("seed", range(20))
def test_plans_are_in_the_order_of_their_levels(seed: int) -> None:
    """Every plan of two of four nodes, by the number and by the levels one after another."""
    rng = np.random.default_rng(seed)
    levels = [rng.integers(-5, 5, (4, 3)) * unit for unit in (3, 1, 250)]
    valid = rng.random((4, 3)) < 0.8
    cost = combine_levels(levels, valid, 2)
    assert cost is not None
    plans = [
        (rows, choices)
        for rows in combinations(range(4), 2)
        for choices in product(range(3), repeat=2)
        if valid[rows, choices].all()
    ]
    totals = {plan: int(cost.cost[plan].sum()) for plan in plans}
    sums = {plan: tuple(int(level[plan].sum()) for level in levels) for plan in plans}
    assert sorted(plans, key=lambda plan: (totals[plan], plan)) == sorted(
        plans, key=lambda plan: (sums[plan], plan)
    )
    assert all(total <= cost.max_total for total in totals.values())
    assert max(totals.values(), default=0) - min(totals.values(), default=0) < cost.per_node_offset


def test_only_what_the_nodes_can_sum_up_to_counts() -> None:
    """One node differs, of a thousand: each level has two values, and thirty of them fit."""
    level, valid = np.zeros((1000, 2), np.int64), np.ones((1000, 2), bool)
    level[0, 1] = 1
    cost = combine_levels([level] * 30, valid, 1000)
    assert cost is not None
    assert cost.cost[valid].max() < NEVER
    assert combine_levels([level] * 62, valid, 1000) is None


def test_what_all_plans_have_takes_no_room() -> None:
    """All plans use a hundred nodes, and all but one choice are the same: each level has two values."""
    level, valid = np.full((100, 2), 60, np.int64), np.ones((100, 2), bool)
    valid[0], level[0, 0], level[0, 1] = [True, False], 0, 0
    level[99, 1] = 61
    cost = combine_levels([level] * 6, valid, 100)
    assert cost is not None
    cheap, dear = cost.cost[:, 0].sum(), cost.cost[:, 0].sum() - cost.cost[99, 0] + cost.cost[99, 1]
    assert cheap < dear < NEVER


@pytest.mark.parametrize("seed", range(100))
def test_parts_are_filled_as_by_trying_everything(seed: int) -> None:
    """The least cost of each number of members, and a split that has this cost."""
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 30, (2, 4, 5))
    cost[rng.random(cost.shape) < 0.3] = NEVER
    cost[:, :, 0] = 0
    low = int(rng.integers(0, 13))
    table = Table.of(cost.copy(), low, 12)
    for part in range(2):
        for members in range(low, 13):
            plans = [plan for plan in product(range(5), repeat=4) if sum(plan) == members]
            least = min(
                (sum(int(cost[part, i, n]) for i, n in enumerate(plan)) for plan in plans), default=NEVER
            )
            assert min(least, NEVER) == table.total[part, members]
            if least < NEVER:
                (split,) = table.split(np.array([part]), np.array([members]))
                assert split.sum() == members
                assert sum(int(cost[part, i, n]) for i, n in enumerate(split)) == least
