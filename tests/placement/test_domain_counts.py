"""Racks and nodes of one role, counted by prices: as by trying everything, and no best plan is ruled out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from muster.placement.search.domain_counts import DomainNodes

LARGE = 10**9


@pytest.mark.parametrize("seed", range(300))
def test_racks_and_nodes_are_counted_as_by_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cap = rng.integers(1, int(rng.integers(2, 9)), int(rng.integers(2, 13)))
    rack = rng.integers(0, 4, len(cap))
    need = int(rng.integers(1, cap.sum() + 1))
    racks = DomainNodes.of(np.arange(len(cap)) + 100, cap, rack, need)

    held = [np.cumsum(np.sort(cap[rack == each])[::-1]) for each in np.unique(rack)]
    plans = [plan for plan in product(*(range(int(line[-1]) + 1) for line in held)) if sum(plan) == need]
    limit = min(sum(members > 0 for members in plan) for plan in plans)
    plans = [plan for plan in plans if sum(members > 0 for members in plan) == limit]

    def nodes(plan: tuple[int, ...]) -> int:
        return sum(int(np.searchsorted(line, m)) + 1 for line, m in zip(held, plan, strict=True) if m)

    fewest = min(map(nodes, plans))
    choices = racks.counted(LARGE)
    assert choices is not None
    assert (racks.limit, choices.nodes) == (limit, fewest)
    best = [plan for plan in plans if nodes(plan) == fewest]
    kept = {rack[choices.domains.rows[at[0]] - 100]: i for i, at in enumerate(choices.domains.at)}
    for plan in best:
        taken = {each: members for each, members in zip(np.unique(rack), plan, strict=True) if members}
        assert all(choices.open[kept[each], members] for each, members in taken.items())
        assert all(each in taken for each, i in kept.items() if choices.always[i])


@pytest.mark.parametrize("seed", range(300))
def test_the_nodes_of_a_rack_are_the_roomiest_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cap, rack = rng.integers(1, 9, 20), rng.integers(0, 5, 20)
    racks = DomainNodes.of(np.arange(20), cap, rack, 1)
    for line, at in zip(racks.cap, racks.at, strict=True):
        rows = racks.rows[at[line > 0]]
        assert (cap[rows] == line[line > 0]).all()
        assert len(set(rack[rows].tolist())) == 1
        assert (np.diff(line) <= 0).all()


def test_what_prices_do_not_tell_takes_a_table() -> None:
    """12 members in two of three racks. Half of 3 + 3 + 3 and both 5s would do with 3 nodes and a half; whole
    racks need 4."""
    racks = DomainNodes.of(np.arange(5), np.array([3, 3, 3, 5, 5]), np.array([0, 0, 0, 1, 2]), 12)
    counted = racks.counted(LARGE)
    assert counted is not None
    assert (racks.limit, counted.nodes) == (2, 4)
    assert racks.counted(0) is None
