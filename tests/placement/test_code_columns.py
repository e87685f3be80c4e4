"""Codes in columns: counting and one sort give what sorting by several keys gives."""

from __future__ import annotations

import numpy as np
import pytest

from muster.placement.search.regions import fullest_first_order, position_in_run, renumber


def test_the_place_in_a_run_starts_again_with_each_code() -> None:
    assert position_in_run(np.array([7, 7, 7, 2, 2, 9])).tolist() == [0, 1, 2, 0, 1, 0]
    assert position_in_run(np.zeros(0, np.int64)).tolist() == []


def test_the_fullest_come_first_in_each_code_and_equal_ones_keep_their_order() -> None:
    rng = np.random.default_rng(5)
    codes, cap = rng.integers(0, 9, 300), rng.integers(0, 5, 300)
    assert fullest_first_order(codes, cap).tolist() == np.lexsort((-cap, codes)).tolist()
    assert fullest_first_order(codes[:0], cap[:0]).tolist() == []


@pytest.mark.parametrize("largest", [3, 100, 10**12])
def test_renumbered_codes_keep_their_order(largest: int) -> None:
    codes = np.random.default_rng(largest).integers(0, largest, 200)
    assert renumber(codes).tolist() == np.unique(codes, return_inverse=True)[1].tolist()
    assert renumber(codes[:0]).tolist() == []
