"""Racks and nodes of one role, counted by prices: as by trying everything, and no best plan is ruled out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from muster.placement.search import capacities
from muster.placement.search.capacities import DomainCapacities


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("seed", range(300))
def test_racks_and_nodes_are_counted_as_by_trying_everything(seed: int, step: int) -> None:
    """Members in a rack are a multiple of the step, and some racks have a limit."""
    rng = np.random.default_rng(seed)
    cap = step * rng.integers(1, int(rng.integers(2, 9)), int(rng.integers(2, 13)))
    rack = rng.integers(0, 4, len(cap))
    most = np.where(rng.random(4) < 0.3, rng.integers(1, 9, 4), 99)
    capacity_sums = [np.cumsum(np.sort(cap[rack == code])[::-1]) for code in range(4)]
    room = [
        min(int(line[-1]), int(limit)) // step * step if len(line) else 0
        for line, limit in zip(capacity_sums, most, strict=True)
    ]
    if not sum(room):
        return
    need = step * int(rng.integers(1, sum(room) // step + 1))
    domains = DomainCapacities.of(
        np.arange(len(cap)) + 100, cap, rack, need, step=step, max_members=most[rack]
    )

    plans = [plan for plan in product(*(range(0, n + 1, step) for n in room)) if sum(plan) == need]
    limit = min(sum(members > 0 for members in plan) for plan in plans)
    plans = [plan for plan in plans if sum(members > 0 for members in plan) == limit]

    def nodes(plan: tuple[int, ...]) -> int:
        return sum(
            int(np.searchsorted(line, m)) + 1 for line, m in zip(capacity_sums, plan, strict=True) if m
        )

    fewest = min(map(nodes, plans))
    choices = domains.options_at_fewest_nodes()
    assert choices is not None
    assert (domains.limit, choices.nodes) == (limit, fewest)
    index = {rack[row - 100]: domain for row, domain in zip(choices.rows, choices.domain, strict=True)}
    for plan in (plan for plan in plans if nodes(plan) == fewest):
        for code, members in enumerate(plan):
            if members:
                (amount,) = np.flatnonzero(domains.member_counts == members)
                assert choices.open[index[code], amount]
                _assert_kept(choices, index[code], cap[rack == code], members)


def _assert_kept(choices: capacities.DomainOptions, domain: int, caps: np.ndarray, members: int) -> None:
    """Each node that can take some of the members, on the fewest nodes, is there and may take its part."""
    caps = np.sort(caps)[::-1]
    fewest = int(np.searchsorted(np.cumsum(caps), members)) + 1
    for cap in set(caps.tolist()):
        fullest = caps[: fewest - 1].sum() if cap <= caps[fewest - 1] else caps[:fewest].sum() - cap
        least = max(1, int(members - fullest))
        min_members = choices.min_members[(choices.domain == domain) & (choices.cap == cap)]
        assert least > cap or (len(min_members) == (caps == cap).sum() and (min_members <= least).all())


def test_what_prices_do_not_tell_takes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 members in two of three racks. Half of 3 + 3 + 3 and both 5s would do with 3 nodes and a half; whole
    racks need 4."""
    racks = DomainCapacities.of(np.arange(5), np.array([3, 3, 3, 5, 5]), np.array([0, 0, 0, 1, 2]), 12)
    choices = racks.options_at_fewest_nodes()
    assert choices is not None
    assert (racks.limit, choices.nodes) == (2, 4)
    monkeypatch.setattr(capacities, "MAX_TABLE_WORK", 0)
    assert racks.options_at_fewest_nodes() is None
